"""Small networks as users write and train them, each large enough that threads share some kernels.

Receives a learning rate; returns what runs one step (forward, backward, optimizer), and the tensors
that live on between steps. Nothing is jitted here, and nothing compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from aster_ml import Tensor, nn
from aster_ml.apps.demo import DigitReader
from benchmarks.models import GPT2, BasicBlock


class Network(NamedTuple):
    """`step` gives the losses of one step on the fixed data; `state` is what it may change."""

    step: Callable[[], tuple[Tensor, ...]]
    state: list[Tensor]


def state_of(*owners: object) -> list[Tensor]:
    """Every tensor that these objects hold, each once."""
    found = [t for owner in owners for t in nn.state.get_state_dict(owner).values()]
    return list({id(t): t for t in found}.values())


def trained(net: object, rate: float, loss: Callable[[], Tensor]) -> Network:
    """One optimizer over all parameters."""
    optimizer = nn.optim.Adam(nn.state.get_parameters(net), lr=rate)

    def step() -> tuple[Tensor, ...]:
        with Tensor.train():
            optimizer.zero_grad()
            found = loss()
            found.backward()
            optimizer.step()
            return (found.realize(),)

    return Network(step, state_of(net, optimizer))


def demo(rate: float) -> Network:
    """The network of `make demo` on a batch of images."""
    net, x = DigitReader(), Tensor.rand(16, 1, 28, 28).realize()
    y = Tensor([i % 10 for i in range(16)]).realize()
    return trained(net, rate, lambda: net(x).sparse_categorical_crossentropy(y))


class SmallResNet:
    """A stem, a plain block, and one that halves the image."""

    def __init__(self) -> None:
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm(8)
        self.blocks = [BasicBlock(nn, 8, 8, 1), BasicBlock(nn, 8, 16, 2)]
        self.head = nn.Linear(16, 10)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).relu().sequential(self.blocks)
        return self.head(x.mean((2, 3)))


def resnet(rate: float) -> Network:
    """A residual network on images of 16 by 16."""
    net, x = SmallResNet(), Tensor.rand(8, 3, 16, 16).realize()
    y = Tensor([i % 10 for i in range(8)]).realize()
    return trained(net, rate, lambda: net(x).sparse_categorical_crossentropy(y))


def gpt2(rate: float) -> Network:
    """Two layers of GPT-2 that predict the next of 32 tokens."""
    net = GPT2(nn, layers=2, width=32, heads=4, vocabulary=64)
    tokens = Tensor.randint(4, 33, low=0, high=64).realize()

    def loss() -> Tensor:
        logits: Tensor = net(tokens[:, :-1])
        return logits.flatten(0, 1).sparse_categorical_crossentropy(tokens[:, 1:].flatten())

    return trained(net, rate, loss)


class VAE:
    """An encoder to mean and logarithm of the variance, and a decoder."""

    def __init__(self) -> None:
        self.encoder = nn.Linear(196, 96)
        self.mean, self.log_variance = nn.Linear(96, 8), nn.Linear(96, 8)
        self.decoder, self.out = nn.Linear(8, 96), nn.Linear(96, 196)

    def loss(self, x: Tensor, noise: Tensor) -> Tensor:
        """What is lost on the way, and how far the code is from a normal distribution."""
        h = self.encoder(x).relu()
        mean, log_variance = self.mean(h), self.log_variance(h)
        code = mean + noise * (log_variance * 0.5).exp()
        seen = self.out(self.decoder(code).relu()).sigmoid()
        lost = -(x * (seen + 1e-7).log() + (1 - x) * (1 - seen + 1e-7).log()).sum(1).mean()
        return lost - 0.5 * (1 + log_variance - mean * mean - log_variance.exp()).sum(1).mean()


def vae(rate: float) -> Network:
    """A variational autoencoder on images of 14 by 14."""
    net, x, noise = VAE(), Tensor.rand(64, 196).realize(), Tensor.randn(64, 8).realize()
    return trained(net, rate, lambda: net.loss(x, noise))


class Tagger:
    """An LSTM over a sequence, and a class for its last state."""

    def __init__(self) -> None:
        self.cell = nn.LSTMCell(24, 48)
        self.head = nn.Linear(48, 5)

    def __call__(self, x: Tensor) -> Tensor:
        h, c = self.cell(x[:, 0])
        for step in range(1, x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return self.head(h)


def lstm(rate: float) -> Network:
    """An LSTM over five steps."""
    net, x = Tagger(), Tensor.randn(32, 5, 24).realize()
    y = Tensor([i % 5 for i in range(32)]).realize()
    return trained(net, rate, lambda: net(x).sparse_categorical_crossentropy(y))


def gan(rate: float) -> Network:
    """A generator and a critic that train against one another, in one step."""
    generator = [nn.Linear(16, 64), Tensor.relu, nn.Linear(64, 100), Tensor.tanh]
    critic = [nn.Linear(100, 64), Tensor.leaky_relu, nn.Linear(64, 1)]
    of_generator = nn.optim.Adam(nn.state.get_parameters(generator), lr=rate)
    of_critic = nn.optim.SGD(nn.state.get_parameters(critic), lr=rate, momentum=0.9)
    real, noise = Tensor.randn(256, 100).realize(), Tensor.randn(256, 16).realize()

    def step() -> tuple[Tensor, ...]:
        with Tensor.train():
            made = noise.sequential(generator)
            of_critic.zero_grad()
            right = (-real.sequential(critic)).softplus().mean()
            lost = right + made.detach().sequential(critic).softplus().mean()
            lost.backward()
            of_critic.step()
            of_generator.zero_grad()
            fooled = (-made.sequential(critic)).softplus().mean()
            fooled.backward()
            of_generator.step()
            return lost.realize(), fooled.realize()

    return Network(step, state_of(generator, critic, of_generator, of_critic))


NETWORKS: dict[str, Callable[[float], Network]] = {
    "demo": demo,
    "resnet": resnet,
    "gpt2": gpt2,
    "vae": vae,
    "lstm": lstm,
    "gan": gan,
}
