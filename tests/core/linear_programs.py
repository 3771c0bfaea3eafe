"""Linear programs that between them use every rule of the linear stage, with what they compute.

Each case has inputs, and the contents of the written buffers as NumPy computes them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aster_ml.dtype import dtypes
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.linear_builder import (
    GLOBAL,
    LOCAL,
    LOOP,
    REDUCE,
    THREAD,
    UNROLL,
    UPCAST,
    VECTOR,
    Builder,
    at,
)

F32, I32 = dtypes.float32, dtypes.int32


@dataclass
class Case:
    """A program, its buffers by slot before the run, and those that it writes after the run."""

    linear: Linear
    buffers: list[np.ndarray]
    expected: dict[int, np.ndarray]
    variables: tuple[int, ...] = ()
    # The parts of the THREAD range, one a call.
    parts: tuple[tuple[int, int], ...] = ((0, 1),)
    groups: bool = False


CASES: dict[str, Callable[[], Case]] = {}


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    """Adds a case by the name of its function."""
    CASES[function.__name__] = functools.cache(function)
    return function


def i32(value: int) -> UOp:
    """An index constant."""
    return UOp.const(I32, value)


def f32(value: float) -> UOp:
    """A float constant."""
    return UOp.const(F32, value)


def random(*shape: int, seed: int = 1) -> np.ndarray:
    """Floats of either sign."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def blank(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """A buffer to write to; what is left of this value was not written."""
    return np.full(shape, 77, dtype=dtype)


@case
def elementwise() -> Case:
    """out = a * b + 1, with a loop, an unrolled lane and a SIMD lane."""
    b = Builder("elementwise")
    out, x, y = (b.param(96) for _ in range(3))
    r = b.axis(6, LOOP)
    j, v = b.axis(2, UPCAST), b.axis(8, VECTOR)
    base, offset = b.add(r * i32(16)), j * i32(8) + v
    value = b.load(at(x, base, offset)) * b.load(at(y, base, offset)) + f32(1)
    b.store(at(out, base, offset), b.add(value))
    b.end(r)
    a, c = random(96), random(96, seed=2)
    return Case(b.build(), [blank(96), a, c], {0: a * c + np.float32(1)})


@case
def sum_with_accumulators() -> Case:
    """The sum of 256 numbers: a loop, an unrolled lane, and 2 x 8 accumulators side by side."""
    b = Builder("sum_with_accumulators")
    out, x = b.param(1), b.param(256)
    j, v = b.axis(2, UPCAST), b.axis(8, VECTOR)
    acc = b.reg(f32(0), j, v)
    r, k = b.axis(4, REDUCE), b.axis(4, UNROLL)
    value = b.load(at(x, b.add(r * i32(64)), k * i32(16) + j * i32(8) + v))
    b.accumulate(acc, value, k)
    b.end(r)
    b.store(at(out, 0), b.reduce(acc, j, v))
    a = random(256)
    return Case(b.build(), [blank(1), a], {0: a.sum(dtype=np.float64, keepdims=True)})


@case
def matmul_tile() -> Case:
    """[12,16] @ [16,32] in tiles of 6 x 2 SIMD values of 8, k unrolled by 4."""
    m, n, k = 12, 32, 16
    b = Builder("matmul_tile")
    out, x, y = b.param(m * n), b.param(m * k), b.param(k * n)
    i0, j0 = b.axis(m // 6, LOOP), b.axis(n // 16, LOOP)
    i, j, v = b.axis(6, UPCAST), b.axis(2, UPCAST), b.axis(8, VECTOR)
    row, column = b.add(i0 * i32(6 * k)), b.add(j0 * i32(16))
    acc = b.reg(f32(0), i, j, v)
    k0, k1 = b.axis(k // 4, REDUCE), b.axis(4, UNROLL)
    left = b.load(at(x, b.add(row + k0 * i32(4)), i * i32(k) + k1))
    right = b.load(at(y, b.add(column + k0 * i32(4 * n)), k1 * i32(n) + j * i32(8) + v))
    b.accumulate(acc, b.add(left * right), k1)
    b.end(k0)
    b.store(at(out, b.add(i0 * i32(6 * n) + column), i * i32(n) + j * i32(8) + v), acc)
    b.end(j0, i0)
    p, q = random(m, k), random(k, n, seed=2)
    return Case(b.build(), [blank(m, n), p, q], {0: p.astype(np.float64) @ q})


@case
def masked_tail() -> Case:
    """13 elements in SIMD values of 8: each element has a gate of its own."""
    b = Builder("masked_tail")
    out, x = b.param(13), b.param(13)
    r, v = b.axis(2, LOOP), b.axis(8, VECTOR)
    base = b.add(r * i32(8))
    inside = b.add(base + v < i32(13))
    value = b.load(at(x, base, v), inside)
    b.store(at(out, base, v), b.add(value * f32(2)), inside)
    b.end(r)
    a = random(13)
    return Case(b.build(), [blank(13), a], {0: a * 2})


@case
def scalar_gates() -> Case:
    """A window of 3 with zeros around the edges; every gate is one for the whole access."""
    b = Builder("scalar_gates")
    out, x = b.param(5 * 4), b.param(5 * 4)
    r = b.axis(5, LOOP)
    t, v = b.axis(3, UNROLL), b.axis(4, VECTOR)
    row = b.add(r + t)
    inside = b.add((i32(0) < row) & (row < i32(6)))
    value = b.load(at(x, b.add(row * i32(4)), v + i32(-4)), inside)
    b.store(at(out, b.add(r * i32(4)), v), b.reduce(value, t), b.add(r < i32(4)))
    b.end(r)
    a = random(5, 4)
    padded = np.pad(a, ((1, 1), (0, 0)))
    want = padded[:-2] + padded[1:-1] + padded[2:]
    want[4] = 77
    return Case(b.build(), [blank(5, 4), a], {0: want})


@case
def gates_known_for_some_lanes() -> Case:
    """A pad by one on each side, written out: some gates are known, one is not."""
    b = Builder("gates_known_for_some_lanes")
    n = b.variable("n", 1, 4)
    out, x = b.param(6), b.param(4)
    j = b.axis(6, UPCAST)
    inside = b.add((i32(0) < j) & (j < n + i32(1)))
    value = b.load(at(x, 0, j + i32(-1)), inside)
    b.store(at(out, 0, j), value)
    a = random(4)
    return Case(b.build(), [blank(6), a], {0: np.array([0, *a[:3], 0, 0], np.float32)}, (3,))


@case
def gather() -> Case:
    """out[i] = x[index[i]], 0 where the index is negative."""
    b = Builder("gather")
    out, x, index = b.param(16), b.param(10), b.param(16, I32)
    r, v = b.axis(4, LOOP), b.axis(4, VECTOR)
    base = b.add(r * i32(4))
    where = b.load(at(index, base, v))
    value = b.load(at(x, where), b.add(i32(-1) < where))
    b.store(at(out, base, v), value)
    b.end(r)
    a, i = random(10), np.array([3, -1, 9, 0, 0, 1, 2, 3, -5, 9, 9, 9, 5, 4, 3, -1], np.int32)
    return Case(b.build(), [blank(16), a, i], {0: np.where(i < 0, np.float32(0), a[i])})


@case
def scatter_store() -> Case:
    """out[index[i]] = x[i] + i, the index changes with the SIMD lane; one lane is gated off."""
    b = Builder("scatter_store")
    out, x, index = b.param(8), b.param(4), b.param(4, I32)
    v = b.axis(4, VECTOR)
    where = b.load(at(index, 0, v))
    value = b.load(at(x, 0, v)) + v.cast(F32)
    b.store(at(out, where), b.add(value), b.add(where.ne(i32(6))))
    a, i = random(4), np.array([7, 2, 6, 1], np.int32)
    want = blank(8)
    want[i] = a + np.arange(4, dtype=np.float32)
    want[6] = 77
    return Case(b.build(), [blank(8), a, i], {0: want})


@case
def strides() -> Case:
    """SIMD lanes of stride -1 and 2 in loads, -1 and 3 in stores, 0 beside 1."""
    b = Builder("strides")
    flipped, spread, x = b.param(8), b.param(24), b.param(16)
    v = b.axis(8, VECTOR)
    backwards = b.load(at(x, 0, v * i32(-1) + i32(7)))
    every_second = b.load(at(x, 0, v * i32(2)))
    first = b.load(at(x, 3))
    b.store(at(flipped, 7, v * i32(-1)), b.add(every_second + first))
    b.store(at(spread, 1, v * i32(3)), backwards)
    a = random(16)
    want = blank(24)
    want[1::3] = a[7::-1]
    return Case(b.build(), [blank(8), blank(24), a], {0: (a[::2] + a[3])[::-1], 1: want})


@case
def nested_reduces() -> Case:
    """out[i] = max over j of (sum over k of x[i,j,k]) squared."""
    b = Builder("nested_reduces")
    out, x = b.param(3), b.param(3 * 4 * 5)
    i = b.axis(3, LOOP)
    best = b.reg(f32(-np.inf))
    j = b.axis(4, REDUCE)
    row = b.add(i * i32(20) + j * i32(5))
    total = b.reg(f32(0))
    k = b.axis(5, REDUCE)
    b.accumulate(total, b.load(at(x, b.add(row + k))))
    b.end(k)
    b.accumulate(best, b.add(total * total), op=Ops.MAX)
    b.end(j)
    b.store(at(out, i), best)
    b.end(i)
    a = random(3, 4, 5)
    return Case(b.build(), [blank(3), a], {0: (a.sum(2) ** 2).max(1)})


@case
def running_rescale() -> Case:
    """A sum that is rescaled as its maximum grows: the old maximum is read before it changes."""
    b = Builder("running_rescale")
    out, x = b.param(2), b.param(6)
    top, total = b.reg(f32(1)), b.reg(f32(0))
    r = b.axis(6, REDUCE)
    value = b.load(at(x, r))
    larger = b.add(top.maximum(value))
    ratio = b.add(top.alu(Ops.FDIV, larger))
    b.accumulate(top, value, op=Ops.MAX)
    b.accumulate(total, ratio, op=Ops.MUL)
    b.accumulate(total, b.add(value.alu(Ops.FDIV, larger)))
    b.end(r)
    b.store(at(out, 0), total)
    b.store(at(out, 1), top)
    a = np.array([2, 1, 4, 3, 8, 5], np.float32)
    return Case(b.build(), [blank(2), a], {0: np.array([a.sum() / 8, 8], np.float32)})


@case
def readers_of_lanes() -> Case:
    """Accumulators with lanes that are read, changed and read again."""
    b = Builder("readers_of_lanes")
    out, x = b.param(8), b.param(8)
    j, v = b.axis(2, UPCAST), b.axis(4, VECTOR)
    value = b.load(at(x, 0, j * i32(4) + v))
    acc = b.reg(value, j, v)
    doubled = b.add(acc * f32(2))
    b.accumulate(acc, f32(1))
    b.accumulate(acc, b.add(doubled * acc))
    b.store(at(out, 0, j * i32(4) + v), acc)
    a = random(8)
    return Case(b.build(), [blank(8), a], {0: a + 1 + 2 * a * (a + 1)})


@case
def in_place_flip() -> Case:
    """A buffer reversed in place within one iteration: all loads come before the first store."""
    b = Builder("in_place_flip")
    x = b.param(8)
    j = b.axis(8, UPCAST)
    value = b.load(at(x, 7, j * i32(-1)))
    b.store(at(x, 0, j), value)
    a = random(8)
    return Case(b.build(), [a.copy()], {0: a[::-1]})


@case
def threads() -> Case:
    """A THREAD range in parts, one of them empty."""
    b = Builder("threads")
    out, x = b.param(40), b.param(40)
    r, v = b.axis(10, THREAD), b.axis(4, VECTOR)
    base = b.add(r * i32(4))
    b.store(at(out, base, v), b.add(-b.load(at(x, base, v))))
    b.end(r)
    a = random(40)
    return Case(b.build(), [blank(40), a], {0: -a}, parts=((0, 3), (3, 3), (3, 10)))


@case
def symbolic_size() -> Case:
    """A loop over a variable's worth of elements, and a sum over none."""
    b = Builder("symbolic_size")
    n, scale = b.variable("n", 1, 64), b.variable("scale", -100, 100, dtypes.int64)
    out, total, x = b.param(64), b.param(1), b.param(64)
    twice = b.add(n + n)
    r = b.axis(twice, LOOP)
    b.store(at(out, r), b.add(b.load(at(x, r)) * scale.cast(F32)))
    b.end(r)
    acc = b.reg(f32(5))
    none = b.axis(b.add(n - n), REDUCE)
    b.accumulate(acc, b.load(at(x, none)))
    b.end(none)
    b.store(at(total, 0), acc)
    a = random(64)
    want = blank(64)
    want[:22] = a[:22] * -3
    return Case(b.build(), [blank(64), blank(1), a], {0: want, 1: np.float32([5])}, (11, -3))


