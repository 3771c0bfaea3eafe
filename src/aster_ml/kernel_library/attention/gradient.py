"""Differentiates attention whose operands have fewer bits than its sums.

Receives the gradient of a result and the CUSTOM_GRADIENT of that result (RuleArg); returns
those of scores, values and mask. The sources after the value are scores, values, exponentials, the
inverse of their sum, and, where one is added to scores, a mask; the number of the RuleArg is the
factor of the scores before their exponentials are taken. What is multiplied is rounded to the
dtype of the operands, as PyTorch's flash attention does, so that all products are of narrow
numbers; sums are wide.

With p = powers / total, of a gradient g of the result o: dp = g @ v^T, of values p^T @ g, of scores
p * (dp - rows of g * o) * scale. Source: Dao 2023, FlashAttention-2, algorithm 2.
"""

from __future__ import annotations

from aster_ml.dtype import DType
from aster_ml.uop.gradient_terms import Term
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

SOURCES = ("result", "scores", "values", "powers", "inverse", "mask")


def of_attention(g: Term, u: UOp, i: int) -> Term | None:
    """Gradient of a source of attention."""
    of = SOURCES[i]
    if of in ("result", "powers", "inverse"):
        return None
    _, scores, values, powers, inverse = u.src[:5]
    given = g.spread(u.shape).node
    shares = powers.alu(Ops.MUL, inverse._broadcast_to(powers.shape))
    wide = powers.dtype
    if of == "values":
        narrow = shares.cast(values.dtype)
        # [..., n, m] and [..., n, e], summed over n.
        return g.of(product(along(narrow, -1), along(given, -2), wide, len(u.shape) - 2))
    rows = given.cast(wide).alu(Ops.MUL, u.cast(wide))._rop(Ops.ADD, (len(u.shape) - 1,))
    slopes = product(along(given, -2), along(values, -3), wide, len(u.shape))
    inner = shares.alu(Ops.MUL, slopes.alu(Ops.SUB, rows._broadcast_to(slopes.shape)))
    if of == "mask":
        return g.of(inner)
    scaled = inner.alu(Ops.MUL, UOp.const(wide, u.arg.number))
    return g.of(scaled.cast(values.dtype).cast(scores.dtype))


def along(u: UOp, axis: int) -> UOp:
    """A node with one more axis, of size 1, before its axis of this number, -1 being behind all."""
    shape = list(u.shape)
    shape.insert(len(shape) + axis + 1, 1)
    return u._mop(Ops.RESHAPE, tuple(shape))


def product(a: UOp, b: UOp, wide: DType, axis: int) -> UOp:
    """The sum along an axis of the product of two nodes, which are made wider; without the axis."""
    sizes = zip(a.shape, b.shape, strict=True)
    shape = tuple([n if m == 1 else m for n, m in sizes])
    a, b = (x.cast(wide)._broadcast_to(shape) for x in (a, b))
    found = a.alu(Ops.MUL, b)._rop(Ops.ADD, (axis,))
    return found._mop(Ops.RESHAPE, (*shape[:axis], *shape[axis + 1 :]))


RULES = {"attention": of_attention}
