"""Cost model of CPUs: what accesses, arithmetic and register tiles of a kernel cost.

The unit is one instruction; a cost is estimated from the strides of accesses alone. Nothing here
chooses or changes anything: that is `cpu/heuristic` and `gpu/heuristic`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from aster_ml.codegen.kernel import Access, Kernel, can_block, can_overlap
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.staging.panel import (
    can_pack,
    least_uses,
    max_nbytes,
    run_of,
    uses_of,
    wanted_panel,
)
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, divisors, next_power2
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# A name of a module is found faster than a member of an Enum, and every node is asked for its op.
RANGE, LOOP = Ops.RANGE, AxisType.LOOP
# An element gathered on its own, against one lane of a vector access (docs/tuning/panels.md).
GATHER = 1.7
# The same for one that may be outside, on whose place or on nothing the load then waits.
MASKED_GATHER = 3.0
# One that is loaded in a run, transposed and stored in a panel.
TRANSPOSED = 0.6
# An element scattered on its own.
SCATTER = 2.3
# Accesses in whole SIMD values, for each one at loaded places, from which on wide values pay.
IN_A_ROW = 2
# Elements two apart: two contiguous loads and a shuffle.
EVERY_SECOND = 3.0
# Three apart: three loads and two shuffles.
EVERY_THIRD = 5.0
# Four apart: four loads and three shuffles.
EVERY_FOURTH = 7.0
EVERY = {2: EVERY_SECOND, 3: EVERY_THIRD, 4: EVERY_FOURTH}
# Arithmetic on half a register, of that on a whole one, where processors do one half after another
# (docs/tuning/tails.md).
HALF = 0.6
# Instructions that add up the lanes of a SIMD value, and of each of as many as it has lanes.
HORIZONTAL, HORIZONTAL_TOGETHER = 8.0, 4.0
# What masked or unaligned operands add to the arithmetic of a product.
UNEVEN = 0.3
# Longest gap between elements that are stored interleaved with those in the gap.
MAX_GAP = 8
# A vector access whose lanes are masked.
MASKED = 1.5
# Steps of a reduction that are written out so that SIMD lanes have a row each, and the least lanes.
LONGEST_ROW, LEAST_LANES = 32, 4
# Reductions of at least so many SIMD values have what is over from a multiple of them on its own.
PEEL_LENGTH = 8
# Results of a register tile that one loaded value may be expected to serve.
TILE_REUSE = 6
# A value of a tile that is broadcast from memory.
BROADCAST = 0.6
# The same where arithmetic takes it from memory by itself.
EMBEDDED_BROADCAST = 0.3
# A SIMD value that is loaded for a tile: it may have to come from the second cache.
LOADED = 1.5
# One on a page of its own, on top of that; and where rows that lie powers of two apart throw one
# another out of the first cache, though of each line one element is used at a time.
FAR, CROWDED = 0.25, 2.0
# A cache line that comes from memory while a tile goes from row to row, far apart; how many SIMD
# values a tile has of the axis that such lines are broadcast to; and elements of a window, beyond
# which so much is computed between lines that other things decide (docs/tuning/panels.md).
FAR_LINE, VALUES_ACROSS, FEW_USES = 250.0, 2, 4
# Pages that the stores of one step go to, from which on each gets several lines at a time.
MANY_PAGES = 9
# A stretch of SIMD values on a page of its own that comes from beyond the second cache.
ROW = 4.0
# Cycles of a kernel from which on a second thread pays for its wake-up.
THREAD_CYCLES = 1 << 15
# Chunks for each thread, at most, of an axis that threads do not divide.
MOST_CHUNKS = 4
# Bytes a cycle from each level of cache, for each core, and from memory, for all of them together.
CACHE_BYTES_A_CYCLE = (64, 32, 16)
MEMORY_BYTES_A_CYCLE = 8
# Accumulators side by side: additions of one wait for one another, and two can begin at a time.
ACCUMULATORS = 8
# Additions that a step of a maximum takes as long as: a comparison, the search for NaN, a choice.
MAXIMUM = 2
# Rows that a reduction over rows takes at a time: prefetchers follow so many, and their sums in
# scratch are read and written once for all of them. It does no more than that to each element.
ROWS, MAX_ROW_VALUES = 8, 8
# The part of the last cache that rows have to exceed for sums of several results in scratch: a
# tile that goes down a few columns of them is as quick from a cache (docs/tuning/reductions.md).
SEVERAL_ROWS_PART = 0.4
# SIMD values of an axis in groups that start early, over those that there are.
MOST_TWICE = 1.06
# SIMD values of rows from which on the last of them start early.
EARLY_ROWS = 4
# Bytes that a kernel stores, and all that it moves, of those that the last cache holds, from which
# on stores go past the caches: where a kernel and one that reads its results at once, from memory
# then, together break even (docs/tuning/non-temporal-stores.md).
STREAMED_PART, MOVED_PART = 0.25, 0.7
# SIMD values side by side from which on rows are stored later in caches too: fewer take longer so
# (docs/tuning/pipelining.md).
BESIDE_LATER = 3
# The part of the first cache that a row and the next one may fill where both are folded in one
# loop, and where powers or logarithms of them are (docs/tuning/pipelining.md).
NEXT_PART, NEXT_COMPUTED_PART = 0.5, 1.0
# Nodes of a kernel up to which memory is all that it waits for
# (docs/tuning/non-temporal-stores.md).
MOST_MOVED = 12
# Bytes that a transpose past the caches reads of a row before it goes on to the next rows: runs
# long enough for memory, and few enough rows for the first cache. For this and the next three:
# docs/tuning/transposes.md.
TRANSPOSED_NBYTES = 256
# What a tile of a transpose may do twice at the ends of its axis: without it each element is
# gathered on its own.
TILED_TWICE = 1.25
# Bytes of each row of results that such a transpose fills before it goes on along the rows that it
# reads: two lines side by side. With one line alone memory changes its page with every store, and
# with four the rows that are read, of powers of two, push each other out of the cache.
STRIP_NBYTES = 128
# Neighbouring bytes that one channel of memory has. Rows of results that lie a power of two apart
# may all begin in the same one, so two runs are filled at a time, which lie so far apart.
CHANNEL_NBYTES, RUNS = 256, 2
# Bytes between what a pass over rows computes with and what it asks for, the shortest row, and
# how much of the last cache all rows fill. For this and what follows up to the strips:
# docs/tuning/prefetch.md.
AHEAD_NBYTES, LEAST_ROW_NBYTES, AHEAD_PART = 8192, 1024, 0.25
# What an operand adds to the arithmetic of a product that goes down columns of a matrix beyond the
# second cache, as far as it fills this part of the last one.
DOWN_COLUMNS, LOST_PART = 0.5, 0.25
# Loads, and asks, that there is room for in a step of a product, for each SIMD value of results.
LOADS_A_RESULT = 1.25
# Bytes of a row between the columns that a product goes down and those that it asks for.
COLUMNS_AHEAD_NBYTES = 256
# First caches that the columns of a strip fill that is read where it lies; from how many tiles of
# rows they are read, fewer than pay for a packed panel, whose filling brings nothing else. The most
# of them are those of SIMD values of a line.
STRIP_PART, LEAST_TILES, MOST_TILES = 2, 2, 20
# Nodes of a body up to which it is repeated for the loop's own sake.
MOST_WIDENED = 24
# Rows to try side by side that divide by the same: what a divisor takes is done once for them.
ROWS_SHARING = (12, 8, 6, 4)
# Rows side by side that are shorter are waited for line by line where a kernel moves more than this
# part of the last cache (docs/tuning/shared-divisions.md).
SHARING_NBYTES, SHARING_PART = 6144, 0.4
# Steps of a loop up to which the loop around it is repeated for its sake.
FEW_STEPS = 4
# Chains of nodes side by side that keep the processor busy, and nodes that it looks ahead; the
# least steps of a loop whose body is repeated for that.
CHAINS, IN_FLIGHT, LEAST_REPEATED = 5, 70, 256
# Nodes that an op becomes where the target lacks it.
DECOMPOSED = {Ops.EXP2: 16, Ops.LOG2: 26, Ops.SIN: 80, Ops.TANH: 28, Ops.POW: 110, Ops.THREEFRY: 90}
# Lines of code that the load or store of a SIMD value takes, and of one whose lanes lie apart, in
# runs; of all that is done with the results of a register tile, those that a loop over it has to
# save; and the least steps of the sum.
LINES, LINES_APART, LEAST_SAVED, LEAST_SUMMED = 2, 14, 200, 128
# The same where one block is transposed at a time: lines of each value, those that it has to save,
# and the least steps; and the most nodes for each result that are computed in as few lanes. For
# both: docs/tuning/compile-time-llvm.md.
LINES_TURNED, LEAST_TURNED, LEAST_SUMMED_TURNED, MOST_NARROW = 5, 60, 256, 8
# Steps of a short loop that are written out.
MAX_WRITTEN_OUT = 8
# Products that windows over a short axis are written out to, at most.
MAX_PRODUCTS = 128
# Most nodes times lane instances in one loop body: keeps compile time and registers in hand.
MAX_BODY = 512


@dataclass
class Plan:
    """What is known of a kernel while its schedule is chosen."""

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


def decomposed_nodes(nodes: Iterable[UOp], target: Target) -> int:
    """What the ops among these nodes that the target lacks become, beyond one node each."""
    return sum(
        [DECOMPOSED[u.op] for u in nodes if u.op in DECOMPOSED and not target.has_op(u.op.name)]
    )


def execution_count(access: Access) -> int:
    """How often an access happens when what does not change in a loop is hoisted out of it."""
    return iterations(access.strides)


def panel_of(kernel: Kernel) -> Access | None:
    """The load that is worth a packed panel, found once for a graph and the order of its loops."""
    known, outputs = kernel.facts.panels, tuple(kernel.outputs)
    if outputs not in known:
        known[outputs] = wanted_panel(kernel)
    return known[outputs]


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
    axis: UOp | None, lanes: int, access: Access, nest: list[UOp], early: bool = False
) -> float:
    """Instructions that an access takes in its loops when `axis` is the SIMD axis."""
    n = iterations(nest)
    if axis is None or axis not in nest:
        return float(n)
    stride, size = access.stride(axis), size_of(axis)
    wide, padded = widths(axis, lanes, early)
    masked = padded != size and not early and not ends_apart(axis, wide)
    if stride in EVERY and not access.is_store and not masked:
        return float(EVERY[stride] * n / size * ceildiv(size, wide))
    if access.is_store and between(access, axis, nest) is not None:
        return EVERY_SECOND * n / size * (padded / wide)
    if stride is None or stride not in (0, 1):
        return n * (SCATTER if access.is_store else GATHER)
    if stride == 0 and not access.is_store:
        return EMBEDDED_BROADCAST * n / size * (padded / wide)
    return n / size * (padded / wide) * (MASKED if ends_masked(axis, lanes, early) else 1)


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


def reuse_of(access: Access, nest: list[UOp], axis: UOp | None, lanes: int) -> float:
    """How many results a loaded value may serve in a register tile: other outputs' lanes."""
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
    """Instructions that one elementwise node takes in these loops."""
    n = iterations(nest)
    if axis is None or axis not in nest:
        return float(n)
    wide, padded = widths(axis, lanes, early)
    # What a reduction takes in beyond the end of its axis has to be made harmless.
    free = axis.arg.kind is not AxisType.REDUCE or padded == size_of(axis) or ends_apart(axis, wide)
    halves = 0 < target.move_bits < target.vector_bits
    part = HALF if halves and 2 * wide == lanes else 1
    return n / size_of(axis) * (padded / wide) * (1 if free else MASKED**2) * part


