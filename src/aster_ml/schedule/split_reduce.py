"""Long reductions with few results, in two steps, so that every thread has a part.

rewrite: REDUCE(x, axes) -> REDUCE(CONTIGUOUS(REDUCE(x', axes')), axes'')
when: the result has fewer elements than MIN_ROWS and the reduced axes hold at least MIN_LENGTH
why: a kernel is shared out over its outputs only
"""

from __future__ import annotations

from aster_ml.config import SPLIT_REDUCE
from aster_ml.helpers import all_int, divisors, prod
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

MIN_LENGTH = 1 << 15
MAX_RESULTS = 32
PARTS = 256


def split_long_reductions(body: UOp) -> UOp:
    """The body with each long reduction split."""
    if not SPLIT_REDUCE:
        return body
    new: dict[UOp, UOp] = {}
    for u in toposort(body):
        src = tuple([new[s] for s in u.src])
        fresh = u if src == u.src else UOp(u.op, u.dtype, src, u.arg)
        new[u] = split_one(fresh) if u.op is Ops.REDUCE else fresh
    return new[body]


def split_one(u: UOp) -> UOp:
    """One REDUCE, split along its outermost long axis, or as it was."""
    x = u.src[0]
    shape = x.shape
    if not all_int(shape):
        return u
    kept = prod([s for i, s in enumerate(shape) if i not in u.arg.axes])
    # What only repeats is multiplied, not added up.
    long = [a for a in u.arg.axes if x.op is not Ops.EXPAND or x.src[0].shape[a] != 1]
    length = prod([shape[a] for a in long])
    if not long or kept > MAX_RESULTS or length < MIN_LENGTH or kept * length == 0:
        return u
    axis = max(long, key=lambda a: (min(shape[a], PARTS), -a))
    fitting = [d for d in divisors(shape[axis]) if d <= PARTS]
    parts = fitting[-1]
    if parts < 8:
        return u
    inner = shape[axis] // parts
    split_shape = (*shape[:axis], parts, inner, *shape[axis + 1 :])
    axes = tuple(sorted([a if a < axis else a + 1 for a in u.arg.axes if a != axis] + [axis + 1]))
    partial = x.mop(Ops.RESHAPE, split_shape).rop(u.arg.op, axes)
    stored = UOp(Ops.CONTIGUOUS, u.dtype, (partial,))
    return stored.rop(u.arg.op, (axis,)).mop(Ops.RESHAPE, u.shape)
