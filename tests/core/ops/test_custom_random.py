"""Random hand-written kernels with nested loops, registers and stores that see one another.

A program is drawn once and told twice: to a kernel, and to Python lists.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor, UOp, dtypes
from aster_ml.compat.kernels import KernelInfo
from aster_ml.dtype import AddrSpace

SIZES = (6, 4, 5)


@dataclass
class Loop:
    """Statements for every number below `size`."""

    number: int
    size: int
    body: list[Any]


@dataclass
class Set:
    """memory[index] = sum of elements read, times a factor, plus a number."""

    memory: int
    index: list[int]
    reads: list[tuple[int, list[int]]]
    factor: int
    number: int


def draw_index(rng: random.Random, loops: list[int]) -> list[int]:
    """A constant, and a coefficient for each open loop."""
    return [rng.randrange(4), *[rng.randrange(3) for _ in loops]]


def draw_body(rng: random.Random, loops: list[int], count: list[int]) -> list[Any]:
    """Some statements inside of these loops."""
    body: list[Any] = []
    for _ in range(rng.randint(1, 3)):
        if len(loops) < 3 and rng.random() < 0.45:
            number = count[0]
            count[0] += 1
            inner = draw_body(rng, [*loops, number], count)
            body.append(Loop(number, rng.randint(1, 4), inner))
        else:
            reads = [(rng.randrange(3), draw_index(rng, loops)) for _ in range(rng.randint(0, 2))]
            body.append(
                Set(rng.randrange(3), draw_index(rng, loops), reads,
                    rng.choice([1, 1, 2, -1]), rng.randint(-3, 3))
            )  # fmt: skip
    return body


def written(body: list[Any]) -> set[int]:
    """The memories that statements write."""
    return {m for s in body for m in (written(s.body) if isinstance(s, Loop) else {s.memory})}


def element(index: list[int], at: list[Any], size: int) -> Any:
    """An index in range, of numbers or of nodes."""
    total = index[0]
    for factor, i in zip(index[1:], at, strict=True):
        total = i * factor + total
    return total % size


def tell_python(body: list[Any], memory: list[list[int]], at: list[int]) -> None:
    """Runs statements."""
    for s in body:
        if isinstance(s, Loop):
            for i in range(s.size):
                tell_python(s.body, memory, [*at, i])
            continue
        value = sum([memory[m][element(i, at, SIZES[m])] for m, i in s.reads])
        memory[s.memory][element(s.index, at, SIZES[s.memory])] = value * s.factor + s.number


def tell_kernel(body: list[Any], memory: list[UOp], at: list[UOp]) -> list[UOp]:
    """Builds statements; the memories as they are afterwards."""
    memory = list(memory)
    for s in body:
        if isinstance(s, Loop):
            r = UOp.range(s.size, s.number)
            inner = tell_kernel(s.body, [m.after(r) for m in memory], [*at, r])
            changed = sorted(written(s.body))
            end = UOp.group(*[inner[m] for m in changed]).end(r)
            for m in changed:
                memory[m] = memory[m].after(end)
            continue
        value: Any = None
        for m, i in s.reads:
            read = memory[m][as_node(element(i, at, SIZES[m]))]
            value = read if value is None else value + read
        number = UOp.const(dtypes.int32, s.number)
        value = number if value is None else value * s.factor + number
        place = as_node(element(s.index, at, SIZES[s.memory]))
        memory[s.memory] = memory[s.memory][place].set(value)
    return memory


def as_node(index: Any) -> UOp:
    """A number as a node."""
    return index if isinstance(index, UOp) else UOp.const(dtypes.index, index)


def kernel_of(body: list[Any]) -> Callable[[UOp, UOp], UOp]:
    """The program over two arguments and an array of registers, which begins with ones."""

    def kernel(A: UOp, B: UOp) -> UOp:
        fill = UOp.range(SIZES[2], 1000)
        own = UOp.placeholder((SIZES[2],), dtypes.int32, 0, addrspace=AddrSpace.REG)
        own = own[fill].set(1, end=fill)
        a, b, own = tell_kernel(body, [A, B, own], [])
        return UOp.sink(a, b, own, arg=KernelInfo(name="drawn", opts_to_apply=()))

    return kernel


@pytest.mark.parametrize("device, clang", [("CPU", 0), ("CPU", 1), ("PYTHON", 0)])
@pytest.mark.parametrize("seed", range(12))
def test_drawn_program(seed: int, device: str, clang: int) -> None:
    rng = random.Random(seed)
    for _ in range(5):
        body = draw_body(rng, [], [0])
        start = [[rng.randint(-5, 5) for _ in range(n)] for n in SIZES[:2]]
        wanted = [list(start[0]), list(start[1]), [1] * SIZES[2]]
        tell_python(body, wanted, [])
        with Context(CLANG=clang):
            a, b = [
                Tensor(np.array(s, np.int32), device=device).contiguous().realize() for s in start
            ]
            x, y = a.custom_kernel(b, fxn=kernel_of(body))
            limit = (1 << 31) - 1
            if any(abs(v) > limit for m in wanted for v in m):
                continue
            assert [x.tolist(), y.tolist()] == wanted[:2], body
