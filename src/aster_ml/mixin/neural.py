"""What neural networks are made of: activations, softmax, normalisation, dropout, attention.

Receives Tensors, returns Tensors, all from elementwise ops, sums and maxima. No formula here
overflows where its result does not, and none has a gradient of NaN where the slope is a number:
exponentials are taken of what is not positive, and what a WHERE leaves out is finite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aster_ml.dtype import DTypeLike, dtypes, least_upper_dtype, sum_acc_dtype
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.mixin.contract import ContractMixin
from aster_ml.uop.infer import show_shape

N = TypeVar("N", bound="NeuralMixin")

if TYPE_CHECKING:
    # What a Tensor has beside this mixin.
    from aster_ml.mixin.random import RandomMixin

    class Base(ContractMixin, RandomMixin):
        """The type of self."""

        training: bool

else:
    Base = ContractMixin


class NeuralMixin(Base):
    """Activations, softmax, normalisation, dropout, attention."""

    __slots__ = ()

    # activations

    def relu(self) -> Self:
        """The positive part; its slope at 0 is 0.

        Shapes: self [*s] -> [*s].
        """
        return (self > 0).where(self, 0)

    def relu6(self) -> Self:
        """Held between 0 and 6.

        Shapes: self [*s] -> [*s].
        """
        return hold_between(self, 0, 6)

    def hardtanh(self, min_val: float = -1, max_val: float = 1) -> Self:
        """Held between two numbers; the slope is 0 at both.

        Shapes: self [*s] -> [*s].
        """
        return hold_between(self, min_val, max_val)

    def hardsigmoid(self, alpha: float = 1 / 6, beta: float = 0.5) -> Self:
        """`alpha * x + beta`, held between 0 and 1.

        Shapes: self [*s] -> [*s].
        """
        return hold_between(self * alpha + beta, 0, 1)

    def hardswish(self) -> Self:
        """`x * relu6(x + 3) / 6`.

        Shapes: self [*s] -> [*s].
        """
        return self * (self + 3).relu6() * (1 / 6)

    def sigmoid(self) -> Self:
        """`1 / (1 + exp(-x))`.

        Shapes: self [*s] -> [*s].
        """
        negative, small = decaying_exp(self.floating())
        return negative.where(small, 1) / (small + 1)

    def swish(self) -> Self:
        """`x * sigmoid(x)`.

        Shapes: self [*s] -> [*s].
        """
        return self * self.sigmoid()

    def silu(self) -> Self:
        """`swish` under its other name.

        Shapes: self [*s] -> [*s].
        """
        return self.swish()

    def softplus(self, beta: float = 1.0) -> Self:
        """`log(1 + exp(beta * x)) / beta`.

        Shapes: self [*s] -> [*s].
        """
        x = self.floating()
        if beta != 1:
            return (x * beta).softplus() * (1 / beta)
        negative, small = decaying_exp(x)
        return negative.where(0, x) + log_one_plus(small)

    def logsigmoid(self) -> Self:
        """`log(sigmoid(x))`.

        Shapes: self [*s] -> [*s].
        """
        return -(-self).softplus()

    def softsign(self) -> Self:
        """`x / (1 + |x|)`.

        Shapes: self [*s] -> [*s].
        """
        return self / (self.abs() + 1)

    def gelu(self) -> Self:
        """`0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`, as one sigmoid.

        Shapes: self [*s] -> [*s].
        Error: up to 5e-4 from x times the normal distribution function, which it approximates.
        Source: Hendrycks and Gimpel 2016.
        """
        factor = 2 * math.sqrt(2 / math.pi)
        return self * (self * (self * self * (factor * 0.044715) + factor)).sigmoid()

    def quick_gelu(self) -> Self:
        """`x * sigmoid(1.702 * x)`.

        Shapes: self [*s] -> [*s].
        """
        return self * (self * 1.702).sigmoid()

    def elu(self, alpha: float = 1.0) -> Self:
        """`x` above 0, `alpha * (exp(x) - 1)` below.

        Shapes: self [*s] -> [*s].
        """
        positive, fall = fall_below_zero(self.floating(), 1.0)
        return positive.where(self, fall * alpha)

    def celu(self, alpha: float = 1.0) -> Self:
        """`x` above 0, `alpha * (exp(x / alpha) - 1)` below.

        Shapes: self [*s] -> [*s].
        """
        positive, fall = fall_below_zero(self.floating(), 1 / alpha)
        return positive.where(self, fall * alpha)

    def selu(self, alpha: float = 1.67326, gamma: float = 1.0507) -> Self:
        """`gamma * elu(x, alpha)`.

        Shapes: self [*s] -> [*s].
        """
        return self.elu(alpha) * gamma

    def leaky_relu(self, neg_slope: float = 0.01) -> Self:
        """`x` above 0, `neg_slope * x` below, where 0 belongs.

        Shapes: self [*s] -> [*s].
        """
        return (self > 0).where(self, self * neg_slope)

    def mish(self) -> Self:
        """`x * tanh(softplus(x))`.

        Shapes: self [*s] -> [*s].
        """
        return self * self.softplus().tanh()

    # softmax

    def softmax(self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
        """`exp(x) / sum(exp(x))` over `axis`.

        Shapes: self [*b, n] -> [*b, n].
        Dtype: `dtype`, else that of self; computed in at least float32.
        """
        x, result = self.widened(dtype)
        _, powers, total = shifted_exp(x, axis)
        return (powers * total.reciprocal()).cast(result)

    def log_softmax(self, axis: int = -1, dtype: DTypeLike | None = None) -> Self:
        """`log(softmax(x))` over `axis`.

        Shapes: self [*b, n] -> [*b, n].
        Dtype: `dtype`, else that of self; computed in at least float32.
        """
        x, result = self.widened(dtype)
        shifted, _, total = shifted_exp(x, axis)
        return (shifted - total.log()).cast(result)

    def logsumexp(self, axis: Any = None, keepdim: bool = False) -> Self:
        """`log(sum(exp(x)))` over `axis`.

        Shapes: self [*b, n], axis=-1 -> [*b].
        """
        x, result = self.widened(None)
        most = x.max(axis, keepdim=True).detach()
        # Of infinities the difference is NaN, while their own exponentials are right.
        most = most.isinf().where(0, most)
        total = (x - most).exp().sum(axis, keepdim=True).log() + most
        total = total.cast(result)
        if keepdim:
            return total
        axes = self.resolve_axes(axis, "logsumexp")
        return total.reshape(tuple([s for a, s in enumerate(total.shape) if a not in axes]))

    def widened(self, dtype: DTypeLike | None) -> tuple[Self, Any]:
        """Self as a float of at least 32 bits, and the dtype that a result should have."""
        x = self.floating() if dtype is None else self.cast(dtype)
        return x.cast(sum_acc_dtype(x.dtype)), x.dtype

    # normalisation and dropout

    def layernorm(self, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Self:
        """Zero mean and unit variance over `axis`.

        Shapes: self [*b, n] -> [*b, n].
        Dtype: that of self; computed in at least float32.
        Source: Ba, Kiros and Hinton 2016.
        """
        x, result = self.widened(None)
        centred = x - x.mean(axis, keepdim=True)
        scale = ((centred * centred).mean(axis, keepdim=True) + eps).rsqrt()
        return (centred * scale).cast(result)

    def batchnorm(
        self, weight: Self | None, bias: Self | None, mean: Self, invstd: Self,
        axis: int | tuple[int, ...] = 1,
    ) -> Self:
        """`(x - mean) * invstd * weight + bias`, all of them along `axis`.

        Shapes: self [n, c, *s], weight [c], bias [c], mean [c], invstd [c] -> [n, c, *s].
        """
        axes = self.resolve_axes(axis, "batchnorm")
        shape = tuple([s if a in axes else 1 for a, s in enumerate(self.shape)])
        # Factors are joined before they meet the large operand.
        factor = invstd.reshape(shape) if len(invstd.shape) == len(axes) else invstd
        if weight is not None:
            factor = factor * weight.reshape(shape)
        out = (self - mean.reshape(shape)) * factor
        return out if bias is None else out + bias.reshape(shape)

    def dropout(self, p: float = 0.5) -> Self:
        """Each element 0 with probability `p`, else divided by 1 - p, while `Tensor.training`.

        Shapes: self [*s] -> [*s].
        Raises: ArgumentError unless 0 <= p <= 1.
        Source: Srivastava et al. 2014.
        """
        if not 0 <= p <= 1:
            raise ArgumentError(f"dropout: p is {p}; a probability from 0 to 1 is wanted")
        if not self.training or p == 0:
            return self
        if p == 1:
            return self.zeros_like()
        # Stored: the gradient asks for the same numbers, which cost more than a byte each.
        kept = (self.rand_like(dtype=dtypes.default_float, contiguous=False) >= p).contiguous()
        return kept.where(self * (1 / (1 - p)), 0)

    # attention

    def scaled_dot_product_attention(
        self, key: Self, value: Self, attn_mask: Self | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, enable_gqa: bool = False,
    ) -> Self:
        """`softmax(q @ k^T / sqrt(e) + mask) @ v`, self being q.

        A bool mask is true where q may look at k; a mask of floats is added. With `is_causal` place
        i looks at places up to i. With `enable_gqa` several heads of q share one of key and value.

        Shapes: self [*b, n, e], key [*b, m, e], value [*b, m, d] -> [*b, n, d].
        Raises: ArgumentError for a mask beside `is_causal`; ShapeError for heads that do not fit.
        Source: Vaswani et al. 2017.
        """
        if is_causal and attn_mask is not None:
            raise ArgumentError("scaled_dot_product_attention: is_causal stands for a mask, and "
                                "attn_mask is given as well; put the triangle into attn_mask")
        if enable_gqa:
            key, value = (share_heads(t, self.shape[-3]) for t in (key, value))
        wide = sum_acc_dtype(least_upper_dtype(self.dtype, key.dtype))
        scores = self.dot(key.transpose(-2, -1), wide) * (1 / math.sqrt(self.shape[-1]))
        n, m = scores.shape[-2:]
        if is_causal:
            here = self.arange(n, device=self.device).reshape((n, 1))
            there = self.arange(m, device=self.device)
            scores = (here < there).where(-math.inf, scores)
        elif attn_mask is not None and attn_mask.dtype is dtypes.bool:
            scores = attn_mask.where(scores, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return scores.softmax(-1).dropout(dropout_p).cast(self.dtype).dot(value)

    def sequential(self, ll: Sequence[Callable[[Self], Self]]) -> Self:
        """Self, passed through every function of the list in turn."""
        return functools.reduce(lambda x, f: f(x), ll, self)


def hold_between(x: N, low: float, high: float) -> N:
    """`x` where it lies between two numbers, else the nearer; the slope is 0 at both."""
    return (x > low).where((x < high).where(x, high), low)


def decaying_exp(x: N) -> tuple[N, N]:
    """Where x is negative, and exp(-|x|), which is at most 1."""
    negative = x < 0
    return negative, (x * negative.where(x.ufix(1.0), -1.0)).exp()


def log_one_plus(small: N) -> N:
    """log(1 + small) of what is not negative, with what 1 + small rounds away put back."""
    whole = small + 1
    return whole.log() + ((small - (whole - 1)) / whole).detach()


def fall_below_zero(x: N, rate: float) -> tuple[N, N]:
    """Where x is positive, and exp(rate * x) - 1 where it is not (0 where it is)."""
    positive = x > 0
    below = positive.where(0, x)
    return positive, (below if rate == 1 else below * rate).exp() - 1


def shifted_exp(x: N, axis: Any) -> tuple[N, N, N]:
    """x less its maximum over `axis`, the exponential of that, and the sum of those.

    Shifting changes neither what softmax gives nor its slope, so no gradient goes through it.
    """
    shifted = x - x.max(axis, keepdim=True).detach()
    powers = shifted.exp()
    return shifted, powers, powers.sum(axis, keepdim=True)


def share_heads(x: N, heads: int) -> N:
    """Key or value with each head repeated so that there are `heads` of them."""
    have = x.shape[-3]
    if heads % have:
        raise ShapeError(f"scaled_dot_product_attention: {heads} heads of queries do not share the "
                         f"{have} heads of {show_shape(x.shape)} equally")
    return x.repeat_interleave(heads // have, len(x.shape) - 3)
