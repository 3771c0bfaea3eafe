"""Random programs over tensors of symbolic shape, plain and jitted, against NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable
from aster_ml.uop.infer import max_shape

X = np.random.default_rng(0).standard_normal((4, 6, 5)).astype(np.float32)
VALUES = [(3, 2), (6, 5), (1, 4), (5, 1), (2, 3)]
MAX_SIZE = 20_000
Both = tuple[Tensor, np.ndarray]


def replaced(pairs: list[Any], axis: int, pair: Any) -> list[Any]:
    return [pair if i == axis else p for i, p in enumerate(pairs)]


def merge(t: Tensor, a: np.ndarray, axis: int) -> Both:
    """An axis and the next one as one."""
    axis = min(axis, a.ndim - 2)
    t = t.reshape(*t.shape[:axis], t.shape[axis] * t.shape[axis + 1], *t.shape[axis + 2 :])
    return t, a.reshape(*a.shape[:axis], a.shape[axis] * a.shape[axis + 1], *a.shape[axis + 2 :])


def pad(t: Tensor, a: np.ndarray, axis: int) -> Both:
    pairs = replaced([(0, 0)] * a.ndim, axis, (1, 2))
    return t.pad(pairs), np.pad(a, pairs)


def cut(t: Tensor, a: np.ndarray, axis: int) -> Both:
    size = t.shape[axis]
    if not isinstance(size, int) or size < 3:
        return t, a
    part = replaced([slice(None)] * a.ndim, axis, slice(1, -1))
    return t.shrink(replaced([None] * a.ndim, axis, (1, size - 1))), a[tuple(part)]


def spread(t: Tensor, a: np.ndarray, axis: int) -> Both:
    t = t.unsqueeze(axis).expand(*t.shape[:axis], 3, *t.shape[axis:])
    return t, np.repeat(np.expand_dims(a, axis), 3, axis)


def product(t: Tensor, a: np.ndarray, axis: int) -> Both:
    return t @ t.transpose(-1, -2) * 0.05, a @ np.swapaxes(a, -1, -2) * np.float32(0.05)


STEPS: dict[str, Callable[[Tensor, np.ndarray, int], Both]] = {
    "relu": lambda t, a, i: ((t * 0.5 + 1).relu(), np.maximum(a * np.float32(0.5) + 1, 0)),
    "square": lambda t, a, i: (t * t - t, a * a - a),
    "choose": lambda t, a, i: ((t > 0.5).where(t, -t), np.where(a > 0.5, a, -a)),
    "sum": lambda t, a, i: (t.sum(i) * 0.1, a.sum(i) * np.float32(0.1)),
    "kept sum": lambda t, a, i: (t.sum(i, keepdim=True), a.sum(i, keepdims=True)),
    "centre": lambda t, a, i: (t - t.max(i, keepdim=True), a - a.max(i, keepdims=True)),
    "scan": lambda t, a, i: (t.cumsum(i) * 0.3, np.cumsum(a, i) * np.float32(0.3)),
    "flip": lambda t, a, i: (t.flip(i), np.flip(a, i)),
    "turn": lambda t, a, i: (t.transpose(i, 0), np.swapaxes(a, i, 0)),
    "join": lambda t, a, i: (t.cat(t + 1, dim=i), np.concatenate([a, a + 1], i)),
    "stack": lambda t, a, i: (Tensor.stack(t, t * 2, dim=i), np.stack([a, a * 2], i)),
    "store": lambda t, a, i: (t.contiguous(), a),
    "realize": lambda t, a, i: (t.realize(), a),
    "merge": merge, "pad": pad, "cut": cut, "spread": spread, "product": product,
}  # fmt: skip
GROWING = {"stack", "spread"}
TWO_AXES = {"merge", "product"}


def run(seed: int, t: Tensor, a: np.ndarray) -> Both:
    """The program of a seed: the same steps whatever sizes are bound."""
    rng = random.Random(seed)
    for _ in range(rng.randint(2, 7)):
        name, place = rng.choice(list(STEPS)), rng.random()
        rank = a.ndim
        if rank < 1 + (name in TWO_AXES) or (name in GROWING and rank > 3):
            continue
        if np.prod(max_shape(t.shape)) > MAX_SIZE:
            break
        t, a = STEPS[name](t, a, int(place * rank))
    return t + 0, a


def start(seed: int, values: tuple[int, int]) -> tuple[Any, Any]:
    """What is cut out of X, for Aster and for NumPy."""
    i, j = values
    n, m = Variable("n", 1, 6).bind(i), Variable("m", 1, 5).bind(j)
    return [
        ((slice(None), slice(None, n)), (slice(None), slice(None, i))),
        (
            (slice(None), slice(None, n), slice(None, m)),
            (slice(None), slice(None, i), slice(None, j)),
        ),
        ((0, slice(None), slice(None, m)), (0, slice(None), slice(None, j))),
    ][seed % 3]


def check_part(got: Tensor, want: np.ndarray) -> None:
    assert tuple(s if isinstance(s, int) else s.sym_infer({}) for s in got.shape) == want.shape
    part = got.shrink([(0, s) for s in want.shape]) if want.ndim else got
    np.testing.assert_allclose(part.numpy(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("group", range(4))
def test_programs(group: int) -> None:
    whole = Tensor(X).realize()
    for seed in range(group * 40, group * 40 + 40):
        ours, theirs = start(seed, VALUES[seed % len(VALUES)])
        got, want = run(seed, whole[ours], X[theirs])
        check_part(got.realize(), want)


@pytest.mark.parametrize("group", range(4))
def test_jitted_programs(group: int) -> None:
    whole = Tensor(X).realize()
    for seed in range(group * 10, group * 10 + 10):
        runs = [0]

        def function(t: Tensor, seed: int = seed, runs: list[int] = runs) -> Tensor:
            runs[0] += 1
            sizes = [s if isinstance(s, int) else s.val for s in t.shape]
            return run(seed, t, np.zeros(sizes, np.float32))[0].realize()

        jitted = TinyJit(function)
        for values in VALUES:
            ours, theirs = start(seed, values)
            with np.errstate(all="ignore"):
                want = run(seed, whole[ours], X[theirs])[1]
            check_part(jitted(whole[ours]), want)
        assert runs[0] == 2


def test_sizes_with_a_known_factor() -> None:
    """Axes of n * 4 elements, which are split though n is not known: register tiles, lanes."""
    x = np.random.default_rng(1).standard_normal((3, 48, 40)).astype(np.float32)
    whole = Tensor(x).realize()
    for seed in range(300, 340):
        rng = random.Random(seed)
        f, g = rng.choice([2, 4, 8]), rng.choice([2, 4, 5, 8])
        i, j = rng.randint(1, 48 // f), rng.randint(1, 40 // g)
        n, m = Variable("n", 1, 48 // f).bind(i) * f, Variable("m", 1, 40 // g).bind(j) * g
        columns = (m, j * g) if seed % 2 else (40, 40)
        with np.errstate(all="ignore"):
            got, want = run(seed, whole[:, :n, : columns[0]], x[:, : i * f, : columns[1]])
        if np.isfinite(want).all():
            check_part(got.realize(), want)