@case
def scratch() -> Case:
    """Rows copied to scratch, then read twice: once for their maximum, once for the result."""
    b = Builder("scratch")
    out, x = b.param(3 * 16), b.param(3 * 16)
    strip = b.local(16)
    r = b.axis(3, LOOP)
    row = b.add(r * i32(16))
    v = b.axis(8, VECTOR)
    top = b.reg(f32(-np.inf), v)
    c = b.axis(2, REDUCE)
    near = b.add(c * i32(8))
    value = b.load(at(x, b.add(row + near), v))
    stored = b.store(at(strip, near, v), value)
    b.accumulate(top, value, op=Ops.MAX)
    b.end(c)
    barrier = b.add(UOp(Ops.BARRIER, dtypes.void, (stored,)))
    largest = b.reduce(top, v, op=Ops.MAX)
    c2, w = b.axis(2, LOOP), b.axis(8, VECTOR)
    near2 = b.add(c2 * i32(8))
    again = b.load(at(strip.after(barrier), near2, w))
    b.store(at(out, b.add(row + near2), w), b.add(again - largest))
    b.end(c2, r)
    a = random(3, 16)
    return Case(b.build(), [blank(3, 16), a], {0: a - a.max(1, keepdims=True)})


@case
def bools() -> Case:
    """Bool buffers: loaded, combined, compared, masked, stored, as SIMD and as scalars."""
    b = Builder("bools")
    out, single, x, y = (b.param(n, dtypes.bool) for n in (8, 2, 8, 8))
    v = b.axis(8, VECTOR)
    p, q = b.load(at(x, 0, v)), b.load(at(y, 0, v), b.add(v < i32(5)))
    mixed = (p & q) | (p.ne(q) & (p < q)) | (p.eq(q) & p.logical_not())
    b.store(at(out, 0, v), b.add(mixed))
    s, t = b.load(at(x, 1)), b.load(at(y, 1))
    b.store(at(single, 0), b.add((s < t) | (s ^ t)))
    b.store(at(single, 1), b.reduce(p, v, op=Ops.MAX))
    a, c = (np.array(z, bool) for z in ([1, 0, 1, 0, 1, 0, 1, 0], [1, 1, 0, 0, 1, 1, 1, 1]))
    d = np.where(np.arange(8) < 5, c, False)
    want = (a & d) | ((a != d) & (~a & d)) | ((a == d) & ~a)
    return Case(
        b.build(),
        [blank(8, dtype=bool), blank(2, dtype=bool), a, c],
        {0: want, 1: np.array([True, True])},
    )


