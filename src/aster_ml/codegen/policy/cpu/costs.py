"""Cost model of CPUs: cycles that accesses, arithmetic and register tiles of a kernel take.

A cost is estimated from the strides of accesses alone, before lanes are chosen; what a kernel
takes once they are is estimated in `codegen/estimate`, by the same figures (`target/costs`).
Nothing here chooses or changes anything: that is `policy/cpu/heuristic`.
"""

from __future__ import annotations

from dataclasses import dataclass

from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.opts import axis_name
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.staging.panel import uses_of
from aster_ml.codegen.tails import can_overlap
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, divisors, next_power2
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# A name of a module is found faster than a member of an Enum, and every node is asked for its op.
RANGE, LOOP = Ops.RANGE, AxisType.LOOP
# Longest gap between elements that are stored interleaved with those in the gap.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_GAP = 8
# Longest side of a register tile.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_TILE_SIDE = 16
# Results of a register tile that one loaded value may be expected to serve. Measured: on strided
# convolutions, 2026-11-21 (docs/explanation/tuning/panels.md).
TILE_REUSE = 6
# Rows that a reduction over rows takes at a time: prefetchers follow so many, and their sums in
# scratch are read and written once for all of them. It does no more than so many things to each
# element. Measured: rows eight at a time, 2026-11-24 (docs/explanation/tuning/reductions.md).
ROWS = 8
# The least steps of a loop whose body is repeated to keep the processor busy.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MIN_REPEATED = 256
# Steps of a short loop that are written out.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_WRITTEN_OUT = 8


@dataclass
class Plan:
    """Facts of a kernel while its schedule is chosen."""

    kernel: Kernel
    target: Target
    nodes: int
    # Those of them that are not index arithmetic.
    values: int
    # What the ops among them that the target lacks become, on top.
    extra: int = 0
    # Id of the output axis whose lanes are SIMD, -1 while there is none.
    vector_id: int = -1
    # Whether whole rows along it are reduced together.
    by_rows: bool = False

    @property
    def accesses(self) -> list[Access]:
        """Those of the graph as it is now, each with its strides."""
        return self.kernel.facts.accesses


def execution_count(access: Access) -> int:
    """Counts how often an access runs once loop-invariant ones are hoisted."""
    return iterations(access.strides)


def nest_of(plan: Plan, owner: UOp | None) -> list[UOp]:
    """The loops around what is in a reduction, or in none: its own, or those of the outputs."""
    if owner is None:
        return list(plan.kernel.outputs)
    return list(owner.ranges.union(owner.src[1:]))


