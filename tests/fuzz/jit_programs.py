"""Random functions to jit, that mean the same on NumPy arrays and on tensors.

Receives a generator of random numbers; returns functions of inputs and state, made of whole numbers
of 32 bits, so that nothing is rounded and results are equal or wrong. How they are called, and
with which memory, is decided by who draws them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aster_ml import Tensor

# An array or a tensor.
Value = Any
Shape = tuple[int, ...]
# A step makes a value of those before it.
Step = Callable[[Sequence[Value]], Value]


def is_tensor(x: Value) -> bool:
    """Whether this is the side that is tested."""
    return isinstance(x, Tensor)


def total(x: Value, axis: int | None, keep: bool) -> Value:
    """A sum in 32 bits."""
    if is_tensor(x):
        return x.sum(axis, keepdim=keep)
    return np.asarray(x.sum(axis, keepdims=keep, dtype=np.int32))


def largest(x: Value, axis: int | None, keep: bool) -> Value:
    """A maximum."""
    return x.max(axis, keepdim=keep) if is_tensor(x) else np.asarray(x.max(axis, keepdims=keep))


def chosen(x: Value, bound: int, other: Value) -> Value:
    """Where x is above the bound it, elsewhere the other."""
    return (x > bound).where(x, other) if is_tensor(x) else np.where(x > bound, x, other)


def joined(a: Value, b: Value, axis: int) -> Value:
    """One behind the other."""
    return a.cat(b, dim=axis) if is_tensor(a) else np.concatenate((a, b), axis)


def running(x: Value, axis: int) -> Value:
    """Sums so far."""
    return x.cumsum(axis) if is_tensor(x) else np.cumsum(x, axis, dtype=np.int32)


def permuted(x: Value, axes: tuple[int, ...]) -> Value:
    """Axes in another order."""
    return x.permute(axes) if is_tensor(x) else x.transpose(axes)


def flipped(x: Value, axis: int) -> Value:
    """One axis backwards."""
    return x.flip(axis) if is_tensor(x) else np.flip(x, axis)


def rolled(x: Value, by: int, axis: int) -> Value:
    """One axis in a circle."""
    return x.roll(by, axis) if is_tensor(x) else np.roll(x, by, axis)


def padded(x: Value, pads: tuple[tuple[int, int], ...]) -> Value:
    """Zeros around; where there are none to add it is what it was."""
    if not any(low or high for low, high in pads):
        return x
    return x.pad(pads) if is_tensor(x) else np.pad(x, pads)


def product(a: Value, b: Value) -> Value:
    """Of matrices."""
    return a @ b


def small(x: Value) -> Value:
    """Ten bits, so that products of sums stay whole numbers of 32 bits."""
    return x & 1023


@dataclass
class Write:
    """State number `state` (or a slice of it) is given value number `value`, or has it added."""

    state: int
    where: tuple[slice, ...] | None
    value: int
    adds: bool


@dataclass
class Program:
    """Steps, writes that stand between them, and which values are results."""

    inputs: list[Shape]
    states: list[Shape]
    steps: list[Step | Write] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    results: list[int] = field(default_factory=list)

    def run(self, inputs: Sequence[Value], states: Sequence[Value]) -> list[Value]:
        """The results; states are written in place."""
        values: list[Value] = [*inputs, *states]
        for step in self.steps:
            if isinstance(step, Write):
                write(states[step.state], step, values[step.value])
            else:
                values.append(step(values))
        return [values[i] for i in self.results]

    def show(self) -> str:
        """What it does, for a person."""
        names = f"inputs {self.inputs}, states {self.states}"
        return "; ".join([names, *self.text, f"results {self.results}"])


def write(state: Value, step: Write, value: Value) -> None:
    """Writes in place."""
    if step.where is None:
        value = state + value if step.adds else value
        if is_tensor(state):
            state.assign(value)
        else:
            state[...] = value
    elif step.adds:
        state[step.where] = state[step.where] + value
    else:
        state[step.where] = value


class Drawer:
    """Draws one program."""

    def __init__(self, rng: random.Random, sizes: Sequence[int], writes: bool) -> None:
        self.rng = rng
        self.sizes = sizes
        self.program = Program(
            [self.draw_shape() for _ in range(rng.randint(1, 3))],
            [self.draw_shape() for _ in range(rng.randint(1, 2))],
        )
        self.shapes = [*self.program.inputs, *self.program.states]
        self.n_named = len(self.shapes)
        length = rng.randint(2, 9)
        for _ in range(length):
            if writes and rng.random() < 0.25:
                self.draw_write()
            else:
                self.draw_step()
        made = list(range(self.n_named, len(self.shapes)))
        if not made:
            self.add("small", self.shapes[0], lambda v: small(v[0]))
            made = [len(self.shapes) - 1]
        self.program.results = rng.sample(made, rng.randint(1, min(3, len(made))))

    def draw_shape(self) -> Shape:
        return tuple([self.rng.choice(self.sizes) for _ in range(self.rng.randint(1, 3))])

    def add(self, text: str, shape: Shape, step: Step) -> int:
        self.program.steps.append(step)
        self.program.text.append(f"{len(self.shapes)} = {text} {shape}")
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def pick(self, wanted: Callable[[Shape], bool] = lambda shape: True) -> int | None:
        found = [i for i, shape in enumerate(self.shapes) if wanted(shape)]
        return self.rng.choice(found) if found else None

    def like(self, shape: Shape) -> int:
        """A value of this shape: one that is there, or made of another by slices and zeros."""
        found = [i for i, s in enumerate(self.shapes) if s == shape]
        if found and self.rng.random() < 0.7:
            return self.rng.choice(found)
        n = self.rng.randint(-3, 3)
        base = self.pick(lambda s: len(s) == len(shape))
        if base is None:
            base = self.rng.randrange(len(self.shapes))
            return self.add(f"total of {base} + {n}", shape, lambda v: spread(v[base], n, shape))
        have = self.shapes[base]
        cut = tuple([slice(0, min(a, b)) for a, b in zip(have, shape)])
        pads = tuple([(0, max(0, b - a)) for a, b in zip(have, shape)])
        return self.add(f"fit {base}", shape, lambda v: padded(v[base][cut], pads))

    def draw_step(self) -> None:
        rng = self.rng
        a = rng.choice([rng.randrange(len(self.shapes)), len(self.shapes) - 1])
        shape = self.shapes[a]
        kind = rng.choice(KINDS)
        axis = rng.randrange(len(shape)) if shape else 0
        n = rng.randint(-5, 5)
        if kind == "linear":
            self.add(f"{a} * {n} + 7", shape, lambda v: v[a] * n + 7)
        elif kind == "binary":
            b = self.like(shape)
            self.add(f"{a} - {b} * 3", shape, lambda v: v[a] - v[b] * 3)
        elif kind == "chosen":
            b = self.like(shape)
            self.add(f"{a} > {n} ? {a} : {b}", shape, lambda v: chosen(v[a], n, v[b]))
        elif kind == "small":
            self.add(f"small {a}", shape, lambda v: small(v[a]))
        elif kind == "all":
            fold = rng.choice([total, largest])
            self.add(f"{fold.__name__} of {a}", (), lambda v: fold(v[a], None, False))
        elif not shape:
            self.add(f"{a} + {n}", shape, lambda v: v[a] + n)
        elif kind == "fold":
            fold, keep = rng.choice([total, largest]), rng.random() < 0.5
            rest = tuple([1 if i == axis else s for i, s in enumerate(shape) if keep or i != axis])
            self.add(f"{fold.__name__} {a} {axis}", rest, lambda v: fold(v[a], axis, keep))
        elif kind == "against a fold":
            fold = rng.choice([total, largest])
            self.add(
                f"{a} - {fold.__name__} {axis}", shape, lambda v: v[a] - fold(v[a], axis, True)
            )
        elif kind == "running":
            self.add(f"running {a} {axis}", shape, lambda v: running(v[a], axis))
        elif kind == "permute":
            axes = tuple(rng.sample(range(len(shape)), len(shape)))
            self.add(f"permute {a} {axes}", tuple([shape[i] for i in axes]),
                     lambda v: permuted(v[a], axes))  # fmt: skip
        elif kind == "flip":
            self.add(f"flip {a} {axis}", shape, lambda v: flipped(v[a], axis))
        elif kind == "roll":
            self.add(f"roll {a} {n} {axis}", shape, lambda v: rolled(v[a], n, axis))
        elif kind == "cut":
            cut = self.draw_cut(shape)
            rest = tuple([len(range(*c.indices(s))) for c, s in zip(cut, shape)])
            self.add(f"cut {a} {cut}", rest, lambda v: v[a][cut])
        elif kind == "pad":
            pads = tuple([(rng.randint(0, 2), rng.randint(0, 2)) for _ in shape])
            rest = tuple([s + low + high for s, (low, high) in zip(shape, pads)])
            self.add(f"pad {a} {pads}", rest, lambda v: padded(v[a], pads))
        elif kind == "flat":
            count = int(np.prod(shape))
            self.add(f"flat {a} * 2", (count,), lambda v: v[a].reshape(count) * 2)
        elif kind == "join":
            b = self.like(shape)
            rest = tuple([2 * s if i == axis else s for i, s in enumerate(shape)])
            self.add(f"join {a} {b} {axis}", rest, lambda v: joined(v[a], v[b], axis))
        elif kind == "product" and len(shape) == 2:
            b = self.like((shape[1], rng.choice(self.sizes)))
            rest = (shape[0], self.shapes[b][1])
            self.add(f"{a} @ {b}", rest, lambda v: product(small(v[a]), small(v[b])))
        else:
            self.add(f"{a} * {a}", shape, lambda v: small(v[a]) * small(v[a]))

    def draw_cut(self, shape: Shape) -> tuple[slice, ...]:
        cuts = []
        for s in shape:
            start = self.rng.randint(0, max(0, s - 1))
            cuts.append(slice(start, self.rng.randint(min(start + 1, s), s)))
        return tuple(cuts)

    def draw_write(self) -> None:
        state = self.rng.randrange(len(self.program.states))
        shape, where = self.program.states[state], None
        if self.rng.random() < 0.5:
            where = self.draw_cut(shape)
            shape = tuple([len(range(*c.indices(s))) for c, s in zip(where, shape)])
        value = self.like(shape)
        adds = self.rng.random() < 0.4
        self.program.steps.append(Write(state, where, value, adds))
        self.program.text.append(f"state {state} {where} {'+=' if adds else '='} {value}")


def spread(x: Value, n: int, shape: Shape) -> Value:
    """A sum in every place."""
    whole = total(x, None, False) + n
    if is_tensor(x):
        return whole.expand(shape)
    return np.broadcast_to(whole, shape).astype(np.int32)


KINDS = (
    "linear", "binary", "chosen", "small", "all", "fold", "against a fold", "running", "permute",
    "flip", "roll", "cut", "pad", "flat", "join", "product", "square",
)  # fmt: skip
