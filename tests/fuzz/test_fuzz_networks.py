"""Random networks train as PyTorch trains them: three steps, jitted or not, any optimizer and loss.

The oracle runs in float64. Weights are compared by how far they went: beside the greatest step of
each, a difference is small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def check(seed: int) -> str | None:
    """What is wrong with a training run; None if nothing is."""
    with Context(**CONFIGS[seed % len(CONFIGS)]), Tensor.train():
        Tensor.manual_seed(seed)
        s = Stack(seed)
        if not s.weights:
            return None
        loss_name = s.random.choice([*LOSSES])
        optimizer_name = s.random.choice([*OPTIMIZERS])
        jitted = s.random.random() < 0.5
        text = f"{s.text}; {loss_name}, {optimizer_name}, jitted {jitted}"
        try:
            said = train(s, seed, loss_name, optimizer_name, jitted)
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {str(error)[:200]}: {text}") from error
        return None if said is None else f"{said}: {text}"


def train(s: Stack, seed: int, loss_name: str, optimizer_name: str, jitted: bool) -> str | None:
    """Trains both sides, and compares losses and weights."""
    rng = np.random.default_rng(seed)
    our_loss, their_loss = LOSSES[loss_name]
    mine, others = [a for a, _ in s.weights], [b for _, b in s.weights]
    for layer in s.layers:
        if isinstance(layer.theirs, torch.nn.Module):
            layer.theirs.double()
    for b in others:
        b.data = b.data.double()
        b.grad = None
    start = [b.detach().clone() for b in others]
    optimizer = OPTIMIZERS[optimizer_name][0](mine)
    oracle = OPTIMIZERS[optimizer_name][1](others)

    def step(x: Tensor, t: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = our_loss(s.ours(x), t)
        loss.backward()
        optimizer.step()
        return loss.realize()

    run = TinyJit(step) if jitted else step
    for number in range(STEPS + (2 if jitted else 0)):
        x = rng.standard_normal((s.batch, *s.first)).astype(np.float32)
        t = rng.standard_normal((s.batch, *s.shape)).astype(np.float32)
        oracle.zero_grad()
        want = their_loss(s.theirs(torch.from_numpy(x).double()), torch.from_numpy(t).double())
        want.backward()
        oracle.step()
        got = run(Tensor(x).realize(), Tensor(t).realize()).item()
        if not abs(got - want.item()) <= 2e-3 * max(abs(want.item()), 1e-2):
            return f"loss {got} for {want.item()} at step {number}"
    for i, (a, b, first) in enumerate(zip(mine, others, start, strict=True)):
        went = float((b.detach() - first).abs().max())
        gap = float(np.abs(a.numpy() - b.detach().numpy()).max())
        if not gap <= 0.02 * went + 1e-5:
            return f"weight {i} of {a.shape} is off by {gap:.3g}, having gone {went:.3g}"
    return None


def test_networks(record_property: Callable[[str, str], None]) -> None:
    check_all("training runs of networks", draws(6, 500), check, record_property)
