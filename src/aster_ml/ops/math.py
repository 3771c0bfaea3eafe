"""Defines arithmetic beyond the operators of every node: division, powers, rounding, comparison,
sign.

Receives and returns tensors; promotes as the reference does. Functions that need a polynomial or an
exponential stand in `ops.functions`.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from aster_ml.dtype import DType, dtypes, largest, truncate
from aster_ml.errors import ArgumentError, DTypeError
from aster_ml.ops import Self
from aster_ml.ops.complexes import is_complex
from aster_ml.ops.handle import Handle, promote_all
from aster_ml.ops.views import unnamed
from aster_ml.uop.graph import without_names
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Quotients of 23 digits and more: a remainder is exact up to 2**138 times the divisor.
REMAINDER_STEPS = 6


def beyond(x: Any, dtype: DType) -> int:
    """-1 or 1 for an int below or above all that an int dtype holds, else 0."""
    if dtype.kind not in ("int", "uint") or not isinstance(x, int):
        return 0
    return int(x > dtypes.max(dtype)) - int(x < dtypes.min(dtype))


def mask_beside(x: Any, mask: Any, what: str) -> Any:
    """Operand beside `x` in an operation on bits.

    A number is taken by its bits, whatever the sign that the dtype gives to the highest of them.

    Raises: DTypeError where either has no bits to work on.
    """
    dtype = x.dtype
    if isinstance(mask, (int, np.integer)) and dtype.kind in ("int", "uint"):
        mask = int(mask)
        if -(1 << dtype.bits - 1) <= mask < 1 << dtype.bits:
            mask = truncate(mask, dtype)
    need_bits(x, mask, what)
    return mask


def is_one_plus(u: UOp, part: UOp) -> bool:
    """Whether `u` is 1 + `part`, whichever tensors name what it is made of."""
    u = unnamed(u)
    if u.op is not Ops.ADD or not any([s.op is Ops.CONST and s.arg == 1 for s in u.src]):
        return False
    return part in u.src or without_names(part) in [without_names(s) for s in u.src]


def floor_parts(a: Self, b: Self) -> tuple[Self, Self]:
    """The quotient of two floats rounded down, and the remainder, as Python has them.

    Each step takes as many of `b` off as a quotient has digits for, which leaves nothing to round.
    """
    if a.dtype.itemsize < 4:
        whole, rest = floor_parts(a.cast(dtypes.float32), b.cast(dtypes.float32))
        return whole.cast(a.dtype), rest.cast(a.dtype)
    most = largest(a.dtype)
    x, y = a.detach(), b.detach()
    quotient = x.alu(Ops.FDIV, y)
    rest = x
    for _ in range(REMAINDER_STEPS):
        times = rest.alu(Ops.FDIV, y).trunc()
        times = (times > most).where(most, (times < -most).where(-most, times))
        rest = (-times).alu(Ops.MULACC, y, rest)
    # Of what is finite, nothing is taken off by an infinity.
    rest = (y.isinf() & x.isfinite()).where(x, rest)
    # Towards zero, whose remainder has the sign of x, a quotient has no more digits than it needs.
    far = y.alu(Ops.MAX, -y)
    over = rest.ne(0) & (rest < 0).ne(x < 0)
    cut = over.where(rest.alu(Ops.ADD, (x < 0).where(-far, far)), rest)
    near = x.alu(Ops.SUB, cut).alu(Ops.FDIV, y)
    near = (cut.ne(0) & (cut < 0).ne(y < 0)).where(near - 1, near)
    rest = (rest.ne(0) & (rest < 0).ne(y < 0)).where(rest.alu(Ops.ADD, y), rest)
    size = rest.alu(Ops.MAX, -rest)
    # What so many steps leave too large is no remainder.
    defined = x.isfinite() & y.ne(0) & (size <= far)
    rest = defined.where((y < 0).where(-size, size), math.nan)
    near = defined.where(near, math.nan)
    whole = near.floor()
    whole = (near.alu(Ops.SUB, whole) > 0.5).where(whole + 1, whole)
    whole = whole.eq(0).where(quotient.eq(0).where(quotient, 0), whole)
    below = x.ne(0) & (x < 0).ne(y < 0)
    whole = (y.isinf() & x.isfinite()).where(below.where(-1, quotient), whole)
    whole = y.eq(0).where(quotient, whole)
    pairs = (a.uop, a.const_like(1).uop, b.uop, (-whole).uop)
    return whole, a._derive_with(UOp(Ops.CUSTOM_GRADIENT, a.dtype, (rest.uop, *pairs)), b)


def pair(self: Self, x: Any, what: str, reverse: bool = False) -> tuple[Self, Self]:
    """Self and `x`, in this order or reversed, at one dtype; constants may lack axes."""
    other = self._operand(x, what)
    a, b = promote_all(what, (other, self.uop) if reverse else (self.uop, other))
    one = self._derive(b if reverse else a)
    if isinstance(x, Handle):
        two: Self = x._derive(a if reverse else b)  # type: ignore[assignment]
    else:
        two = self.from_uop(a if reverse else b, False)
    return (two, one) if reverse else (one, two)


# order: what is not below is at least as large, unless it is NaN


def ge(self: Self, x: Any) -> Self:
    """Compares: `self >= x`."""
    if x.__class__ is float and x != x:
        return self.eq(x)
    below = self._binop(Ops.CMPLT, x)
    if below.uop.src[0].dtype.kind != "float":
        return below.logical_not()
    return self._binop(Ops.CMPLT, x, True) | self._binop(Ops.CMPEQ, x)


def le(self: Self, x: Any) -> Self:
    """Compares: `self <= x`."""
    if x.__class__ is float and x != x:
        return self.eq(x)
    above = self._binop(Ops.CMPLT, x, True)
    if above.uop.src[0].dtype.kind != "float":
        return above.logical_not()
    return self._binop(Ops.CMPLT, x) | self._binop(Ops.CMPEQ, x)


# differences and quotients


def logistic_share(self: Self, x: Handle) -> Self:
    """self / (1 + self) of an exponential, by one that does not overflow."""
    exponent = self._derive_with(self.uop.src[0], x)
    negative = exponent < 0
    small = (exponent * negative.where(exponent.ufix(1.0), -1.0)).exp2()
    return negative.where(small, 1) / (small + 1)


def sub(self: Self, x: Any, reverse: bool = False) -> Self:
    """self - x.

    Shapes: self [*b, n], x [*b, n] -> [*b, n]; b broadcasts.
    Raises: DTypeError for two bools.
    """
    if (
        self.dtype is dtypes.bool
        and not is_complex(x)
        and self._operand(x, "sub").dtype is dtypes.bool
    ):
        raise DTypeError("sub: bool from bool; cast one to an int, or use ^ for exclusive or")
    return self._binop(Ops.SUB, x, reverse)


def div(
    self: Self,
    x: Any,
    reverse: bool = False,
    rounding_mode: Literal["trunc", "floor"] | None = None,
) -> Self:
    """self / x; of ints a float, unless rounded towards zero ("trunc") or down ("floor").

    `e / (1 + e)` of an exponential e is 1 where e is infinite, and has a gradient there.

    Shapes: self [*b, n], x [*b, n] -> [*b, n]; b broadcasts.
    """
    if rounding_mode is None:
        if not isinstance(x, (Handle, int, float)) and is_complex(x):
            # It is refused by no dtype, but has another division.
            return self._floating()._binop(Ops.FDIV, x, reverse)
        other = self._operand(x, "div")
        if (
            not reverse
            and unnamed(self.uop).op is Ops.EXP2
            and is_one_plus(other, unnamed(self.uop))
        ):
            return logistic_share(self, x)
        value = self if other.dtype.kind == "float" else self._floating()
        return value._binop(Ops.FDIV, x, reverse)
    if rounding_mode not in ("trunc", "floor"):
        raise ArgumentError(
            f"div: rounding_mode {rounding_mode!r}; 'trunc', 'floor' or None would do"
        )
    a, b = pair(self, x, "div", reverse)
    if a.dtype is dtypes.bool:
        a, b = a.cast(dtypes.default_int), b.cast(dtypes.default_int)
    if a.dtype.kind == "float":
        return a.alu(Ops.FDIV, b).trunc() if rounding_mode == "trunc" else floor_parts(a, b)[0]
    quotient = a.alu(Ops.IDIV, b)
    if rounding_mode == "trunc" or a.dtype.kind == "uint":
        return quotient
    # Towards zero is one too high where signs differ and something is left over.
    rest = a.alu(Ops.SUB, quotient.alu(Ops.MUL, b))
    return (rest.ne(0) & (rest < 0).ne(b < 0)).where(quotient - 1, quotient)


def mod(self: Self, x: Any, reverse: bool = False) -> Self:
    """The remainder of division rounded down; it has the sign of the divisor, as in Python.

    Shapes: self [*b, n], x [*b, n] -> [*b, n]; b broadcasts.
    Error: none, where self is less than 2**138 times x; else NaN.
    """
    a, b = pair(self, x, "mod", reverse)
    if a.dtype is dtypes.bool:
        a, b = a.cast(dtypes.default_int), b.cast(dtypes.default_int)
    if a.dtype.kind == "float":
        return floor_parts(a, b)[1]
    rest = a.alu(Ops.MOD, b)
    if a.dtype.kind == "uint":
        return rest
    return (rest.ne(0) & (rest < 0).ne(b < 0)).where(rest.alu(Ops.ADD, b), rest)


def floordiv(self: Self, x: Any) -> Self:
    """Divides, rounded down: `self // x`."""
    return self.div(x, rounding_mode="floor")


def rfloordiv(self: Self, x: Any) -> Self:
    """Divides, rounded down: `x // self`."""
    return self.div(x, True, rounding_mode="floor")


def divmod_operator(self: Self, x: Any) -> tuple[Self, Self]:
    """Quotient, rounded down, and remainder: `divmod(self, x)`."""
    return self // x, self % x


def rdivmod_operator(self: Self, x: Any) -> tuple[Self, Self]:
    """Quotient, rounded down, and remainder: `divmod(x, self)`."""
    return self.__rfloordiv__(x), self.__rmod__(x)


def round_digits(self: Self, digits: int | None = None) -> Self:
    """Rounded to whole numbers, or to so many decimal digits; halves to the even one."""
    if self.dtype.kind != "float":
        return self
    scale = 10.0 ** (digits or 0)
    return (self * scale).round() / scale if digits else self.round()


# bits


def need_bits(self: Self, x: Any, what: str, shift: bool = False) -> None:
    """Raises DTypeError where self or `x` has no bits to work on."""
    for dtype in (self.dtype, self._operand(x, what).dtype):
        if dtype.kind == "float" or (shift and dtype.kind == "bool"):
            wanted = "ints are wanted" if shift else "ints or bools are wanted"
            raise DTypeError(f"{what}: {dtype.name} has no bits to work on; {wanted}")


def bitwise_and(self: Self, x: Any, reverse: bool = False) -> Self:
    """self & x, of ints or bools; a number is taken by its bits, signed or not."""
    x = mask_beside(self, x, "bitwise_and")
    return self._binop(Ops.AND, x, reverse)


def bitwise_or(self: Self, x: Any, reverse: bool = False) -> Self:
    """self | x, of ints or bools; a number is taken by its bits, signed or not."""
    x = mask_beside(self, x, "bitwise_or")
    return self._binop(Ops.OR, x, reverse)


def bitwise_xor(self: Self, x: Any, reverse: bool = False) -> Self:
    """self ^ x, of ints or bools; a number is taken by its bits, signed or not."""
    x = mask_beside(self, x, "bitwise_xor")
    return self._binop(Ops.XOR, x, reverse)


def lshift(self: Self, x: Any, reverse: bool = False) -> Self:
    """self << x, of ints."""
    return shifted(self, Ops.SHL, x, reverse, "lshift")


def rshift(self: Self, x: Any, reverse: bool = False) -> Self:
    """self >> x, of ints; signed ones keep their sign."""
    return shifted(self, Ops.SHR, x, reverse, "rshift")


def shifted(self: Self, op: Ops, x: Any, reverse: bool, what: str) -> Self:
    """A shift by `x` bits."""
    need_bits(self, x, what, shift=True)
    if isinstance(x, int) and not reverse and x < 0:
        raise ArgumentError(f"{what}: by {x} bits; a count that is not negative is wanted")
    return self._binop(op, x, reverse)


# powers


def pow(self: Self, x: Any, reverse: bool = False) -> Self:
    """self ** x (x ** self when `reverse`), with the edge cases of C's pow.

    Ints stay ints and wrap.

    Shapes: self [*b, n], x [*b, n] -> [*b, n]; b broadcasts.
    Raises: DTypeError for an int to a negative power.
    """
    if not reverse and isinstance(x, (int, float)) and not isinstance(x, bool):
        return power_of_number(self, x)
    if not isinstance(x, (Handle, int, float)) and is_complex(x):
        return self._binop(Ops.POW, x, reverse)
    base, exponent = pair(self, x, "pow", reverse)
    if base.dtype is dtypes.bool:
        base, exponent = base.cast(dtypes.default_int), exponent.cast(dtypes.default_int)
    if reverse and base.dtype.kind == "float" and x == 2:
        return self.exp2()
    if base.dtype.kind == "float" and base.dtype.itemsize < 4:
        wide = base.cast(dtypes.float32).alu(Ops.POW, exponent.cast(dtypes.float32))
        return wide.cast(base.dtype)
    return base.alu(Ops.POW, exponent)


def power_of_number(self: Self, x: float) -> Self:
    """self ** x for a plain number."""
    if self.dtype is dtypes.bool and isinstance(x, int):
        return power_of_number(self.cast(dtypes.default_int), x)
    base = self if isinstance(x, int) else self._floating()
    if x < 0 and base.dtype.kind != "float":
        raise DTypeError(
            f"pow: {self.dtype.name} to the power {x} is no int; cast the base to a float"
        )
    if x == 0:
        return base._linked(base.const_like(1))
    if x in (-0.5, -1):
        return power_of_number(base, -x).reciprocal()
    if x in (-2, -3, -4):
        inverse = base.reciprocal()
        slope = power_of_number(inverse, -x) * inverse * x
        return base._with_slope(power_of_number(base, -x).reciprocal(), slope)
    if x == 0.5:
        return base.sqrt()
    if x in (1, 2, 3, 4):
        square = base * base if x > 1 else base._own()
        return square if x < 3 else square * (base if x == 3 else square)
    if base.dtype.kind == "float" and base.dtype.itemsize < 4:
        return base.cast(dtypes.float32)._binop(Ops.POW, x).cast(base.dtype)
    return base._binop(Ops.POW, x)


def pow_operator(self: Self, x: Any) -> Self:
    """Raises to a power: `self ** x`."""
    return self.pow(x)


def rpow_operator(self: Self, x: Any) -> Self:
    """Raises to a power: `x ** self`."""
    return self.pow(x, True)


def square(self: Self) -> Self:
    """self * self.

    Shapes: self [*s] -> [*s].
    """
    return self * self


def rsqrt(self: Self) -> Self:
    """1 / sqrt(self).

    Shapes: self [*s] -> [*s].
    """
    return self.sqrt().reciprocal()


# sign, size and order


def abs(self: Self) -> Self:
    """Size without sign.

    Shapes: self [*s] -> [*s].
    """
    return self if self.dtype.kind in ("uint", "bool") else self.alu(Ops.MAX, -self)


def abs_operator(self: Self) -> Self:
    """Size without sign: `abs(self)`."""
    return self.abs()


def sign(self: Self) -> Self:
    """-1, 0 or 1; NaN of NaN.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype is dtypes.bool:
        return self._own()
    found = (self > 0).where(self._scalar(1), self._scalar(0))
    if self.dtype.kind != "uint":
        found = (self < 0).where(self._scalar(-1), found)
    return found if self.dtype.kind != "float" else self.isnan().where(math.nan, found)