def lane_count(plan: Plan) -> int:
    """Lanes of one SIMD value for the widest dtype that the kernel computes in."""
    order = plan.kernel.facts.order
    found = {u.dtype for u in order}
    if dtypes.uint64 in found and any([u.op is Ops.THREEFRY for u in order]):
        # Its 64 bits are two words of 32, which are joined and taken apart only in the graph.
        found.remove(dtypes.uint64)
    numbers = [d.itemsize for d in found if d.itemsize and d.kind in ("float", "int", "uint")]
    itemsize = max(numbers, default=4)
    return max(plan.target.vector_bits // (8 * itemsize), 1)


def vector_cost(
    target: Target,
    axis: UOp | None,
    lanes: int,
    access: Access,
    nest: list[UOp],
    early: bool = False,
) -> float:
    """Cycles that an access takes in its loops when `axis` is the SIMD axis."""
    n, costs = iterations(nest), target.costs
    if axis is None or axis not in nest:
        return n * target.instruction
    stride, size = access.stride(axis), size_of(axis)
    wide, padded = widths(target, axis, lanes, early)
    masked = padded != size and not early and not ends_apart(axis, wide)
    if stride in costs.every and not access.is_store and not masked:
        return float(costs.every[stride] * n / size * ceildiv(size, wide))
    if access.is_store and between(access, axis, nest) is not None:
        return costs.every[2] * n / size * (padded / wide)
    if stride is None or stride not in (0, 1):
        return n * (costs.scatter if access.is_store else costs.gather)
    if stride == 0 and not access.is_store:
        return costs.embedded_broadcast * n / size * (padded / wide)
    each = target.instruction * (costs.masked if ends_masked(target, axis, lanes, early) else 1)
    return n / size * (padded / wide) * each


def between(access: Access, axis: UOp, axes: list[UOp]) -> UOp | None:
    """The axis that fills the gaps between elements along `axis`, if these are small."""
    stride = access.stride(axis)
    if stride is None or not 2 <= stride <= MAX_GAP:
        return None
    fitting = [
        r
        for r in axes
        if access.stride(r) == 1 and r.src[0].op is Ops.CONST and size_of(r) == stride
    ]
    return fitting[0] if fitting else None


def reuse_of(access: Access, nest: list[UOp], axis: UOp | None, lanes: int) -> float:
    """Counts the results that a loaded value may serve in a register tile: other outputs' lanes."""
    if access.is_store:
        return 1.0
    free = 1
    for r in nest:
        if r.arg.kind is LOOP and r is not axis and r not in access.strides:
            free *= size_of(r)
    # SIMD values side by side share what they have in common too.
    beside = 1
    if axis in nest and axis.arg.kind is AxisType.LOOP and axis not in access.strides:
        beside = max(size_of(axis) // lanes, 1)
    # With lanes along a reduction no operand is broadcast: all take registers of their own.
    sums = axis is not None and axis.arg.kind is AxisType.REDUCE
    return float(min(free * beside, TILE_REUSE / 2 if sums else TILE_REUSE))


def arithmetic_cost(
    target: Target, axis: UOp | None, lanes: int, nest: list[UOp], early: bool = False
) -> float:
    """Cycles that one step of arithmetic takes in these loops."""
    n, costs = iterations(nest), target.costs
    if axis is None or axis not in nest:
        return n * target.instruction
    wide, padded = widths(target, axis, lanes, early)
    # What a reduction takes in beyond the end of its axis has to be made harmless.
    free = axis.arg.kind is not AxisType.REDUCE or padded == size_of(axis) or ends_apart(axis, wide)
    halves = 0 < target.move_bits < target.vector_bits
    each = target.instruction * (costs.half if halves and 2 * wide == lanes else 1)
    return n / size_of(axis) * (padded / wide) * (1 if free else costs.masked**2) * each


def ends_masked(target: Target, axis: UOp, lanes: int, early: bool) -> bool:
    """Whether the last SIMD value of an axis is masked, neither early nor a step of its own."""
    wide, padded = widths(target, axis, lanes)
    return padded != size_of(axis) and not early and not ends_apart(axis, wide)


def ends_apart(axis: UOp, lanes: int) -> bool:
    """Whether the last step along an axis of a reduction runs on its own (see `peeling`)."""
    return axis.arg.kind is AxisType.REDUCE and size_of(axis) >= 2 * lanes


def widths(target: Target, axis: UOp, lanes: int, early: bool = False) -> tuple[int, int]:
    """Lanes to use on an axis and the size to pad it to (its own when it needs no padding).

    With `early`, the last lanes of a long axis start early instead.
    """
    size = size_of(axis)
    if axis.src[0].op is not Ops.CONST or lanes < 2 or size < 2:
        return 1, size
    if size % lanes == 0:
        return lanes, size
    if early and size > lanes:
        return lanes, ceildiv(size, lanes) * lanes
    # The largest power of two that divides it.
    exact = min(size & -size, 64, 1 << (lanes.bit_length() - 1))
    wide = min(lanes, next_power2(size))
    padded = ceildiv(size, wide) * wide
    # Elements a vector instruction, a masked one counting more.
    if size / (padded / wide) / target.costs.masked > exact:
        return wide, padded
    return exact, size


def accumulators(plan: Plan, u: UOp) -> int:
    """Counts the steps of a reduction that can be under way, each with a sum of its own.

    As many as a sum has where one needs the maximum: both may share a loop (`pipelining`),
    unless there are more, of what a row has beyond whole SIMD values.
    """
    costs, folds = plan.target.costs, plan.kernel.reduces
    if not is_float_maximum(u):
        return costs.accumulators
    if len(folds) == 2 and any([u in toposort(v.src[0]) for v in folds]):
        return costs.accumulators
    room = plan.target.registers // 2
    return max(costs.accumulators, min(costs.maximum * costs.accumulators, room))


def is_float_maximum(u: UOp) -> bool:
    """Whether each step of a reduction also looks for NaN."""
    return bool(u.arg.op is Ops.MAX and u.dtype in dtypes.floats)


def axis_of(kernel: Kernel, number: int) -> UOp:
    """The output loop with this id, as it is by now."""
    return next(r for r in kernel.outputs if r.arg.id == number and not r.arg.kind.is_lane)


def axis_text(axis: UOp | None) -> str:
    """An axis in words: `r1 of 64`, as Opts name it."""
    return "none" if axis is None else f"{axis_name(axis)} of {size_of(axis)}"


def bodies_side_by_side(plan: Plan, nodes: int) -> int:
    """Counts the bodies of so many nodes that have to stand side by side to fill the pipeline."""
    steps = iterations([r for r in plan.kernel.outputs if not r.arg.kind.is_lane])
    return 1 if steps < MIN_REPEATED else unroll_for_ilp(plan.target, nodes)


def unroll_for_ilp(target: Target, nodes: int) -> int:
    """The same for a loop that is long enough."""
    wanted = next_power2(ceildiv(target.costs.chains * nodes, target.costs.in_flight))
    # A body takes about eight registers.
    room = max(target.registers // 8, 1)
    return int(min(wanted, room, ceildiv(MAX_BODY, nodes)))


def chunk_count(plan: Plan, axis: UOp, loops: list[UOp]) -> int:
    """Into how many chunks an axis is divided for the threads; 0 where all of it is shared out.

    The rest of a divided axis stays in its place, so that loops around it are not entered for each
    of its steps; and of rows that are reduced together, each thread has a part that is long.
    """
    threads, size = plan.target.threads, size_of(axis)
    if axis.src[0].op is not Ops.CONST or (loops[0] is axis and not plan.by_rows):
        return 0
    if size % threads == 0 or can_overlap(plan.kernel):
        return threads
    return next((n for n in divisors(size)[:-1] if threads <= n), 0)


def sharing_cost(plan: Plan, axis: UOp, loops: list[UOp], panel: Access | None) -> float:
    """Cycles that sharing out an axis takes, `panel` packed, for each that equal shares would."""
    threads = plan.target.threads
    chunks = chunk_count(plan, axis, loops)
    shares = size_of(axis) if chunks in (0, threads) else chunks
    cost = ceildiv(shares, threads) * threads / shares
    if panel is not None and axis not in panel.strides:
        # Panels are filled by every thread, or in every step of the axis.
        fills = chunks or size_of(axis)
        uses = uses_of(panel, plan.kernel.outputs) / lane_discount(plan.kernel)
        cost += plan.target.costs.gather / plan.target.instruction * (fills - 1) / uses
    return float(cost)


def lane_discount(kernel: Kernel) -> int:
    """SIMD lanes of the kernel, by which work is quicker."""
    ranges = kernel.facts.by_op[RANGE]
    return max([size_of(r) for r in ranges if r.arg.kind is AxisType.VECTOR], default=1)
