"""What accesses, arithmetic and register tiles of a kernel cost: the facts behind the schedules.

The unit is one instruction; a cost is estimated from the strides of accesses alone. Nothing here
chooses or changes anything: that is `cost` and `group_opts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from aster_ml.codegen.kernel import Access, Kernel, can_block, can_overlap, size_of
from aster_ml.codegen.panels import (
    can_pack,
    least_uses,
    max_nbytes,
    panel_nbytes,
    run_of,
    uses_of,
)
from aster_ml.helpers import ceildiv, divisors, next_power2, prod
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

# An element gathered or scattered on its own, against one lane of a vector access.
GATHER = 1.5
# One that is loaded in a run, transposed and stored in a panel.
TRANSPOSED = 0.6
SCATTER = 2.0
# Elements two apart: two contiguous loads and a shuffle.
EVERY_SECOND = 3.0
# Instructions that add up the lanes of a SIMD value.
HORIZONTAL = 8.0
# What masked or unaligned operands add to the arithmetic of a product.
UNEVEN = 0.3
# Longest gap between elements that are stored interleaved with those in the gap.
MAX_GAP = 8
# A vector access whose lanes are masked.
MASKED = 1.5
# Reductions of at least so many SIMD values have what is over from a multiple of them on its own.
PEEL_LENGTH = 8
# Results of a register tile that one loaded value may be expected to serve.
TILE_REUSE = 6
# A value of a tile that is broadcast from memory.
BROADCAST = 0.6
# The same where arithmetic takes it from memory by itself, as with 32 SIMD registers.
EMBEDDED_BROADCAST = 0.3
# A SIMD value that is loaded for a tile: it may have to come from the second cache.
LOADED = 1.5
# One on a page of its own, on top of that.
FAR, FAR_NBYTES = 0.25, 4096
# A stretch of SIMD values on a page of its own that comes from beyond the second cache.
ROW = 4.0
# Cycles of a kernel from which on a second thread pays for its wake-up.
THREAD_CYCLES = 1 << 15
# Chunks for each thread, at most, of an axis that threads do not divide.
MOST_CHUNKS = 4
# SIMD instructions of arithmetic that a core begins in a cycle.
INSTRUCTIONS_A_CYCLE = 2
# Bytes a cycle from each level of cache, for each core, and from memory, for all of them together.
CACHE_BYTES_A_CYCLE = (64, 32, 16)
MEMORY_BYTES_A_CYCLE = 8
# SIMD values of an axis in groups that start early, over those that there are.
MOST_TWICE = 1.06
# Nodes of a body from which on it is not repeated: it keeps the processor busy by itself.
MOST_WIDENED = 24
# Nodes that an op becomes where the target lacks it.
DECOMPOSED = {Ops.EXP2: 16, Ops.LOG2: 26, Ops.SIN: 80, Ops.TANH: 28, Ops.POW: 110}
# Steps of a short loop that are written out.
MAX_WRITTEN_OUT = 8
# Most nodes times lane instances in one loop body: keeps compile time and registers in hand.
MAX_BODY = 512


@dataclass
class Plan:
    """What is known of a kernel while its schedule is chosen."""

    kernel: Kernel
    target: Target
    accesses: list[Access]
    nodes: int
    # Those of them that are not index arithmetic.
    values: int
    # What the ops among them that the target lacks become, on top.
    extra: int = 0
    # Id of the output axis whose lanes are SIMD, -1 while there is none.
    vector_id: int = -1

    def refresh(self) -> None:
        """Reads the accesses again after the graph has changed."""
        self.accesses = self.kernel.accesses()


def iterations(axes: list[UOp]) -> int:
    """Product of the sizes of axes."""
    return prod([size_of(r) for r in axes])  # type: ignore[no-any-return]


def times(access: Access) -> int:
    """How often an access happens when what does not change in a loop is hoisted out of it."""
    return iterations(list(access.strides))


def owners(kernel: Kernel) -> dict[UOp, UOp]:
    """The innermost reduction around each load that is inside of one."""
    result: dict[UOp, UOp] = {}
    for u in reversed(kernel.reduces):
        for x in toposort(u.src[0]):
            if x.op is Ops.LOAD and any(r in x.ranges for r in u.src[1:]):
                result[x] = u
    return result


def nest_of(plan: Plan, access: Access, owner: UOp | None) -> list[UOp]:
    """The loops around an access: those of its reduction, or of the outputs."""
    if owner is None:
        return list(plan.kernel.outputs)
    return list(owner.ranges.union(owner.src[1:]))


def lane_count(plan: Plan) -> int:
    """Lanes of one SIMD value for the widest dtype that the kernel computes in."""
    itemsize = max(
        [
            u.dtype.itemsize
            for u in plan.kernel.facts.order
            if u.dtype.itemsize and u.dtype.kind in ("float", "int", "uint")
        ],
        default=4,
    )
    return max(plan.target.vector_bits // (8 * itemsize), 1)


def vector_cost(
    axis: UOp | None, lanes: int, access: Access, nest: list[UOp], early: bool = False
) -> float:
    """Instructions that an access takes in its loops when `axis` is the SIMD axis."""
    n = iterations(nest)
    if axis is None or axis not in nest:
        return float(n)
    stride = access.stride(axis)
    wide, padded = widths(axis, lanes, early)
    masked = padded != size_of(axis) and not early
    if stride == 2 and not access.is_store and not masked:
        return EVERY_SECOND * n / wide
    if access.is_store and between(access, axis, nest) is not None:
        return EVERY_SECOND * n / size_of(axis) * (padded / wide)
    if stride is None or stride not in (0, 1):
        return n * (SCATTER if access.is_store else GATHER)
    if stride == 0 and not access.is_store:
        return EMBEDDED_BROADCAST * n / size_of(axis) * (padded / wide)
    whole = not masked or peels(axis, lanes)
    return n / size_of(axis) * (padded / wide) * (1 if whole else MASKED)


def is_uneven(access: Access, axis: UOp, lanes: int) -> bool:
    """Whether SIMD values along an output axis are masked, or begin anywhere, as windows do."""
    if axis.arg.kind is not AxisType.LOOP or access.stride(axis) != 1:
        return False
    wide, padded = widths(axis, lanes)
    if padded != size_of(axis):
        return True
    inner = [access.stride(r) for r in access.strides if r.arg.kind is AxisType.REDUCE]
    return any(s is not None and s % wide for s in inner)


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


def reuse_of(access: Access, nest: list[UOp], axis: UOp | None) -> float:
    """How many results a loaded value may serve in a register tile: other outputs' lanes."""
    if access.is_store:
        return 1.0
    free = [
        r for r in nest if r.arg.kind is AxisType.LOOP and r is not axis and r not in access.strides
    ]
    # With lanes along a reduction no operand is broadcast: all take registers of their own.
    sums = axis is not None and axis.arg.kind is AxisType.REDUCE
    return float(min(iterations(free), TILE_REUSE / 2 if sums else TILE_REUSE))


