"""Defines elementwise functions of a single value, for nodes of hand-written kernels.

Plain formulas over the ops of `ops/elementwise`. Tensors have functions of their own under these
names, which promote, and keep their gradients finite where a plain formula does not.
"""

from __future__ import annotations

import math
from typing import Any, Self

from aster_ml.ops.elementwise import ElementwiseMixin
from aster_ml.uop.ops import Ops


class ScalarMixin(ElementwiseMixin):
    """Functions of one element."""

    __slots__ = ()

    def where(self, x: Any, y: Any) -> Self:
        """`x` where self holds, else `y`."""
        raise NotImplementedError

    def minimum(self, x: Any) -> Self:
        """The smaller."""
        raise NotImplementedError

    # powers

    def square(self) -> Self:
        """self * self."""
        return self * self

    def rsqrt(self) -> Self:
        """1 over the square root."""
        return self.sqrt().reciprocal()

    def pow(self, x: Any, reverse: bool = False) -> Self:
        """self to the power of x."""
        return self._binop(Ops.POW, x, reverse)

    def __pow__(self, x: Any) -> Self:
        return self.pow(x)

    def __rpow__(self, x: Any) -> Self:
        return self.pow(x, True)

    def exp(self) -> Self:
        """e to the power of self."""
        return (self * (1 / math.log(2))).exp2()

    def log(self) -> Self:
        """The natural logarithm."""
        return self.log2() * math.log(2)

    # limits and rounding

    def clamp(self, min_: Any = None, max_: Any = None) -> Self:
        """Held between two values, either of which may be absent."""
        low = self if min_ is None else (self < min_).where(min_, self)
        return low if max_ is None else (low > max_).where(max_, low)

    def clip(self, min_: Any = None, max_: Any = None) -> Self:
        """`clamp` under another name."""
        return self.clamp(min_, max_)

    def ceil(self) -> Self:
        """The next integer at or above."""
        whole = self.trunc()
        return (self > whole).where(whole + 1, whole)

    def floor(self) -> Self:
        """The next integer at or below."""
        whole = self.trunc()
        return (self < whole).where(whole - 1, whole)

    # kinds of numbers

    def isnan(self) -> Self:
        """Tests whether it is NaN."""
        return self.ne(self)

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Tests whether it is infinite, of the signs asked for."""
        up = self.eq(math.inf).bitwise_and(detect_positive)
        return up.bitwise_or(self.eq(-math.inf).bitwise_and(detect_negative))

    def isfinite(self) -> Self:
        """Tests whether it is a number and not infinite."""
        return self.isinf().bitwise_or(self.isnan()).logical_not()

    # activations

    def relu(self) -> Self:
        """The positive part."""
        return (self > 0).where(self, 0)

    def relu6(self) -> Self:
        """Held between 0 and 6."""
        return self.clamp(0, 6)

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """Held between two numbers."""
        return self.clamp(min_val, max_val)

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """`alpha * x + beta`, held between 0 and 1."""
        return (self * alpha + beta).clamp(0, 1)

    def hardswish(self) -> Self:
        """`x * relu6(x + 3) / 6`."""
        return self * (self + 3).relu6() * (1 / 6)

    def sigmoid(self) -> Self:
        """`1 / (1 + exp(-x))`."""
        return (1 + (self * (-1 / math.log(2))).exp2()).reciprocal()

    def tanh(self) -> Self:
        """The hyperbolic tangent."""
        return 2.0 * (2.0 * self).sigmoid() - 1.0

    def swish(self) -> Self:
        """`x * sigmoid(x)`."""
        return self * self.sigmoid()

    def silu(self) -> Self:
        """`swish` under another name."""
        return self.swish()

    def gelu(self) -> Self:
        """`x` times the normal distribution at x, by way of tanh."""
        inner = math.sqrt(2 / math.pi) * (self + 0.044715 * self * self * self)
        return 0.5 * self * (1 + inner.tanh())

    def quick_gelu(self) -> Self:
        """`x * sigmoid(1.702 x)`."""
        return self * (self * 1.702).sigmoid()

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """x, below 0 times a slope."""
        return (self < 0).where(neg_slope * self, self)
