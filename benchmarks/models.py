"""The networks of the table, in the vocabulary that Aster and tinygrad share.

Receives a library whose `Tensor` and `nn` it writes them with; `torch_models` has the same networks
under the same names of parameters. Knows nothing of how or when they are run.
"""

from __future__ import annotations

from typing import Any


class BasicBlock:
    """Two 3x3 convolutions and the way around them."""

    def __init__(self, nn: Any, c_in: int, c_out: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm(c_out)
        self.downsample: list[Any] = []
        if stride != 1 or c_in != c_out:
            self.downsample = [
                nn.Conv2d(c_in, c_out, 1, stride=stride, bias=False),
                nn.BatchNorm(c_out),
            ]

    def __call__(self, x: Any) -> Any:
        """[b, c_in, h, w] -> [b, c_out, h / stride, w / stride]."""
        out = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (out + x.sequential(self.downsample)).relu()


class ResNet18:
    """ResNet-18 as He et al. (2015) have it, for 1,000 classes."""

    def __init__(self, nn: Any) -> None:
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm(64)
        self.layer1 = [BasicBlock(nn, 64, 64, 1), BasicBlock(nn, 64, 64, 1)]
        self.layer2 = [BasicBlock(nn, 64, 128, 2), BasicBlock(nn, 128, 128, 1)]
        self.layer3 = [BasicBlock(nn, 128, 256, 2), BasicBlock(nn, 256, 256, 1)]
        self.layer4 = [BasicBlock(nn, 256, 512, 2), BasicBlock(nn, 512, 512, 1)]
        self.fc = nn.Linear(512, 1000)

    def __call__(self, x: Any) -> Any:
        """[b, 3, h, w] -> [b, 1000]."""
        x = self.bn1(self.conv1(x)).relu()
        x = x.max_pool2d(kernel_size=(3, 3), stride=2, padding=1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = x.sequential(layer)
        return self.fc(x.mean((2, 3)))


class Perceptron:
    """784-512-512-10 with ReLU between."""

    def __init__(self, nn: Any) -> None:
        self.l1 = nn.Linear(784, 512)
        self.l2 = nn.Linear(512, 512)
        self.l3 = nn.Linear(512, 10)

    def __call__(self, x: Any) -> Any:
        """[b, 784] -> [b, 10]."""
        return self.l3(self.l2(self.l1(x).relu()).relu())


class DigitNet:
    """5x5x32, 5x5x32, norm, pool, 3x3x64, 3x3x64, norm, pool, 10: a network for 28x28 digits."""

    def __init__(self, nn: Any) -> None:
        self.conv1 = nn.Conv2d(1, 32, 5)
        self.conv2 = nn.Conv2d(32, 32, 5)
        self.bn1 = nn.BatchNorm(32)
        self.conv3 = nn.Conv2d(32, 64, 3)
        self.conv4 = nn.Conv2d(64, 64, 3)
        self.bn2 = nn.BatchNorm(64)
        self.fc = nn.Linear(576, 10)

    def __call__(self, x: Any) -> Any:
        """[b, 1, 28, 28] -> [b, 10]."""
        x = self.conv2(self.conv1(x).relu()).relu()
        x = self.bn1(x).max_pool2d()
        x = self.conv4(self.conv3(x).relu()).relu()
        x = self.bn2(x).max_pool2d()
        return self.fc(x.flatten(1))


class Block:
    """A layer of GPT-2: attention and a perceptron, each around a way past it."""

    def __init__(self, nn: Any, width: int, heads: int) -> None:
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_out = nn.Linear(4 * width, width)

    def attend(self, x: Any) -> Any:
        """[b, t, width] -> the same, each position from those up to it."""
        b, t, width = x.shape
        qkv = self.c_attn(x).reshape(b, t, 3, self.heads, width // self.heads)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        y = q.scaled_dot_product_attention(k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, width))

    def __call__(self, x: Any) -> Any:
        """[b, t, width] -> [b, t, width]."""
        x = x + self.attend(self.ln_1(x))
        return x + self.c_out(self.c_fc(self.ln_2(x)).gelu())


class GPT2:
    """GPT-2 as Radford et al. (2019) have it, by default the small one, without a cache of keys."""

    def __init__(
        self, nn: Any, layers: int = 12, width: int = 768, heads: int = 12, vocabulary: int = 50257
    ) -> None:
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(1024, width)
        self.h = [Block(nn, width, heads) for _ in range(layers)]
        self.ln_f = nn.LayerNorm(width)

    def __call__(self, tokens: Any) -> Any:
        """[b, t] whole numbers -> [b, t, vocabulary]: how likely each token is the next."""
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        x = self.ln_f(x.sequential(self.h))
        return x @ self.wte.weight.transpose(0, 1)