@case
def constant_lanes() -> Case:
    """Lanes as values: all of it is known when the kernel is written, save the last addition."""
    b = Builder("constant_lanes")
    out, x = b.param(12, I32), b.param(1, I32)
    j, v = b.axis(3, UPCAST), b.axis(4, VECTOR)
    known = (j * i32(4) + v) * (v + i32(1)) + (j.eq(i32(1))).where(i32(100), i32(0))
    value = b.add(known + b.load(at(x, 0)))
    b.store(at(out, 0, j * i32(4) + v), value, b.add(known < i32(140)))
    n = np.arange(12)
    numbers = n * (n % 4 + 1) + np.where(n // 4 == 1, 100, 0)
    want = np.where(numbers < 140, numbers + 5, 77).astype(np.int32)
    return Case(b.build(), [blank(12, dtype=np.int32), np.array([5], np.int32)], {0: want})


@case
def ordered_fold() -> Case:
    """The elements of SIMD values folded into one accumulator in order."""
    b = Builder("ordered_fold")
    out, x = b.param(1), b.param(16)
    acc = b.reg(f32(0))
    r, v = b.axis(4, REDUCE), b.axis(4, VECTOR)
    b.accumulate(acc, b.load(at(x, b.add(r * i32(4)), v)), v)
    b.end(r)
    b.store(at(out, 0), acc)
    a = np.array([1e8, 1, -1e8, 1] * 4, np.float32)
    total = np.float32(0)
    for value in a:
        total = np.float32(total + value)
    return Case(b.build(), [blank(1), a], {0: np.array([total])})


@case
def maximum_with_nan() -> Case:
    """Row maxima where one row has a NaN and one has zeros of both signs."""
    b = Builder("maximum_with_nan")
    out, x = b.param(3), b.param(24)
    r, v = b.axis(3, LOOP), b.axis(4, VECTOR)
    best = b.reg(f32(-np.inf), v)
    k = b.axis(2, REDUCE)
    b.accumulate(best, b.load(at(x, b.add(r * i32(8) + k * i32(4)), v)), op=Ops.MAX)
    b.end(k)
    b.store(at(out, r), b.reduce(best, v, op=Ops.MAX))
    b.end(r)
    a = random(3, 8)
    a[0, 5] = np.nan
    a[1] = [-0.0, -0.0, -0.0, 0.0, -0.0, -0.0, -0.0, -0.0]
    return Case(b.build(), [blank(3), a], {0: np.array([np.nan, 0, a[2].max()], np.float32)})


@case
def reductions_of_ints() -> Case:
    """Sum, product, maximum, or, and of int and unsigned lanes, odd counts too."""
    b = Builder("reductions_of_ints")
    out, x = b.param(5, I32), b.param(12, I32)
    j, v = b.axis(3, UPCAST), b.axis(4, VECTOR)
    value = b.load(at(x, 0, j * i32(4) + v))
    for i, op in enumerate((Ops.ADD, Ops.MUL, Ops.MAX, Ops.OR, Ops.AND)):
        b.store(at(out, i), b.reduce(value, j, v, op=op))
    a = np.array([3, -7, 11, 15, 7, 9, 1 << 20, 5, 13, -1, 1 << 30, 3], np.int32)
    want = [
        a.sum(dtype=np.int32),
        np.multiply.reduce(a, dtype=np.int32),
        a.max(),
        np.bitwise_or.reduce(a),
        np.bitwise_and.reduce(a),
    ]
    return Case(b.build(), [blank(5, dtype=np.int32), a], {0: np.array(want, np.int32)})


@case
def group_sum() -> Case:
    """Sums of 3 rows of 32, 8 work-items a row, by halves through shared memory."""
    b = Builder("group_sum")
    out, x = b.param(3), b.param(96)
    strip = b.local(8)
    g, item = b.axis(3, GLOBAL), b.axis(8, LOCAL)
    acc = b.reg(f32(0))
    r = b.axis(4, REDUCE)
    b.accumulate(acc, b.load(at(x, b.add(g * i32(32) + r * i32(8) + item))))
    b.end(r)
    done = b.store(at(strip, item), acc)
    for half in (4, 2, 1):
        barrier = b.add(UOp(Ops.BARRIER, dtypes.void, (done,)))
        gate = b.add(item < i32(half))
        place = strip.after(barrier)
        both = b.load(at(place, item)) + b.load(at(place, b.add(item + i32(half))), gate)
        done = b.store(at(strip, item), b.add(both), gate)
    barrier = b.add(UOp(Ops.BARRIER, dtypes.void, (done,)))
    b.store(at(out, g), b.load(at(strip.after(barrier), 0)), b.add(item.eq(i32(0))))
    a = random(3, 32)
    return Case(b.build(), [blank(3), a], {0: a.sum(1)}, groups=True)


@case
def group_transpose() -> Case:
    """A transpose in tiles of 4 x 4 through shared memory, everything in 2 dimensions."""
    b = Builder("group_transpose")
    out, x = b.param(8 * 12), b.param(12 * 8)
    tile = b.local(16)
    gi, gj, li, lj = b.axis(3, GLOBAL), b.axis(2, GLOBAL), b.axis(4, LOCAL), b.axis(4, LOCAL)
    value = b.load(at(x, b.add((gi * i32(4) + li) * i32(8) + gj * i32(4) + lj)))
    done = b.store(at(tile, b.add(li * i32(4) + lj)), value)
    barrier = b.add(UOp(Ops.BARRIER, dtypes.void, (done,)))
    turned = b.load(at(tile.after(barrier), b.add(lj * i32(4) + li)))
    b.store(at(out, b.add((gj * i32(4) + li) * i32(12) + gi * i32(4) + lj)), turned)
    a = random(12, 8)
    return Case(b.build(), [blank(8, 12), a], {0: a.T}, groups=True)


def check_outputs(found: list[np.ndarray], wanted: Case) -> None:
    """Every buffer is as expected; those that are not written are as before."""
    for slot, before in enumerate(wanted.buffers):
        want = wanted.expected.get(slot, before)
        np.testing.assert_allclose(found[slot].reshape(want.shape), want, rtol=2e-5, atol=1e-5)
        zeros = (want == 0) & (found[slot].reshape(want.shape) == 0)
        signs = np.signbit(want[zeros]), np.signbit(found[slot].reshape(want.shape)[zeros])
        np.testing.assert_array_equal(*signs)
