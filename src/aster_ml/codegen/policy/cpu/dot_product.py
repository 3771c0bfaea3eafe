"""Default schedules of products of narrow operands: lanes, register tile, packed panels, by cost.

Receives a Plan; applies Opts to its Kernel where it is such a product and panels pay. What a DOT
does to the graph is said in `staging/dot_packing`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from aster_ml.codegen.apply import apply, upcast
from aster_ml.codegen.estimate import Estimate
from aster_ml.codegen.kernel import Access, Decision, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.cpu.costs import Plan, axis_of
from aster_ml.codegen.policy.cpu.loop_order import set_order
from aster_ml.codegen.policy.cpu.prefetch import ask_for_columns
from aster_ml.codegen.staging.dot_packing import (
    WORD_NBYTES,
    Product,
    find_product,
    fits_words,
    group_of,
    may_read_once,
    may_run_along,
    needs_panel,
)
from aster_ml.codegen.staging.panel import max_nbytes
from aster_ml.codegen.tails import can_overlap
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.target.costs import Costs
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import iterations, size_of

# Products below which no schedule is slow.
LEAST_WORK = 4096
# Results that each word has to serve for a panel to pay, times the elements in it.
LEAST_USES = 8
# Sides of a register tile: of SIMD values, and the most rows.
VECTORS, MOST_ROWS = (1, 2, 3, 4, 5, 6), 16
# How uneven the shares of threads may be.
LARGEST_SHARE = 1.1


class Choice(NamedTuple):
    """Which axes have SIMD lanes and rows, and how many of them at once."""

    lanes: UOp
    rows: UOp
    vectors: int
    tile: int
    # Rows whose panel is filled at once; 0 where they need none.
    block: int
    cycles: float


def choose_dot(plan: Plan) -> bool:
    """Gives a product of narrow operands its schedule; false for all other kernels."""
    product = find_product(plan.kernel)
    if product is None:
        return False
    kernel = plan.kernel
    work = iterations(kernel.outputs) * product.steps
    group = group_of(product.narrow, plan.target)
    if work < LEAST_WORK or product.steps < 2 * group or not can_overlap(kernel):
        return False
    if not all([kernel.may_reorder(r) and r.src[0].op is Ops.CONST for r in kernel.outputs]):
        return False
    choices = list(all_choices(plan, product, group))
    along = choose_along(plan, product, group)
    if along is not None and all([along.cycles < c.cycles for c in choices]):
        run_along(plan, along, group)
        return True
    if not choices:
        return False
    best = min(choices, key=lambda c: c.cycles)
    costs = {}
    for c in choices:
        name = f"{c.vectors} of {axis_name(c.lanes)} x {c.tile} of {axis_name(c.rows)}"
        costs[name] = c.cycles
    chosen = next(name for name, cycles in costs.items() if cycles == best.cycles)
    kernel.notes.append(
        Decision("panels of words, SIMD values x rows, cycles", chosen, tuple(costs.items()))
    )
    apply_choice(plan, best, product, group)
    return True


class Along(NamedTuple):
    """Axes and numbers of results at once, where SIMD lanes run along the reduction."""

    tile: tuple[tuple[UOp, int], ...]
    cycles: float


def choose_along(plan: Plan, product: Product, group: int) -> Along | None:
    """The quickest tile with SIMD lanes along the reduction, None where these cannot be.

    What one operand has for itself and what the other has share each other's loads; of axes that
    both have the results are different products.
    """
    if not may_run_along(product, group):
        return None
    target, outputs = plan.target, plan.kernel.outputs
    sides: list[list[tuple[UOp, int]]] = []
    for mine, other in itertools.permutations(product.factors):
        own = [r for r in outputs if r in mine.strides and r not in other.strides]
        r = max(own, key=size_of, default=None)
        most = min(size_of(r), target.costs.accumulators) if r is not None else 0
        sides.append([(r, n) for n in range(1, most + 1)] if r is not None else [])
    room = (target.vector_registers or 16) - 2
    tiles = [
        tile
        for tile in itertools.product(*[side for side in sides if side])
        if prod([n for _, n in tile]) + sum([n for _, n in tile]) <= room
    ]
    priced_tiles = [Along(tile, time_along(plan, product, group, dict(tile))) for tile in tiles]
    return min(priced_tiles, key=lambda along: along.cycles, default=None)


def time_along(plan: Plan, product: Product, group: int, tile: dict[UOp, int]) -> float:
    """Cycles with SIMD lanes along the reduction.

    An operand comes from the second cache for each tile, if what of it is read before it is read
    again does not stay in the first.
    """
    target, outputs = plan.target, plan.kernel.outputs
    nbytes = target.lanes(WORD_NBYTES) * WORD_NBYTES
    steps = ceildiv(product.steps, group * target.lanes(WORD_NBYTES))
    results, costs, far = prod(tile.values()), target.costs, 0.0
    rows, values = [prod([tile.get(r, 1) for r in f.strides]) for f in product.factors]
    for mine, count in zip(product.factors, (rows, values), strict=True):
        # What runs inside goes through all of its operand before the next step outside.
        inside = [r for r in outputs if r in mine.strides and r is outputs[-1]]
        if (
            max(count, iterations(inside)) * steps * nbytes
            > target.cache_bytes[0] * costs.near_part
        ):
            far += count * nbytes / costs.cache_bytes[1]
    step = step_of(target, group, rows, values)._replace(moved=(far,))
    tiles = prod([ceildiv(size_of(r), tile.get(r, 1)) for r in outputs])
    # One after the other: nothing else is to be done meanwhile.
    horizontal = costs.horizontal / target.instruction
    return float(tiles * (steps * step.busy + results * horizontal + costs.tile_begun))


def run_along(plan: Plan, along: Along, group: int) -> None:
    """The Opts for SIMD lanes along the reduction."""
    kernel, threads = plan.kernel, plan.target.threads
    cycles = along.cycles
    kernel.notes.append(
        Decision("SIMD lanes along the words of both operands, cycles", "yes", (("", cycles),))
    )
    ids = [r.arg.id for r in kernel.outputs]
    for r, n in along.tile:
        if n == 1:
            continue
        upcast(kernel, r, n)
    summed = axis_name(kernel.facts.reduced[0])
    apply(kernel, Opt(OptOps.STAGE, summed, group, how="words"))
    loops = [r for r in kernel.outputs if r.arg.id in ids and not r.arg.kind.is_lane]
    longest = max(loops, key=size_of, default=None)
    if (
        threads > 1
        and cycles >= plan.target.costs.thread
        and longest is not None
        and size_of(longest) >= threads
    ):
        apply(kernel, Opt(OptOps.THREAD, axis_name(longest)))


def all_choices(plan: Plan, product: Product, group: int) -> Iterator[Choice]:
    """Every fitting pair of axes and register tile with its cost."""
    for wide, narrow in itertools.permutations(product.factors):
        lanes = [r for r in plan.kernel.outputs if r in wide.strides and r not in narrow.strides]
        rows = [r for r in plan.kernel.outputs if r in narrow.strides and r not in wide.strides]
        if not lanes or not rows:
            continue
        if min(iterations(lanes), iterations(rows)) * group < LEAST_USES:
            continue
        row = max(rows, key=size_of)
        for lane in lanes:
            if wide.strides[lane] is None or narrow.strides[row] is None:
                continue
            for vectors in VECTORS:
                for tile in row_tiles(plan.target, group, vectors, size_of(row)):
                    operands = (wide, lane), (narrow, row)
                    choice = priced(plan, product, group, *operands, vectors, tile)
                    if choice is not None:
                        yield choice


def makes_pairs(target: Target, group: int) -> bool:
    """Whether a DOT is products of pairs, and not one instruction."""
    return group == WORD_NBYTES and not target.dots_at_once


def step_of(target: Target, group: int, rows: int, values: int) -> Estimate:
    """Estimates one step of a tile of so many rows and SIMD values."""
    costs, results = target.costs, rows * values
    if makes_pairs(target, group):
        split = rows * costs.split_row + values * costs.split_value
        arithmetic = (results * costs.pairs + split) / costs.pairs_begun
    else:
        arithmetic = max(results, costs.accumulators) / target.issue
    loads = (rows + values) / costs.loads
    return Estimate(arithmetic, loads, begun=(results + rows + values + 3) / costs.begun)


def row_tiles(target: Target, group: int, vectors: int, rows: int) -> set[int]:
    """Numbers of rows worth trying: what registers hold, that shared out evenly, powers of two."""
    taken = vectors * (2 if makes_pairs(target, group) else 1) + 2
    most = ((target.vector_registers or 16) - taken) // vectors
    most = min(most, MOST_ROWS, rows)
    if most < 1:
        return set()
    return {most, ceildiv(rows, ceildiv(rows, most)), 1 << (most.bit_length() - 1)}


def priced(
    plan: Plan,
    product: Product,
    group: int,
    wide: tuple[Access, UOp],
    narrow: tuple[Access, UOp],
    vectors: int,
    tile: int,
) -> Choice | None:
    """A choice with the cycles that it takes, None where it does not fit."""
    target, kernel = plan.target, plan.kernel
    (wide_access, lane), (narrow_access, row) = wide, narrow
    width = target.lanes(WORD_NBYTES)
    values = ceildiv(size_of(lane), width)
    if vectors > values or width < 2:
        return None
    steps = ceildiv(product.steps, group)
    block = rounds = 0
    room = max_nbytes(target) - steps * vectors * width * WORD_NBYTES
    if needs_panel(narrow_access, product, group):
        fitting = room // (steps * WORD_NBYTES) // tile * tile
        if fitting < tile:
            return None
        rounds = ceildiv(size_of(row), fitting)
        block = size_of(row)
        if rounds > 1:
            block = ceildiv(ceildiv(size_of(row), rounds), tile) * tile
            rounds = ceildiv(size_of(row), block)
    elif room < 0:
        return None
    others = iterations([r for r in kernel.outputs if r is not lane and r is not row])
    tiles = ceildiv(values, vectors) * ceildiv(size_of(row), tile) * others
    results = tile * vectors
    costs, step = target.costs, step_of(target, group, tile, vectors)
    side_by_side = all([a.stride(lane) == 1 for a in plan.accesses if a.is_store])
    stored = results * (costs.words_stored if side_by_side else costs.words_stored_apart)
    cycles = tiles * (steps * step.busy + stored + costs.tile_begun)
    filled: float = ceildiv(values, vectors) * vectors * steps * max(rounds, 1) * others
    near = wide_access.strides[lane] == 1
    if size_of(row) == tile and may_read_once(
        wide_access.node, near, group, product.reduce, target
    ):
        filled *= costs.words_read_once
    part = costs.words_neighbours
    cycles += filled * fill_cost(costs, wide_access, lane, product.axis, group, part)
    if block:
        filled = ceildiv(size_of(row) * steps, width) * others
        # As many rows are loaded side by side as a tile has.
        part = costs.words_neighbours * width / tile * tile.bit_count()
        cycles += filled * fill_cost(costs, narrow_access, row, product.axis, group, part)
    return Choice(lane, row, vectors, tile, block, cycles)


def fill_cost(costs: Costs, access: Access, lane: UOp, axis: UOp, group: int, near: float) -> float:
    """Cycles for a SIMD value of words of a panel; `near` where neighbours are lanes."""
    if access.strides[lane] == 1:
        return near * group
    if access.strides[axis] == 1:
        return costs.words_transposed
    return costs.words_apart * group


def apply_choice(plan: Plan, choice: Choice, product: Product, group: int) -> None:
    """The Opts of a choice: what its names say, loops ordered so that panels are filled seldom."""
    kernel = plan.kernel
    width = plan.target.lanes(WORD_NBYTES)
    lane, row = choice.lanes, choice.rows
    padded = ceildiv(size_of(lane), width) * width
    early = size_of(lane) >= choice.vectors * width and not plan.target.masks
    if padded != size_of(lane) and not early:
        apply(kernel, Opt(OptOps.SPLIT, axis_name(lane), padded, how="mask"))
    apply(kernel, Opt(OptOps.VECTOR, axis_name(lane), width))
    if choice.vectors > 1:
        how = "shift" if padded // width % choice.vectors else ""
        apply(kernel, Opt(OptOps.UPCAST, axis_name(lane), choice.vectors, how))
    steps = {lane.arg.id: ceildiv(padded // width, choice.vectors)}
    shared = choose_shared(plan, choice, steps)
    rows = [row.arg.id]
    if shared == rows[0]:
        parts = ceildiv(ceildiv(size_of(row), plan.target.threads), choice.tile) * choice.tile
        rows.append(tile_rows(kernel, rows[-1], parts))
    if choice.block and choice.block < size_of(axis_of(kernel, rows[-1])):
        rows.append(tile_rows(kernel, rows[-1], choice.block))
    if choice.tile > 1:
        upcast(kernel, axis_of(kernel, rows[-1]), choice.tile)
    # Rows run inside of the lanes, whose panel they share.
    inner_ids = [lane.arg.id, rows[-1]]
    loops = {r.arg.id: r for r in kernel.outputs if not r.arg.kind.is_lane}
    order = [r for i, r in loops.items() if i not in inner_ids]
    order += [loops[i] for i in inner_ids if i in loops]
    set_order(kernel, order)
    ask_for_columns(plan)
    if shared is not None:
        apply(kernel, Opt(OptOps.THREAD, axis_name(axis_of(kernel, shared))))
    axis = next(r for r in kernel.axes if r.arg.id == product.axis.arg.id)
    if fits_words(kernel, group, plan.target):
        apply(kernel, Opt(OptOps.STAGE, axis_name(axis), group, how="words"))


def choose_shared(plan: Plan, choice: Choice, steps: dict[int, int]) -> int | None:
    """Id of the axis that threads share, None for one thread.

    Rows can be shared evenly whatever their number is, but then each thread fills all panels of
    lanes. Where rows have panels for blocks of them, these are to stay outside of the lanes.
    """
    threads = plan.target.threads
    if threads < 2 or choice.cycles < plan.target.costs.thread:
        return None
    kernel = plan.kernel
    sizes = {
        r.arg.id: steps.get(r.arg.id, size_of(r))
        for r in kernel.outputs
        if not r.arg.kind.is_lane and r is not choice.rows
    }
    if 0 < choice.block < size_of(choice.rows):
        sizes.pop(choice.lanes.arg.id, None)
    even = [i for i, n in sizes.items() if ceildiv(n, threads) * threads <= LARGEST_SHARE * n]
    if even:
        return int(even[0])
    if size_of(choice.rows) >= 2 * threads * choice.tile:
        return int(choice.rows.arg.id)
    steps_of, longest = max([(n, i) for i, n in sizes.items()], default=(0, -1))
    return int(longest) if steps_of >= threads else None


def tile_rows(kernel: Kernel, number: int, length: int) -> int:
    """Parts of so many steps of an axis, which are an axis inside of it, of this id."""
    axis = axis_of(kernel, number)
    if length >= size_of(axis):
        return number
    apply(kernel, Opt(OptOps.SPLIT, axis_name(axis), length, how="loop"))
    return kernel.next_id - 1