def ends_masked(axis: UOp, lanes: int, early: bool) -> bool:
    """Whether the last SIMD value of an axis is masked, neither early nor a step of its own."""
    wide, padded = widths(axis, lanes)
    return padded != size_of(axis) and not early and not ends_apart(axis, wide)


def ends_apart(axis: UOp, lanes: int) -> bool:
    """Whether the last step along an axis of a reduction runs on its own (see `peeling`)."""
    return axis.arg.kind is AxisType.REDUCE and size_of(axis) >= 2 * lanes


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
    # The largest power of two that divides it.
    exact = min(size & -size, 64, 1 << (lanes.bit_length() - 1))
    wide = min(lanes, next_power2(size))
    padded = ceildiv(size, wide) * wide
    # Elements a vector instruction, a masked one counting more.
    if size / (padded / wide) / MASKED > exact:
        return wide, padded
    return exact, size


def accumulators(plan: Plan, u: UOp) -> int:
    """How many steps of a reduction can be under way, and sums be kept, at a time.

    As many as a sum has where one needs the maximum: both may share a loop (`row_pipelining`),
    unless there are more, of what a row has beyond whole SIMD values.
    """
    if not is_float_maximum(u):
        return ACCUMULATORS
    folds = plan.kernel.reduces
    if len(folds) == 2 and any([u in toposort(v.src[0]) for v in folds]):
        return ACCUMULATORS
    room = (plan.target.vector_registers or 16) // 2
    return max(ACCUMULATORS, min(MAXIMUM * ACCUMULATORS, room))