def arithmetic_cost(axis: UOp | None, lanes: int, nest: list[UOp], early: bool = False) -> float:
    """Instructions that one elementwise node takes in these loops."""
    n = iterations(nest)
    if axis is None or axis not in nest:
        return float(n)
    wide, padded = widths(axis, lanes, early)
    # What a reduction takes in beyond the end of its axis has to be made harmless.
    free = axis.arg.kind is not AxisType.REDUCE or padded == size_of(axis) or peels(axis, lanes)
    return n / size_of(axis) * (padded / wide) * (1 if free else MASKED**2)


def peels(axis: UOp, lanes: int) -> bool:
    """Whether an axis is a reduction long enough for its last steps to run on their own."""
    return axis.arg.kind is AxisType.REDUCE and size_of(axis) >= PEEL_LENGTH * lanes


def widths(axis: UOp, lanes: int, early: bool = False) -> tuple[int, int]:
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
    exact = max(d for d in (1, 2, 4, 8, 16, 32, 64) if size % d == 0 and d <= lanes)
    wide = min(lanes, next_power2(size))
    padded = ceildiv(size, wide) * wide
    # Elements a vector instruction, a masked one counting more.
    if size / (padded / wide) / MASKED > exact:
        return wide, padded
    return exact, size


def starts_early(kernel: Kernel, axis: UOp | None, lanes: int) -> bool:
    """Whether the last SIMD lanes of an axis may start early: they may run twice, alone."""
    return (
        axis is not None
        and axis in kernel.outputs
        and size_of(axis) > lanes
        and can_overlap(kernel)
        and not any(axis in u.ranges for u in kernel.reduces)
        # Short rows are written out, so that masks are known beforehand.
        and not (kernel.reduces and size_of(axis) <= MAX_WRITTEN_OUT * lanes)
    )


