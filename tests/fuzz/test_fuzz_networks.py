"""Random networks train as PyTorch trains them: three steps, jitted or not, any optimizer and loss.

The oracle runs in float64. Weights are compared by how far they went: beside the greatest step of
each, a difference is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from aster_ml import Context, Tensor, TinyJit, nn
from tests.fuzz.budget import check_all, draws

torch = pytest.importorskip("torch", reason="PyTorch is the oracle")

from tests.fuzz.networks import Stack  # noqa: E402

STEPS = 3
softplus = torch.nn.functional.softplus
CONFIGS: list[dict[str, int | str]] = [
    {},
    {},
    {"THREADS": 3},
    {"THREADS": 1},
    {"ISA": "avx2"},
    {"DETERMINISTIC": 1},
]
Losses = dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]]
LOSSES: Losses = {
    "squares": (lambda y, t: (y - t).square().mean(), lambda y, t: (y - t).square().mean()),
    "reversed squares": (lambda y, t: ((t - y) ** 2).mean(), lambda y, t: ((t - y) ** 2).mean()),
    "scaled": (
        lambda y, t: ((1 - y) * t * 65536.0).mean() / 65536.0,
        lambda y, t: ((1 - y) * t * 65536.0).mean() / 65536.0,
    ),
    "log-cosh": (
        lambda y, t: ((y - t).softplus() + (t - y).softplus()).sum(),
        lambda y, t: (
            torch.nn.functional.softplus(y - t) + torch.nn.functional.softplus(t - y)
        ).sum(),
    ),
    "classes": (
        lambda y, t: y.flatten(1).cross_entropy(t.flatten(1).softmax(-1)),
        lambda y, t: torch.nn.functional.cross_entropy(y.flatten(1), t.flatten(1).softmax(-1)),
    ),
    "bits": (
        lambda y, t: y.binary_crossentropy_logits(t.sigmoid()),
        lambda y, t: torch.nn.functional.binary_cross_entropy_with_logits(y, t.sigmoid()),
    ),
}
Optimizers = dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]
OPTIMIZERS: Optimizers = {
    "sgd": (lambda w: nn.optim.SGD(w, lr=0.01), lambda w: torch.optim.SGD(w, lr=0.01)),
    "momentum": (
        lambda w: nn.optim.SGD(w, lr=0.01, momentum=0.9, weight_decay=0.01),
        lambda w: torch.optim.SGD(w, lr=0.01, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda w: nn.optim.SGD(w, lr=0.01, momentum=0.9, nesterov=True),
        lambda w: torch.optim.SGD(w, lr=0.01, momentum=0.9, nesterov=True),
    ),
    "adam": (
        lambda w: nn.optim.Adam(w, lr=0.01, eps=1e-3),
        lambda w: torch.optim.Adam(w, lr=0.01, eps=1e-3),
    ),
    "adamw": (
        lambda w: nn.optim.AdamW(w, lr=0.01, eps=1e-3, weight_decay=0.1),
        lambda w: torch.optim.AdamW(w, lr=0.01, eps=1e-3, weight_decay=0.1),
    ),
}


class Run(NamedTuple):
    """What three steps made: the loss of each, and the weights before and after."""

    losses: list[float]
    start: list[np.ndarray]
    weights: list[np.ndarray]


def check(seed: int) -> str | None:
    """What is wrong with a training run; None if nothing is.

    Where float32 differs from the oracle, PyTorch in float32 is asked too: a step that rounding
    decides (Adam moves a weight whose gradient is nothing but rounding as far as any other) says
    nothing of either.
    """
    with Context(**CONFIGS[seed % len(CONFIGS)]), Tensor.train():
        s = stack(seed)
        if not s.weights:
            return None
        loss, optimizer = s.random.choice([*LOSSES]), s.random.choice([*OPTIMIZERS])
        jitted = s.random.random() < 0.5
        text = f"{s.text}; {loss}, {optimizer}, jitted {jitted}"
        steps = STEPS + (2 if jitted else 0)
        try:
            want = theirs(s, seed, loss, optimizer, steps, torch.float64)
            got = ours(s, seed, loss, optimizer, steps, jitted)
            gaps = apart(got, want)
            if all(gap <= allowed for gap, allowed, _ in gaps):
                return None
            rounded = apart(theirs(stack(seed), seed, loss, optimizer, steps, torch.float32), want)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {str(error)[:200]}: {text}") from error
        if any(unsure == math.inf for unsure, _, _ in rounded):
            return None  # float32 is too small for this run, whoever trains it
        for (gap, allowed, what), (unsure, _, _) in zip(gaps, rounded, strict=True):
            if not gap <= max(allowed, 8 * unsure):
                return f"{what}, and PyTorch's float32 by {unsure:.3g}: {text}"
        return None


def stack(seed: int) -> Stack:
    """The network of a seed, with the same weights each time."""
    Tensor.manual_seed(seed)
    return Stack(seed)


def batches(s: Stack, seed: int, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Inputs and targets of each step, float32."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        x = rng.standard_normal((s.batch, *s.first)).astype(np.float32)
        yield x, rng.standard_normal((s.batch, *s.shape)).astype(np.float32)


def ours(s: Stack, seed: int, loss: str, optimizer: str, steps: int, jitted: bool) -> Run:
    """Trains Aster's side."""
    weights = [a for a, _ in s.weights]
    start = [a.numpy() for a in weights]
    rule = OPTIMIZERS[optimizer][0](weights)

    def step(x: Tensor, t: Tensor) -> Tensor:
        rule.zero_grad()
        value = LOSSES[loss][0](s.ours(x), t)
        value.backward()
        rule.step()
        return value.realize()

    run = TinyJit(step) if jitted else step
    losses = [
        run(Tensor(x).realize(), Tensor(t).realize()).item() for x, t in batches(s, seed, steps)
    ]
    return Run(losses, start, [a.numpy() for a in weights])