def copysign(self: Self, other: Any) -> Self:
    """The size of self with the sign of `other`, zeros and NaN included.

    Shapes: self [*b, n], other [*b, n] -> [*b, n]; b broadcasts.
    """
    value, sign = self._floating()._broadcasted(other)
    bits = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}
    size = value.abs()
    negative = sign.detach().bitcast(bits[sign.dtype.itemsize]) < 0
    return negative.where(-size, size)


def maximum(self: Self, x: Any) -> Self:
    """The larger of self and x; NaN if either is.

    Shapes: self [*b, n], x [*b, n] -> [*b, n]; b broadcasts.
    """
    if beyond(x, self.dtype) < 0:
        return self
    a, b = pair(self, x, "maximum")
    return a.alu(Ops.OR if a.dtype is dtypes.bool else Ops.MAX, b)


def minimum(self: Self, x: Any) -> Self:
    """The smaller of self and x; NaN if either is.

    Shapes: self [*b, n], x [*b, n] -> [*b, n]; b broadcasts.
    """
    if beyond(x, self.dtype) > 0:
        return self
    a, b = pair(self, x, "minimum")
    if a.dtype is dtypes.bool:
        return a.alu(Ops.AND, b)
    return a._reversed_order().alu(Ops.MAX, b._reversed_order())._reversed_order()


