"""Models of PyTorch that torch.compile is measured with, in inference and in training.

Needs PyTorch. `torch_backend`, rows of the table, and `torch_compile`, a command, measure them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import torch_models


class ViT(nn.Module):
    """A vision transformer of two layers for 32 x 32 pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, 4)
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        """[b, 3, 32, 32] -> [b, 10]."""
        return self.head(self.layers(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


class UNet(nn.Module):
    """Down and up again once, with a way across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.low = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.out = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        """[b, 3, h, w] -> the same."""
        high = self.down(x)
        low = self.low(nn.functional.max_pool2d(high, 2))
        return self.out(torch.cat([high, self.up(low)], 1))


class LlamaBlock(nn.Module):
    """Rotated queries and keys, fewer of the latter; a gated network behind them."""

    def __init__(self, width: int, heads: int, shared: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def rotated(self, x: Any, turns: tuple[Any, Any]) -> Any:
        """[b, h, t, d] -> the same, pairs of halves turned by place."""
        one, two = x.chunk(2, -1)
        cos, sin = turns
        return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    def forward(self, x: Any, turns: tuple[Any, Any]) -> Any:
        """[b, t, width] -> the same."""
        b, t, width = x.shape
        y = self.before(x)
        q = self.q(y).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(y).view(b, t, 2, self.shared, self.size).permute(2, 0, 3, 1, 4)
        times = self.heads // self.shared
        k = self.rotated(k, turns).repeat_interleave(times, 1)
        v = v.repeat_interleave(times, 1)
        y = nn.functional.scaled_dot_product_attention(self.rotated(q, turns), k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
        y = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Two blocks of 256 with 8 heads, 2 of keys and values."""

    def __init__(self, layers: int = 2, width: int = 256, words: int = 1000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, 8, 2) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        angles = torch.outer(torch.arange(256.0), 10000.0 ** (-torch.arange(16) / 16))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Any) -> Any:
        """[b, t] -> [b, t, words]."""
        x, t = self.words(tokens), tokens.shape[1]
        for block in self.blocks:
            x = block(x, (self.cos[:t], self.sin[:t]))
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """An LSTM over 32 steps, and a layer on the last."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        """[b, t, 64] -> [b, 10]."""
        return self.head(self.lstm(x)[0][:, -1])


# For each model how it is made, and what it is given.
MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "MLP 784-512-512-10, batch 64": (torch_models.Perceptron, lambda: torch.randn(64, 784)),
    "ResNet-18, batch 1": (torch_models.ResNet18, lambda: torch.randn(1, 3, 224, 224)),
    "GPT-2, 2 layers of 256, 4 x 64 tokens": (
        lambda: torch_models.GPT2(2, 256, 4, 1000),
        lambda: torch.randint(0, 1000, (4, 64)),
    ),
    "Llama, 2 layers of 256, 4 x 64 tokens": (Llama, lambda: torch.randint(0, 1000, (4, 64))),
    "LSTM, 128 wide, batch 16 of 32 steps": (Recurrent, lambda: torch.randn(16, 32, 64)),
    "ViT, 2 layers of 64, batch 16": (ViT, lambda: torch.randn(16, 3, 32, 32)),
    "U-Net, batch 8 of 32 x 32": (UNet, lambda: torch.randn(8, 3, 32, 32)),
}


def inference(model: Any, run: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    """One call without gradients."""

    def call() -> Any:
        with torch.no_grad():
            return run(x)

    return call


def training(model: Any, run: Callable[[Any], Any], x: Any) -> Callable[[], Any]:
    """One step of SGD, by nothing, so that all steps are alike."""
    optimizer = torch.optim.SGD(model.parameters(), 0.0)

    def call() -> Any:
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return call


KINDS = {"inference": inference, "training": training}