def axis_number(kernel: Kernel, axis: UOp) -> int:
    """Position of an axis as Opts name it."""
    return kernel.axes.index(axis)


def reduction_number(kernel: Kernel, axis: UOp) -> int:
    """Position of an axis among those of reductions."""
    return axis_number(kernel, axis) - kernel.first_reduction


def inside(plan: Plan, reduce: UOp) -> set[UOp]:
    """Accesses that happen in the loops of a reduction."""
    return {
        u
        for u in toposort(reduce.src[0])
        if u.op is Ops.LOAD and any(r in u.ranges for r in reduce.src[1:])
    }


def axis_text(kernel: Kernel, axis: UOp | None) -> str:
    """An axis in words: `axis 1 of 64`, as Opts number it."""
    return "none" if axis is None else f"axis {axis_number(kernel, axis)} of {size_of(axis)}"


def tile_cost(
    plan: Plan, tile: dict[UOp, int], loads: list[Access], vector: set[UOp], registers: int
) -> float | None:
    """Instructions for each result of a step of the reduction; None if the tile is too large."""
    results = prod(tile.values())
    need = 0.0
    held = 1
    for a in loads:
        mine = {r: n for r, n in tile.items() if r in a.strides}
        count = prod(mine.values())
        lanes = vector & a.strides.keys()
        if lanes:
            # What serves one result alone is an operand from memory.
            held += 1 if results == count and plan.vector_id >= 0 else count
            need += LOADED * count + ROW * streamed_share(plan, a, tile)
        else:
            # A value without SIMD lanes is broadcast as part of the arithmetic.
            need += (EMBEDDED_BROADCAST if registers >= 32 else BROADCAST) * count
        itemsize = a.buffer.dtype.itemsize
        # Gathered lanes come from a panel, side by side.
        if all(a.strides[v] == 1 for v in lanes) and any(
            n > 1 and abs(a.strides[r] or 0) * itemsize >= FAR_NBYTES for r, n in mine.items()
        ):
            need += FAR * count
    if results * plan.values > MAX_BODY or (results > 1 and results + held > registers):
        return None
    # Too few independent accumulators leave the adders waiting.
    latency = max(1.0, 8 / results)
    steps = max(iterations(list(u.src[1:])) for u in plan.kernel.reduces)
    cost = (need + results * latency) / results + store_cost(plan, tile, vector) / steps
    # What the last lanes do twice.
    return float(cost * prod([ceildiv(size_of(r), n) * n / size_of(r) for r, n in tile.items()]))


def streamed_share(plan: Plan, a: Access, tile: dict[UOp, int]) -> float:
    """The part of a tile's loads that comes from beyond the second cache, from a page a step.

    What tiles further on load again is near by then: of few results a tile has them all.
    """
    itemsize = a.buffer.dtype.itemsize
    steps = [abs(a.stride(r) or 0) for r in a.strides if r.arg.kind is AxisType.REDUCE]
    if (
        min(steps, default=0) * itemsize < FAR_NBYTES
        or times(a) * itemsize <= plan.target.cache_bytes[1]
    ):
        return 0.0
    served = prod([n for r, n in tile.items() if r not in a.strides])
    return float(served / uses_of(a, plan.kernel.outputs))


def may_overlap(plan: Plan, loads: list[Access]) -> bool:
    """Whether the tile may be uneven: nothing is read that is stored, also not between strips."""
    steps = max(iterations(list(u.src[1:])) for u in plan.kernel.reduces)
    widest = max(a.buffer.dtype.itemsize for a in loads) * 2 * lane_count(plan)
    return can_overlap(plan.kernel) and steps * widest <= max_nbytes(plan.target)


def is_uneven_tile(tile: dict[UOp, int]) -> bool:
    """Whether some results of a tile are computed twice: then sums cannot be taken up again."""
    return any(size_of(r) % n for r, n in tile.items())


def needs_strips(plan: Plan, panel: Access | None, tile: dict[UOp, int]) -> bool:
    """Whether the panel of a tile is too large for all of the reduction."""
    if panel is None:
        return False
    side = prod([n for r, n in tile.items() if r in panel.strides])
    return bool(panel_nbytes(plan.kernel, panel) * side > max_nbytes(plan.target))


