"""Programs on tensors that are split over two devices, against NumPy.

A program is a shape, the axis that is split (or none) and a few steps, each drawn with its numbers.
Only reshapes may be refused, where they would move elements between devices.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor
from aster_ml.errors import PreconditionError
from tests.fuzz.budget import check_all, draws

DEVICES = ("CPU:1", "CPU:2")
MAX_SIZE, MAX_AXES = 5000, 5


class Case(NamedTuple):
    """A value both ways, the axis that a step is about, and where its numbers come from."""

    a: np.ndarray
    x: Tensor
    d: int
    rng: random.Random

    def at(self, index: Any) -> tuple[Any, ...]:
        """An index of axis d."""
        return (*[slice(None)] * self.d, index)

    def cut(self, index: Any) -> tuple[np.ndarray, Tensor]:
        """What an index of axis d shows."""
        return self.a[self.at(index)], self.x[self.at(index)]


Made = tuple[Any, Tensor]


def split_axis(shape: tuple[int, ...], rng: random.Random) -> int | None:
    return rng.choice([None, *[i for i, size in enumerate(shape) if size % len(DEVICES) == 0]])


def permute(c: Case) -> Made:
    order = list(range(c.a.ndim))
    c.rng.shuffle(order)
    return c.a.transpose(order), c.x.permute(*order)


def pad(c: Case) -> Made:
    widths = tuple([(c.rng.randint(0, 2), c.rng.randint(0, 2)) for _ in range(c.a.ndim)])
    return np.pad(c.a, widths), c.x.pad(widths)


def shrink(c: Case) -> Made:
    low = c.rng.randrange(c.a.shape[c.d])
    return c.cut(slice(low, c.rng.randint(low + 1, c.a.shape[c.d])))


def roll(c: Case) -> Made:
    by = c.rng.randint(-3, 3)
    return np.roll(c.a, by, c.d), c.x.roll(by, c.d)


def repeat(c: Case) -> Made:
    counts = [c.rng.randint(1, 2) for _ in range(c.a.ndim)]
    return np.tile(c.a, counts), c.x.repeat(*counts)


def halve(c: Case) -> Made:
    size = c.a.shape[c.d]
    sizes = (2, size // 2) if size % 2 == 0 else (1, size)
    shape = (*c.a.shape[: c.d], *sizes, *c.a.shape[c.d + 1 :])
    return c.a.reshape(shape), c.x.reshape(shape)


def write_row(c: Case) -> Made:
    row = c.rng.randrange(c.a.shape[0])
    a, x = c.a.copy(), c.x.contiguous() if c.rng.random() < 0.5 else c.x + 0
    a[row] = x[row] = 7
    return a, x


def times_another(c: Case) -> Made:
    b = (np.arange(c.a.size).reshape(c.a.shape) % 5).astype(np.float32)
    return c.a * b, c.x * Tensor(b).shard(DEVICES, split_axis(b.shape, c.rng))


def product(c: Case) -> Made:
    if c.a.ndim < 2:
        return c.a @ c.a, c.x @ c.x
    return c.a @ c.a.swapaxes(-1, -2), c.x @ c.x.transpose(-1, -2)


STEPS: list[Callable[[Case], Made]] = [
    permute, pad, shrink, roll, repeat, halve, write_row, times_another, product,
    lambda c: (1 - c.a * 2, 1 - c.x * 2),
    lambda c: (c.a.sum(c.d), c.x.sum(c.d)),
    lambda c: (c.a.max(c.d, keepdims=True), c.x.max(c.d, keepdim=True)),
    lambda c: (c.a.argmax(c.d), c.x.argmax(c.d).float()),
    lambda c: (c.a.cumsum(c.d), c.x.cumsum(c.d)),
    lambda c: (np.sort(c.a, c.d), c.x.sort(c.d)[0]),
    lambda c: (np.flip(c.a, c.d), c.x.flip(c.d)),
    lambda c: (np.concatenate([c.a, c.a + 1], c.d), c.x.cat(c.x + 1, dim=c.d)),
    lambda c: (np.stack([c.a, c.a * 2], c.d), c.x.stack(c.x * 2, dim=c.d)),
    lambda c: (np.stack([c.a, c.a]), c.x.unsqueeze(0).expand(2, *c.x.shape)),
    lambda c: (np.where(c.a > 0, c.a, -1), (c.x > 0).where(c.x, -1)),
    lambda c: (c.a.reshape(-1), c.x.flatten()),
    lambda c: c.cut(c.rng.randrange(c.a.shape[c.d])),
    lambda c: c.cut(slice(None, None, c.rng.choice([2, -1, -2]))),
    lambda c: c.cut([c.rng.randrange(c.a.shape[c.d]) for _ in range(3)]),
]  # fmt: skip


def check(seed: int) -> str | None:
    """What is wrong of the program of a seed, if anything."""
    rng = random.Random(seed)
    shape = tuple([rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3))])
    a: np.ndarray = np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)
    x = Tensor(a).shard(DEVICES, split_axis(shape, rng))
    for _ in range(rng.randint(1, 5)):
        if not a.ndim or a.ndim > MAX_AXES or a.size > MAX_SIZE:
            break
        step = rng.choice(STEPS)
        try:
            made, x = step(Case(a, x, rng.randrange(a.ndim), rng))
        except PreconditionError as error:
            return None if "reshape" in str(error) and step in RESHAPES else str(error)
        a = np.asarray(made, np.float32)
        if rng.random() < 0.3:
            x = x.realize()
    got = x.numpy()
    if got.shape != a.shape:
        return f"shape {got.shape}, not {a.shape}"
    return None if np.array_equal(got, a) else f"numbers differ, {got.tolist()}, not {a.tolist()}"


RESHAPES = (halve, STEPS[-4])


def test_split_tensors_compute_as_whole_ones(record_property: Callable[[str, str], None]) -> None:
    check_all("programs on two devices", draws(40, 4000), check, record_property)
