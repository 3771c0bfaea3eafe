"""Cumulative sums, products, extremes and log-sum-exps along an axis.

Receives tensors; returns tensors of the same shape. Each result is a reduction over a masked row,
so a scan fuses like any reduction; long axes go in blocks, whose totals are scanned in turn.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

from aster_ml.dtype import dtypes, sum_acc_dtype
from aster_ml.helpers import ceildiv
from aster_ml.mixin.create import CreateMixin
from aster_ml.mixin.index import is_zero
from aster_ml.mixin.join import JoinMixin
from aster_ml.mixin.math import MathMixin
from aster_ml.mixin.reduce import identity_of
from aster_ml.mixin.sizes import size_between
from aster_ml.uop.infer import max_shape
from aster_ml.uop.ops import Ops

S = TypeVar("S", bound="ScanMixin")

# A scan of n elements takes n * n steps; in blocks of this size, n * BLOCK.
BLOCK = 128
# Rows up to here are not worth the kernels that blocks cost.
LONGEST_ROW = 256


class ScanMixin(JoinMixin, MathMixin, CreateMixin):
    """What has come together so far."""

    __slots__ = ()

    def cumsum(self, axis: int = 0) -> Self:
        """Sum of the elements up to each.

        Shapes: self [n, m], axis=1 -> [n, m].
        Dtype: that of `sum`.
        """
        wide = self.cast(sum_acc_dtype(self.dtype))
        total = scan(wide, Ops.ADD, self.resolve_axis(axis, "cumsum"))
        return total.cast(self.dtype) if self.dtype.kind == "float" else total

    def cumprod(self, axis: int) -> Self:
        """Product of the elements up to each.

        Shapes: self [n, m], axis=1 -> [n, m].
        Dtype: the default int for bool, else that of self.
        """
        factors = self.cast(dtypes.default_int) if self.dtype is dtypes.bool else self
        return scan(factors, Ops.MUL, self.resolve_axis(axis, "cumprod"))

    def cummax(self, axis: int = 0) -> Self:
        """Greatest of the elements up to each.

        Shapes: self [n, m], axis=1 -> [n, m].
        """
        op = Ops.OR if self.dtype is dtypes.bool else Ops.MAX
        return scan(self, op, self.resolve_axis(axis, "cummax"))

    def cummin(self, axis: int = 0) -> Self:
        """Least of the elements up to each.

        Shapes: self [n, m], axis=1 -> [n, m].
        """
        place = self.resolve_axis(axis, "cummin")
        if self.dtype is dtypes.bool:
            return scan(self, Ops.AND, place)
        return scan(self.reversed_order(), Ops.MAX, place).reversed_order()

    def logcumsumexp(self, axis: int = 0) -> Self:
        """Logarithm of the sum of exponentials of the elements up to each, without overflow.

        Shapes: self [n, m], axis=1 -> [n, m].
        """
        place = self.resolve_axis(axis, "logcumsumexp")
        x = self.floating()
        if not x.shape or is_zero(x.shape[place]):
            return x
        if x.dtype.itemsize < 4:
            return x.cast(dtypes.float32).logcumsumexp(place).cast(x.dtype)
        if not isinstance(x.shape[place], int):
            full, part = filled_axis(x, place, float("-inf"))
            return full.logcumsumexp(place).shrink(part)
        last = x.transpose(place, -1)
        return log_scan(last).transpose(place, -1)


def scan(x: S, op: Ops, axis: int) -> S:
    """`x` folded with `op` up to each element of the axis."""
    if not x.shape or is_zero(x.shape[axis]) or x.shape[axis] == 1:
        return x
    if not isinstance(x.shape[axis], int):
        full, part = filled_axis(x, axis, identity_of(op, x.dtype))
        return scan(full, op, axis).shrink(part)
    return scan_last(x.transpose(axis, -1), op).transpose(axis, -1)


def filled_axis(x: S, axis: int, value: Any) -> tuple[S, list[Any]]:
    """An axis of symbolic size filled up with `value` to its largest, and how to cut it back."""
    size = x.shape[axis]
    pairs: list[Any] = [(0, 0)] * x.ndim
    part: list[Any] = [None] * x.ndim
    pairs[axis], part[axis] = (0, size_between(size, max_shape((size,))[0])), (0, size)
    return x.pad(pairs, value=value), part


def scan_last(x: S, op: Ops) -> S:
    """`scan` along the last axis."""
    *lead, size = x.shape
    if size <= LONGEST_ROW:
        return scan_row(x, op)
    neutral = x.scalar(identity_of(op, x.dtype))
    rows = blocks_of(x, neutral)
    inner = scan_row(rows, op)
    count = rows.shape[-2]
    totals = inner.shrink([*[None] * (len(lead) + 1), (BLOCK - 1, BLOCK)]).reshape((*lead, count))
    before = shifted(scan_last(totals, op), neutral)
    joined = inner.alu(op, before.unsqueeze(-1).broadcast_to(inner.shape))
    return joined.reshape((*lead, count * BLOCK)).shrink([*[None] * len(lead), (0, size)])


def scan_row(x: S, op: Ops) -> S:
    """`scan` along the last axis, each result a reduction of the row masked after its place."""
    *lead, size = x.shape
    square = x.unsqueeze(-2).broadcast_to((*lead, size, size))
    kept = up_to(x, size).where(square, x.scalar(identity_of(op, x.dtype)))
    return kept.rop(op, (len(lead) + 1,)).reshape((*lead, size))


def up_to(x: S, size: int) -> S:
    """[size, size]: whether the column is at most the row."""
    place = x.arange(size, device=x.device)
    return place.reshape((1, size)) <= place.reshape((size, 1))


def blocks_of(x: S, neutral: S) -> S:
    """The last axis as rows of BLOCK elements, the last one filled up."""
    *lead, size = x.shape
    count = ceildiv(size, BLOCK)
    pairs = [*[(0, 0)] * len(lead), (0, count * BLOCK - size)]
    filled = x.pad(pairs, value=neutral.uop.arg) if count * BLOCK > size else x
    return filled.reshape((*lead, count, BLOCK))


def shifted(x: S, neutral: S) -> S:
    """The last axis moved on by one, with the neutral value in front."""
    *lead, size = x.shape
    cut: list[Any] = [None] * len(lead)
    front = x.shrink([*cut, (0, size - 1)])
    return front.pad([*[(0, 0)] * len(lead), (1, 0)], value=neutral.uop.arg)


def log_scan(x: S) -> S:
    """`logcumsumexp` along the last axis: sums of exponentials relative to the maximum so far."""
    *lead, size = x.shape
    if size > LONGEST_ROW:
        rows = blocks_of(x, x.scalar(float("-inf")))
        inner = log_scan(rows)
        count = rows.shape[-2]
        cut = [*[None] * (len(lead) + 1), (BLOCK - 1, BLOCK)]
        totals = inner.shrink(cut).reshape((*lead, count))
        before = shifted(log_scan(totals), x.scalar(float("-inf")))
        joined = inner.logaddexp(before.unsqueeze(-1))
        return joined.reshape((*lead, count * BLOCK)).shrink([*[None] * len(lead), (0, size)])
    most = scan_row(x, Ops.MAX).detach()
    # Infinities have no difference to themselves.
    base = most.isfinite().where(most, x.scalar(0))
    shape = (*lead, size, size)
    off = x.unsqueeze(-2).broadcast_to(shape) - base.unsqueeze(-1)
    kept = up_to(x, size).where(off, x.scalar(float("-inf")))
    return kept.exp().sum(-1).log() + base
