"""Random programs on tensors, each with what NumPy makes of it.

A program is drawn from a seed as a list of steps; a step is written once for tensors and once for
arrays. Values are small integers and halves, so that sums are exact and any difference is an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from aster_ml import Tensor

SIZES = (1, 2, 3, 4, 5, 8, 16)
MAX_ELEMENTS, MAX_VALUE = 2048, 1e5


class Step(NamedTuple):
    """The operands by number, and the same operation for both; `written` is assigned to."""

    operands: tuple[int, ...]
    tensor: Callable[..., Any]
    array: Callable[..., Any]
    written: bool = False


class Program(NamedTuple):
    """Shapes of the inputs, steps that each add a value, and which values are wanted.

    Steps read an input through a copy that is lazy: what they make keeps the value of that time.
    """

    inputs: list[tuple[int, ...]]
    steps: list[Step]
    results: list[int]

    def run_tensors(self, *inputs: Tensor) -> list[Tensor]:
        """The results, lazy."""
        pool: list[Tensor] = list(inputs)
        for step in self.steps:
            operands = [pool[i] + 0 if i < len(inputs) else pool[i] for i in step.operands]
            if step.written:
                operands[0] = pool[step.operands[0]]
            pool.append(step.tensor(*operands))
        return [pool[i] for i in self.results]

    def run_arrays(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The results; inputs that are assigned to are changed."""
        pool = list(inputs)
        for step in self.steps:
            made = np.array(step.array(*[pool[i] for i in step.operands]), dtype=np.float32)
            if step.written:
                pool[step.operands[0]][...] = made
            pool.append(made)
        return [pool[i].copy() for i in self.results]

    def draw_inputs(self, seed: int) -> list[np.ndarray]:
        """Data for the inputs."""
        rng = np.random.default_rng(seed)
        return [rng.integers(-3, 4, shape).astype(np.float32) for shape in self.inputs]


