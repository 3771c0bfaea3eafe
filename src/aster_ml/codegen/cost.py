"""Default schedules: which Opts a kernel gets, by costs that can be read.

Receives a Kernel and a Target and applies Opts to the Kernel. The unit of cost is one instruction;
what a choice costs is estimated from the strides of the accesses alone. Nothing here knows ops.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

from aster_ml.codegen.kernel import Access, Kernel, Note, can_block, can_overlap, can_peel, size_of
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.panels import (
    MIN_GATHERED_USES,
    can_pack,
    max_nbytes,
    panel_nbytes,
    reduced_axes,
    uses_of,
    wanted_panel,
)
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, divisors, next_power2, prod
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops

# An element gathered or scattered on its own, against one lane of a vector access.
GATHER = 1.5
SCATTER = 2.0
# Elements two apart: two contiguous loads and a shuffle.
EVERY_SECOND = 3.0
# Instructions that add up the lanes of a SIMD value.
HORIZONTAL = 8.0
# Reductions of at least so many SIMD values have what is over from a multiple of them on its own.
PEEL_LENGTH, PEEL_MULTIPLE = 8, 4
# What masked or unaligned operands add to the arithmetic of a product.
UNEVEN = 0.3
# Longest gap between elements that are stored interleaved with those in the gap.
MAX_GAP = 8
# A vector access whose lanes are masked.
MASKED = 1.5
# Results of a register tile that one loaded value may be expected to serve.
TILE_REUSE = 6
# Longest side of a register tile, and how many axes are tried in pairs.
MAX_TILE_SIDE = 16
TILE_CANDIDATES = 4
# Sides to try of an axis that no divisor from the first of them on shares out.
UNEVEN_SIDES = (4, 6, 8, 12)
# A value of a tile that is broadcast from memory; one on a page of its own, on top of that.
BROADCAST = 0.6
# The same where arithmetic takes it from memory by itself, as with 32 SIMD registers.
EMBEDDED_BROADCAST = 0.3
# A SIMD value that is loaded for a tile: it may have to come from the second cache.
LOADED = 1.5
FAR, FAR_NBYTES = 0.25, 4096
# Work (iterations times nodes) from which on a second thread pays for its wake-up.
THREAD_WORK = 1 << 17
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
    # Id of the output axis whose lanes are SIMD, -1 while there is none.
    vector_id: int = -1

    def refresh(self) -> None:
        """Reads the accesses again after the graph has changed."""
        self.accesses = self.kernel.accesses()


def choose_opts(kernel: Kernel, target: Target) -> None:
    """Gives the kernel the default schedule for the target."""
    computed = [u for u in toposort(kernel.sink) if u.op in ELEMENTWISE or u.op is Ops.LOAD]
    values = sum(1 for u in computed if u.dtype is not dtypes.index)
    plan = Plan(kernel, target, kernel.accesses(), len(computed), values)
    if target.language in ("python", "null"):
        return
    if target.has_local:
        choose_group_opts(plan)
        return
    choose_vector(plan)
    order_for_hoisting(plan)
    choose_tile(plan)
    choose_strips(plan)
    order_for_panel(plan)
    choose_partials(plan)
    choose_threads(plan)


# vector axis


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
            for u in toposort(plan.kernel.sink)
            if u.dtype.itemsize and u.dtype.kind in ("float", "int", "uint")
        ],
        default=4,
    )
    return max(plan.target.vector_bits // (8 * itemsize), 1)


def vector_cost(axis: UOp | None, lanes: int, access: Access, nest: list[UOp]) -> float:
    """Instructions that an access takes in its loops when `axis` is the SIMD axis."""
    n = iterations(nest)
    if axis is None or axis not in nest:
        return float(n)
    stride = access.stride(axis)
    wide, padded = widths(axis, lanes)
    if stride == 2 and not access.is_store and padded == size_of(axis):
        return EVERY_SECOND * n / wide
    if access.is_store and between(access, axis, nest) is not None:
        return EVERY_SECOND * n / size_of(axis) * (padded / wide)
    if stride is None or stride not in (0, 1):
        return n * (SCATTER if access.is_store else GATHER)
    if stride == 0 and not access.is_store:
        return EMBEDDED_BROADCAST * n / size_of(axis) * (padded / wide)
    return n / size_of(axis) * (padded / wide) * (1 if padded == size_of(axis) else MASKED)


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


def arithmetic_cost(axis: UOp | None, lanes: int, nest: list[UOp]) -> float:
    """Instructions that one elementwise node takes in these loops."""
    n = iterations(nest)
    if axis is None or axis not in nest:
        return float(n)
    wide, padded = widths(axis, lanes)
    # What a reduction takes in beyond the end of its axis has to be made harmless.
    masked = MASKED**2 if axis.arg.kind is AxisType.REDUCE and padded != size_of(axis) else 1
    return n / size_of(axis) * (padded / wide) * masked


def widths(axis: UOp, lanes: int) -> tuple[int, int]:
    """Lanes to use on an axis and the size to pad it to (its own when it needs no padding)."""
    size = size_of(axis)
    if axis.src[0].op is not Ops.CONST or lanes < 2 or size < 2:
        return 1, size
    if size % lanes == 0:
        return lanes, size
    exact = max(d for d in (1, 2, 4, 8, 16, 32, 64) if size % d == 0 and d <= lanes)
    wide = min(lanes, next_power2(size))
    padded = ceildiv(size, wide) * wide
    # Elements a vector instruction, a masked one counting more.
    if size / (padded / wide) / MASKED > exact:
        return wide, padded
    return exact, size


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


def choose_vector(plan: Plan) -> None:
    """One SIMD axis among the outputs, and one of its own for each reduction that lacks it.

    Every candidate (also none) is priced over all accesses: those in a reduction that does not
    depend on the candidate run with the reduction's own best axis.
    """
    kernel = plan.kernel
    lanes = lane_count(plan)
    if lanes < 2:
        return
    owner = owners(kernel)
    own = {u: best_reduce_axis(plan, u, lanes) for u in kernel.reduces}
    candidates: list[UOp | None] = [
        None,
        *[r for r in kernel.outputs if kernel.may_reorder(r) and widths(r, lanes)[0] > 1],
    ]

    def price(axis: UOp | None) -> float:
        total = 0.0
        strips = 0
        for a in plan.accesses:
            u = owner.get(a.node)
            by = own[u] if u is not None and axis not in u.ranges else axis
            nest = nest_of(plan, a, u)
            packing = None if u is None or by is not axis else packing_cost(plan, axis, lanes, a, u)
            # A kernel has one panel.
            if packing is not None and not strips:
                total += packing.instructions
                total += arithmetic_cost(by, lanes, nest) / reuse_of(a, nest, by)
                strips = packing.strips
            else:
                total += vector_cost(by, lanes, a, nest) / reuse_of(a, nest, by)
                if u is not None and by is not None and is_uneven(a, by, lanes):
                    total += UNEVEN * arithmetic_cost(by, lanes, nest)
            total += arithmetic_cost(by, lanes, nest)
        if strips > 1:
            # Sums are loaded and stored again with each strip.
            stores = [a for a in plan.accesses if a.is_store]
            again = [vector_cost(axis, lanes, a, list(kernel.outputs)) for a in stores]
            total += 2 * (strips - 1) * sum(again)
        for u, by in own.items():
            if by is not None and axis not in u.ranges:
                # Lanes of a sum are added up once for each result.
                total += HORIZONTAL * iterations(list(u.ranges))
        return total

    prices = [price(r) for r in candidates]
    axis = candidates[prices.index(min(prices))]
    names = [axis_text(kernel, r) for r in candidates]
    costs = tuple(zip(names, prices, strict=True))
    kernel.notes.append(Note("SIMD axis, instructions", axis_text(kernel, axis), costs))
    if axis is not None:
        apply_vector(plan, axis, lanes)
    for r in dict.fromkeys([own[u] for u in own if axis is None or axis not in u.ranges]):
        if r is not None and r in kernel.axes and not meets_lanes(kernel, r):
            apply_vector(plan, r, lanes)


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
            held += count
            need += LOADED * count
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


def may_overlap(plan: Plan, loads: list[Access]) -> bool:
    """Whether the tile may be uneven: nothing is read that is stored, also not between strips."""
    steps = max(iterations(list(u.src[1:])) for u in plan.kernel.reduces)
    widest = max(a.buffer.dtype.itemsize for a in loads) * 2 * lane_count(plan)
    return can_overlap(plan.kernel) and steps * widest <= max_nbytes(plan.target)


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
    if uses_of(a, kernel.outputs) < MIN_GATHERED_USES or not set(kernel.outputs) <= reduce.ranges:
        return None
    reduced = iterations([r for r in reduce.src[1:] if r in a.strides])
    nbytes = reduced * widths(axis, lanes)[0] * a.buffer.dtype.itemsize
    strips = ceildiv(nbytes, max_nbytes(plan.target))
    if strips > 1 and not can_block(kernel):
        return None
    return Packing(GATHER * iterations(list(a.strides)), strips)


def meets_lanes(kernel: Kernel, axis: UOp) -> bool:
    """Whether something depends on the axis and has SIMD lanes: of a reduction inside another."""
    return any(
        axis in u.ranges and any(r.arg.kind is AxisType.VECTOR for r in u.ranges)
        for u in toposort(kernel.sink)
        if u.op is Ops.LOAD or u.op in ELEMENTWISE
    )


def best_reduce_axis(plan: Plan, u: UOp, lanes: int) -> UOp | None:
    """The axis of a reduction that saves most as its SIMD axis, if any saves anything."""
    mine = inside(plan, u)
    accesses = [a for a in plan.accesses if a.node in mine]
    wide = [r for r in u.src[1:] if widths(r, lanes)[0] > 1]
    if not accesses:
        return max(wide, key=size_of, default=None)

    def price(r: UOp | None) -> float:
        nest = nest_of(plan, accesses[0], u)
        return sum(
            vector_cost(r, lanes, a, nest) / reuse_of(a, nest, r) + arithmetic_cost(r, lanes, nest)
            for a in accesses
        )

    return min([None, *wide], key=price)


def apply_vector(plan: Plan, axis: UOp, lanes: int) -> None:
    """Splits the SIMD lanes off an axis, padding it first where that is worth it."""
    kernel = plan.kernel
    if axis not in kernel.outputs and size_of(axis) >= PEEL_LENGTH * lanes:
        length = size_of(axis) // (PEEL_MULTIPLE * lanes) * PEEL_MULTIPLE * lanes
        if length != size_of(axis) and can_peel(kernel, axis):
            kernel.apply(Opt(OptOps.PEEL, reduction_number(kernel, axis), length))
            plan.refresh()
            axis, rest = (
                next(r for r in kernel.axes if r.arg.id == i)
                for i in (axis.arg.id, kernel.next_id - 1)
            )
            apply_vector(plan, rest, lanes)
            axis = next(r for r in kernel.axes if r.arg.id == axis.arg.id)
    width, padded = widths(axis, lanes)
    if padded != size_of(axis):
        number = axis_number(kernel, axis)
        kernel.apply(Opt(OptOps.PADTO, number, padded))
        axis = kernel.axes[number]
    if axis in kernel.outputs:
        plan.vector_id = axis.arg.id
    kernel.apply(Opt(OptOps.VECTOR, axis_number(kernel, axis), width))
    plan.refresh()


# register tile


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
        if outputs and not kernel.reduces:
            if not tile_interleaved(plan, outputs) and not tile_transposed(plan, outputs):
                widen(plan, outputs[-1])
        return
    if outer:
        return
    mine = set().union(*[inside(plan, u) for u in main])
    loads = [a for a in plan.accesses if a.node in mine]
    if not loads or not outputs:
        return
    registers = plan.target.vector_registers or 16
    overlap = may_overlap(plan, loads)
    candidates = []
    for r in outputs:
        if r.arg.id == plan.vector_id or any(r not in a.strides for a in loads):
            size = size_of(r) if r.src[0].op is Ops.CONST else 1
            sizes = [d for d in divisors(size) if d <= MAX_TILE_SIDE]
            if overlap and sizes[-1] < UNEVEN_SIDES[0]:
                sizes += [n for n in UNEVEN_SIDES if n <= size]
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
    for pair in itertools.combinations(candidates[:TILE_CANDIDATES], min(2, len(candidates))):
        for sides in itertools.product(*[c[1] for c in pair]):
            tile = dict(zip([c[0] for c in pair], sides, strict=True))
            cost = tile_cost(plan, tile, loads, vector, registers)
            if cost is not None and (best_cost is None or cost < best_cost - 1e-9):
                best_cost, best_tile = cost, tile
    alone = tile_cost(plan, dict.fromkeys(best_tile, 1), loads, vector, registers)
    if best_cost is not None and alone is not None:
        costs = (tile_text(kernel, best_tile), best_cost), ("1 result", alone)
        kernel.notes.append(Note("register tile, instructions a result", costs[0][0], costs))
    for r, n in best_tile.items():
        if n > 1:
            op = OptOps.OVERLAP if size_of(r) % n else OptOps.UPCAST
            kernel.apply(Opt(op, axis_number(kernel, r), n))
    plan.refresh()
    if wanted_panel(kernel) is None:
        order_loops(plan)


def tile_text(kernel: Kernel, tile: dict[UOp, int]) -> str:
    """A register tile in words."""
    return " x ".join(f"{n} along axis {axis_number(kernel, r)}" for r, n in tile.items())


def choose_strips(plan: Plan) -> None:
    """Strips of the reduction where a packed panel for all of it would be too large."""
    kernel = plan.kernel
    a = wanted_panel(kernel)
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
    a = wanted_panel(kernel)
    if a is None or panel_nbytes(kernel, a) > max_nbytes(plan.target):
        return
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    wanted = [r for r in loops if r in a.strides] + [r for r in loops if r not in a.strides]
    set_order(kernel, wanted)


def set_order(kernel: Kernel, wanted: list[UOp]) -> None:
    """Brings these output loops into this order, by swaps."""
    for i, r in enumerate(wanted):
        now = [x for x in kernel.outputs if x in wanted]
        if now[i] is not r:
            kernel.apply(Opt(OptOps.SWAP, axis_number(kernel, now[i]), axis_number(kernel, r)))


def order_loops(plan: Plan) -> None:
    """The order of the output loops in which least is loaded again from beyond the second cache.

    At each depth, what the loops further in touch either stays in the cache or does not; from the
    outermost depth at which it does, each loop further out loads again what depends on it, save
    that what does not depend on the nearest such loop is still there.
    """
    kernel = plan.kernel
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    loads = set().union(*[inside(plan, u) for u in kernel.reduces])
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


def tile_interleaved(plan: Plan, outputs: list[UOp]) -> bool:
    """Lanes along the axis that lies between the SIMD lanes of a store."""
    kernel = plan.kernel
    vector = [r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR]
    for a in plan.accesses:
        if a.is_store and vector:
            r = between(a, vector[0], outputs)
            if r is not None and size_of(r) * plan.values <= MAX_BODY:
                kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, r), size_of(r)))
                plan.refresh()
                return True
    return False


def tile_transposed(plan: Plan, outputs: list[UOp]) -> bool:
    """Lanes along an axis in which gathered elements lie side by side.

    why: each cache line is then used whole while it is there
    """
    kernel = plan.kernel
    vector = [r for r in kernel.outputs if r.arg.kind.name == "VECTOR"]
    if not vector:
        return False
    for r in outputs:
        for a in plan.accesses:
            if a.stride(r) == 1 and a.stride(vector[0]) not in (0, 1) and r.src[0].op is Ops.CONST:
                for n in (16, 8, 4):
                    if size_of(r) % n == 0 and n * size_of(vector[0]) * plan.nodes <= 4 * MAX_BODY:
                        kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, r), n))
                        plan.refresh()
                        return True
    return False


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


def hoist_axes(kernel: Kernel) -> set[UOp]:
    """Output axes that some reduction runs directly inside of, with others further in."""
    outputs = {r for r in kernel.outputs if not r.arg.kind.is_lane}
    result: set[UOp] = set()
    for u in kernel.reduces:
        mine = {r for r in u.ranges if r in outputs}
        if mine != outputs:
            result |= mine
    return result


def widen(plan: Plan, axis: UOp) -> None:
    """Several SIMD values an iteration."""
    size = size_of(axis)
    if axis.src[0].op is not Ops.CONST or plan.nodes > 24:
        return
    for n in (4, 2):
        if size % n == 0 and size // n >= plan.target.threads and n * plan.nodes <= 64:
            plan.kernel.apply(Opt(OptOps.UPCAST, axis_number(plan.kernel, axis), n))
            plan.refresh()
            return


def choose_partials(plan: Plan) -> None:
    """More accumulators side by side where one or two would wait for their own last addition."""
    kernel = plan.kernel
    for u in list(kernel.reduces):
        if u not in kernel.reduces:
            continue
        lanes = prod(
            [
                size_of(r)
                for r in u.src[0].ranges
                if r.arg.kind.is_lane and r.arg.kind.name == "UPCAST"
            ]
        )
        loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
        nodes = sum(1 for x in toposort(u.src[0]) if x.op in ELEMENTWISE or x.op is Ops.LOAD)
        if lanes >= 4 or not loops or nodes > 40:
            continue
        axis = max(loops, key=size_of)
        if axis.src[0].op is not Ops.CONST:
            continue
        for n in (8, 6, 4, 3, 2):
            if lanes * n <= 8 and size_of(axis) % n == 0:
                kernel.apply(Opt(OptOps.UPCAST, axis_number(kernel, axis), n))
                plan.refresh()
                break


# threads


def choose_threads(plan: Plan) -> None:
    """Shares the outermost fitting output axis out over threads, when there is enough to do."""
    kernel, target = plan.kernel, plan.target
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if target.threads < 2 or not loops:
        return
    work = (
        iterations(kernel.outputs)
        * max([iterations(list(u.src[1:])) for u in kernel.reduces], default=1)
        * max(plan.nodes, 1)
    )
    least = THREAD_WORK * lane_discount(kernel)
    costs = ("its work", float(work)), ("work from which threads pay", float(least))
    if work < least:
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

    # Evenly divisible axes first, then long ones; the given order decides between equals.
    def badness(r: UOp) -> float:
        size = size_of(r)
        return float(ceildiv(size, target.threads) * target.threads / size)

    axis = min(fitting, key=lambda r: (round(badness(r), 1), loops.index(r)))
    # Where the rest of the axis stays in its place, loops around it are not entered for each step.
    chunks = target.threads if axis.src[0].op is Ops.CONST and loops[0] is not axis else 0
    if chunks and size_of(axis) % chunks:
        chunks = 0
    kernel.notes.append(Note("threads", f"parts of {axis_text(kernel, axis)}", costs))
    kernel.apply(Opt(OptOps.THREAD, axis_number(kernel, axis), chunks))


def lane_discount(kernel: Kernel) -> int:
    """SIMD lanes make work quicker, so that more of it is needed to pay for a thread."""
    return max(
        [
            size_of(r)
            for r in toposort(kernel.sink)
            if r.op is Ops.RANGE and r.arg.kind.name == "VECTOR"
        ],
        default=1,
    )


# work-groups


def choose_group_opts(plan: Plan) -> None:
    """Blocks and work-items for devices that have them.

    A reduction with reuse along two output axes gets a block tile: work-items and lanes along both,
    its loads staged through local memory. One with few results is shared out over the work-items of
    a block. Anything else has work-items along its innermost output axis.
    """
    kernel = plan.kernel
    outputs = [r for r in kernel.outputs if kernel.may_reorder(r)]
    if tile_block(plan, outputs):
        return
    group_reductions(plan)
    for r in reversed([r for r in kernel.outputs if kernel.may_reorder(r)]):
        n = largest_divisor(r, min(64, plan.target.max_group // work_items(kernel)))
        if n > 1:
            kernel.apply(Opt(OptOps.LOCAL, axis_number(kernel, r), n))
            return


# Rows and columns of work-items, lanes each way, and depth of a strip in local memory.
BLOCK_SIDE, BLOCK_LANES, STRIP = 8, 4, 8
# Work-items that reduce together, and the fewest elements that each of them has to fold.
GROUP_SIZE, GROUP_LENGTH = 64, 4


def largest_divisor(r: UOp, limit: int) -> int:
    """The largest power of two up to `limit` that divides a constant size, else 1."""
    if r.src[0].op is not Ops.CONST:
        return 1
    return max(
        [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= limit and size_of(r) % n == 0],
        default=1,
    )


def work_items(kernel: Kernel) -> int:
    """Work-items of a block so far."""
    ranges = [r for r in toposort(kernel.sink) if r.op is Ops.RANGE]
    sizes = [size_of(r) for r in ranges if r.arg.kind in (AxisType.LOCAL, AxisType.GROUP)]
    return int(prod(sizes))


def tile_block(plan: Plan, outputs: list[UOp]) -> bool:
    """The tile of a matrix product, if the kernel is one and the sizes fit."""
    kernel, target = plan.kernel, plan.target
    main = [u for u in kernel.reduces if set(kernel.outputs) <= u.ranges]
    if len(main) != 1 or len(kernel.reduces) != 1 or BLOCK_SIDE**2 > target.max_group:
        return False
    mine = inside(plan, main[0])
    loads = [a for a in plan.accesses if a.node in mine]
    depth = max(main[0].src[1:], key=size_of)
    reused = [
        r
        for r in outputs
        if any(r not in a.strides for a in loads) and any(r in a.strides for a in loads)
    ]
    if len(reused) < 2 or largest_divisor(depth, STRIP) < STRIP:
        return False
    pair = sorted(reused, key=size_of)[-2:]
    side = BLOCK_SIDE * BLOCK_LANES
    if any(r.src[0].op is not Ops.CONST or size_of(r) % side for r in pair):
        return False
    nbytes = sum(side * STRIP * a.buffer.dtype.itemsize for a in loads)
    if nbytes > target.local_bytes:
        return False
    for r in pair:
        number = axis_number(kernel, r)
        kernel.apply(Opt(OptOps.UPCAST, number, BLOCK_LANES))
        kernel.apply(Opt(OptOps.LOCAL, number, BLOCK_SIDE))
    depth = next(r for u in kernel.reduces for r in u.src[1:] if r.arg.id == depth.arg.id)
    kernel.apply(Opt(OptOps.STAGE, reduction_number(kernel, depth), STRIP))
    return True


def group_reductions(plan: Plan) -> None:
    """Shares long reductions with few results out over the work-items of a block."""
    kernel = plan.kernel
    for u in kernel.reduces:
        if any(r.arg.kind.name == "REDUCE" for r in u.ranges) or not u.src[1:]:
            continue
        results = iterations(list(u.ranges))
        axis = max(u.src[1:], key=size_of)
        n = largest_divisor(axis, min(GROUP_SIZE, plan.target.max_group))
        if results > 4096 or n < 4 or size_of(axis) < n * GROUP_LENGTH:
            continue
        kernel.apply(Opt(OptOps.GROUP, reduction_number(kernel, axis), n))
