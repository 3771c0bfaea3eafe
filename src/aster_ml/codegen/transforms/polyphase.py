"""Polyphase form of strided windows: gradients of pools and convolutions without divisions.

Receives a Plan whose axes have been split where indices divide them, before SIMD lanes are chosen.
Of windows `stride` apart that reach a place, which steps belong to it depends on the place modulo
the stride, its phase, alone. With phases and steps side by side that is known beforehand: what
belongs nowhere is gone, and what is left is loaded at plain strides.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import Plan
from aster_ml.codegen.tails import may_split, shifted_lanes
from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of


def write_out_phases(plan: Plan) -> int:
    """Phases and the steps of windows that they choose become lanes; the nodes of a place then.

    0 where there are none. Where there are too many, those of the last axes that leave room.
    """
    kernel = plan.kernel
    groups = phases_and_steps(plan)
    if not groups:
        return 0
    each, chosen = nodes_of_a_step(plan), set[UOp]()
    for group in groups:
        axes = chosen | group
        # Of each place one step in so many as there are phases is left.
        steps = iterations([r for r in axes if r.arg.kind is AxisType.REDUCE])
        if steps * each <= MAX_BODY and iterations(axes) <= MAX_BODY:
            chosen = axes
    for number in [r.arg.id for r in kernel.axes if r in chosen]:
        r = next(r for r in kernel.axes if r.arg.id == number)
        if r.arg.kind is AxisType.REDUCE:
            apply(kernel, Opt(OptOps.UNROLL, axis_name(r), size_of(r)))
        else:
            apply(kernel, Opt(OptOps.UPCAST, axis_name(r), size_of(r)))
    steps = iterations([r for r in chosen if r.arg.kind is AxisType.REDUCE])
    return steps * each if chosen else 0


def nodes_of_a_step(plan: Plan) -> int:
    """Loads and arithmetic, aside from what is decided beforehand."""
    return sum(
        1
        for u in plan.kernel.facts.order
        if u.op in VALUES and u.dtype not in (dtypes.index, dtypes.bool)
    )


def write_out_row(plan: Plan, nodes: int) -> None:
    """All SIMD values of a short row side by side: which lanes are masked is known beforehand."""
    kernel = plan.kernel
    for r in kernel.outputs:
        # Lanes that start early are not masked.
        known = (
            r.arg.id == plan.vector_id and shifted_lanes(kernel, r) is None and is_short(r, plan)
        )
        if known and size_of(r) * nodes <= MAX_BODY and may_split(kernel, r, size_of(r)):
            apply(kernel, Opt(OptOps.UPCAST, axis_name(r), size_of(r)))


def phases_and_steps(plan: Plan) -> list[set[UOp]]:
    """Short axes of which remainders are taken together, outputs and reductions; the last first."""
    kernel = plan.kernel
    remainders = [u for u in kernel.facts.divisions if u.op is Ops.MOD]
    if not remainders:
        return []
    outputs = [r for r in kernel.outputs if is_short(r, plan) and kernel.may_reorder(r)]
    steps = {r for u in kernel.reduces for r in u.src[1:] if is_short(r, plan)}
    found: dict[UOp, set[UOp]] = {}
    for u in remainders:
        mine = set(u.ranges)
        phases = mine & set(outputs)
        if len(phases) == 1 and mine & steps and mine <= phases | steps:
            found.setdefault(phases.pop(), set()).update(mine)
    return [found[r] for r in reversed(outputs) if r in found]


def is_short(r: UOp, plan: Plan) -> bool:
    """Whether an axis may be written out: a register for each of its steps."""
    return (
        r.src[0].op is Ops.CONST and size_of(r) <= plan.target.registers and not r.arg.kind.is_lane
    )
