"""Which tail a split gets: whether lanes that would be masked may and ought to start early.

Receives a kernel or a Plan, an axis and a number of lanes; says which of the ways of
`codegen/tails` is worth it, and what the steps that are done twice cost.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.plans import PackedPanel
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import (
    MAX_TILE_SIDE,
    MAX_WRITTEN_OUT,
    ROWS,
    Plan,
    execution_count,
    widths,
)
from aster_ml.codegen.policy.cpu.panel import packing_cost
from aster_ml.codegen.prefetch import own_nodes
from aster_ml.codegen.staging.panel import MIN_GATHERED_USES, load_to_pack, uses_of
from aster_ml.codegen.tails import can_overlap, can_peel, masks_of
from aster_ml.codegen.transforms.k_blocking import can_sum_rows
from aster_ml.codegen.transforms.trip_counts import with_limits
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# Sides to try of an axis that no divisor from the first of them on shares out. Measured: on one
# thread of a Zen 4, 2026-11-23 (docs/explanation/tuning/tails.md).
UNEVEN_SIDES = (2, 3, 4, 6, 8, 12)
# Axes up to which it counts how many elements the last tile does twice.
SHORT_AXIS = 64
# SIMD values of an axis in groups that start early, over those that there are. Measured: on one
# thread of a Zen 4, 2026-11-23 (docs/explanation/tuning/tails.md).
MAX_TWICE = 1.06
# SIMD values of rows from which on the last of them start early.
EARLY_ROWS = 4


def may_shift_tail(kernel: Kernel, target: Target, axis: UOp | None, lanes: int) -> bool:
    """Whether the last SIMD lanes of an axis may start early: they may run twice, alone."""
    return (
        axis is not None
        and axis in kernel.outputs
        and size_of(axis) > lanes
        and can_overlap(kernel)
        and (
            runs_by_rows(kernel, target, axis, lanes) or loads_early(kernel, target, axis, lanes)
            if any(axis in u.ranges and not is_written_out(u) for u in kernel.reduces)
            # Short rows are written out, so that masks are known beforehand.
            else size_of(axis) > MAX_WRITTEN_OUT * lanes
            or not (kernel.reduces or gates_along(kernel, axis))
        )
    )


def is_written_out(reduce: UOp) -> bool:
    """Whether a reduction has no loop of its own left."""
    return all([r.arg.kind.is_lane for r in reduce.src[1:]])


def rows_start_early(plan: Plan, axis: UOp, lanes: int) -> bool:
    """Whether the last SIMD lanes start early because rows of a product lie along them.

    Lanes beyond the end would be loaded and stored one by one, while whole SIMD values change
    places in a few shuffles. A panel is filled once, and has its lanes side by side.
    """
    kernel = plan.kernel
    if size_of(axis) < EARLY_ROWS * lanes or axis not in kernel.outputs or not can_overlap(kernel):
        return False
    owner = kernel.facts.owners
    loads = [a for a in plan.accesses if a.node in owner and axis in a.strides]
    apart = [a for a in loads if abs(a.stride(axis) or 0) > 1]
    return (
        len(kernel.reduces) == 1
        and bool(apart)
        and all(a.stride(axis) is not None and not a.node.src[1:] for a in loads)
        # Windows overlap, and have a way of their own.
        and all(reach(a) <= abs(a.stride(axis) or 0) for a in apart)
        and not any(packing_cost(plan, axis, lanes, a, owner[a.node]) for a in loads)
    )


def reach(a: Access) -> int:
    """Distance from the first to the last element of an access along reductions, plus one."""
    steps = [(abs(a.stride(r) or 0), r) for r in a.strides if r.arg.kind is AxisType.REDUCE]
    return 1 + sum(step * (size_of(r) - 1) for step, r in steps)


def gates_along(kernel: Kernel, axis: UOp) -> bool:
    """Whether loads ask along an axis whether they are within bounds."""
    loads = [u for u in kernel.facts.by_op[Ops.LOAD] if u.op is Ops.LOAD]
    return any(axis in gate.ranges for u in loads for gate in u.src[1:])


def loads_early(kernel: Kernel, target: Target, axis: UOp, lanes: int) -> bool:
    """Whether what a reduction loads along an axis is whole, near, and too little used to pack.

    Lanes beyond the end would be loaded under masks, or where they lie apart one by one. Without
    registers for masks each masked store takes as long as tens of others: there it only has to be
    whole, panel or not (docs/explanation/tuning/tails.md).
    """
    if len(kernel.reduces) != 1 or not set(kernel.outputs) <= kernel.reduces[0].ranges:
        return False
    loads = [a for a in kernel.accesses() if not a.is_store and axis in a.strides]
    if any([a.stride(axis) is None or a.node.src[1:] for a in loads]):
        return False
    beside = all(a.stride(axis) == 1 and set(kernel.outputs) <= a.strides.keys() for a in loads)
    if beside and size_of(axis) < target.costs.accumulators * lanes:
        # All of a short row is summed side by side, and what is masked is known. Windows, which
        # meet elements again and again, have few terms for each store.
        windows = all(
            [execution_count(a) > a.buffer.arg.size for a in loads if a.buffer.op is Ops.PARAM]
        )
        return windows and not target.masks
    return not target.masks or all(
        a.stride(axis) in (1, 2, 3) and uses_of(a, kernel.outputs) < MIN_GATHERED_USES
        for a in loads
    )


def runs_by_rows(kernel: Kernel, target: Target, axis: UOp, lanes: int) -> bool:
    """Whether a reduction is over rows along an axis, too long for sums in registers.

    A tile of sums in registers would go down a few columns at a time. What it loads is read once;
    what else there is, as the vector of a product, does not change along the row. Or there are a
    few such vectors, and rows that no cache holds: then the sums of all of them are in scratch.
    """
    if kernel.outputs[-1:] != [axis] or not can_sum_rows(kernel):
        return False
    (u,) = kernel.reduces
    few = size_of(axis) <= target.costs.accumulators * lanes
    if size_of(u.src[1]) < 2 * ROWS or few:
        return False
    loads = [a for a in kernel.accesses() if not a.is_store and u.src[1] in a.node.ranges]
    streams = [a for a in loads if axis in a.strides]
    beside = results_beside(kernel, axis)
    if not all(set(kernel.outputs) - a.strides.keys() == set(beside) for a in streams):
        return False
    if beside:
        nbytes = sum(execution_count(a) * a.buffer.dtype.itemsize for a in streams)
        few = iterations(beside) <= target.registers // 2 - 4
        if not few or nbytes <= target.costs.several_part * max(target.cache_bytes):
            return False
    if not streams or not all(a.stride(axis) == 1 and a.stride(u.src[1]) for a in streams):
        return False
    values = [x for x in toposort(u.src[0]) if x.op in VALUES]
    return sum(x.dtype is not dtypes.index for x in values) <= ROWS and not any(
        axis in a.strides for a in loads if a not in streams
    )


def results_beside(kernel: Kernel, axis: UOp) -> list[UOp]:
    """Output axes along which the rows that are reduced do not change."""
    loads = [a for a in kernel.accesses() if not a.is_store and axis in a.strides]
    return [r for r in kernel.outputs if not any(r in a.strides for a in loads)]


def choose_last_steps(kernel: Kernel) -> None:
    """Masked last steps of reductions are taken off their loops, where bodies are short."""
    panel = kernel.plan(PackedPanel)
    packed = None if panel is None else load_to_pack(kernel, panel.slot).node
    for u in kernel.reduces:
        # A loop with limits of its own has no last step of which all is known.
        loops = with_limits(kernel, u).src[1:]
        r = next((r for r in loops if is_last_apart(kernel, u, r, packed)), None)
        if r is not None:
            apply(kernel, Opt(OptOps.SPLIT, axis_name(r), 0, "last"))


def is_peeled(kernel: Kernel, u: UOp) -> bool:
    """Whether the masked last step of a fold is taken off its loop later."""
    return any([is_last_apart(kernel, u, r) for r in u.src[1:]])


def is_last_apart(kernel: Kernel, u: UOp, r: UOp, packed: UOp | None = None) -> bool:
    """Whether the last step of a loop is masked alone, of a body that may be written twice."""
    if not masks_of(u, r, packed) or not can_peel(kernel, r):
        return False
    lanes = [x for x in u.ranges if x.arg.kind is AxisType.UPCAST]
    return iterations(lanes) * len(own_nodes(u.src[0])) <= MAX_BODY


def is_uneven(target: Target, access: Access, axis: UOp, lanes: int) -> bool:
    """Whether SIMD values along an output axis are masked, or begin anywhere, as windows do."""
    if axis.arg.kind is not AxisType.LOOP or access.stride(axis) != 1:
        return False
    wide, padded = widths(target, axis, lanes)
    if padded != size_of(axis):
        return True
    inner = [access.stride(r) for r in access.strides if r.arg.kind is AxisType.REDUCE]
    return any(s is not None and s % wide for s in inner)


def peels(target: Target, axis: UOp, lanes: int) -> bool:
    """Whether last steps of a reduction run on their own: it has values for all accumulators."""
    return axis.arg.kind is AxisType.REDUCE and size_of(axis) >= target.costs.accumulators * lanes


def tail_overhead(size: int, steps: int) -> float:
    """Cost of an axis in so many steps at a time, of which the last are computed twice."""
    return float(ceildiv(size, steps) * steps / size)


def uneven_sides(size: int) -> list[int]:
    """Sides of tiles to try that do not divide an axis of such a size.

    Of a short axis also those that do the least twice with so many tiles: 10 of 19, not 12.
    """
    sides = {*UNEVEN_SIDES}
    if size <= SHORT_AXIS:
        sides.update([ceildiv(size, ceildiv(size, n)) for n in range(2, MAX_TILE_SIDE + 1)])
    return [n for n in sorted(sides) if n <= size and size % n]
