"""Defines the elementwise operations of UOp and Tensor, all over the one primitive `alu`.

A class that mixes this in gives `alu`, `const_like`, `ufix`, `cast` and `dtype`; `_binop` is where
a Tensor adds broadcasting and promotion.
"""

from __future__ import annotations

from typing import Any, Self

from aster_ml.dtype import DType, DTypeLike, dtypes, least_upper_float
from aster_ml.errors import DTypeError
from aster_ml.uop.ops import Ops


class ElementwiseMixin:
    """Operators and elementwise functions."""

    __slots__ = ()
    dtype: DType

    def alu(self, op: Ops, *src: Self) -> Self:
        """The node `op` over self and the sources, whose dtypes and shapes fit already."""
        raise NotImplementedError

    def ufix(self, x: Any) -> Self:
        """`x` as one of our kind, of a dtype that fits beside self."""
        raise NotImplementedError

    def const_like(self, b: Any) -> Self:
        """The constant `b` with the dtype and shape of self."""
        raise NotImplementedError

    def cast(self, dtype: DTypeLike) -> Self:
        """The value as another dtype."""
        raise NotImplementedError

    def _own(self) -> Self:
        """The same elements, as a value that no write to those of self changes."""
        return self

    def _binop(self, op: Ops, x: Any, reverse: bool = False) -> Self:
        """`op` of self and `x` (of `x` and self when `reverse`)."""
        other = self.ufix(x)
        return other.alu(op, self) if reverse else self.alu(op, other)

    # operators

    def add(self, x: Any, reverse: bool = False) -> Self:
        """self + x."""
        return self._binop(Ops.ADD, x, reverse)

    def sub(self, x: Any, reverse: bool = False) -> Self:
        """self - x."""
        return self._binop(Ops.SUB, x, reverse)

    def mul(self, x: Any, reverse: bool = False) -> Self:
        """self * x."""
        return self._binop(Ops.MUL, x, reverse)

    def div(self, x: Any, reverse: bool = False) -> Self:
        """self / x of floats."""
        return self._binop(Ops.FDIV, x, reverse)

    def idiv(self, x: Any, reverse: bool = False) -> Self:
        """self / x on integers, rounded towards zero."""
        return self._binop(Ops.IDIV, x, reverse)

    def mod(self, x: Any, reverse: bool = False) -> Self:
        """The remainder that goes with `idiv`."""
        return self._binop(Ops.MOD, x, reverse)

    def maximum(self, x: Any) -> Self:
        """The larger of self and x; NaN if either is."""
        return self._binop(Ops.MAX, x)

    def bitwise_and(self, x: Any, reverse: bool = False) -> Self:
        """self & x, of ints or bools."""
        return self._binop(Ops.AND, x, reverse)

    def bitwise_or(self, x: Any, reverse: bool = False) -> Self:
        """self | x, of ints or bools."""
        return self._binop(Ops.OR, x, reverse)

    def bitwise_xor(self, x: Any, reverse: bool = False) -> Self:
        """self ^ x, of ints or bools."""
        return self._binop(Ops.XOR, x, reverse)

    def lshift(self, x: Any, reverse: bool = False) -> Self:
        """self << x."""
        return self._binop(Ops.SHL, x, reverse)

    def rshift(self, x: Any, reverse: bool = False) -> Self:
        """self >> x."""
        return self._binop(Ops.SHR, x, reverse)

    def neg(self) -> Self:
        """-self; of a bool, not self."""
        return self.logical_not() if self.dtype is dtypes.bool else self.alu(Ops.NEG)

    def logical_not(self) -> Self:
        """True where self is zero or False."""
        as_bool = self if self.dtype is dtypes.bool else self.cast(dtypes.bool)
        return as_bool._binop(Ops.CMPNE, True)

    def __add__(self, x: Any) -> Self:
        return self._binop(Ops.ADD, x)

    def __radd__(self, x: Any) -> Self:
        return self._binop(Ops.ADD, x, True)

    def __sub__(self, x: Any) -> Self:
        return self.sub(x)

    def __rsub__(self, x: Any) -> Self:
        return self.sub(x, True)

    def __mul__(self, x: Any) -> Self:
        return self._binop(Ops.MUL, x)

    def __rmul__(self, x: Any) -> Self:
        return self._binop(Ops.MUL, x, True)

    def __truediv__(self, x: Any) -> Self:
        return self.div(x)

    def __rtruediv__(self, x: Any) -> Self:
        return self.div(x, True)

    def __floordiv__(self, x: Any) -> Self:
        return self.idiv(x)

    def __rfloordiv__(self, x: Any) -> Self:
        return self.idiv(x, True)

    def __mod__(self, x: Any) -> Self:
        return self.mod(x)

    def __rmod__(self, x: Any) -> Self:
        return self.mod(x, True)

    def __and__(self, x: Any) -> Self:
        return self.bitwise_and(x)

    def __rand__(self, x: Any) -> Self:
        return self.bitwise_and(x, True)

    def __or__(self, x: Any) -> Self:
        return self.bitwise_or(x)

    def __ror__(self, x: Any) -> Self:
        return self.bitwise_or(x, True)

    def __xor__(self, x: Any) -> Self:
        return self.bitwise_xor(x)

    def __rxor__(self, x: Any) -> Self:
        return self.bitwise_xor(x, True)

    def __lshift__(self, x: Any) -> Self:
        return self.lshift(x)

    def __rlshift__(self, x: Any) -> Self:
        return self.lshift(x, True)

    def __rshift__(self, x: Any) -> Self:
        return self.rshift(x)

    def __rrshift__(self, x: Any) -> Self:
        return self.rshift(x, True)

    def __pos__(self) -> Self:
        return self

    def __neg__(self) -> Self:
        return self.neg()

    def __lt__(self, x: Any) -> Self:
        return self._binop(Ops.CMPLT, x)

    def __gt__(self, x: Any) -> Self:
        return self._binop(Ops.CMPLT, x, True)

    def __ge__(self, x: Any) -> Self:
        return self._binop(Ops.CMPLT, x).logical_not()

    def __le__(self, x: Any) -> Self:
        return self._binop(Ops.CMPLT, x, True).logical_not()

    def ne(self, x: Any) -> Self:
        """self != x, a bool."""
        return self._binop(Ops.CMPNE, x)

    def eq(self, x: Any) -> Self:
        """self == x, a bool."""
        return self._binop(Ops.CMPEQ, x)

    def bitwise_not(self) -> Self:
        """Every bit of an int turned over; of a bool, not self."""
        if self.dtype is dtypes.bool:
            return self.logical_not()
        if self.dtype.kind not in ("int", "uint", "index"):
            raise DTypeError(
                f"bitwise_not: bits of {self.dtype.name} cannot be turned over; ints and bools can"
            )
        every_bit = dtypes.max(self.dtype) if self.dtype.kind == "uint" else -1
        return self._binop(Ops.XOR, every_bit)

    def __invert__(self) -> Self:
        return self.bitwise_not()

    # functions of one value that every backend has

    def _floating(self) -> Self:
        """Self when it is a float, else self as what it becomes beside the default float."""
        return self if self.dtype.kind == "float" else self.cast(least_upper_float(self.dtype))

    def exp2(self) -> Self:
        """2**self.

        Shapes: self [*s] -> [*s].
        """
        return self._floating().alu(Ops.EXP2)

    def log2(self) -> Self:
        """Logarithm to base 2; NaN below 0, -inf at 0.

        Shapes: self [*s] -> [*s].
        """
        return self._floating().alu(Ops.LOG2)

    def sin(self) -> Self:
        """Sine of self in radians.

        Shapes: self [*s] -> [*s].
        """
        return self._floating().alu(Ops.SIN)

    def sqrt(self) -> Self:
        """Square root; NaN below 0.

        Shapes: self [*s] -> [*s].
        """
        return self._floating().alu(Ops.SQRT)

    def reciprocal(self) -> Self:
        """1 / self.

        Shapes: self [*s] -> [*s].
        """
        return self._floating().alu(Ops.RECIPROCAL)

    def trunc(self) -> Self:
        """Rounded towards zero.

        Shapes: self [*s] -> [*s].
        """
        return self.alu(Ops.TRUNC) if self.dtype.kind == "float" else self._own()

    def threefry(self, seed: Self) -> Self:
        """Threefry-2x32-20 of the uint64 counter self under the uint64 key `seed`."""
        return self.alu(Ops.THREEFRY, seed)
