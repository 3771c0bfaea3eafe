"""Computes cumulative sums, products, extremes and log-sum-exps along an axis.

Receives tensors; returns tensors of the same shape. Each result is a reduction over a masked row,
so a scan fuses like any reduction; long axes go in blocks, whose totals are scanned in turn.
"""

from __future__ import annotations

from typing import Any

from aster_ml.dtype import dtypes, sum_acc_dtype
from aster_ml.helpers import ceildiv
from aster_ml.ops import Self
from aster_ml.ops.index import is_zero
from aster_ml.ops.reduce import identity_of
from aster_ml.ops.sizes import size_between
from aster_ml.uop.infer import max_shape
from aster_ml.uop.ops import Ops

# A scan of n elements takes n * n steps; in blocks of this size, n * BLOCK. A block is as long as
# what is written out at once, with its sums side by side.
BLOCK = 8
# Rows up to here are not worth the kernels that blocks cost.
LONGEST_ROW = 32


def cumsum(self: Self, axis: int = 0) -> Self:
    """Sum of the elements up to each.

    Shapes: self [n, m], axis=1 -> [n, m].
    Dtype: that of `sum`.
    """
    wide = self.cast(sum_acc_dtype(self.dtype))
    total = scan(wide, Ops.ADD, self._resolve_axis(axis, "cumsum"))
    return total.cast(self.dtype) if self.dtype.kind == "float" else total


def cumprod(self: Self, axis: int) -> Self:
    """Product of the elements up to each.

    Shapes: self [n, m], axis=1 -> [n, m].
    Dtype: the default int for bool, else that of self.
    """
    factors = self.cast(dtypes.default_int) if self.dtype is dtypes.bool else self
    return scan(factors, Ops.MUL, self._resolve_axis(axis, "cumprod"))


def cummax(self: Self, axis: int = 0) -> tuple[Self, Self]:
    """Greatest of the elements up to each, and the place of it; of equal ones the last.

    A NaN counts as greatest.

    Shapes: self [n, m], axis=1 -> [n, m], [n, m].
    Dtype: that of self; the default int.
    """
    op = Ops.OR if self.dtype is dtypes.bool else Ops.MAX
    place = self._resolve_axis(axis, "cummax")
    values = scan(self, op, place)
    return values, last_places(self, values, place)


def cummin(self: Self, axis: int = 0) -> tuple[Self, Self]:
    """Least of the elements up to each, and the place of it; of equal ones the last.

    A NaN counts as least.

    Shapes: self [n, m], axis=1 -> [n, m], [n, m].
    Dtype: that of self; the default int.
    """
    place = self._resolve_axis(axis, "cummin")
    if self.dtype is dtypes.bool:
        values = scan(self, Ops.AND, place)
    else:
        values = scan(self._reversed_order(), Ops.MAX, place)._reversed_order()
    return values, last_places(self, values, place)


def logcumsumexp(self: Self, axis: int = 0) -> Self:
    """Logarithm of the sum of exponentials of the elements up to each, without overflow.

    Shapes: self [n, m], axis=1 -> [n, m].
    """
    place = self._resolve_axis(axis, "logcumsumexp")
    x = self._floating()
    if not x.shape or is_zero(x.shape[place]):
        return x
    if x.dtype.itemsize < 4:
        return x.cast(dtypes.float32).logcumsumexp(place).cast(x.dtype)
    if not isinstance(x.shape[place], int):
        full, part = filled_axis(x, place, float("-inf"))
        return full.logcumsumexp(place).shrink(part)
    return log_scan(x, place)


def last_places(x: Self, values: Self, axis: int) -> Self:
    """For each element, the last place so far at which `x` was what `values` had there."""
    if not x.shape or is_zero(x.shape[axis]):
        return x.const_like(0).cast(dtypes.default_int)
    reached = x.eq(values)
    if x.dtype.kind == "float":
        reached = reached | x.isnan()
    numbers = x.arange(x.shape[axis], device=x.device)
    numbers = numbers.reshape((x.shape[axis], *(1,) * (x.ndim - axis - 1)))
    return scan(reached.where(numbers, numbers._scalar(0)), Ops.MAX, axis)


def scan(x: Self, op: Ops, axis: int) -> Self:
    """`x` folded with `op` up to each element of the axis."""
    if not x.shape or is_zero(x.shape[axis]) or x.shape[axis] == 1:
        return x._own()
    if not isinstance(x.shape[axis], int):
        full, part = filled_axis(x, axis, identity_of(op, x.dtype))
        return scan(full, op, axis).shrink(part)
    return scan_axis(x, op, axis)


