"""Defines functions of floats that keep what others round away: small numbers, signs, neighbours,
angles.

Receives tensors of any numeric dtype (ints count as the default float) and returns tensors; zeros
of both signs, infinities and NaN as C's functions of these names have them (ISO C, Annex F). Their
slopes are given beside their values, as in `ops.functions`.
"""

from __future__ import annotations

import math
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.ops import Self
from aster_ml.ops.functions import log_of_one_plus, sinh_value, through_float32
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

INTS = {2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}


def of_two(self: Self, other: Self, value: Self, slope: Self, other_slope: Self) -> Self:
    """`value`, a function of self and `other`, with its slopes for both."""
    nodes = (value.uop, self.uop, slope.uop, other.uop, other_slope.uop)
    return self._derive_with(UOp(Ops.CUSTOM_GRADIENT, value.dtype, nodes), other)


def float_pair(self: Self, other: Any) -> tuple[Self, Self, Any]:
    """Self and `other` as floats of at least 32 bits, and the dtype of a result."""
    x, y = self._floating()._broadcasted(other)
    if y.dtype.kind != "float":
        x, y = x._broadcasted(y.cast(x.dtype))
    dtype = x.dtype
    wide = dtypes.float32 if dtype.itemsize < 4 else dtype
    return x.cast(wide), y.cast(wide), dtype


@through_float32
def expm1(self: Self) -> Self:
    """e**self - 1, without losing the digits of a small self.

    Shapes: self [*s] -> [*s].
    Error: that of `exp`; 4 ULP near 0.
    """
    x = self.detach()
    inner = x.alu(Ops.MAX, -x) < 1
    near = inner.where(x, 0)
    half = near * 0.5
    small = sinh_value(half) * half.exp() * 2
    value = inner.where(x.eq(0).where(x, small), x.exp() - 1)
    return self._with_slope(value, x.exp())


@through_float32
def log1p(self: Self) -> Self:
    """log(1 + self), without losing the digits of a small self; NaN below -1, -inf at -1.

    Shapes: self [*s] -> [*s].
    Error: 4 ULP.
    """
    x = self.detach()
    value = x.eq(0).where(x, log_of_one_plus(x))
    return self._with_slope(x.eq(-1).where(-math.inf, value), (x + 1).reciprocal())


def hypot(self: Self, other: Any) -> Self:
    """The square root of self**2 + other**2, without overflow; infinite where either is.

    Shapes: self [*b, n], other [*b, n] -> [*b, n]; b broadcasts.
    Error: 3 ULP.
    """
    x, y, dtype = float_pair(self, other)
    a, b = x.detach().abs(), y.detach().abs()
    swapped = a < b
    large, small = swapped.where(b, a), swapped.where(a, b)
    plain = (large > 0) & large.isfinite()
    ratio = plain.where(small, 0) / plain.where(large, 1)
    value = plain.where(large * (ratio * ratio + 1).sqrt(), large)
    value = (a.isnan() | b.isnan()).where(math.nan, value)
    value = (a.isinf() | b.isinf()).where(math.inf, value)
    below = value.eq(0).where(1, value)
    return of_two(x, y, value, x.detach() / below, y.detach() / below).cast(dtype)


def atan2(self: Self, other: Any) -> Self:
    """The angle of the point (other, self), from -pi to pi; self is the sine's side.

    Shapes: self [*b, n], other [*b, n] -> [*b, n]; b broadcasts.
    Error: 4 ULP in float32.
    """
    y, x, dtype = float_pair(self, other)
    b, a = y.detach().abs(), x.detach().abs()
    steep = a < b
    large, small = steep.where(b, a), steep.where(a, b)
    none = large.eq(0)
    both = small.isinf()
    ratio = both.where(1, none.where(0, small) / none.where(1, both.where(1, large)))
    angle = ratio.atan()
    angle = steep.where(math.pi / 2 - angle, angle)
    left = x.ufix(1.0)._broadcast_to(x.shape).copysign(x) < 0
    angle = left.where(math.pi - angle, angle).copysign(y)
    angle = (a.isnan() | b.isnan()).where(math.nan, angle)
    square = x.detach().square() + y.detach().square()
    square = square.eq(0).where(math.nan, square)
    found = of_two(y, x, angle.detach(), x.detach() / square, -y.detach() / square)
    return found.cast(dtype)


def nextafter(self: Self, other: Any) -> Self:
    """The next float after self towards `other`; `other` where they are equal.

    Shapes: self [*b, n], other [*b, n] -> [*b, n]; b broadcasts.
    """
    x, y = self._floating().detach()._broadcasted(other)
    ints = INTS[x.dtype.itemsize]
    bits = x.contiguous().bitcast(ints)
    outwards = (y > x).eq(x > 0)
    moved = outwards.where(bits + 1, bits - 1)
    # Away from either zero lies the least number of the sign of `other`.
    first = (y > 0).where(moved._full_of((), 1), moved._full_of((), dtypes.min(ints) + 1))
    moved = x.eq(0).where(first, moved).contiguous().bitcast(x.dtype)
    found = x.eq(y).where(y, moved)
    return (x.isnan() | y.isnan()).where(math.nan, found)


def diff(self: Self, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Self:
    """Differences of neighbours along an axis, `n` times over.

    Shapes: self [*b, n], axis=-1 -> [*b, n - 1]; n >= 1.
    Source: numpy.diff.
    """
    axis = self._resolve_axis(axis, "diff")
    ends: list[Any] = [x for x in (prepend, self, append) if x is not None]
    x: Any = ends[0] if len(ends) == 1 else ends[0].cat(*ends[1:], dim=axis)
    for _ in range(n):
        size = x.shape[axis]
        keep: list[Any] = [None] * x.ndim
        keep[axis] = (min(1, size), size)
        later = x.shrink(keep)
        keep[axis] = (0, max(size - 1, 0))
        before = x.shrink(keep)
        x = later.ne(before) if x.dtype is dtypes.bool else later - before
    return x  # type: ignore[no-any-return]