class Writer:
    """Draws the steps of one program, keeping values to see how large they get."""

    def __init__(self, seed: int, assigns: bool) -> None:
        self.random = random.Random(seed)
        self.program = Program([], [], [])
        self.assigns = assigns
        self.values: list[np.ndarray] = []
        # Values that may be read: of what an input was before it was assigned to, none.
        self.readable: list[int] = []
        for _ in range(self.random.randint(1, 3)):
            shape = tuple(self.random.choice(SIZES) for _ in range(self.random.randint(1, 4)))
            if np.prod(shape) <= MAX_ELEMENTS:
                self.program.inputs.append(shape)
        if not self.program.inputs:
            self.program.inputs.append((4, 3))
        self.values = self.program.draw_inputs(seed)
        self.readable = list(range(len(self.values)))
        self.inputs = len(self.values)

    def write(self, steps: int) -> Program:
        """A program of about so many steps."""
        kinds = [
            self.unary,
            self.binary,
            self.reduce,
            self.reshape,
            self.permute,
            self.pad,
            self.shrink,
            self.flip,
            self.expand,
            self.mark,
            self.broadcast,
            self.product,
            self.gather,
            self.cumulate,
            self.select,
            self.reduce,
            self.binary,
            self.neutral,
            self.number,
            self.siblings,
        ]
        if self.assigns:
            kinds += [self.assign, self.assign, self.assign_part]
        for _ in range(steps):
            at = self.random.choice(self.readable)
            step = self.random.choice(kinds)(at, self.values[at])
            if step is not None:
                self.add(step)
        count = min(len(self.readable), self.random.randint(1, 4))
        self.program.results.extend(self.random.sample(self.readable, count))
        return self.program

    def add(self, step: Step) -> None:
        """Notes a step, unless its value is too large."""
        operands = [self.values[i] for i in step.operands]
        made = np.asarray(step.array(*operands), dtype=np.float32)
        if made.size > MAX_ELEMENTS or made.size == 0 or np.abs(made).max() > MAX_VALUE:
            return
        if step.written:
            self.values[step.operands[0]] = made
        self.readable.append(len(self.values))
        self.program.steps.append(step)
        self.values.append(made)

    def unary(self, i: int, x: np.ndarray) -> Step:
        """An elementwise operation on one value."""
        return Step(
            (i,),
            *self.random.choice(
                [
                    (lambda t: -t, lambda a: -a),
                    (lambda t: t * t, lambda a: a * a),
                    (lambda t: t.relu(), lambda a: np.maximum(a, 0)),
                    (lambda t: t * 0.5 + 1, lambda a: a * 0.5 + 1),
                    (lambda t: t.abs().sqrt().floor(), lambda a: np.floor(np.sqrt(np.abs(a)))),
                    (lambda t: (t > 0).where(t, 2.0), lambda a: np.where(a > 0, a, 2.0)),
                    (lambda t: t.cast("int32").cast("float32"), lambda a: np.trunc(a)),
                ]
            ),
        )

    def binary(self, i: int, x: np.ndarray) -> Step:
        """An elementwise operation on two values of one shape."""
        other = self.random.choice([j for j in self.readable if self.values[j].shape == x.shape])
        return Step(
            (i, other),
            *self.random.choice(
                [
                    (lambda t, u: t + u, lambda a, b: a + b),
                    (lambda t, u: t - u, lambda a, b: a - b),
                    (lambda t, u: t * u, lambda a, b: a * b),
                    (lambda t, u: t.maximum(u), np.maximum),
                    (lambda t, u: (t < u).where(t, u * 2), lambda a, b: np.where(a < b, a, b * 2)),
                ]
            ),
        )

    def broadcast(self, i: int, x: np.ndarray) -> Step | None:
        """A value beside its own reduction."""
        axis = self.random.randrange(x.ndim)
        return Step(
            (i,),
            *self.random.choice(
                [
                    (
                        lambda t: t - t.max(axis, keepdim=True),
                        lambda a: a - a.max(axis, keepdims=True),
                    ),
                    (
                        lambda t: t + t.sum(axis, keepdim=True),
                        lambda a: a + a.sum(axis, keepdims=True),
                    ),
                    (lambda t: t * 2 - t.sum(), lambda a: a * 2 - a.sum()),
                ]
            ),
        )

    def reduce(self, i: int, x: np.ndarray) -> Step:
        """A reduction over some axes."""
        axes = tuple(sorted(self.random.sample(range(x.ndim), self.random.randint(1, x.ndim))))
        keep = self.random.random() < 0.7 or len(axes) == x.ndim
        return Step(
            (i,),
            *self.random.choice(
                [
                    (lambda t: t.sum(axes, keepdim=keep), lambda a: a.sum(axes, keepdims=keep)),
                    (lambda t: t.max(axes, keepdim=keep), lambda a: a.max(axes, keepdims=keep)),
                    (lambda t: t.min(axes, keepdim=keep), lambda a: a.min(axes, keepdims=keep)),
                ]
            ),
        )

    def reshape(self, i: int, x: np.ndarray) -> Step:
        """The same elements in another shape."""
        left, shape = x.size, []
        while left > 1 and len(shape) < 4:
            size = self.random.choice([d for d in range(1, left + 1) if left % d == 0])
            shape.append(size)
            left //= size
        shape.append(left)
        self.random.shuffle(shape)
        return Step((i,), lambda t: t.reshape(*shape), lambda a: a.reshape(shape))

    def permute(self, i: int, x: np.ndarray) -> Step:
        """Axes in another order."""
        order = self.random.sample(range(x.ndim), x.ndim)
        return Step((i,), lambda t: t.permute(*order), lambda a: a.transpose(order))

    def pad(self, i: int, x: np.ndarray) -> Step:
        """Zeros around."""
        pads = tuple((self.random.randint(0, 2), self.random.randint(0, 2)) for _ in x.shape)
        return Step((i,), lambda t: t.pad(pads), lambda a: np.pad(a, pads))

    def shrink(self, i: int, x: np.ndarray) -> Step:
        """A window, in steps."""
        window = []
        for size in x.shape:
            start = self.random.randint(0, size - 1)
            window.append(
                slice(start, self.random.randint(start + 1, size), self.random.choice((1, 1, 1, 2)))
            )
        where = tuple(window)
        return Step((i,), lambda t: t[where], lambda a: a[where])

    def flip(self, i: int, x: np.ndarray) -> Step:
        """Some axes backwards."""
        axes = tuple(self.random.sample(range(x.ndim), self.random.randint(1, x.ndim)))
        return Step((i,), lambda t: t.flip(axes), lambda a: np.flip(a, axes))

    def expand(self, i: int, x: np.ndarray) -> Step:
        """Axes of size 1 made longer."""
        shape = tuple(self.random.choice((2, 3, 4)) if s == 1 else s for s in x.shape)
        return Step((i,), lambda t: t.expand(*shape), lambda a: np.broadcast_to(a, shape))

    def mark(self, i: int, x: np.ndarray) -> Step:
        """The same value, stored or realized."""
        return Step(
            (i,),
            self.random.choice(
                [
                    lambda t: t.contiguous(),
                    lambda t: t * 1,
                    lambda t: t.clone(),
                    lambda t: (t + 0).realize(),
                ]
            ),
            lambda a: a,
        )

    def product(self, i: int, x: np.ndarray) -> Step | None:
        """A matrix product with itself, transposed."""
        if x.ndim < 2:
            return None
        return Step((i,), lambda t: t @ t.transpose(-1, -2), lambda a: a @ a.swapaxes(-1, -2))

    def gather(self, i: int, x: np.ndarray) -> Step:
        """Rows by number."""
        rows = [self.random.randrange(x.shape[0]) for _ in range(self.random.randint(1, 5))]
        return Step((i,), lambda t: t[Tensor(rows, device=t.device)], lambda a: a[rows])

    def cumulate(self, i: int, x: np.ndarray) -> Step:
        """A cumulative sum."""
        axis = self.random.randrange(x.ndim)
        return Step((i,), lambda t: t.cumsum(axis), lambda a: a.cumsum(axis))

    def select(self, i: int, x: np.ndarray) -> Step:
        """What the number of the last axis decides."""
        n = x.shape[-1]
        return Step(
            (i,),
            lambda t: (Tensor.arange(n, device=t.device) % 2 == 0).where(t, -t),
            lambda a: np.where(np.arange(n) % 2 == 0, a, -a),
        )

    def neutral(self, i: int, x: np.ndarray) -> Step:
        """An operation that changes nothing, or decides all."""
        shape = x.shape
        return Step(
            (i,),
            *self.random.choice(
                [
                    (lambda t: t + Tensor.zeros(shape, device=t.device), lambda a: a),
                    (lambda t: Tensor.ones(shape, device=t.device) * t - 0, lambda a: a),
                    (lambda t: (t * -1).neg() / 1, lambda a: a),
                    (lambda t: t ** Tensor.ones(shape, device=t.device), lambda a: a),
                    (lambda t: (t * 0 + 1) * 2, lambda a: np.full_like(a, 2)),
                    (lambda t: (t.cast("int32") * 0).cast("float32"), np.zeros_like),
                ]
            ),
        )

    def number(self, i: int, x: np.ndarray) -> Step:
        """A value beside numbers that are reduced, padded and moved."""
        n = x.shape[0]
        return Step(
            (i,),
            *self.random.choice(
                [
                    (
                        lambda t: t + Tensor.full((n, 3), 2.0, device=t.device).sum(),
                        lambda a: a + 6 * n,
                    ),
                    (
                        lambda t: t.sum() * Tensor.ones(n, device=t.device).pad(((1, 2),)),
                        lambda a: a.sum() * np.pad(np.ones(n), (1, 2)),
                    ),
                    (
                        lambda t: t - Tensor.ones(2, n, device=t.device).pad(((0, 1), None)).sum(),
                        lambda a: a - 2 * n,
                    ),
                ]
            ),
        )

    def siblings(self, i: int, x: np.ndarray) -> Step:
        """Two reductions of one value, one of them of what the other gives."""
        axis = self.random.randrange(x.ndim)
        return Step(
            (i,),
            *self.random.choice(
                [
                    (
                        lambda t: t.sum(axis, keepdim=True) + t.max(axis, keepdim=True),
                        lambda a: a.sum(axis, keepdims=True) + a.max(axis, keepdims=True),
                    ),
                    (
                        lambda t: (
                            t.sum(axis, keepdim=True).relu().sum() + t.sum(axis, keepdim=True)
                        ),
                        lambda a: np.maximum(a.sum(axis), 0).sum() + a.sum(axis, keepdims=True),
                    ),
                    (
                        lambda t: (t.max(axis, keepdim=True) - t).pad(((1, 0),) * t.ndim),
                        lambda a: np.pad(a.max(axis, keepdims=True) - a, ((1, 0),) * a.ndim),
                    ),
                ]
            ),
        )

    def assign(self, i: int, x: np.ndarray) -> Step | None:
        """An input is given another value."""
        target = self.random.randrange(self.inputs)
        shape = self.values[target].shape
        fitting = [j for j in self.readable if self.values[j].shape == shape]
        j = self.random.choice(fitting)
        return Step(
            (target, j),
            lambda t, u: t.assign(u * 0.5 + 1) + 0,
            lambda a, b: b * 0.5 + 1,
            written=True,
        )

    def assign_part(self, i: int, x: np.ndarray) -> Step | None:
        """A part of an input is given the value of another part of it."""
        target = self.random.randrange(self.inputs)
        size = self.values[target].shape[0]
        if size < 2:
            return None
        shift = self.random.randint(1, size - 1)

        def write_tensor(t: Tensor) -> Tensor:
            t[shift:] = t[:-shift] + 1
            return t + 0

        def write_array(a: np.ndarray) -> np.ndarray:
            made = a.copy()
            made[shift:] = a[:-shift] + 1
            return made

        return Step((target,), write_tensor, write_array, written=True)


def draw_program(seed: int, steps: int = 12, assigns: bool = False) -> Program:
    """The program of a seed."""
    return Writer(seed, assigns).write(steps)
