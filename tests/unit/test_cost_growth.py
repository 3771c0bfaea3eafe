"""Twice the work costs about twice the Python calls, for the first call and for later ones.

Each case makes a function for `n` things and counts what it calls at n and at 2n. Calls are counted
as the profiler sees them, those of built-in functions included; a walk over all there is for each
of n things shows as a ratio near 4.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, nn

# Twice the n, at most so many times the calls.
MOST = 2.3
Work = Callable[[], Any]


def calls_of(work: Work) -> int:
    """Python and built-in calls of one run."""
    gc.collect()
    profile = cProfile.Profile()
    profile.enable()
    try:
        work()
    finally:
        profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def tensors(n: int, *shape: int) -> list[Tensor]:
    """So many tensors that are memory."""
    return [Tensor(np.full(shape, i, np.float32)).realize() for i in range(n)]


def training_step(n: int) -> Work:
    """A step of Adam over n matrices in a chain."""
    weights = [t - 0.5 for t in tensors(n, 8, 8)]
    for w in weights:
        w.realize().requires_grad = True
    optimizer = nn.optim.Adam(weights, lr=1e-3)
    x = Tensor.rand(4, 8).realize()

    @Tensor.train()
    def step() -> None:
        h = x
        for w in weights:
            h = (h @ w).relu()
        optimizer.zero_grad()
        h.sum().backward()
        optimizer.step()

    return step


def second_training_step(n: int) -> Work:
    """A step after the first."""
    step = training_step(n)
    step()
    return step


def stack(n: int) -> Work:
    """n tensors side by side."""
    parts = tensors(n, 4, 4)
    return lambda: Tensor.stack(*parts).realize()


def stack_of_computed(n: int) -> Work:
    """n values side by side that are still to be computed."""
    return lambda: Tensor.stack(*[Tensor.full((4, 4), i).contiguous() for i in range(n)]).realize()


def cat(n: int) -> Work:
    """n tensors one after the other."""
    parts = tensors(n, 4, 4)
    return lambda: Tensor.cat(*parts).realize()


def backward_of_cat(n: int) -> Work:
    """Gradients of n values that are put together."""
    parts = tensors(n, 8, 8)
    for t in parts:
        t.requires_grad = True

    def work() -> None:
        Tensor.cat(*[t * 2 for t in parts]).square().sum().backward()
        Tensor.realize(*[t.grad for t in parts if t.grad is not None])
        for t in parts:
            t.grad = None

    return work


def backward_of_split(n: int) -> Work:
    """The gradient of a tensor that is read in n parts."""
    x = Tensor.rand(4 * n, 4).realize()
    x.requires_grad = True

    def work() -> None:
        sum([(p * i).sum() for i, p in enumerate(x.split(4))], Tensor(0.0)).backward()
        x.grad.realize()

    return work


def training_of_layers(n: int) -> Work:
    """A step of SGD over n convolutions with norms."""
    chain = [(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm(4)) for _ in range(n)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(chain), lr=0.1)
    x = Tensor.rand(2, 4, 8, 8).realize()

    @Tensor.train()
    def step() -> None:
        h = x
        for convolution, norm in chain:
            h = norm(convolution(h)).relu()
        optimizer.zero_grad()
        h.mean().backward()
        optimizer.step()

    return step


def moving_averages(n: int) -> Work:
    """n tensors that follow n others."""
    parts, means = tensors(n, 4, 4), tensors(n, 4, 4)

    def work() -> None:
        for t, mean in zip(parts, means):
            mean.assign(mean * 0.9 + t * 0.1)
        Tensor.realize(*means)

    return work


def sum_of_tensors(n: int) -> Work:
    """n tensors added up one by one."""
    parts = tensors(n, 4, 4)
    return lambda: sum(parts[1:], parts[0]).realize()


def layers(n: int) -> Work:
    """n linear layers in a chain."""
    chain = [nn.Linear(8, 8) for _ in range(n)]
    Tensor.realize(*nn.state.get_parameters(chain))
    x = Tensor.rand(4, 8).realize()
    return lambda: x.sequential([f for layer in chain for f in (layer, Tensor.relu)]).realize()


def models_dropped(n: int) -> Work:
    """n small models, each used once."""

    def work() -> None:
        for _ in range(n):
            nn.Linear(8, 8)(Tensor.ones(2, 8)).realize()

    return work


def backward_through_a_chain(n: int) -> Work:
    """The gradient of n products and sums."""
    x = Tensor.ones(4).contiguous().realize()
    x.requires_grad = True

    def work() -> None:
        h = x
        for _ in range(n):
            h = (h * 1.0001).sin()
        h.sum().backward()

    return work


def write_and_realize(n: int) -> Work:
    """n rows written by index, each at once."""
    x = Tensor.zeros(n, 4).contiguous().realize()

    def work() -> None:
        for i in range(n):
            x[i] = i
            x.realize()

    return work


def write_each_and_realize(n: int) -> Work:
    """n tensors that are changed in place, each at once, while all are alive."""
    parts = tensors(n, 4, 4)

    def work() -> None:
        for t in parts:
            t += 1
            t.realize()

    return work


def moving_averages_one_by_one(n: int) -> Work:
    """n tensors that follow n others, each at once."""
    parts, means = tensors(n, 4, 4), tensors(n, 4, 4)

    def work() -> None:
        for t, mean in zip(parts, means):
            mean.assign(mean * 0.9 + t * 0.1).realize()

    return work


def models_kept(n: int) -> Work:
    """n small models, each used once, and their results, all of which stay."""

    def work() -> None:
        kept = []
        for _ in range(n):
            model = nn.Linear(8, 8)
            kept.append((model, model(Tensor.ones(2, 8)).realize()))

    return work


def loading_a_state_dict(n: int) -> Work:
    """n values into the tensors of a model, of n other tensors that are alive."""
    values = {str(i): t for i, t in enumerate(tensors(n, 4, 4))}
    model = {str(i): t for i, t in enumerate(tensors(n, 4, 4))}
    return lambda: nn.state.load_state_dict(model, values, verbose=False)


CASES = [
    training_step,
    second_training_step,
    stack,
    stack_of_computed,
    cat,
    backward_of_cat,
    backward_of_split,
    sum_of_tensors,
    layers,
    training_of_layers,
    models_dropped,
    backward_through_a_chain,
    write_and_realize,
    write_each_and_realize,
    moving_averages,
    moving_averages_one_by_one,
    models_kept,
    loading_a_state_dict,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_twice_the_work_costs_twice_the_calls(case: Callable[[int], Work]) -> None:
    n = 20 if case is training_of_layers else 60
    # Kernels of the sizes that are counted are compiled before, as far as they are the same.
    case(n // 2)()
    once, twice = calls_of(case(n)), calls_of(case(2 * n))
    assert twice <= MOST * once, f"{once} calls for {n}, {twice} for {2 * n}"


def test_a_write_costs_the_same_beside_many_tensors() -> None:
    x = Tensor(np.zeros(4, np.float32)).realize()

    def work() -> None:
        x.assign(x + 1).realize()

    for _ in range(3):
        work()
    few = calls_of(work)
    kept = tensors(500, 4)
    work()
    assert calls_of(work) <= few + 20
    assert len(kept) == 500
