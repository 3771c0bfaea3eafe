"""Normalisation, dropout and attention; with them all that neural networks are made of.

Receives Tensors, returns Tensors; attaches these functions and those of `activations` and `loss` to
Tensor. Layers, which hold weights, are in `nn`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from aster_ml.dtype import dtypes, least_upper_dtype, sum_acc_dtype
from aster_ml.engine.realize import workers_of
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.mixin import Self, activations, loss
from aster_ml.mixin.activations import widened
from aster_ml.mixin.handle import Handle
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RuleArg

# normalisation and dropout


def layernorm(self: Self, axis: int | tuple[int, ...] = -1, eps: float = 1e-5) -> Self:
    """Zero mean and unit variance over `axis`.

    Shapes: self [*b, n] -> [*b, n].
    Dtype: that of self; computed in at least float32.
    Source: Ba, Kiros and Hinton 2016.
    """
    x, result = widened(self, None)
    centred = x - x.mean(axis, keepdim=True)
    scale = ((centred * centred).mean(axis, keepdim=True) + eps).rsqrt()
    return (centred * scale).cast(result)


def batchnorm(
    self: Self,
    weight: Self | None,
    bias: Self | None,
    mean: Self,
    invstd: Self,
    axis: int | tuple[int, ...] = 1,
) -> Self:
    """`(x - mean) * invstd * weight + bias`, all of them along `axis`.

    Shapes: self [n, c, *s], weight [c], bias [c], mean [c], invstd [c] -> [n, c, *s].
    """
    axes = self._resolve_axes(axis, "batchnorm")
    shape = tuple([s if a in axes else 1 for a, s in enumerate(self.shape)])
    # Factors are joined before they meet the large operand.
    factor = invstd.reshape(shape) if len(invstd.shape) == len(axes) else invstd
    if weight is not None:
        factor = factor * weight.reshape(shape)
    out = (self - mean.reshape(shape)) * factor
    return out if bias is None else out + bias.reshape(shape)


def dropout(self: Self, p: float = 0.5) -> Self:
    """Each element 0 with probability `p`, else divided by 1 - p, while `Tensor.training`.

    Shapes: self [*s] -> [*s].
    Raises: ArgumentError unless 0 <= p <= 1.
    Source: Srivastava et al. 2014.
    """
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ArgumentError(f"dropout: p is {p!r}; a probability from 0 to 1 is wanted")
    if not self.training or p == 0:
        return self._own()
    if p == 1:
        return self.zeros_like()
    # Stored: the gradient asks for the same numbers, which cost more than a byte each.
    kept = (self.rand_like(dtype=dtypes.default_float, contiguous=False) >= p).contiguous()
    return kept.where(self * (1 / (1 - p)), 0)


# attention


def scaled_dot_product_attention(
    self: Self,
    key: Self,
    value: Self,
    attn_mask: Self | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Self:
    """`softmax(q @ k^T / sqrt(e) + mask) @ v`, self being q.

    A bool mask is true where q may look at k; a mask of floats is added. With `is_causal` place
    i looks at places up to i.
    A row of q that may look at nothing gives 0. With `enable_gqa`
    several heads of q share one of key and value.

    Shapes: self [*b, n, e], key [*b, m, e], value [*b, m, d] -> [*b, n, d].
    Raises: ArgumentError for a mask beside `is_causal`; ShapeError for heads that do not fit.
    Source: Vaswani et al. 2017.
    """
    if is_causal and attn_mask is not None:
        raise ArgumentError(
            "scaled_dot_product_attention: is_causal stands for a mask, and "
            "attn_mask is given as well; put the triangle into attn_mask"
        )
    if enable_gqa:
        key, value = (share_heads(t, self.shape[-3]) for t in (key, value))
    wide = sum_acc_dtype(least_upper_dtype(self.dtype, key.dtype))
    narrow = self.dtype is key.dtype is value.dtype and is_multiplied(self.uop)
    # Made wider as they lie, so that gradients of keys lie as these do.
    scores = raw = self.dot((key.cast(wide) if narrow else key).transpose(-2, -1), wide)
    scale = 1 / math.sqrt(self.shape[-1])
    n, m = scores.shape[-2:]
    if is_causal:
        here = self.arange(n, device=self.device).reshape((n, 1))
        there = self.arange(m, device=self.device)
        scores = (here < there).where(-math.inf, scores)
    elif attn_mask is not None and attn_mask.dtype is dtypes.bool:
        scores = attn_mask.where(scores, -math.inf)
    elif attn_mask is not None:
        scores, scale = scores * scale + attn_mask, 1.0
    # The sum divides what is made of the rows, which are longer.
    most = scores.max(-1, keepdim=True).detach()
    if attn_mask is not None:
        # A row that may look at nothing is 0, and so are its gradients.
        most = most.eq(-math.inf).where(0, most)
    parts = ((scores - most) * scale).exp()
    total = parts.sum(-1, keepdim=True)
    if attn_mask is not None:
        total = total.eq(0).where(1, total)
    mixed = parts.dropout(dropout_p).cast(self.dtype).dot(value, wide)
    result = (mixed / total).cast(least_upper_dtype(self.dtype, value.dtype))
    if not narrow or (self.training and dropout_p != 0):
        return result
    # All products of the gradient are of numbers that tensor cores multiply, too. It takes of
    # each row two numbers, and powers from the scores again.
    again = ((scores - most.contiguous()) * scale).exp()
    shared = value._broadcast_to((*parts.shape[:-2], *value.shape[-2:]))
    nodes = [raw.uop, shared.uop, again.uop, total.reciprocal().contiguous().uop]
    if attn_mask is not None and attn_mask.dtype.kind == "float":
        nodes.append(attn_mask.cast(wide)._broadcast_to(scores.shape).uop)
    factor = 1 / math.sqrt(self.shape[-1])
    node = UOp(Ops.DETACH, result.dtype, (result.uop, *nodes), RuleArg("attention", factor))
    return result._derive(node)


def sequential(self: Self, ll: Sequence[Callable[[Self], Self]]) -> Self:
    """Self, passed through every function of the list in turn.

    Raises: ArgumentError for what cannot be called.
    """
    steps = list(ll) if hasattr(ll, "__iter__") else [ll]
    for i, step in enumerate(steps):
        if not callable(step):
            raise ArgumentError(f"sequential: step {i} is {step!r}; a function is wanted")
    return functools.reduce(lambda x, f: f(x), steps, self)


def is_multiplied(u: UOp) -> bool:
    """Whether a device computes attention of numbers of 16 bits on tensor cores."""
    device = u.device[0] if isinstance(u.device, tuple) else u.device
    if u.dtype.itemsize != 2 or device is None:
        return False
    return u.dtype.name in workers_of(str(device)).attends


def share_heads(x: Self, heads: int) -> Self:
    """Key or value with each head repeated so that there are `heads` of them."""
    have = x.shape[-3]
    if heads % have:
        raise ShapeError(
            f"scaled_dot_product_attention: {heads} heads of queries do not share the "
            f"{have} heads of {show_shape(x.shape)} equally"
        )
    return x.repeat_interleave(heads // have, len(x.shape) - 3)


class NeuralMixin(Handle):
    """Methods of tensors for neural networks."""

    __slots__ = ()

    relu = activations.relu
    relu6 = activations.relu6
    hardtanh = activations.hardtanh
    hardsigmoid = activations.hardsigmoid
    hardswish = activations.hardswish
    sigmoid = activations.sigmoid
    swish = activations.swish
    silu = activations.silu
    softplus = activations.softplus
    logsigmoid = activations.logsigmoid
    softsign = activations.softsign
    gelu = activations.gelu
    quick_gelu = activations.quick_gelu
    elu = activations.elu
    celu = activations.celu
    selu = activations.selu
    leaky_relu = activations.leaky_relu
    mish = activations.mish
    softmax = activations.softmax
    log_softmax = activations.log_softmax
    logsumexp = activations.logsumexp
    cross_entropy = loss.cross_entropy
    sparse_categorical_crossentropy = loss.sparse_categorical_crossentropy
    nll_loss = loss.nll_loss
    binary_crossentropy = loss.binary_crossentropy
    binary_crossentropy_logits = loss.binary_crossentropy_logits
    layernorm = layernorm
    batchnorm = batchnorm
    dropout = dropout
    scaled_dot_product_attention = scaled_dot_product_attention
    sequential = sequential