def theirs(s: Stack, seed: int, loss: str, optimizer: str, steps: int, dtype: torch.dtype) -> Run:
    """Trains PyTorch's side in `dtype`."""
    weights = [b for _, b in s.weights]
    for layer in s.layers:
        if isinstance(layer.theirs, torch.nn.Module):
            layer.theirs.to(dtype)
    for b in weights:
        b.data = b.data.to(dtype)
        b.grad = None
    start = [b.detach().numpy().copy() for b in weights]
    rule = OPTIMIZERS[optimizer][1](weights)
    losses = []
    for x, t in batches(s, seed, steps):
        rule.zero_grad()
        value = LOSSES[loss][1](
            s.theirs(torch.from_numpy(x).to(dtype)), torch.from_numpy(t).to(dtype)
        )
        value.backward()
        rule.step()
        losses.append(value.item())
    return Run(losses, start, [b.detach().numpy().copy() for b in weights])


def apart(got: Run, want: Run) -> list[tuple[float, float, str]]:
    """How far each loss and each weight is from the oracle's, how far it may be, and the words."""
    found = []
    for number, (a, b) in enumerate(zip(got.losses, want.losses, strict=True)):
        gap = abs(a - b) if math.isfinite(a) else math.inf
        found.append((gap, 2e-3 * max(abs(b), 1e-2), f"loss {a} for {b} at step {number}"))
    for i, (a, b, first) in enumerate(zip(got.weights, want.weights, want.start, strict=True)):
        went = float(np.abs(b - first).max())
        gap = float(np.abs(a - b).max())
        gap = gap if math.isfinite(gap) else math.inf
        text = f"weight {i} of {a.shape} is off by {gap:.3g}, having gone {went:.3g}"
        found.append((gap, 0.02 * went + 1e-5, text))
    return found


def test_networks(record_property: Callable[[str, str], None]) -> None:
    check_all("training runs of networks", draws(6, 500), check, record_property)
