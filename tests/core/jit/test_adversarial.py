"""TinyJit: two networks that train against each other, each with its optimiser, are PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, nn

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

# Length of a batch, of the noise, and of what is made of it.
BATCH, NOISE, WIDTH, HIDDEN, STEPS = 8, 3, 2, 5, 7
Array = np.ndarray[Any, Any]
# From a batch of data and two of noise to the losses of the critic and of the maker.
Step = Callable[..., tuple[Any, Any]]


class Net:
    """Two layers, which start with biases of zeros: as many equal tensors."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.first, self.last = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, outputs)
        for layer in (self.first, self.last):
            layer.bias = Tensor.zeros(*layer.bias.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).leaky_relu(0.2))


def copy_of(net: Net) -> Any:
    """The same network in PyTorch."""
    layers = []
    for layer in (net.first, net.last):
        theirs = torch.nn.Linear(layer.weight.shape[1], layer.weight.shape[0])
        theirs.weight.data = torch.from_numpy(layer.weight.numpy().copy())
        theirs.bias.data = torch.from_numpy((layer.bias + 0).numpy().copy())
        layers.append(theirs)
    return torch.nn.Sequential(layers[0], torch.nn.LeakyReLU(0.2), layers[1])


def our_steps(maker: Net, critic: Net) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """A step of the critic, and one of the maker."""
    of_maker = nn.optim.Adam(nn.state.get_parameters(maker), lr=0.02)
    of_critic = nn.optim.SGD(nn.state.get_parameters(critic), lr=0.1, momentum=0.5)
    true, false = Tensor.ones(BATCH, 1), Tensor.zeros(BATCH, 1)

    def judge(data: Tensor, noise: Tensor) -> Tensor:
        of_critic.zero_grad()
        made = maker(noise).detach()
        loss = critic(data).binary_crossentropy_logits(true)
        loss = loss + critic(made).binary_crossentropy_logits(false)
        loss.backward()
        of_critic.step()
        return loss.realize()

    def make(noise: Tensor) -> Tensor:
        of_maker.zero_grad()
        loss = critic(maker(noise)).binary_crossentropy_logits(true).backward()
        of_maker.step()
        return loss.realize()

    return judge, make


def their_step(maker: Any, critic: Any) -> Step:
    """Both steps in PyTorch."""
    of_maker = torch.optim.Adam(maker.parameters(), lr=0.02)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.1, momentum=0.5)
    measure = torch.nn.BCEWithLogitsLoss()
    true, false = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)

    def step(data: Any, noise: Any, more: Any) -> tuple[Any, Any]:
        of_critic.zero_grad()
        judged = measure(critic(data), true) + measure(critic(maker(noise).detach()), false)
        judged.backward()
        of_critic.step()
        of_maker.zero_grad()
        fooled = measure(critic(maker(more)), true)
        fooled.backward()
        of_maker.step()
        return judged.detach(), fooled.detach()

    return step


@pytest.mark.parametrize("functions", [1, 2])
def test_two_networks_train_against_each_other(functions: int) -> None:
    Tensor.manual_seed(3)
    maker, critic = Net(NOISE, WIDTH), Net(WIDTH, 1)
    their_maker, their_critic = copy_of(maker), copy_of(critic)
    judge, make = our_steps(maker, critic)
    if functions == 2:
        judge, make = TinyJit(judge), TinyJit(make)

    def both(data: Tensor, noise: Tensor, more: Tensor) -> tuple[Tensor, Tensor]:
        return judge(data, noise), make(more)

    ours: Step = TinyJit(both) if functions == 1 else both
    theirs = their_step(their_maker, their_critic)
    rng = np.random.default_rng(1)
    with Tensor.train():
        for turn in range(STEPS):
            shapes = ((BATCH, WIDTH), (BATCH, NOISE), (BATCH, NOISE))
            arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
            got = ours(*[Tensor(a).realize() for a in arrays])
            want = theirs(*[torch.from_numpy(a) for a in arrays])
            for g, w in zip(got, want, strict=True):
                np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-4, err_msg=f"loss {turn}")
            for net, other in ((maker, their_maker), (critic, their_critic)):
                for layer, number in ((net.first, 0), (net.last, 2)):
                    for g, w in (
                        (layer.weight, other[number].weight),
                        (layer.bias, other[number].bias),
                    ):
                        np.testing.assert_allclose(
                            g.numpy(), w.detach().numpy(), rtol=1e-3, atol=1e-5, err_msg=f"{turn}"
                        )  # fmt: skip
