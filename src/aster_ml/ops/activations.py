"""Defines activations and the softmax family.

Receives Tensors, returns Tensors, all from elementwise ops, sums and maxima. No formula here
overflows where its result does not, and none has a gradient of NaN where the slope is a number:
exponentials are taken of what is not positive, and what a WHERE leaves out is finite.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from aster_ml.dtype import DType, DTypeLike, dtypes, neighbour, sum_acc_dtype
from aster_ml.errors import ArgumentError
from aster_ml.ops import Self
from aster_ml.ops.functions import through_float32
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# activations


def relu(self: Self) -> Self:
    """The positive part; its slope at 0 is 0.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype.kind != "float":
        return (self > 0).where(self, 0)
    return self._derive(rectified(self.uop))


def relu6(self: Self) -> Self:
    """Held between 0 and 6.

    Shapes: self [*s] -> [*s].
    """
    return hold_between(self, 0, 6)


def hardtanh(self: Self, min_val: float = -1, max_val: float = 1) -> Self:
    """Held between two numbers; the slope is 0 at both.

    Shapes: self [*s] -> [*s].
    """
    return hold_between(self, min_val, max_val)


def hardsigmoid(self: Self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
    """`alpha * x + beta`, held between 0 and 1.

    Shapes: self [*s] -> [*s].
    """
    if self.dtype.kind != "float" or alpha <= 0:
        return hold_between(self * alpha + beta, 0, 1)
    # No gradient passes NaN.
    line = self._with_slope(self, self.ne(self)) * alpha + beta
    # Where the line ends is asked of self, which has not been rounded.
    low, high = neighbour(-beta / alpha, self.dtype, True), (1 - beta) / alpha
    inside = (self > neighbour(high, self.dtype, False)).where(1, line)
    return (self < low).where(0, inside)


def hardswish(self: Self) -> Self:
    """`x * relu6(x + 3) / 6`.

    Shapes: self [*s] -> [*s].
    """
    return self * (self + 3).relu6() * (1 / 6)


def sigmoid(self: Self) -> Self:
    """`1 / (1 + exp(-x))`.

    Shapes: self [*s] -> [*s].
    """
    negative, small = decaying_exp(self._floating())
    return negative.where(small, 1) / (small + 1)


def swish(self: Self) -> Self:
    """`x * sigmoid(x)`.

    Shapes: self [*s] -> [*s].
    """
    return self * self.sigmoid()


def silu(self: Self) -> Self:
    """`swish` under its other name.

    Shapes: self [*s] -> [*s].
    """
    return self.swish()


def softplus(self: Self, beta: float = 1.0) -> Self:
    """`log(1 + exp(beta * x)) / beta`.

    Shapes: self [*s] -> [*s].
    """
    x = self._floating()
    if beta == 0:
        raise ArgumentError("softplus: beta is 0; another number is wanted")
    if beta != 1:
        return (x * beta).softplus() * (1 / beta)
    negative, small = decaying_exp(x)
    return negative.where(0, x) + log_one_plus(small)


def logsigmoid(self: Self) -> Self:
    """`log(sigmoid(x))`.

    Shapes: self [*s] -> [*s].
    """
    negative, small = decaying_exp(self._floating())
    return negative.where(self, 0) - log_one_plus(small)


def softsign(self: Self) -> Self:
    """`x / (1 + |x|)`.

    Shapes: self [*s] -> [*s].
    """
    x = self._floating()
    whole = x.abs() + 1
    inverse = whole.reciprocal()
    return x._with_slope(x / whole, inverse * inverse)


@through_float32
def gelu(self: Self) -> Self:
    """`0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`, as one sigmoid.

    Shapes: self [*s] -> [*s].
    Error: up to 5e-4 from x times the normal distribution function, which it approximates.
    Source: Hendrycks and Gimpel 2016.
    """
    factor = 2 * math.sqrt(2 / math.pi)
    return self * (self * (self * self * (factor * 0.044715) + factor)).sigmoid()


def quick_gelu(self: Self) -> Self:
    """`x * sigmoid(1.702 * x)`.

    Shapes: self [*s] -> [*s].
    """
    return self * (self * 1.702).sigmoid()


def elu(self: Self, alpha: float = 1.0) -> Self:
    """`x` above 0, `alpha * (exp(x) - 1)` below.

    Shapes: self [*s] -> [*s].
    """
    positive, fall = elu_parts(self._floating(), 1.0)
    return positive.where(self, fall * alpha)


def celu(self: Self, alpha: float = 1.0) -> Self:
    """`x` above 0, `alpha * (exp(x / alpha) - 1)` below.

    Shapes: self [*s] -> [*s].
    """
    positive, fall = elu_parts(self._floating(), 1 / alpha)
    return positive.where(self, fall * alpha)


def selu(self: Self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
    """`gamma * elu(x, alpha)`.

    Shapes: self [*s] -> [*s].
    """
    return self.elu(alpha) * gamma


def leaky_relu(self: Self, neg_slope: float = 0.01) -> Self:
    """`x` above 0, `neg_slope * x` below, where 0 belongs.

    Shapes: self [*s] -> [*s].
    """
    return (self > 0).where(self, self * neg_slope)


def mish(self: Self) -> Self:
    """`x * tanh(softplus(x))`.

    Shapes: self [*s] -> [*s].
    """
    return self * self.softplus().tanh()


# softmax


def softmax(self: Self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
    """`exp(x) / sum(exp(x))` over `axis`.

    Shapes: self [*b, n] -> [*b, n].
    Dtype: `dtype`, else that of self; computed in at least float32.
    """
    x, result = widened(self, dtype)
    _, powers, total = shifted_exp(x, axis)
    return (powers * total.reciprocal()).cast(result)


def log_softmax(self: Self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
    """`log(softmax(x))` over `axis`.

    Shapes: self [*b, n] -> [*b, n].
    Dtype: `dtype`, else that of self; computed in at least float32.
    """
    x, result = widened(self, dtype)
    shifted, _, total = shifted_exp(x, axis)
    return (shifted - total.log()).cast(result)


def logsumexp(self: Self, axis: Any = None, keepdim: bool = False) -> Self:
    """`log(sum(exp(x)))` over `axis`.

    Shapes: self [*b, n], axis=-1 -> [*b].
    """
    x, result = widened(self, None)
    most = x.max(axis, keepdim=True).detach()
    # Of infinities the difference is NaN, while their own exponentials are right.
    most = most.isinf().where(0, most)
    total = (x - most).exp().sum(axis, keepdim=True).log() + most
    total = total.cast(result)
    if keepdim:
        return total
    axes = self._resolve_axes(axis, "logsumexp")
    return total.reshape(tuple([s for a, s in enumerate(total.shape) if a not in axes]))


def widened(self: Self, dtype: DTypeLike | None) -> tuple[Self, Any]:
    """Self as a float of at least 32 bits, and the dtype that a result should have."""
    x = self._floating() if dtype is None else self.cast(dtype)
    return x.cast(sum_acc_dtype(x.dtype)), x.dtype


@functools.cache
def around_zero(dtype: DType) -> tuple[UOp, UOp]:
    """0 of a float dtype, and the next number above it."""
    return UOp.const(dtype, 0.0), UOp.const(dtype, neighbour(0.0, dtype, True))


def rectified(x: UOp) -> UOp:
    """`relu` of floats, in nodes: of layers the most frequent one.

    As x86 has it in one instruction: what is not below 0 stays, NaN and -0.0 too. The gradient asks
    the result, which is stored anyway for the next layer's: below the next number above 0 is 0, and
    NaN is not.
    """
    dtype = x.dtype
    zero, next_above = around_zero(dtype)
    held = UOp(Ops.WHERE, dtype, (UOp(Ops.CMPLT, dtypes.bool, (x, zero)), zero, x))
    ends = UOp(Ops.CMPLT, dtypes.bool, (held, next_above))
    found = UOp(Ops.CUSTOM_GRADIENT, dtype, (held, x, ends))
    for u in (held.src[0], held, ends, found):
        u._shape, u._device = x.shape, x.device
    return found


def hold_between(x: Self, low: float, high: float) -> Self:
    """`x` where it lies between two numbers, else the nearer; the slope is 0 at both; NaN stays."""
    if x.dtype.kind != "float":
        return (x > low).where((x < high).where(x, high), low)
    held = (x < low).where(low, (x > high).where(high, x))
    ends = (held < neighbour(low, x.dtype, True)) | (held > neighbour(high, x.dtype, False))
    return x._with_slope(held, ends)


def decaying_exp(x: Self) -> tuple[Self, Self]:
    """Where x is negative, and exp(-|x|), which is at most 1."""
    negative = x < 0
    return negative, (x * negative.where(x.ufix(1.0), -1.0)).exp()


def log_one_plus(small: Self) -> Self:
    """log(1 + small) of what is not negative, with what 1 + small rounds away put back."""
    whole = small + 1
    return whole.log() + ((small - (whole - 1)) / whole).detach()


def elu_parts(x: Self, rate: float) -> tuple[Self, Self]:
    """Where x is positive, and exp(rate * x) - 1 where it is not (0 where it is).

    As 2 * t / (1 - t) of the hyperbolic tangent t of half of it, which keeps the digits of what is
    small.
    """
    positive = x > 0
    below = positive.where(0, x)
    below = below if rate == 1 else below * rate
    half = (below * 0.5).tanh()
    return positive, below._with_slope(half * 2 / (1 - half), below.exp())


def shifted_exp(x: Self, axis: Any) -> tuple[Self, Self, Self]:
    """x less its maximum over `axis`, the exponential of that, and the sum of those.

    Shifting changes neither what softmax gives nor its slope, so no gradient goes through it.
    """
    shifted = x - x.max(axis, keepdim=True).detach()
    powers = shifted.exp()
    return shifted, powers, powers.sum(axis, keepdim=True)
