"""Horizontal reduction: the lanes of SIMD accumulators folded to one number, once, at the end.

Receives a kernel's graph whose Opts are applied; returns one. Which lanes there are is not decided
here.

rewrite: op(REDUCE(a, r, v), REDUCE(b, s, w)) -> REDUCE(op(REDUCE(a, r), REDUCE(b, s)), v)
when: v and w are SIMD lanes of the same width, and both reductions fold by op; the first, or both,
may be float64 that is rounded to float32
why: a peeled reduction has two ends, and folding lanes takes as long as some steps of its loop; and
two sums that are rounded and added have one rounding more than a sum
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import rebuilt, substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


def fold_together(kernel: Kernel, target: Target) -> None:
    """Folds the lanes of each pair of reductions at once."""
    kernel.sink = rebuilt(kernel.sink, FOLDING, one_fold)


FOLDING = frozenset({Ops.ADD, Ops.MAX})


def one_fold(old: UOp, u: UOp) -> UOp:
    """One pair, if it is one; or what it was."""
    first, second = u.src
    total, other = before_rounding(first), before_rounding(second)
    v, w = simd_lane(total, u.op), simd_lane(other, u.op)
    alike = other.dtype in (u.dtype, total.dtype)
    if v is None or w is None or size_of(v) != size_of(w) or not alike:
        return u
    a = without(total, v)
    b = substitute(without(other, w), {w: v}).cast(total.dtype)
    return UOp(Ops.REDUCE, total.dtype, (a.alu(u.op, b), v), total.arg).cast(u.dtype)


def before_rounding(u: UOp) -> UOp:
    """The float64 that a float32 is made from, or the node itself."""
    rounded = u.op is Ops.CAST and u.dtype is dtypes.float32
    return u.src[0] if rounded and u.src[0].dtype is dtypes.float64 else u


def simd_lane(u: UOp, op: Ops) -> UOp | None:
    """The SIMD lane that a reduction by `op` folds; None for anything else."""
    if u.op is not Ops.REDUCE or u.arg.op is not op:
        return None
    return next((r for r in u.src[1:] if r.arg.kind is AxisType.VECTOR), None)


def without(u: UOp, lane: UOp) -> UOp:
    """A reduction that leaves one lane to others."""
    rest = [r for r in u.src[1:] if r is not lane]
    return UOp(Ops.REDUCE, u.dtype, (u.src[0], *rest), u.arg) if rest else u.src[0]