def store_cost(plan: Plan, tile: dict[UOp, int], vector: set[UOp]) -> float:
    """Instructions that storing a SIMD value takes whose lanes lie apart, in runs of the tile."""
    cost = 0.0
    for a in plan.accesses:
        lanes = [r for r in vector if a.stride(r) not in (0, 1)] if a.is_store else []
        run = max([n for r, n in tile.items() if a.stride(r) == 1], default=1)
        cost += sum(SCATTER * size_of(r) for r in lanes) / min(1 << (run.bit_length() - 1), MAX_GAP)
    return cost


class Packing(NamedTuple):
    """What it takes to load SIMD values from a packed panel: filling it, and strips."""

    instructions: float
    strips: int


def packing_cost(
    plan: Plan, axis: UOp | None, lanes: int, a: Access, reduce: UOp
) -> Packing | None:
    """The cost of a panel for an access whose elements along `axis` are far apart."""
    kernel = plan.kernel
    if (
        axis is None
        or a.stride(axis) in (0, 1, None)
        or len(kernel.reduces) != 1
        or not can_pack(a)
    ):
        return None
    wide = widths(axis, lanes)[0]
    if not set(kernel.outputs) <= reduce.ranges:
        return None
    if uses_of(a, kernel.outputs) < least_uses(a, reduce.src[1:], wide):
        return None
    width = wide
    if axis in reduce.src[1:]:
        # One register tile has to take in the whole panel, else the other operand is read again.
        width = iterations([r for r in kernel.outputs if r in a.strides])
        if width > TILE_REUSE:
            return None
    reduced = iterations([r for r in reduce.src[1:] if r in a.strides])
    nbytes = reduced * width * a.buffer.dtype.itemsize
    strips = ceildiv(nbytes, max_nbytes(plan.target))
    if strips > 1 and not can_block(kernel):
        return None
    each = GATHER if run_of(a, reduce.src[1:], wide) is None else TRANSPOSED
    return Packing(each * iterations(list(a.strides)), strips)


def cycles_of(plan: Plan) -> float:
    """About how long one thread takes, for arithmetic or to move bytes from the third cache."""
    kernel = plan.kernel
    # Reductions that do not depend on all outputs run outside of the others.
    loops = [iterations(list(u.ranges.union(u.src[1:]))) for u in kernel.reduces]
    loads = sum(not a.is_store for a in plan.accesses)
    nodes = max(plan.values + plan.extra - loads, 1)
    steps = max([iterations(kernel.outputs), *loops])
    arithmetic = steps * nodes / lane_discount(kernel)
    # Scratch stays in the nearest caches.
    moved = [a for a in plan.accesses if a.buffer.op is Ops.PARAM]
    nbytes = sum(min(times(a), a.buffer.arg.size) * a.buffer.dtype.itemsize for a in moved)
    return float(max(arithmetic / INSTRUCTIONS_A_CYCLE, nbytes / CACHE_BYTES_A_CYCLE[2]))


def chunk_count(plan: Plan, axis: UOp, loops: list[UOp]) -> int:
    """Into how many chunks an axis is divided for the threads; 0 where all of it is shared out.

    The rest of a divided axis stays in its place, so that loops around it are not entered for each
    of its steps.
    """
    threads, size = plan.target.threads, size_of(axis)
    if axis.src[0].op is not Ops.CONST or loops[0] is axis:
        return 0
    if size % threads == 0 or can_overlap(plan.kernel):
        return threads
    return next((n for n in divisors(size) if threads <= n <= MOST_CHUNKS * threads), 0)


def sharing_cost(plan: Plan, axis: UOp, loops: list[UOp], panel: Access | None) -> float:
    """The time that sharing out an axis takes, `panel` packed, against that of equal shares."""
    threads = plan.target.threads
    chunks = chunk_count(plan, axis, loops)
    shares = size_of(axis) if chunks in (0, threads) else chunks
    cost = ceildiv(shares, threads) * threads / shares
    if panel is not None and axis not in panel.strides:
        # Panels are filled by every thread, or in every step of the axis.
        fills = chunks or size_of(axis)
        uses = uses_of(panel, plan.kernel.outputs) / lane_discount(plan.kernel)
        cost += GATHER * (fills - 1) / uses
    return float(cost)


def lane_discount(kernel: Kernel) -> int:
    """SIMD lanes of the kernel, by which work is quicker."""
    return max(
        [
            size_of(r)
            for r in kernel.facts.order
            if r.op is Ops.RANGE and r.arg.kind.name == "VECTOR"
        ],
        default=1,
    )