def filled_axis(x: Self, axis: int, value: Any) -> tuple[Self, list[Any]]:
    """An axis of symbolic size filled up with `value` to its largest, and how to cut it back."""
    size = x.shape[axis]
    pairs: list[Any] = [(0, 0)] * x.ndim
    part: list[Any] = [None] * x.ndim
    pairs[axis], part[axis] = (0, size_between(size, max_shape((size,))[0])), (0, size)
    return x.pad(pairs, value=value), part


def scan_axis(x: Self, op: Ops, axis: int) -> Self:
    """`scan` along an axis of known size."""
    if x.shape[axis] <= LONGEST_ROW:
        return scan_row(x, op, axis)
    neutral = x._scalar(identity_of(op, x.dtype))
    inner = scan_row(blocks_of(x, neutral, axis), op, axis + 1)
    before = shifted(scan_axis(totals_of(inner, axis), op, axis), neutral, axis)
    return rows_of(inner.alu(op, before.unsqueeze(axis + 1)._broadcast_to(inner.shape)), x, axis)


def scan_row(x: Self, op: Ops, axis: int) -> Self:
    """`scan` along an axis, each result a reduction of the row masked after its place."""
    square = squared(x, axis)
    kept = up_to(x, axis).where(square, x._scalar(identity_of(op, x.dtype)))
    return kept._rop(op, (axis + 1,)).reshape(x.shape)


def squared(x: Self, axis: int) -> Self:
    """An axis of n elements as [n, n]: each has all of the row."""
    shape = (*x.shape[:axis], x.shape[axis], *x.shape[axis:])
    return x.unsqueeze(axis)._broadcast_to(shape)


def up_to(x: Self, axis: int) -> Self:
    """[size, size, ..]: whether the column is at most the row, beside the axes that follow."""
    size, after = x.shape[axis], (1,) * (x.ndim - axis - 1)
    place = x.arange(size, device=x.device)
    return place.reshape((1, size, *after)) <= place.reshape((size, 1, *after))


def blocks_of(x: Self, neutral: Self, axis: int) -> Self:
    """An axis as [count, BLOCK], the last block filled up."""
    size, pairs = x.shape[axis], [(0, 0)] * x.ndim
    count = ceildiv(size, BLOCK)
    pairs[axis] = (0, count * BLOCK - size)
    filled = x.pad(pairs, value=neutral.uop.arg) if count * BLOCK > size else x
    return filled.reshape((*x.shape[:axis], count, BLOCK, *x.shape[axis + 1 :]))


def totals_of(blocks: Self, axis: int) -> Self:
    """The last element of each block."""
    cut: list[Any] = [None] * blocks.ndim
    cut[axis + 1] = (BLOCK - 1, BLOCK)
    return blocks.shrink(cut).squeeze(axis + 1)


def rows_of(blocks: Self, x: Self, axis: int) -> Self:
    """[count, BLOCK] as the axis of `x` that it was."""
    count, size, cut = blocks.shape[axis], x.shape[axis], [None] * x.ndim
    whole = blocks.reshape((*x.shape[:axis], count * BLOCK, *x.shape[axis + 1 :]))
    return whole.shrink([*cut[:axis], (0, size), *cut[axis + 1 :]])


def shifted(x: Self, neutral: Self, axis: int) -> Self:
    """An axis moved on by one, with the neutral value in front."""
    cut: list[Any] = [None] * x.ndim
    pairs = [(0, 0)] * x.ndim
    cut[axis], pairs[axis] = (0, x.shape[axis] - 1), (1, 0)
    return x.shrink(cut).pad(pairs, value=neutral.uop.arg)


def log_scan(x: Self, axis: int) -> Self:
    """`logcumsumexp` along an axis: sums of exponentials relative to the maximum so far."""
    if x.shape[axis] > LONGEST_ROW:
        least = x._scalar(float("-inf"))
        inner = log_scan(blocks_of(x, least, axis), axis + 1)
        before = shifted(log_scan(totals_of(inner, axis), axis), least, axis)
        return rows_of(inner.logaddexp(before.unsqueeze(axis + 1)), x, axis)
    most = scan_row(x, Ops.MAX, axis).detach()
    # Infinities have no difference to themselves.
    base = most.isfinite().where(most, x._scalar(0))
    square = squared(x, axis)
    off = square - base.unsqueeze(axis + 1)
    kept = up_to(x, axis).where(off, x._scalar(float("-inf")))
    return kept.exp().sum(axis + 1).log() + base
