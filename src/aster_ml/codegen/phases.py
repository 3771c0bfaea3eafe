"""Strided windows that are added up where they came from: gradients of pools and convolutions.

Receives a Plan whose axes have been split where indices divide them, before SIMD lanes are chosen.
Of windows `stride` apart that reach a place, which steps belong to it depends on the place modulo
the stride, its phase, alone. With phases and steps side by side that is known beforehand: what
belongs nowhere is gone, and what is left is loaded at plain strides.
"""

from __future__ import annotations

from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.prices import (
    MAX_BODY,
    MAX_WRITTEN_OUT,
    Plan,
    axis_number,
    reduction_number,
)
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of


def write_out_phases(plan: Plan) -> int:
    """Phases and the steps of windows that they choose become lanes; the nodes of a place then.

    0 where there are none, or too many.
    """
    kernel = plan.kernel
    axes = phases_and_steps(plan)
    # Of each place one step in so many as there are phases is left.
    nodes = iterations([r for r in axes if r.arg.kind is AxisType.REDUCE]) * plan.values
    if not axes or nodes > MAX_BODY:
        return 0
    for number in [r.arg.id for r in axes]:
        r = next(r for r in kernel.axes if r.arg.id == number)
        if r.arg.kind is AxisType.REDUCE:
            kernel.apply(Opt(OptOps.UNROLL, reduction_number(kernel, r), size_of(r)))
        else:
            kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, r), size_of(r)))
    plan.refresh()
    return nodes


def write_out_row(plan: Plan, nodes: int) -> None:
    """All SIMD values of a short row side by side: which lanes are masked is known beforehand."""
    kernel = plan.kernel
    for r in kernel.outputs:
        if r.arg.id == plan.vector_id and is_short(r) and size_of(r) * nodes <= MAX_BODY:
            kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, r), size_of(r)))
            plan.refresh()


def phases_and_steps(plan: Plan) -> list[UOp]:
    """The short axes of which remainders are taken together, outputs and reductions."""
    kernel = plan.kernel
    outputs = {r for r in kernel.outputs if is_short(r) and kernel.may_reorder(r)}
    steps = {r for u in kernel.reduces for r in u.src[1:] if is_short(r)}
    found: set[UOp] = set()
    for u in kernel.facts.order:
        if u.op is Ops.MOD and u.src[1].op is Ops.CONST:
            mine = set(u.ranges)
            if mine & outputs and mine & steps and mine <= outputs | steps:
                found |= mine
    return [r for r in kernel.axes if r in found]


def is_short(r: UOp) -> bool:
    """Whether an axis may be written out."""
    return r.src[0].op is Ops.CONST and size_of(r) <= MAX_WRITTEN_OUT and not r.arg.kind.is_lane


__all__ = ["write_out_phases", "write_out_row"]
