"""Tiles and blocks of transposes: what lies apart along the SIMD lanes is read in whole lines.

Receives a Plan whose SIMD axis is chosen, and applies Opts to its Kernel. What asks for the next
block is made in `codegen/prefetch`. Constants: docs/explanation/tuning/transposes.md.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply, upcast
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import Plan, axis_of
from aster_ml.codegen.policy.cpu.loop_order import set_order
from aster_ml.codegen.policy.cpu.prefetch import past_caches
from aster_ml.codegen.policy.cpu.tails import MAX_TWICE, tail_overhead
from aster_ml.codegen.prefetch import is_block, run_of_lanes
from aster_ml.codegen.tails import can_overlap, may_split
from aster_ml.helpers import ceildiv, prod
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of

# Lines of a row that a transpose past the caches reads before it goes on to the next rows: runs
# long enough for memory, and few enough rows for the first cache. Measured: on one thread of a Zen
# 4, 2026-11-23 (docs/explanation/tuning/transposes.md).
LINES_READ = 4
# What a tile of a transpose may do twice at the ends of its axis: without it each element is
# gathered on its own.
ENDS_AGAIN = 1.25
# Lines of each row of results that such a transpose fills before it goes on along the rows that it
# reads: two side by side. With one alone memory changes its page with every store, and with four
# the rows that are read, of powers of two, push each other out of the cache.
# Measured: on one thread of a Zen 4, 2026-11-23 (docs/explanation/tuning/transposes.md).
LINES_FILLED = 2
# Rows of results that lie a power of two apart may all begin in the same channel of memory, so so
# many runs are filled at a time, which lie so far apart.
# Measured: on one thread of a Zen 4, 2026-11-23 (docs/explanation/tuning/transposes.md).
RUNS = 2


def tile_transposed(plan: Plan, outputs: list[UOp]) -> bool:
    """Lanes along an axis in which gathered elements lie side by side.

    why: each cache line is then used whole while it is there
    """
    kernel = plan.kernel
    vector = [r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR]
    if not vector:
        return False
    # What is moved alone takes no registers beside those of the tile.
    room = 4 * MAX_BODY // (size_of(vector[0]) * (plan.nodes if plan.values > 1 else 1))
    for r in outputs:
        for a in plan.accesses:
            if a.stride(r) == 1 and a.stride(vector[0]) not in (0, 1) and r.src[0].op is Ops.CONST:
                size = size_of(r)
                for n in [n for n in (16, 8, 4) if n <= room and may_have_lanes(plan, size, n)]:
                    upcast(kernel, r, n)
                    order_past_caches(plan, r.arg.id, vector[0])
                    return True
    return False


def may_have_lanes(plan: Plan, size: int, lanes: int) -> bool:
    """Whether lanes divide an axis, or the last of them may start early."""
    if size % lanes == 0:
        return True
    return size > lanes and tail_overhead(size, lanes) <= ENDS_AGAIN and can_overlap(plan.kernel)


def order_past_caches(plan: Plan, axis_id: int, vector: UOp) -> None:
    """Of a transpose past the caches: blocks that are asked for, or at least longer runs."""
    kernel = plan.kernel
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    along = next((r for r in loops if r.arg.id == axis_id), None)
    if along is None or len(loops) < 2 or not all(map(kernel.may_reorder, loops)):
        return
    neighbours = store_lines(plan, vector) if past_caches(plan) is not None else 0
    if not neighbours:
        return
    if not tile_blocks(plan, along, vector, neighbours):
        tile_runs(plan, along, vector)


def store_lines(plan: Plan, vector: UOp) -> int:
    """Neighbours in each row of results that SIMD values, or some side by side, fill whole lines
    with; 0 where they cannot.

    Half a line that goes past the caches by itself takes longer than one that does not; and rows
    of results that begin anywhere in a line are quicker filled from end to end.
    """
    kernel = plan.kernel
    stored = min(a.buffer.dtype.itemsize for a in plan.accesses if a.is_store)
    values = ceildiv(plan.target.line_nbytes, size_of(vector) * stored)
    if values == 1:
        return int(size_of(vector))
    across = axis_across(plan, vector)
    narrow = size_of(vector) * 8 * stored < plan.target.vector_bits
    if narrow or across is None or not may_split(kernel, across, values):
        return 0
    apply(kernel, Opt(OptOps.UPCAST, axis_name(across), values))
    return int(values * size_of(vector))


def axis_across(plan: Plan, vector: UOp) -> UOp | None:
    """Finds the loop that is left of the axis with the SIMD lanes."""
    ids = [r for r in plan.kernel.outputs if r.arg.id == plan.vector_id and r is not vector]
    loops = [r for r in ids if not r.arg.kind.is_lane and r.src[0].op is Ops.CONST]
    return loops[0] if loops else None


def tile_blocks(plan: Plan, along: UOp, vector: UOp, lanes: int) -> bool:
    """Strips of rows, in blocks of some tiles along a row: PREFETCH where one SIMD value is a line.

    A strip fills so few lines of each row of results that the next ones are not thrown out while
    others are filled, and so many that memory has them side by side. Where there are enough rows,
    and half the second cache holds what they read, now and next, it fills two such runs, which
    different channels of memory take. Block after block goes down all strips, so that few rows of
    results are met at a time.
    """
    kernel = plan.kernel
    across = axis_across(plan, vector)
    if across is None or along.src[0].op is not Ops.CONST:
        return False
    read = [a for a in plan.accesses if not a.is_store and a.stride(vector) not in (0, 1)]
    # Two tiles that read half of each line find the other half as well in runs (float16); four of
    # them do not.
    if any(2 * run_of_lanes(a) * a.buffer.dtype.itemsize == plan.target.line_nbytes for a in read):
        return False
    filled = LINES_FILLED * plan.target.line_nbytes
    rows = filled // max([a.buffer.dtype.itemsize for a in plan.accesses if a.is_store])
    parts = rows // lanes
    tiles = ceildiv(size_of(along), max(ceildiv(size_of(along), rows), 1))
    if not 1 < parts <= size_of(across) or not is_block(tiles, lanes) or size_of(along) == tiles:
        return False
    most = MAX_TWICE if can_overlap(kernel) else 1
    # From the innermost loop on: lines of a run, strips between two runs, and runs.
    steps = [parts, plan.target.costs.channel // filled, RUNS]
    nbytes = max([run_of_lanes(a) * a.buffer.dtype.itemsize for a in read], default=0) * tiles
    fits = 2 * prod(steps) * lanes * nbytes <= plan.target.cache_bytes[1] // 2
    if (
        not fits
        or size_of(across) < 2 * prod(steps)
        or tail_overhead(size_of(across), prod(steps)) > most
    ):
        steps = steps[:1]
    if tail_overhead(size_of(across), prod(steps)) * tail_overhead(size_of(along), tiles) > most:
        return False
    # Where the rows are one strip, nothing goes from strip to strip.
    whole = size_of(across) == parts
    part, *between = [across] if whole else [tile_inner(kernel, across, n) for n in steps]
    tile = tile_inner(kernel, along, tiles)
    blocks = axis_of(kernel, along.arg.id)
    strips = [] if whole else [axis_of(kernel, across.arg.id)]
    gap, runs = (between[:1], between[1:]) if between else ([], [])
    inner = [blocks, *strips, *gap, tile, *runs, part]
    others = [r for r in kernel.outputs if not r.arg.kind.is_lane and r not in inner]
    set_order(kernel, [*others, *inner])
    if lanes == size_of(vector):
        # The innermost of the loops around a block.
        asking = [blocks, *strips, *gap][-1]
        apply(kernel, Opt(OptOps.PREFETCH, axis_name(asking), 1))
    return True


def tile_inner(kernel: Kernel, axis: UOp, steps: int) -> UOp:
    """SPLIT loop of what is left of an axis: the new loop inside of it."""
    outer = axis_of(kernel, axis.arg.id)
    apply(kernel, Opt(OptOps.SPLIT, axis_name(outer), steps, how="loop"))
    return kernel.outputs[kernel.outputs.index(axis_of(kernel, axis.arg.id)) + 1]


def tile_runs(plan: Plan, along: UOp, vector: UOp) -> None:
    """Longer runs of each row that is read, one after the other."""
    kernel = plan.kernel
    gathered = [a for a in plan.accesses if a.stride(vector) not in (0, 1)]
    run = max(abs(a.stride(along) or 0) * a.buffer.dtype.itemsize for a in gathered)
    steps = LINES_READ * plan.target.line_nbytes // max(run, 1)
    if 1 < steps < size_of(along) and (size_of(along) % steps == 0 or can_overlap(kernel)):
        apply(kernel, Opt(OptOps.SPLIT, axis_name(along), steps, how="loop"))
        inner = kernel.outputs[kernel.outputs.index(axis_of(kernel, along.arg.id)) + 1]
        loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
        set_order(kernel, [*[r for r in loops if r is not inner], inner])