def clamp(self: Self, min_: Any = None, max_: Any = None) -> Self:
    """Self held between `min_` and `max_`, either of which may be left out.

    Shapes: self [*s], min_=0, max_=1 -> [*s].
    Raises: ArgumentError when both are left out.
    """
    if min_ is None and max_ is None:
        raise ArgumentError("clamp: neither min_ nor max_ is given; one of them is wanted")
    held: Self = self
    if self.dtype.kind == "float" and self._requires_grad is not False:
        # NaN is between no bounds: no gradient passes there.
        held = self._with_slope(self, self.ne(self))
    # Not by maximum, which shares the gradient out where both sides are equal: a bound is not
    # something to learn, and self at it is not cut off.
    # What no value of the dtype passes holds none of them back.
    value = self
    if min_ is not None and beyond(min_, self.dtype) >= 0:
        value = (self < min_).where(min_, held)
        held = value
    if max_ is None or beyond(max_, self.dtype) > 0:
        return value
    held = (value > max_).where(max_, held)
    return held


def clip(self: Self, min_: Any = None, max_: Any = None) -> Self:
    """`clamp` under another name."""
    return self.clamp(min_, max_)


def lerp(self: Self, end: Any, weight: Any) -> Self:
    """self + (end - self) * weight; of ints, rounded to the nearest.

    Shapes: self [*b, n], end [*b, n], weight=0.5 -> [*b, n]; b broadcasts.
    """
    if self.dtype.kind == "float":
        return self.add(self.sub(end, True).mul(weight))
    start = self.cast(dtypes.default_float)
    return start.lerp(end, weight).round().cast(self.dtype)


