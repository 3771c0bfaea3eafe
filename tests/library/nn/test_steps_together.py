"""Training steps that are collected and realized in one go, beside the same steps one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, nn
from aster_ml.gradient import compute_gradient
from aster_ml.nn import optim
from aster_ml.nn.state import get_state_dict
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops

OPTIMIZERS: dict[str, Callable[[list[Tensor]], optim.Optimizer]] = {
    "SGD": lambda params: optim.SGD(params, lr=0.01),
    "momentum": lambda params: optim.SGD(params, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda params: optim.Adam(params, lr=0.01),
    "AdamW, fused": lambda params: optim.AdamW(params, lr=0.01, fused=True),
    "LAMB": lambda params: optim.LAMB(params, lr=0.01, weight_decay=0.1),
    "LARS": lambda params: optim.LARS(params, lr=0.01),
    "Muon": lambda params: optim.Muon([p for p in params if p.ndim > 1], lr=0.01),
}
Loss = Callable[[], Tensor]


class Small:
    """A convolution with a norm, and a linear layer.

    A bias before the norm has a gradient of rounding errors, which some optimisers blow up.
    """

    def __init__(self) -> None:
        self.conv = nn.Conv2d(2, 3, 3, bias=False)
        self.norm = nn.BatchNorm(3)
        self.out = nn.Linear(3 * 4 * 4, 4)

    def __call__(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.norm(self.conv(x)).relu().flatten(1)
        return self.out(hidden)


def numbers_alone() -> tuple[dict[str, Tensor], Loss]:
    """Two parameters and a loss of them alone."""
    rng = np.random.default_rng(3)
    params = {name: Tensor(rng.standard_normal(5).astype(np.float32)) for name in "ab"}
    return params, lambda: (params["a"] * params["a"] * params["b"] + params["b"]).sum()


def linear() -> tuple[dict[str, Tensor], Loss]:
    """A linear layer."""
    Tensor.manual_seed(0)
    layer, x = nn.Linear(6, 4), Tensor.randn(8, 6).realize()
    wanted = Tensor([0, 1, 2, 3, 3, 2, 1, 0]).realize()
    return get_state_dict(layer), lambda: layer(x).sparse_categorical_crossentropy(wanted)


def convolution() -> tuple[dict[str, Tensor], Loss]:
    """A convolution whose norm keeps running statistics."""
    Tensor.manual_seed(0)
    model, x = Small(), Tensor.randn(4, 2, 6, 6).realize()
    wanted = Tensor([0, 1, 2, 3]).realize()
    return get_state_dict(model), lambda: model(x).sparse_categorical_crossentropy(wanted)


MODELS = {"numbers": numbers_alone, "linear": linear, "convolution": convolution}


def after_steps(
    model: str, optimizer: str, steps: int, realize: str
) -> tuple[dict[str, np.ndarray], list[float]]:
    """The state of a model and its losses after steps.

    `realize` is "each", "all" for all steps in one go, or "last" for what the last step names.
    """
    state, loss_of = MODELS[model]()
    opt = OPTIMIZERS[optimizer]([t for t in state.values() if t.dtype.kind == "float"])
    losses, pending = [], []
    with Tensor.train():
        for _ in range(steps):
            opt.zero_grad()
            losses.append(loss_of().backward())
            step = [losses[-1], *opt.schedule_step(), *state.values()]
            if realize == "each":
                Tensor.realize(*step)
            pending = [*pending, *step] if realize == "all" else step
    Tensor.realize(*pending)
    return {name: t.numpy() for name, t in state.items()}, [t.item() for t in losses]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_steps_together_are_steps_one_by_one(model: str, optimizer: str) -> None:
    if model == "numbers" and optimizer == "Muon":
        model = "linear"
    for steps in (2, 3):
        state, losses = after_steps(model, optimizer, steps, "each")
        for realize in ("all", "last"):
            together, found = after_steps(model, optimizer, steps, realize)
            assert np.allclose(found, losses, rtol=1e-5), (steps, realize)
            for name, value in state.items():
                assert np.allclose(together[name], value, rtol=1e-4, atol=1e-6), (
                    steps,
                    realize,
                    name,
                )


def losses_with_writes() -> dict[str, tuple[Tensor, Tensor]]:
    """A loss behind pending writes, and a parameter: gradients with numbers alone among them."""
    w = Tensor([1.0, 2.0, 3.0]).realize()
    count = Tensor.ones(1).contiguous().realize()
    count.assign(count * 0.5)
    w.assign(w * (1 - count) + 1.0)
    w.requires_grad = True
    ones = Tensor.ones(3, requires_grad=True)
    return {
        "a sum": (w.sum(), w),
        "a padding": ((w.pad((1, 1)) * 2.0).sum() + (w * w).sum(), w),
        "a number": (((w - 1.0) * (1.0 - w)).sum() + ones.sum(), ones),
    }


@pytest.mark.parametrize("name", losses_with_writes())
def test_a_gradient_copies_nothing_of_the_graph_that_it_is_of(name: str) -> None:
    loss, target = losses_with_writes()[name]
    targets = {target.uop, *[u for u in toposort(loss.uop) if u.op is Ops.AFTER]}
    root: Any = loss.uop.const_like(1)
    known = toposort(loss.uop)
    for grad in compute_gradient(loss.uop, root, targets).values():
        new = [u for u in toposort(grad) if u not in known]
        assert not [u for u in new if u.op in (Ops.STORE, Ops.AFTER)]
