"""Default schedules of CPUs: which Opts a kernel gets, by the costs in `prices`.

Receives a Kernel and a Target and applies Opts to the Kernel. Nothing here knows ops; what a choice
costs is said in `prices`, and devices with work-groups are served by `group_opts`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from aster_ml.codegen.dots import choose_dot
from aster_ml.codegen.group_opts import choose_group_opts
from aster_ml.codegen.hints import own_nodes
from aster_ml.codegen.kernel import (
    Access,
    Kernel,
    Note,
    can_block,
    can_nest,
    can_peel,
    size_of,
)
from aster_ml.codegen.limits import windows_of
from aster_ml.codegen.moves import (
    choose_hints,
    hoist_axes,
    set_order,
    set_side_by_side,
    share_indices,
    tile_interleaved,
    tile_transposed,
    widen_rows,
)
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.panels import max_nbytes, panel_nbytes, reduced_axes, wanted_panel
from aster_ml.codegen.prices import (
    HORIZONTAL,
    MAX_BODY,
    MAX_WRITTEN_OUT,
    MAXIMUM,
    ROWS,
    THREAD_CYCLES,
    UNEVEN,
    Plan,
    accumulators,
    arithmetic_cost,
    axis_number,
    axis_of,
    axis_text,
    chunk_count,
    columns_cost,
    cycles_of,
    decomposed_nodes,
    inside,
    is_float_maximum,
    is_uneven,
    iterations,
    lane_count,
    may_overlap,
    nest_of,
    owners,
    packing_cost,
    peels,
    reduction_number,
    results_beside,
    reuse_of,
    rows_start_early,
    runs_by_rows,
    sharing_cost,
    starts_early,
    times,
    vector_cost,
    widths,
)
from aster_ml.codegen.rows import max_nbytes as max_row_nbytes
from aster_ml.codegen.short_rows import row_cost, row_lanes, write_out_rows, write_out_windows
from aster_ml.codegen.slabs import SlabCost, far_slab, slab_cost
from aster_ml.codegen.stacks import write_out_stacks
from aster_ml.codegen.tiles import Tiles
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, divisors, prod
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops

# Steps of a sum in its own dtype, half as many where no wider one is left; longer sums are sums of
# sums.
NEST_STEPS = 16
# Longest side of a register tile, and how many axes are tried in pairs.
MAX_TILE_SIDE = 16
TILE_CANDIDATES = 4
# Sides to try of an axis that no divisor from the first of them on shares out.
UNEVEN_SIDES = (2, 3, 4, 6, 8, 12)
# SIMD values to try side by side of an axis whose last lanes start early.
UPCASTS_EARLY = (1, 2, 3, 4, 6, 8)


def choose_opts(kernel: Kernel, target: Target, rank: int = 0) -> None:
    """Gives the kernel the default schedule for the target.

    With a `rank` above 0 that of its second best SIMD axis, third best and so on: for a search.
    """
    computed = [u for u in kernel.facts.order if u.op in ELEMENTWISE or u.op is Ops.LOAD]
    values = sum(1 for u in computed if u.dtype is not dtypes.index)
    extra = decomposed_nodes(computed, target)
    plan = Plan(kernel, target, kernel.accesses(), len(computed), values, extra)
    if target.language in ("python", "null"):
        return
    if target.has_local:
        choose_group_opts(plan)
        return
    if choose_dot(plan):
        return
    write_out_stacks(plan)
    choose_vector(plan, rank)
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


def choose_vector(plan: Plan, rank: int = 0) -> None:
    """One SIMD axis among the outputs, and one of its own for each reduction that lacks it.

    Every candidate (also none) is priced over all accesses: those in a reduction that does not
    depend on the candidate run with the reduction's own best axis.
    """
    kernel = plan.kernel
    lanes = lane_count(plan)
    if lanes < 2:
        return
    owner = owners(kernel)
    nests = [(a, u := owner.get(a.node), nest_of(plan, a, u)) for a in plan.accesses]
    own = {u: best_reduce_axis(plan, u, lanes) for u in kernel.reduces}
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    candidates: list[UOp | None] = [None, *[r for r in loops if widths(r, lanes)[0] > 1]]
    finish = finish_nodes(plan)

    def price(axis: UOp | None, slab: SlabCost | None = None) -> float:
        total = 0.0 if slab is None else slab.instructions
        strips = 0
        each = row_lanes(plan, axis, lanes)
        ends_early = bool(each) or starts_early(kernel, plan.target, axis, lanes)
        for a, u, nest in nests:
            if slab is not None and a.node is slab.found.access.node:
                nodes = arithmetic_cost(axis, lanes, nest)
                total += nodes * (1 / reuse_of(a, nest, axis, lanes) + 1 + UNEVEN)
                continue
            by = own[u] if u is not None and axis not in u.ranges else axis
            early = ends_early and by is axis
            if each and axis is not None and u is not None:
                total += row_cost(a, axis, each, nest) + arithmetic_cost(axis, each, nest, True)
                continue
            packing = None if u is None else packing_cost(plan, by, lanes, a, u)
            # A kernel has one panel.
            if packing is not None and not strips:
                total += packing.instructions
                total += arithmetic_cost(by, lanes, nest) / reuse_of(a, nest, by, lanes)
                strips = packing.strips
            else:
                total += vector_cost(by, lanes, a, nest, early) / reuse_of(a, nest, by, lanes)
                if u is not None and by is not None and not early and is_uneven(a, by, lanes):
                    total += UNEVEN * arithmetic_cost(by, lanes, nest)
            total += arithmetic_cost(by, lanes, nest, early)
            if u is not None:
                total += columns_cost(plan, by, lanes, a, u)
        if strips > 1:
            # Sums are loaded and stored again with each strip.
            stores = [a for a in plan.accesses if a.is_store]
            again = [vector_cost(axis, lanes, a, list(kernel.outputs)) for a in stores]
            total += 2 * (strips - 1) * sum(again)
        if not kernel.reduces:
            # What is computed beyond one node an access.
            more = plan.values + plan.extra - len(plan.accesses)
            total += max(more, 0) * arithmetic_cost(axis, lanes, kernel.outputs, ends_early)
        else:
            total += finish * arithmetic_cost(axis, lanes, kernel.outputs, ends_early)
        for u, by in own.items():
            if by is not None and axis not in u.ranges:
                # Lanes of a sum are added up once for each result.
                slow = MAXIMUM if is_float_maximum(u) else 1
                total += slow * HORIZONTAL * iterations(list(u.ranges))
        return total

    prices = [price(r) for r in candidates]
    ranked = sorted(range(len(prices)), key=prices.__getitem__)
    axis = candidates[ranked[min(rank, len(ranked) - 1)]]
    names = [axis_text(kernel, r) for r in candidates]
    chosen = axis_text(kernel, axis)
    best: SlabCost | None = None
    for slab in [slab_cost(plan, r, lanes) for r in candidates if r is not None and not rank]:
        if slab is not None:
            prices.append(price(slab.found.columns.out, slab))
            names.append(f"{axis_text(kernel, slab.found.columns.out)}, windows in a slab")
            best, chosen = (slab, names[-1]) if prices[-1] <= min(prices) else (best, chosen)
    costs = tuple(zip(names, prices, strict=True))
    kernel.notes.append(Note("SIMD axis, instructions", chosen, costs))
    if best is not None:
        axis = load_slab(plan, best)
    elif axis is not None:
        far = far_slab(plan, axis, lanes)
        if far is not None:
            load_slab(plan, far, whole=axis is not far.found.columns.out)
            axis = axis_of(kernel, axis.arg.id)
    if axis is not None:
        each = row_lanes(plan, axis, lanes)
        apply_vector(plan, axis, each or lanes, bool(each))
        if each:
            write_out_rows(plan)
    for r in dict.fromkeys([own[u] for u in own if axis is None or axis not in u.ranges]):
        if r is not None and r in kernel.axes and not meets_lanes(kernel, r):
            apply_vector(plan, r, lanes)


def finish_nodes(plan: Plan) -> int:
    """Operations on each result of reductions, loads and index arithmetic aside."""
    values = own_nodes(*[store.src[1] for store in plan.kernel.stores])
    mine = [u for u in values if u.op is not Ops.LOAD]
    return len(mine) + decomposed_nodes(mine, plan.target)


def meets_lanes(kernel: Kernel, axis: UOp) -> bool:
    """Whether something depends on the axis and has SIMD lanes: of a reduction inside another."""
    return any(
        axis in u.ranges and any(r.arg.kind is AxisType.VECTOR for r in u.ranges)
        for u in kernel.facts.order
        if u.op is Ops.LOAD or u.op in ELEMENTWISE
    )


def best_reduce_axis(plan: Plan, u: UOp, lanes: int) -> UOp | None:
    """The axis of a reduction that saves most as its SIMD axis, if any saves anything."""
    mine = inside(u)
    accesses = [a for a in plan.accesses if a.node in mine]
    wide = [r for r in u.src[1:] if widths(r, lanes)[0] > 1]
    if not accesses:
        return max(wide, key=size_of, default=None)

    nest = nest_of(plan, accesses[0], u)

    def price(r: UOp | None) -> float:
        arithmetic = arithmetic_cost(r, lanes, nest)
        costs = [vector_cost(r, lanes, a, nest) / reuse_of(a, nest, r, lanes) for a in accesses]
        return sum([cost + arithmetic for cost in costs])

    return min([None, *wide], key=price)


def packs_along(plan: Plan, axis: UOp, lanes: int) -> bool:
    """Whether something is loaded through a panel once the axis of a reduction has SIMD lanes."""
    owner = owners(plan.kernel)
    return any(
        axis in owner[a.node].src[1:] and packing_cost(plan, axis, lanes, a, owner[a.node])
        for a in plan.accesses
        if a.node in owner
    )


def load_slab(plan: Plan, slab: SlabCost, whole: bool = False) -> UOp:
    """Has windows loaded through scratch; the axis that they lie along, as it is then."""
    kernel, number = plan.kernel, slab.found.columns.out.arg.id
    rows = slab.found.rows
    if rows is not None and slab.rows < size_of(rows.out):
        kernel.apply(Opt(OptOps.TILE, axis_number(kernel, rows.out), slab.rows))
    axis = axis_of(kernel, number)
    kernel.apply(Opt(OptOps.SLAB, axis_number(kernel, axis), int(whole)))
    plan.refresh()
    return axis_of(kernel, number)


def apply_vector(plan: Plan, axis: UOp, lanes: int, by_rows: bool = False) -> None:
    """Splits the SIMD lanes off an axis, padding it first where that is worth it.

    Lanes that have a short row each start early at the end of the axis.
    """
    kernel = plan.kernel
    if peels(axis, lanes) and not packs_along(plan, axis, lanes):
        reduce = next(u for u in kernel.reduces if axis in u.src[1:])
        most = min(accumulators(plan, reduce), size_of(axis) // lanes)
        # What is peeled off leaves a multiple of so many accumulators, or a few less.
        steps = [n * lanes for n in range(most, most * 3 // 4 - 1, -1)]
        length = max([size_of(axis) // n * n for n in steps])
        if length != size_of(axis) and can_peel(kernel, axis):
            kernel.apply(Opt(OptOps.PEEL, reduction_number(kernel, axis), length))
            plan.refresh()
            axis, rest = (
                next(r for r in kernel.axes if r.arg.id == i)
                for i in (axis.arg.id, kernel.next_id - 1)
            )
            # In SIMD values of the same width, so that both are folded at once.
            number, padded = axis_number(kernel, rest), ceildiv(size_of(rest), lanes) * lanes
            if padded != size_of(rest):
                kernel.apply(Opt(OptOps.PADTO, number, padded))
            kernel.apply(Opt(OptOps.VECTOR, number, lanes))
            axis = next(r for r in kernel.axes if r.arg.id == axis.arg.id)
    early = by_rows or starts_early(kernel, plan.target, axis, lanes)
    early = early or rows_start_early(plan, axis, lanes) or kernel.loads_slab(axis)
    width, padded = widths(axis, lanes, early)
    if padded != size_of(axis) and not (early and size_of(axis) > lanes):
        number = axis_number(kernel, axis)
        kernel.apply(Opt(OptOps.PADTO, number, padded))
        axis = kernel.axes[number]
    if axis in kernel.outputs:
        plan.vector_id = axis.arg.id
        plan.by_rows = runs_by_rows(kernel, plan.target, axis, lanes)
    kernel.apply(Opt(OptOps.VECTOR, axis_number(kernel, axis), width))
    plan.refresh()


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
            write_out(plan, [r for r in outputs if r not in outer])
        if outputs and not kernel.reduces:
            # The first of them that fits.
            for way in (tile_interleaved, tile_transposed, share_indices, widen_rows):
                if way(plan, outputs):
                    break
        return
    if outer:
        return
    mine = set().union(*[inside(u) for u in main])
    loads = [a for a in plan.accesses if a.node in mine]
    if not loads or not outputs:
        return
    registers = plan.target.vector_registers or 16
    panel = wanted_panel(kernel, plan.accesses)
    stage = kernel.slab_stage()
    # What a slab is made for stays in loops around it.
    outputs = [r for r in outputs if stage is None or r not in stage.ranges]
    overlap = stage is not None or may_overlap(plan, loads)
    along = [r for r in outputs if r.arg.id != plan.vector_id]
    windows = windows_of(along, main[0]) if len(main) == 1 else {}
    candidates = []
    for r in outputs:
        if r.arg.id == plan.vector_id or any(r not in a.strides for a in loads):
            size = size_of(r) if r.src[0].op is Ops.CONST else 1
            sizes = [d for d in divisors(size) if d <= MAX_TILE_SIDE]
            early = kernel.early.get(r.arg.id)
            if early is not None:
                # All lanes side by side have to find room in the axis.
                sizes = [n for n in range(1, MAX_TILE_SIDE + 1) if n * early.lanes <= early.size]
            elif overlap:
                sizes += [n for n in UNEVEN_SIDES if n <= size and size % n]
            if r in windows and MAX_TILE_SIDE < size < registers:
                sizes.append(size)
            if len(sizes) > 1:
                candidates.append((r, sizes))
    if not candidates:
        return
    candidates.sort(key=lambda c: -sum(times(a) for a in loads if c[0] not in a.strides))
    best_cost: float | None = None
    best_tile: dict[UOp, int] = {}
    vector = {
        r for r in kernel.outputs + [x for u in main for x in u.src[1:]] if r.arg.kind.is_lane
    }
    tiles = Tiles(plan, loads, vector, windows, panel)
    for pair in itertools.combinations(candidates[:TILE_CANDIDATES], min(2, len(candidates))):
        for sides in itertools.product(*[c[1] for c in pair]):
            tile = dict(zip([c[0] for c in pair], sides, strict=True))
            if (kernel.overlaps or tiles.is_uneven(tile)) and tiles.needs_strips(tile):
                continue
            cost = tiles.cost(tile)
            if cost is not None and (best_cost is None or cost < best_cost - 1e-9):
                best_cost, best_tile = cost, tile
    one = dict.fromkeys(best_tile, 1)
    alone = tiles.cost(one)
    if best_cost is not None and alone is not None:
        costs = (tile_text(kernel, best_tile), best_cost), ("1 result", alone)
        kernel.notes.append(Note("register tile, instructions a result", costs[0][0], costs))
    written_out = tiles.distinct_part([*best_tile.items()]) < 1
    for r, n in best_tile.items():
        if n > 1:
            op = OptOps.OVERLAP if size_of(r) % n else OptOps.UPCAST
            kernel.apply(Opt(op, axis_number(kernel, r), n))
            if r in windows and size_of(r) == n:
                step = windows[r].step
                kernel.apply(Opt(OptOps.UNROLL, reduction_number(kernel, step), size_of(step)))
    if written_out:
        write_out_slab(kernel)
    plan.refresh()
    if kernel.slab is not None:
        order_for_slab(plan)
    elif wanted_panel(kernel, plan.accesses) is None:
        order_loops(plan)


def write_out_slab(kernel: Kernel) -> None:
    """The steps from row to row of a window in a slab stand side by side: they share loads."""
    assert kernel.slab is not None and kernel.slab.rows is not None
    step = kernel.slab.rows.inner
    assert step is not None
    axis = next(r for r in kernel.axes if r.arg.id == step.arg.id)
    kernel.apply(Opt(OptOps.UNROLL, reduction_number(kernel, axis), size_of(axis)))


def tile_text(kernel: Kernel, tile: dict[UOp, int]) -> str:
    """A register tile in words."""
    return " x ".join(f"{n} along axis {axis_number(kernel, r)}" for r, n in tile.items())


def choose_strips(plan: Plan) -> None:
    """Strips of the reduction where a packed panel for all of it would be too large."""
    kernel = plan.kernel
    a = wanted_panel(kernel, plan.accesses)
    limit = max_nbytes(plan.target)
    if a is None or panel_nbytes(kernel, a) <= limit or not can_block(kernel):
        return
    wanted = ceildiv(panel_nbytes(kernel, a), limit)
    for r in reduced_axes(kernel):
        fitting = [n for n in divisors(size_of(r)) if n >= wanted] if r in a.strides else []
        if fitting and fitting[0] <= 4 * wanted:
            kernel.apply(Opt(OptOps.BLOCK, reduction_number(kernel, r), size_of(r) // fitting[0]))
            plan.refresh()
            return


def order_for_panel(plan: Plan) -> None:
    """The loops that a packed panel changes with come first, so that it is filled least often."""
    kernel = plan.kernel
    a = wanted_panel(kernel, plan.accesses)
    if a is None or panel_nbytes(kernel, a) > max_nbytes(plan.target) or kernel.slab is not None:
        return
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    wanted = [r for r in loops if r in a.strides] + [r for r in loops if r not in a.strides]
    set_order(kernel, wanted)


def order_for_slab(plan: Plan) -> None:
    """The loops that a slab depends on come first, so that it is filled once for all others.

    Those that a packed panel changes with stand before them: that takes longer to fill.
    """
    kernel, stage = plan.kernel, plan.kernel.slab_stage()
    assert stage is not None
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    a = wanted_panel(kernel, plan.accesses)
    packed = {} if a is None else a.strides
    set_order(kernel, sorted(loops, key=lambda r: (r not in packed, r not in stage.ranges)))


def choose_rows(plan: Plan) -> bool:
    """Whole rows of a reduction, as was foreseen when it was given SIMD lanes along them."""
    kernel = plan.kernel
    if not plan.by_rows:
        return False
    row = [r for r in kernel.outputs if not r.arg.kind.is_lane][-1]
    beside = results_beside(kernel, row)
    for r in beside:
        kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, r), size_of(r)))
    row = [r for r in kernel.outputs if not r.arg.kind.is_lane][-1]
    lanes = next(r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR)
    nbytes = size_of(lanes) * kernel.reduces[0].dtype.itemsize
    # Sums of several results are read and written less often for all that is computed.
    room = max_row_nbytes(plan.target) if beside else plan.target.cache_bytes[0] // 2
    pieces = ceildiv(size_of(row) * nbytes * iterations(beside), room)
    if pieces > 1:
        kernel.apply(Opt(OptOps.TILE, axis_number(kernel, row), ceildiv(size_of(row), pieces)))
    kernel.apply(Opt(OptOps.ROWS, 0, ROWS))
    plan.refresh()
    return True


def order_loops(plan: Plan) -> None:
    """The order of the output loops in which least is loaded again from beyond the second cache.

    At each depth, what the loops further in touch either stays in the cache or does not; from the
    outermost depth at which it does, each loop further out loads again what depends on it, save
    that what does not depend on the nearest such loop is still there.
    """
    kernel = plan.kernel
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    loads = set().union(*[inside(u) for u in kernel.reduces])
    accesses = [a for a in plan.accesses if a.node in loads]
    cache = plan.target.cache_bytes[1] // 2
    total = sum(min(times(a), a.buffer.arg.size) * a.buffer.dtype.itemsize for a in accesses)
    if not 2 <= len(loops) <= 4 or total <= cache:
        return

    def traffic(order: tuple[UOp, ...]) -> float:
        def touched(a: Access, depth: int) -> float:
            skipped = set(order[:depth])
            n = iterations([r for r in a.strides if r not in skipped])
            return float(n * a.buffer.dtype.itemsize)

        depth = len(order)
        while depth and sum(touched(a, depth - 1) for a in accesses) <= cache:
            depth -= 1
        result = 0.0
        for a in accesses:
            again = 1
            near = True
            for r in reversed(order[:depth]):
                near = near and r not in a.strides
                again *= 1 if near else size_of(r)
            result += touched(a, depth) * again
        return result

    best = min(itertools.permutations(loops), key=traffic)
    if traffic(best) < 0.8 * traffic(tuple(loops)):
        set_order(kernel, list(best))


def order_for_hoisting(plan: Plan) -> None:
    """Brings the loops that a reduction depends on outside of those that it does not.

    why: inside of the others it would run again for each of their steps
    """
    kernel = plan.kernel
    outer = hoist_axes(kernel)
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if outer and all(map(kernel.may_reorder, loops)):
        uses = {r: sum(r in u.ranges for u in kernel.reduces) for r in loops}
        set_order(kernel, sorted(loops, key=lambda r: -uses[r]))


def write_out(plan: Plan, inner: list[UOp]) -> None:
    """A short loop that no reduction depends on becomes lanes: of short rows, what is masked is
    then known beforehand.
    """
    kernel = plan.kernel
    if not inner or inner[-1].src[0].op is not Ops.CONST or size_of(inner[-1]) > MAX_WRITTEN_OUT:
        return
    stop = frozenset({Ops.REDUCE, Ops.STAGE})
    if sum(work_of(store.src[1], stop) for store in kernel.stores) * size_of(inner[-1]) <= MAX_BODY:
        kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, inner[-1]), size_of(inner[-1])))
        plan.refresh()


def work_of(value: UOp, stop: frozenset[Ops] = frozenset({Ops.STAGE})) -> int:
    """Operations and loads that a value takes, those below some nodes aside."""
    nodes = toposort(value, enter=lambda u: u.op not in stop)
    return sum(1 for u in nodes if u.op in ELEMENTWISE or u.op is Ops.LOAD)


def choose_partials(plan: Plan) -> None:
    """More accumulators side by side where one or two would wait for their own last addition."""
    kernel = plan.kernel
    if kernel.rows:
        return
    for u in each_reduction(kernel):
        lanes = prod([size_of(r) for r in u.src[0].ranges if r.arg.kind is AxisType.UPCAST])
        loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
        nodes = work_of(u.src[0])
        most = accumulators(plan, u)
        if lanes >= most // 2 or not loops or nodes > 40:
            continue
        axis = max(loops, key=size_of)
        if axis.src[0].op is not Ops.CONST:
            continue
        for n in range(most // lanes, 1, -1):
            if size_of(axis) % n == 0:
                kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, axis), n))
                plan.refresh()
                break
        else:
            set_side_by_side(plan, u, most // lanes)


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
        while nest(kernel, lane):
            plan.refresh()


def nest(kernel: Kernel, lane: UOp) -> bool:
    """Makes a sum of sums of the reduction with this SIMD lane, if it has too many steps."""
    u = next((u for u in kernel.reduces if lane in u.src[1:]), None)
    if u is None or not {r for r in u.src[0].ranges if r.arg.kind.is_lane} <= set(u.src[1:]):
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
        even = [d for d in divisors(size_of(axis)) if wanted // 2 <= d <= wanted]
        length = even[-1] if even else wanted
    if not can_nest(kernel, axis):
        return False
    kernel.apply(Opt(OptOps.NEST, reduction_number(kernel, axis), length))
    return True


def choose_threads(plan: Plan) -> None:
    """Shares the outermost fitting output axis out over threads, when there is enough to do."""
    kernel, target = plan.kernel, plan.target
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if target.threads < 2 or not loops:
        return
    cycles = cycles_of(plan)
    costs = ("its cycles", cycles), ("cycles from which threads pay", float(THREAD_CYCLES))
    if cycles < THREAD_CYCLES:
        kernel.notes.append(Note("threads", "one", costs))
        return
    outer = hoist_axes(kernel)
    fitting = [
        r
        for r in loops
        if kernel.may_reorder(r) and (not outer or r in outer) and size_of(r) >= target.threads
    ]
    if not fitting:
        return

    panel = wanted_panel(kernel, plan.accesses)
    costs_of = {r: round(sharing_cost(plan, r, loops, panel), 1) for r in fitting}
    axis = min(fitting, key=lambda r: (costs_of[r], loops.index(r)))
    chunks = chunk_count(plan, axis, loops)
    kernel.notes.append(Note("threads", f"parts of {axis_text(kernel, axis)}", costs))
    kernel.apply(Opt(OptOps.THREAD, axis_number(kernel, axis), chunks))