# rounding


def floor(self: Self) -> Self:
    """The greatest whole number that is not above self.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype.kind != "float":
        return self._own()
    whole = self.trunc()
    return (self < whole).where(whole - 1, whole)


def ceil(self: Self) -> Self:
    """The least whole number that is not below self.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype.kind != "float":
        return self._own()
    whole = self.trunc()
    return (self > whole).where(whole + 1, whole)


def round(self: Self) -> Self:
    """The nearest whole number; of two, the even one.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype.kind != "float":
        return self._own()
    whole = self.trunc()
    rest = self - whole
    size = rest.abs()
    odd = (whole * 0.5).trunc().ne(whole * 0.5)
    away = (size > 0.5) | (size.eq(0.5) & odd)
    return away.where(whole + (rest < 0).where(rest._scalar(-1), rest._scalar(1)), whole)


# questions


def isnan(self: Self) -> Self:
    """Where self is NaN.

    Shapes: self [*s] -> [*s].
    """
    return self.ne(self)


def isinf(self: Self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
    """Where self is infinite.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype.kind != "float" or not (detect_positive or detect_negative):
        return self.const_like(0).cast(dtypes.bool)
    value = self.abs() if detect_positive and detect_negative else self
    return value.eq(math.inf if detect_positive else -math.inf)


def isfinite(self: Self) -> Self:
    """Where self is neither infinite nor NaN.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype.kind != "float":
        return self.const_like(1).cast(dtypes.bool)
    return self.abs() < math.inf


def isclose(
    self: Self, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Self:
    """Where self and `other` differ by at most atol + rtol * |other|, or are equal.

    Shapes: self [*b, n], other [*b, n] -> [*b, n]; b broadcasts.
    """
    x, y = self._broadcasted(other)
    if x.dtype is dtypes.bool:
        return x.eq(y)
    bound = y.abs() * rtol + atol
    near = x.isfinite() & y.isfinite() & ((x - y).abs() <= bound)
    close = near | x.eq(y)
    return close | (x.isnan() & y.isnan()) if equal_nan else close
