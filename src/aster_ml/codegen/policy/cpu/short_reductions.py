"""Reductions with a short trip count, such as the last axis of [n, 5] and pools: unrolled.

With SIMD lanes along the outputs, each lane has a row of its own: when the reduction is written
out, a row is loaded as it lies and the rows are transposed in registers, nothing is added up across
lanes, and no lane is idle. Windows that move along the lanes are written out too, so that what is
masked is known beforehand. Says where that can be and does it; what it costs beside other ways is
compared in `policy/cpu/heuristic`.
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.plans import Halo
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import MAX_WRITTEN_OUT, Plan, nest_of
from aster_ml.codegen.tails import can_overlap
from aster_ml.dtype import dtypes
from aster_ml.target import BLOCK_NBYTES, Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of
from aster_ml.uop.rules.conditions import conditions_of

# The least SIMD lanes that have a row each: those of the shortest registers.
MIN_LANES = BLOCK_NBYTES // dtypes.float32.itemsize


def is_short_row(access: Access, axis: UOp, reduce: UOp) -> bool:
    """Whether neighbours along an output axis have rows of a reduction side by side.

    They do not overlap, and at least half of what lies there is of some row.
    """
    gap = access.stride(axis)
    return (
        gap is not None
        and access.buffer.op is Ops.PARAM
        and not access.node.src[1:]
        and any(
            access.stride(r) == 1 and size_of(r) <= abs(gap) <= 2 * size_of(r)
            for r in reduce.src[1:]
        )
    )


def row_lanes(plan: Plan, axis: UOp | None, lanes: int) -> int:
    """Counts the lanes along an output axis with a short row each of every reduction; 0 for none.

    Of what is loaded nothing serves two results: else a register tile has more of it; save for
    what serves all of them, as a bias. Lanes that are left over start early, since masked ones
    would be loaded one by one.
    """
    kernel = plan.kernel
    if axis is None or axis not in kernel.outputs or not kernel.reduces:
        return 0
    wide = min(lanes, 1 << size_of(axis).bit_length() - 1)
    if axis.src[0].op is not Ops.CONST or wide < MIN_LANES:
        return 0
    # One masked SIMD value may do.
    if wide < size_of(axis) < lanes and size_of(axis) > wide * plan.target.costs.masked:
        return 0
    if size_of(axis) % wide and not can_overlap(kernel):
        return 0
    # What is written out has a known length.
    if any([r.src[0].op is not Ops.CONST for u in kernel.reduces for r in u.src[1:]]):
        return 0
    steps = [iterations(list(u.src[1:])) for u in kernel.reduces]
    if not all(axis in u.ranges for u in kernel.reduces) or max(steps) > plan.target.registers:
        return 0
    owner = kernel.facts.owners
    loads = [a for a in plan.accesses if a.node in owner]
    if not loads or sum(steps) * plan.values > MAX_BODY:
        return 0
    shared = [a for a in loads if a.buffer.op is Ops.PARAM and serves_all(a, kernel)]
    rows = [a for a in loads if a not in shared]
    fits = bool(rows) and all(
        is_short_row(a, axis, owner[a.node])
        and set(nest_of(plan, owner[a.node])) <= a.strides.keys()
        for a in rows
    )
    return wide if fits else 0


def serves_all(access: Access, kernel: Kernel) -> bool:
    """Whether what is loaded is the same for all results."""
    return access.strides.keys().isdisjoint(kernel.outputs)


def row_cost(target: Target, a: Access, axis: UOp, lanes: int, nest: list[UOp]) -> float:
    """Cycles that it takes to have short rows in registers, or what serves all of them."""
    costs = target.costs
    if axis not in a.strides:
        return costs.embedded_broadcast * iterations(nest) / lanes
    # Of pairs, two loads and two shuffles make two SIMD values.
    each = costs.every[2] / 2 / lanes if a.stride(axis) == 2 else costs.transposed
    return each * iterations(nest)


def write_out_rows(plan: Plan) -> None:
    """Every step of every reduction at once."""
    while loops := [r for r in plan.kernel.axes if r.arg.kind is AxisType.REDUCE]:
        unroll_step(plan, loops[0])


def unroll_step(plan: Plan, step: UOp) -> None:
    """Every step of a loop of a reduction at once."""
    apply(plan.kernel, Opt(OptOps.UNROLL, axis_name(step), size_of(step)))


def write_out_windows(plan: Plan) -> bool:
    """Whether short windows that move along the lanes were written out.

    What is masked of them is known beforehand then, where the lanes are all of their axis. Of what
    is loaded nothing serves two results: else a register tile has more of it.
    """
    owner = plan.kernel.facts.owners
    loads = [a for a in plan.accesses if a.node in owner and plan.kernel.plan(Halo) is None]
    for a in loads:
        u = owner[a.node]
        lanes = [r for r in u.ranges if r.arg.kind is AxisType.UPCAST]
        for step in [r for r in u.src[1:] if moves_along_lanes(plan.kernel, a, r)]:
            body = iterations([step, *lanes]) * plan.values
            if body <= MAX_BODY and set(nest_of(plan, u)) <= a.strides.keys():
                unroll_step(plan, step)
                return True
    return False


def moves_along_lanes(kernel: Kernel, a: Access, step: UOp) -> bool:
    """Whether some test of what is masked is of a short step and of lanes of outputs alone."""
    if not a.node.src[1:] or step.arg.kind.is_lane:
        return False
    if step.src[0].op is not Ops.CONST or size_of(step) > MAX_WRITTEN_OUT:
        return False
    tests = [c.ranges for gate in a.node.src[1:] for c in conditions_of(gate) if step in c.ranges]
    others = [[r for r in ranges if r is not step] for ranges in tests]
    lanes = {r for r in kernel.outputs if r.arg.kind.is_lane}
    return any(x and lanes.issuperset(x) for x in others)