def is_float_maximum(u: UOp) -> bool:
    """Whether each step of a reduction also looks for NaN."""
    return bool(u.arg.op is Ops.MAX and u.dtype in dtypes.floats)


def upcast(kernel: Kernel, axis: UOp, lanes: int) -> None:
    """Splits lanes off an axis; where they do not divide it, the last of them start early."""
    how = "shift" if size_of(axis) % lanes else ""
    kernel.apply(Opt(OptOps.UPCAST, axis_name(axis), lanes, how))


def tail_overhead(size: int, steps: int) -> float:
    """What an axis takes that is gone through in so many steps at a time, the last ones twice."""
    return float(ceildiv(size, steps) * steps / size)


def axis_of(kernel: Kernel, number: int) -> UOp:
    """The output loop with this id, as it is by now."""
    return next(r for r in kernel.outputs if r.arg.id == number and not r.arg.kind.is_lane)


def axis_text(axis: UOp | None) -> str:
    """An axis in words: `r1 of 64`, as Opts name it."""
    return "none" if axis is None else f"{axis_name(axis)} of {size_of(axis)}"


class Packing(NamedTuple):
    """What it takes to load SIMD values from a packed panel: filling it, and strips."""

    instructions: float
    strips: int


def packing_cost(
    plan: Plan, axis: UOp | None, lanes: int, a: Access, reduce: UOp, early: bool = False
) -> Packing | None:
    """The cost of a panel for an access whose elements along `axis` are far apart.

    With `early`, the last lanes of a long axis start early, and are not masked.
    """
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
        # One register tile has to take in the whole panel, else the other operand is read again;
        # each of a batch of products has a panel of its own.
        owner = kernel.facts.owners
        others = [b.strides for b in plan.accesses if b.node in owner and b.node is not a.node]
        mine = [r for r in kernel.outputs if r in a.strides]
        width = iterations([r for r in mine if not all([r in s for s in others])])
        if width > TILE_REUSE:
            return None
    reduced = iterations([r for r in reduce.src[1:] if r in a.strides])
    nbytes = reduced * width * a.buffer.dtype.itemsize
    strips = ceildiv(nbytes, max_nbytes(plan.target))
    if strips > 1 and not can_block(kernel):
        return None
    by_runs = run_of(a, reduce.src[1:], wide) is not None
    each = TRANSPOSED if by_runs else GATHER
    if a.node.src[1:] or (not by_runs and ends_masked(axis, lanes, early)):
        each *= MASKED_GATHER
    return Packing(each * iterations(list(a.strides)), strips)


def bodies_side_by_side(plan: Plan, nodes: int) -> int:
    """How many bodies of so many nodes have to stand side by side to keep the processor busy."""
    steps = iterations([r for r in plan.kernel.outputs if not r.arg.kind.is_lane])
    return 1 if steps < LEAST_REPEATED else unroll_for_ilp(plan.target, nodes)


def unroll_for_ilp(target: Target, nodes: int) -> int:
    """The same for a loop that is long enough."""
    wanted = next_power2(ceildiv(CHAINS * nodes, IN_FLIGHT))
    # A body takes about eight registers.
    return min(wanted, max((target.vector_registers or 16) // 8, 1), MAX_BODY // nodes)


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
    nbytes = sum(
        min(execution_count(a), a.buffer.arg.size) * a.buffer.dtype.itemsize for a in moved
    )
    return float(max(arithmetic / plan.target.issue, nbytes / CACHE_BYTES_A_CYCLE[2]))


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
    ranges = kernel.facts.by_op[RANGE]
    return max([size_of(r) for r in ranges if r.arg.kind is AxisType.VECTOR], default=1)
