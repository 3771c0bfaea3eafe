"""Rewrites comparisons with subnormal constants for devices that flush subnormals to 0.

Receives a graph in ops and dtypes of its target; returns one whose comparisons give the same
results with and without flushing, if the other side is a normal number or 0.

rewrite: x < c -> x < 0 | x == 0, for 0 < c below the least normal number; -c < x -> 0 < x | x == 0
c < x -> 0 < x; x < -c -> x < 0; x == c -> false; x != c -> true
why: the derivatives of relu and clamp compare with the next number above their bound; flushed to 0,
that number would make 0 compare as not below it
"""

from __future__ import annotations

from aster_ml.dtype import DType, dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# The smallest normal number of each dtype.
MIN_NORMAL = {dtypes.float16: 2.0**-14, dtypes.bfloat16: 2.0**-126, dtypes.float32: 2.0**-126}
COMPARISONS = frozenset({Ops.CMPLT, Ops.CMPEQ, Ops.CMPNE})


def rewrite_comparisons(sink: UOp, target: Target) -> UOp:
    """The graph without comparisons with constants that the target may flush."""
    flushed = [d for d in MIN_NORMAL if d.name in target.flushes]

    def settled(old: UOp, u: UOp) -> UOp:
        first, second = u.src
        if first.dtype not in flushed:
            return u
        a, b = subnormal(first), subnormal(second)
        if u.op is Ops.CMPLT and b > 0:
            return at_most(first, second.dtype, True)
        if u.op is Ops.CMPLT and a < 0:
            return at_most(second, first.dtype, False)
        if not a and not b:
            return u
        if u.op is not Ops.CMPLT:
            return UOp.const(dtypes.bool, u.op is Ops.CMPNE)
        zero = UOp.const(first.dtype, 0.0)
        return zero.alu(Ops.CMPLT, second) if a else first.alu(Ops.CMPLT, zero)

    return rebuilt(sink, COMPARISONS, settled)


def subnormal(u: UOp) -> float:
    """The value of a subnormal constant; 0 for any other node."""
    if u.op is not Ops.CONST or not 0 < abs(u.arg) < MIN_NORMAL[u.dtype]:
        return 0.0
    return float(u.arg)


def at_most(x: UOp, dtype: DType, below: bool) -> UOp:
    """Compares x <= 0 if `below`, else x >= 0; false for NaN."""
    zero = UOp.const(dtype, 0.0)
    beyond = x.alu(Ops.CMPLT, zero) if below else zero.alu(Ops.CMPLT, x)
    return beyond.alu(Ops.OR, x.alu(Ops.CMPEQ, zero))
