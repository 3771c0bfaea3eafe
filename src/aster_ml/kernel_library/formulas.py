"""Computes by plain formulas what rows of the kernel library match.

Receives Tensors, returns Tensors. A formula is right on every device, whether a row matches it or
not: it is the oracle of its row.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from aster_ml.dtype import dtypes, least_upper_dtype, sum_acc_dtype
from aster_ml.engine.realize import workers_of
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.late import late
from aster_ml.ops import Self
from aster_ml.ops.handle import Handle
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RuleArg

if TYPE_CHECKING:
    from aster_ml.kernel_library import rows
else:
    rows = late("kernel_library.rows")

# The name of the gradient's rule.
RULE = "attention"


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
    node = UOp(Ops.CUSTOM_GRADIENT, result.dtype, (result.uop, *nodes), RuleArg(RULE, factor))
    return result._derive(node)


def is_multiplied(u: UOp) -> bool:
    """Whether a device chains products of these numbers of 16 bits, and a row has the gradient."""
    device = u.device[0] if isinstance(u.device, tuple) else u.device
    if u.dtype.itemsize != 2 or device is None:
        return False
    return u.dtype.name in workers_of(str(device)).chained and rows.gradient_rule(RULE) is not None


def share_heads(x: Self, heads: int) -> Self:
    """Key or value with each head repeated so that there are `heads` of them."""
    have = x.shape[-3]
    if heads % have:
        raise ShapeError(
            f"scaled_dot_product_attention: {heads} heads of queries do not share the "
            f"{have} heads of {show_shape(x.shape)} equally"
        )
    return x.repeat_interleave(heads // have, len(x.shape) - 3)


class FormulaMixin(Handle):
    """Methods of tensors that the kernel library knows."""

    __slots__ = ()

    scaled_dot_product_attention = scaled_dot_product_attention
