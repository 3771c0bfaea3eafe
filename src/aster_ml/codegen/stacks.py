"""Stacks: short axes along which different values stand side by side, written out lane by lane.

Receives the plan of a kernel and applies Opts to the kernel. What a stack is to the schedule
stands in `schedule.stacks`.
"""

from __future__ import annotations

from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.prices import Plan, axis_number
from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.uop.ops import ELEMENTWISE, Ops
from aster_ml.uop.ranges import size_of

# Longest axis of a stack, as `schedule.cost` has it.
MAX_STACK = 8
# Most values that a loop body may have with all of them.
MAX_WRITTEN = 2048


def write_out_stacks(plan: Plan) -> None:
    """Lanes along the axes of stacks: what stands in a lane is known, so that nothing chooses."""
    kernel = plan.kernel
    order = kernel.facts.order
    compared = {u.src[0] for u in order if u.op is Ops.CMPEQ and u.src[1].op is Ops.CONST}
    fixed = [r for r in kernel.outputs if r in compared and r.src[0].op is Ops.CONST]
    short = [r for r in fixed if size_of(r) <= MAX_STACK]
    if not short or kernel.reduces or not all(map(kernel.may_reorder, short)):
        return
    values = [u.ranges for u in order if u.op in ELEMENTWISE and u.dtype is not dtypes.index]
    if sum(prod([size_of(r) for r in short if r in ranges]) for ranges in values) <= MAX_WRITTEN:
        for r in short:
            kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, r), size_of(r)))
