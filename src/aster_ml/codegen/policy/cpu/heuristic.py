"""Default schedules of CPUs: which Opts a kernel gets, by the cost model in `policy/cpu/costs`.

Receives a Kernel and a Target and applies Opts to the Kernel. Nothing here knows ops; what a choice
costs is said in `policy/cpu/costs`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aster_ml.codegen.apply import apply, upcast
from aster_ml.codegen.decompose.slots import more_slots, takes_long
from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.kernel import Decision, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.plans import Halo, RowSums
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import (
    MAX_TILE_SIDE,
    MAX_WRITTEN_OUT,
    ROWS,
    Plan,
    accumulators,
    axis_text,
    chunk_count,
    execution_count,
    sharing_cost,
)
from aster_ml.codegen.policy.cpu.decoded_product import choose_decoded
from aster_ml.codegen.policy.cpu.elementwise import (
    choose_hints,
    results_are_nearer,
    set_row_beside,
    set_side_by_side,
    share_divisors,
    share_indices,
    tile_interleaved,
    widen_rows,
)
from aster_ml.codegen.policy.cpu.k_blocking import choose_strips
from aster_ml.codegen.policy.cpu.loop_order import (
    hoist_axes,
    order_for_hoisting,
    order_for_slab,
    order_loops,
)
from aster_ml.codegen.policy.cpu.panel import order_for_panel
from aster_ml.codegen.policy.cpu.register_tile import Tiles
from aster_ml.codegen.policy.cpu.short_reductions import write_out_windows
from aster_ml.codegen.policy.cpu.tails import results_beside, uneven_sides
from aster_ml.codegen.policy.cpu.transpose import tile_transposed
from aster_ml.codegen.policy.cpu.vectorize import choose_vector
from aster_ml.codegen.staging.panel import panel_of
from aster_ml.codegen.staging.row import max_nbytes as max_row_nbytes
from aster_ml.codegen.tails import can_overlap, may_split, overlaps, shifted_lanes
from aster_ml.codegen.transforms.k_blocking import can_nest
from aster_ml.codegen.transforms.polyphase import write_out_phases, write_out_row
from aster_ml.codegen.transforms.trip_counts import windows_of
from aster_ml.codegen.transforms.unroll_stacks import write_out_stacks
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, divisors, prod
from aster_ml.late import late_function
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

if TYPE_CHECKING:
    from aster_ml.codegen.policy.gpu.heuristic import choose_group_opts
else:
    choose_group_opts = late_function("codegen.policy.gpu.heuristic", "choose_group_opts")

# Steps of a sum in its own dtype, half as many where no wider one is left; longer sums are sums of
# sums. Source: NumPy's pairwise_sum (loops_utils.h.src), which adds as many to each of eight sums.
NEST_STEPS = 16
# Nodes of a reduction up to which several steps of it, or several results, stand side by side.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_PARTIAL = 40
# Nodes times lanes of a short loop in which ops take many instructions each. Measured: on two cores
# of a Zen 4, 2026-11-22, as 64 by the counts of then (docs/explanation/tuning/exponentials.md).
MAX_LONG = 80


def choose_opts(kernel: Kernel, target: Target, rank: int = 0) -> None:
    """Gives the kernel the default schedule for the target.

    With a `rank` above 0 that of its second best SIMD axis, third best and so on: for a search.
    """
    computed = [u for u in kernel.facts.order if u.op in VALUES]
    values = sum(1 for u in computed if u.dtype is not dtypes.index)
    extra = more_slots(computed, target)
    plan = Plan(kernel, target, len(computed), values, extra)
    if not target.compiles:
        return
    if any([size_of(r) == 0 for r in kernel.axes]):
        # Of nothing, plain loops are as quick as any.
        return
    if choose_decoded(plan):
        return
    write_out_stacks(plan)
    nodes = write_out_phases(plan)
    choose_vector(plan, rank)
    if nodes:
        write_out_row(plan, nodes)
    order_for_hoisting(plan)
    if not choose_rows(plan):
        choose_tile(plan)
        choose_strips(plan)
    order_for_panel(plan)
    if not write_out_windows(plan):
        choose_partials(plan)
    choose_hints(plan)
    choose_threads(plan)
    choose_nests(plan)


def choose_tile(plan: Plan) -> None:
    """Lanes along output axes, so that what is loaded once serves several results.

    For each candidate tile: loads an iteration of the reduction over results an iteration; the
    least wins. Without a reduction nothing is loaded twice, and a few SIMD values side by side
    only make the loop's own cost smaller.
    """
    kernel = plan.kernel
    outer = hoist_axes(kernel)
    outputs = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    main = [
        u
        for u in kernel.reduces
        if any(not r.arg.kind.is_lane for r in u.src[1:]) and set(outputs) <= u.ranges
    ]
    if not main:
        if kernel.reduces and outer:
            unroll_axes(plan, [r for r in outputs if r not in outer])
        if outputs and not kernel.reduces:
            # The first of them that fits.
            ways = tile_interleaved, tile_transposed, share_indices, share_divisors, widen_rows
            any(way(plan, outputs) for way in ways)
        return
    if outer:
        return
    mine = set().union(*[kernel.facts.inside[u] for u in main])
    loads = [a for a in plan.accesses if a.node in mine]
    if not loads or not outputs:
        return
    registers = plan.target.registers
    panel = panel_of(kernel)
    outputs = [r for r in outputs if not kernel.fills_slab(r)]
    overlap = kernel.plan(Halo) is not None or can_overlap(kernel)
    along = [r for r in outputs if r.arg.id != plan.vector_id]
    windows = windows_of(along, main[0]) if len(main) == 1 else {}
    candidates = []
    for r in outputs:
        if r.arg.id == plan.vector_id or any(r not in a.strides for a in loads):
            # Of a symbolic size what is known to divide it.
            size = int(r.src[0].const_factor())
            sizes = [d for d in divisors(size) if d <= MAX_TILE_SIDE]
            tail = shifted_lanes(kernel, r)
            if tail is not None:
                # All lanes side by side have to find room in the axis.
                sizes = [n for n in range(1, MAX_TILE_SIDE + 1) if n * tail.count <= tail.size]
            elif overlap and r.src[0].op is Ops.CONST:
                sizes += uneven_sides(size)
            if r in windows and MAX_TILE_SIDE < size < registers:
                sizes.append(size)
            if len(sizes) > 1:
                candidates.append((r, sizes))
    if not candidates:
        return
    candidates.sort(key=lambda c: -sum(execution_count(a) for a in loads if c[0] not in a.strides))
    best_cost: float | None = None
    best_tile: dict[UOp, int] = {}
    vector = {
        r for r in kernel.outputs + [x for u in main for x in u.src[1:]] if r.arg.kind.is_lane
    }
    tiles, runs_twice = Tiles(plan, loads, vector, windows, panel), overlaps(kernel)
    for pair in itertools.combinations(candidates, min(2, len(candidates))):
        axes = [c[0] for c in pair]
        for sides in itertools.product(*[c[1] for c in pair]):
            if tiles.too_many(math.prod(sides)):
                continue
            tile = dict(zip(axes, sides, strict=True))
            if runs_twice and tiles.needs_strips(tile):
                continue
            if tiles.unpacks_again(tile):
                continue
            cost = tiles.cost(tile)
            if cost is not None and (best_cost is None or cost < best_cost - 1e-9):
                best_cost, best_tile = cost, tile
    one = dict.fromkeys(best_tile, 1)
    alone = None if tiles.too_many(1) else tiles.cost(one)
    if best_cost is not None and alone is not None:
        costs = (tile_text(best_tile), best_cost), ("1 result", alone)
        kernel.notes.append(Decision("register tile, cycles a result", costs[0][0], costs))
    written_out = tiles.distinct_part([*best_tile.items()]) < 1
    for r, n in best_tile.items():
        if n > 1:
            upcast(kernel, r, n)
            if r in windows and size_of(r) == n:
                step = windows[r].step
                apply(kernel, Opt(OptOps.UNROLL, axis_name(step), size_of(step)))
    if written_out:
        write_out_slab(kernel)
    if kernel.plan(Halo) is not None:
        order_for_slab(plan)
    elif panel_of(kernel) is None:
        order_loops(plan)


def write_out_slab(kernel: Kernel) -> None:
    """The steps from row to row of a window in a slab stand side by side: they share loads."""
    halo = kernel.plan(Halo)
    assert halo is not None and halo.slab.rows is not None
    step = halo.slab.rows.inner
    assert step is not None
    axis = next(r for r in kernel.axes if r.arg.id == step.arg.id)
    apply(kernel, Opt(OptOps.UNROLL, axis_name(axis), size_of(axis)))


def tile_text(tile: dict[UOp, int]) -> str:
    """A register tile in words."""
    return " x ".join(f"{n} along {axis_name(r)}" for r, n in tile.items())


def choose_rows(plan: Plan) -> bool:
    """Whole rows of a reduction, as was foreseen when it was given SIMD lanes along them."""
    kernel = plan.kernel
    if not plan.by_rows:
        return False
    row = [r for r in kernel.outputs if not r.arg.kind.is_lane][-1]
    beside = results_beside(kernel, row)
    for r in beside:
        apply(kernel, Opt(OptOps.UPCAST, axis_name(r), size_of(r)))
    row = [r for r in kernel.outputs if not r.arg.kind.is_lane][-1]
    lanes = next(r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR)
    nbytes = size_of(lanes) * kernel.reduces[0].dtype.itemsize
    # Sums of several results are read and written less often for all that is computed.
    room = max_row_nbytes(plan.target) if beside else plan.target.cache_bytes[0] // 2
    pieces = ceildiv(size_of(row) * nbytes * iterations(beside), room)
    if pieces > 1:
        apply(kernel, Opt(OptOps.SPLIT, axis_name(row), ceildiv(size_of(row), pieces), how="loop"))
    apply(kernel, Opt(OptOps.KBLOCK, axis_name(kernel.facts.reduced[0]), ROWS, how="row"))
    return True


def unroll_axes(plan: Plan, inner: list[UOp]) -> None:
    """A short loop that no reduction depends on becomes lanes: of short rows, what is masked is
    then known beforehand.

    Of what takes long few lanes stand side by side: a processor looks ahead over as much.
    """
    kernel = plan.kernel
    if not inner or inner[-1].src[0].op is not Ops.CONST or size_of(inner[-1]) > MAX_WRITTEN_OUT:
        return
    stop = frozenset({Ops.REDUCE, Ops.STAGE})
    inside = [values_of(store.src[1], stop) for store in kernel.stores]
    nodes = sum(map(len, inside))
    more = sum([more_slots(each, plan.target) for each in inside])
    room = MAX_LONG if more else MAX_BODY
    fitting = [n for n in divisors(size_of(inner[-1])) if n * (nodes + more) <= room]
    fitting = [n for n in fitting if n > 1 and may_split(kernel, inner[-1], n)]
    if fitting:
        apply(kernel, Opt(OptOps.UPCAST, axis_name(inner[-1]), fitting[-1]))


def work_of(value: UOp) -> int:
    """Operations and loads that a value takes, what is in a STAGE aside."""
    return len(values_of(value, frozenset({Ops.STAGE})))


def values_of(value: UOp, stop: frozenset[Ops]) -> list[UOp]:
    """The operations and loads that a value takes, those below some nodes aside."""
    nodes = toposort(value, enter=lambda u: u.op not in stop)
    return [u for u in nodes if u.op in VALUES]


def choose_partials(plan: Plan) -> None:
    """More accumulators side by side where one or two would wait for their own last addition."""
    kernel = plan.kernel
    if kernel.plan(RowSums) is not None:
        return
    for u in each_reduction(kernel):
        if work_of(u.src[0]) <= MAX_PARTIAL:
            set_row_beside(plan, u, accumulators(plan, u))
    for u in each_reduction(kernel):
        lanes = prod([size_of(r) for r in u.src[0].ranges if r.arg.kind is AxisType.UPCAST])
        loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
        most = accumulators(plan, u)
        if lanes >= most // 2:
            continue
        if not loops:
            # Of several results the SIMD lanes are added up together.
            if u.arg.op is Ops.ADD and work_of(u.src[0]) <= MAX_PARTIAL:
                set_side_by_side(plan, u, most // lanes)
            continue
        # Long code that has no SIMD lanes gains nothing from standing side by side.
        work = work_of(u.src[0])
        if work > MAX_PARTIAL:
            continue
        single = [
            x
            for x in toposort(u.src[0])
            if takes_long(x, plan.target)
            and not [r for r in x.ranges if r.arg.kind is AxisType.VECTOR]
        ]
        if work + more_slots(single, plan.target) > MAX_PARTIAL:
            continue
        axis = max(loops, key=size_of)
        if axis.src[0].op is not Ops.CONST:
            continue
        count = most // lanes
        if results_are_nearer(plan, u, axis, count) and set_side_by_side(plan, u, count, 1):
            continue
        for n in range(count, 1, -1):
            if size_of(axis) % n == 0:
                apply(kernel, Opt(OptOps.UPCAST, axis_name(axis), n))
                break
        else:
            set_side_by_side(plan, u, count)


def each_reduction(kernel: Kernel) -> Iterator[UOp]:
    """The reductions one after the other, as they are by then."""
    for first in [u.src[1].arg.id for u in kernel.reduces if len(u.src) > 1]:
        yield from [u for u in kernel.reduces if first in [r.arg.id for r in u.src[1:]]][:1]


def choose_nests(plan: Plan) -> None:
    """Sums of sums where one sum would add up too many terms one after the other.

    Without that, errors of long sums grow as their square root; NumPy's do as the logarithm.
    """
    kernel = plan.kernel
    if not plan.target.has_dtype("float64"):
        return
    for lane in [r for u in kernel.reduces for r in u.src[1:] if r.arg.kind is AxisType.VECTOR]:
        more = True
        while more:
            more = nest(kernel, lane)


def nest(kernel: Kernel, lane: UOp) -> bool:
    """Makes a sum of sums of the reduction with this SIMD lane, if it has too many steps."""
    u = next((u for u in kernel.reduces if lane in u.src[1:]), None)
    if u is None:
        return False
    tile = {r for r in u.src[0].ranges if r.arg.kind.is_lane}.difference(u.src[1:])
    if any(not tile <= load.ranges for load in kernel.facts.inside[u]):
        return False
    loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
    exact = u.dtype is dtypes.float64 and any(x.op is Ops.CAST for x in u.src[:1])
    most = NEST_STEPS if u.dtype is dtypes.float32 else NEST_STEPS // 2
    if exact or iterations(loops) <= most:
        return False
    within = 1
    while loops and within * size_of(loops[-1]) <= most:
        axis = loops.pop()
        within *= size_of(axis)
    length = size_of(axis) if within > 1 else 0
    if 2 * within <= most:
        axis = loops[-1]
        wanted = most // within
        even = [d for d in divisors(size_of(axis)) if wanted // 3 <= d <= wanted]
        length = even[-1] if even else wanted
    if not can_nest(kernel, axis):
        return False
    apply(kernel, Opt(OptOps.KBLOCK, axis_name(axis), length, how="wide"))
    return True


def choose_threads(plan: Plan) -> None:
    """Shares the outermost fitting output axis out over threads, when there is enough to do."""
    kernel, target = plan.kernel, plan.target
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if target.threads < 2 or not loops:
        return
    busy, pays = estimate(kernel, target).busy, target.costs.thread
    costs = ("its cycles", busy), ("cycles from which threads pay", pays)
    if busy < pays:
        kernel.notes.append(Decision("threads", "one", costs))
        return
    outer = hoist_axes(kernel)
    fitting = [
        r
        for r in loops
        if kernel.may_reorder(r) and (not outer or r in outer) and size_of(r) >= target.threads
    ]
    if not fitting:
        return

    panel = panel_of(kernel)
    costs_of = {r: round(sharing_cost(plan, r, loops, panel), 1) for r in fitting}
    axis = min(fitting, key=lambda r: (costs_of[r], loops.index(r)))
    chunks = chunk_count(plan, axis, loops)
    kernel.notes.append(Decision("threads", f"parts of {axis_text(axis)}", costs))
    apply(kernel, Opt(OptOps.THREAD, axis_name(axis), chunks))
