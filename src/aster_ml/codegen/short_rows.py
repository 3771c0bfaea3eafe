"""Reductions over short rows that lie one after another, as the last axis of [n, 5] is.

With SIMD lanes along the outputs, each lane has a row of its own: when the reduction is written
out, a row is loaded as it lies and the rows are transposed in registers, nothing is added up across
lanes, and no lane is idle. Says where that can be and does it; what it costs beside other ways is
compared in `cost`.
"""

from __future__ import annotations

from aster_ml.codegen.facts import Access
from aster_ml.codegen.kernel import Kernel, can_overlap, size_of
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.prices import (
    LONGEST_ROW,
    MAX_BODY,
    Plan,
    iterations,
    nest_of,
    owners,
    reduction_number,
)
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops


def is_short_row(access: Access, axis: UOp, reduce: UOp) -> bool:
    """Whether neighbours along an output axis have rows of a reduction that do not overlap."""
    gap = access.stride(axis)
    return (
        gap is not None
        and access.buffer.op is Ops.PARAM
        and not access.node.src[1:]
        and any(access.stride(r) == 1 and abs(gap) >= size_of(r) for r in reduce.src[1:])
    )


def writes_out_rows(plan: Plan, axis: UOp | None, lanes: int) -> bool:
    """Whether all reductions are over short rows, one for each lane along an output axis.

    Of what is loaded nothing serves two results: else a register tile has more of it. Lanes that
    are left over start early, since masked ones would be loaded one by one.
    """
    kernel = plan.kernel
    if axis is None or axis not in kernel.outputs or not kernel.reduces:
        return False
    if size_of(axis) % lanes and (size_of(axis) < lanes or not can_overlap(kernel)):
        return False
    steps = [iterations(list(u.src[1:])) for u in kernel.reduces]
    if not all(axis in u.ranges for u in kernel.reduces) or max(steps) > LONGEST_ROW:
        return False
    owner = owners(kernel)
    loads = [a for a in plan.accesses if a.node in owner]
    return (
        bool(loads)
        and sum(steps) * plan.values <= MAX_BODY
        and all(
            is_short_row(a, axis, owner[a.node])
            and set(nest_of(plan, a, owner[a.node])) <= a.strides.keys()
            for a in loads
        )
    )


def write_out_rows(kernel: Kernel) -> None:
    """Every step of every reduction at once."""
    while loops := [r for r in kernel.axes if r.arg.kind is AxisType.REDUCE]:
        kernel.apply(Opt(OptOps.UNROLL, reduction_number(kernel, loops[0]), size_of(loops[0])))


__all__ = ["is_short_row", "write_out_rows", "writes_out_rows"]
