"""Expressions of slices, at one place after another, against NumPy.

A case draws a shape, the sizes of one or two slices, and what is done with them; then the same is
asked for at several places: eagerly, in a jitted function that is new at each, or in one that is
given the slices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Tensor, TinyJit
from tests.fuzz.budget import check_all, draws

Form = Callable[[Any, Any], Any]


def product(a: Any, b: Any) -> Any:
    """Each column of one with each of the other."""
    return a.reshape(-1, a.shape[-1]).T @ b.reshape(-1, b.shape[-1])


def joined(a: Any, b: Any) -> Any:
    """Both, one behind the other."""
    return a.cat(b, dim=0) if isinstance(a, Tensor) else np.concatenate([a, b], 0)


def padded(a: Any, b: Any) -> Any:
    """One with a margin, summed with what lies beside it."""
    wide = a.pad(((1, 1),) + ((0, 0),) * (a.ndim - 1)) if isinstance(a, Tensor) else np.pad(
        a, ((1, 1),) + ((0, 0),) * (a.ndim - 1)
    )  # fmt: skip
    return wide[2:] + wide[:-2] + b


def totals(a: Any, b: Any) -> Any:
    """Running totals."""
    return a.cumsum(0) - b


def largest(a: Any, b: Any) -> Any:
    """The largest of each row, and of both."""
    top = a.max(axis=-1, keepdim=True) if isinstance(a, Tensor) else a.max(-1, keepdims=True)
    return top * b


FORMS: tuple[Form, ...] = (
    lambda a, b: a * 2 + b,
    lambda a, b: (a * b).sum(0),
    lambda a, b: (a - b).sum(),
    lambda a, b: a.flip(0) + b if isinstance(a, Tensor) else np.flip(a, 0) + b,
    lambda a, b: (a > b) * a,
    product, joined, padded, totals, largest,
)  # fmt: skip


def judge(seed: int) -> str | None:
    """What is wrong at one of the places."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    shape = [rng.choice([2, 3, 5, 8, 16, 31]) for _ in range(rng.choice([1, 2, 2, 3]))]
    size = [rng.randint(1, n) for n in shape]
    whole = numbers.integers(-4, 5, shape).astype(rng.choice(["float32", "int32", "float32"]))
    other = numbers.integers(-4, 5, shape).astype(whole.dtype) if rng.random() < 0.5 else whole
    x = Tensor(whole).realize()
    y = x if other is whole else Tensor(other).realize()
    form, turned = rng.choice(FORMS), rng.random() < 0.3
    way = rng.choice(["eager", "eager", "new", "given"])

    def combined(a: Any, b: Any) -> Any:
        return form(a.T, b.T) if turned else form(a, b)

    given = TinyJit(lambda a, b: combined(a, b).contiguous().realize())
    for _ in range(6):
        cuts = [
            tuple([slice(s := rng.randint(0, n - c), s + c) for n, c in zip(shape, size)])
            for _ in range(2)
        ]

        def both(a: Any, b: Any, cuts: list[tuple[slice, ...]] = cuts) -> Any:
            return combined(a[cuts[0]], b[cuts[1]])

        want = both(whole, other)
        if way == "new":
            jitted = TinyJit(lambda a, b: both(a, b).contiguous().realize())
            got = [jitted(x, y).numpy() for _ in range(3)][-1]
        elif way == "given":
            got = given(x[cuts[0]], y[cuts[1]]).numpy()
        else:
            got = both(x, y).numpy()
        if got.shape != want.shape or not np.allclose(got, want, rtol=1e-5, atol=1e-5):
            return f"{form} of {cuts} in {shape}: {got} for {want}"
    return None


def test_slices_that_move(record_property: Callable[[str, str], None]) -> None:
    check_all("slices that move", draws(60, 20_000), judge, record_property)
