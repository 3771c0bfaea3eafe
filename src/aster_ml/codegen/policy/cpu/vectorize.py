"""Vectorization: the axes that get SIMD lanes, each candidate priced over all accesses.

Receives a Plan; applies VECTOR and what has to come before it: SPLIT, a halo, short rows that
are written out. What an access costs along an axis stands in `policy/cpu/costs`; tiles and
loops come later, in `policy/cpu/heuristic`.
"""

from __future__ import annotations

import functools

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply
from aster_ml.codegen.decompose.slots import more_slots
from aster_ml.codegen.kernel import Decision, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.cpu.costs import (
    Plan,
    accumulators,
    arithmetic_cost,
    axis_of,
    axis_text,
    is_float_maximum,
    lane_count,
    nest_of,
    reuse_of,
    vector_cost,
    widths,
)
from aster_ml.codegen.policy.cpu.panel import packing_cost
from aster_ml.codegen.policy.cpu.prefetch import columns_cost, moved_lanes
from aster_ml.codegen.policy.cpu.short_reductions import row_cost, row_lanes, write_out_rows
from aster_ml.codegen.policy.cpu.tails import (
    is_uneven,
    may_shift_tail,
    peels,
    rows_start_early,
    runs_by_rows,
)
from aster_ml.codegen.prefetch import own_nodes
from aster_ml.codegen.staging.halo import SlabCost, far_slab, slab_cost
from aster_ml.codegen.tails import can_peel
from aster_ml.helpers import ceildiv
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# Accesses in whole SIMD values, for each one at loaded places, from which on wide values pay.
IN_A_ROW = 2
# SIMD values that a tile has of the axis that lines from memory are broadcast to, and elements of a
# window, beyond which so much is computed between such lines that other things decide
# (docs/explanation/tuning/panels.md). Measured: on a convolution of 512 channels, 2026-11-24.
VALUES_ACROSS, FEW_USES = 2, 4


def choose_vector(plan: Plan, rank: int = 0) -> None:
    """One SIMD axis among the outputs, and one of its own for each reduction that lacks it.

    Every candidate (also none) is priced over all accesses: those in a reduction that does not
    depend on the candidate run with the reduction's own best axis.
    """
    kernel = plan.kernel
    target, costs = plan.target, plan.target.costs
    lanes = moved_lanes(plan, lane_count(plan))
    if lanes < 2:
        return
    owner = kernel.facts.owners
    around = {u: nest_of(plan, u) for u in (None, *kernel.reduces)}

    @functools.cache
    def arithmetic(u: UOp | None, axis: UOp | None, early: bool) -> float:
        return arithmetic_cost(target, axis, lanes, around[u], early)

    nests = [(a, u := owner.get(a.node), around[u]) for a in plan.accesses]
    own = {u: best_reduce_axis(plan, u, lanes) for u in kernel.reduces}
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    candidates: list[UOp | None] = [None, *[r for r in loops if widths(target, r, lanes)[0] > 1]]
    finish = finish_nodes(plan) if kernel.reduces else 0

    def price(axis: UOp | None, slab: SlabCost | None = None) -> float:
        total = 0.0 if slab is None else slab.cycles
        strips = 0
        each = row_lanes(plan, axis, lanes)
        ends_early = bool(each) or may_shift_tail(kernel, target, axis, lanes)
        for a, u, nest in nests:
            if slab is not None and a.node is slab.found.access.node:
                nodes = arithmetic(u, axis, False)
                total += nodes * (1 / reuse_of(a, nest, axis, lanes) + 1 + costs.uneven)
                continue
            by = own[u] if u is not None and axis not in u.ranges else axis
            early = ends_early and by is axis
            if each and axis is not None and u is not None:
                total += row_cost(target, a, axis, each, nest)
                total += arithmetic_cost(target, axis, each, nest, True)
                continue
            packing = None if u is None else packing_cost(plan, by, lanes, a, u, early)
            # A kernel has one panel.
            if packing is not None and not strips:
                total += packing.cycles
                total += arithmetic(u, by, False) / reuse_of(a, nest, by, lanes)
                strips = packing.strips
            else:
                each_time = vector_cost(target, by, lanes, a, nest, early)
                total += each_time / reuse_of(a, nest, by, lanes)
                total += far_cost(plan, a, u, by, lanes)
                if u is not None and by is not None and not early:
                    if is_uneven(target, a, by, lanes):
                        total += costs.uneven * arithmetic(u, by, False)
            total += arithmetic(u, by, early)
            if u is not None:
                total += columns_cost(plan, by, lanes, a, u)
        if strips > 1:
            # Sums are loaded and stored again with each strip.
            stores = [a for a in plan.accesses if a.is_store]
            nest = list(kernel.outputs)
            again = [vector_cost(target, axis, lanes, a, nest) for a in stores]
            total += 2 * (strips - 1) * sum(again)
        if not kernel.reduces:
            # What is computed beyond one node an access.
            more = plan.values + plan.extra - len(plan.accesses)
            total += max(more, 0) * arithmetic(None, axis, ends_early)
        else:
            total += finish * arithmetic(None, axis, ends_early)
        for u, by in own.items():
            if by is not None and axis not in u.ranges:
                # Lanes of a sum are added up once for each result.
                results = iterations(list(u.ranges))
                together = u.arg.op is Ops.ADD and u.dtype.kind == "float" and results >= lanes
                fold = costs.horizontal_together if together else costs.horizontal
                total += fold * results * (costs.maximum if is_float_maximum(u) else 1)
        return total

    prices = [price(r) for r in candidates]
    ranked = sorted(range(len(prices)), key=prices.__getitem__)
    axis = candidates[ranked[min(rank, len(ranked) - 1)]]
    names = [axis_text(r) for r in candidates]
    chosen = axis_text(axis)
    best: SlabCost | None = None
    for slab in [slab_cost(plan, r, lanes) for r in candidates if r is not None and not rank]:
        if slab is not None:
            prices.append(price(slab.found.columns.out, slab))
            names.append(f"{axis_text(slab.found.columns.out)}, windows in a slab")
            best, chosen = (slab, names[-1]) if prices[-1] <= min(prices) else (best, chosen)
    weighed = tuple(zip(names, prices, strict=True))
    kernel.notes.append(Decision("SIMD axis, cycles", chosen, weighed))
    if best is not None:
        axis = load_slab(plan, best)
    elif axis is not None:
        far = far_slab(plan, axis, lanes)
        if far is not None:
            load_slab(plan, far, whole=axis is not far.found.columns.out)
            axis = axis_of(kernel, axis.arg.id)
    if axis is not None:
        each = row_lanes(plan, axis, lanes)
        apply_vector(plan, axis, each or lanes_at_places(plan, axis, lanes), bool(each))
        if each:
            write_out_rows(plan)
    for r in dict.fromkeys([own[u] for u in own if axis is None or axis not in u.ranges]):
        if r is not None and r in kernel.axes and not meets_lanes(kernel, r):
            apply_vector(plan, r, lanes)


def far_cost(plan: Plan, a: Access, u: UOp | None, by: UOp | None, lanes: int) -> float:
    """Cycles of waiting for memory where a tile reads little of many rows, for each tile across.

    Of what is broadcast to lanes; packed into a panel, all comes but once.
    """
    kernel, itemsize = plan.kernel, a.buffer.dtype.itemsize
    if u is None or by is None or by in a.strides or a.buffer.op is not Ops.PARAM:
        return 0.0
    far = max(u.src[1:], key=lambda r: a.stride(r) or 0)
    nbytes = a.buffer.arg.size * itemsize
    if (a.stride(far) or 0) * itemsize < plan.target.page_nbytes:
        return 0.0
    if nbytes <= plan.target.costs.several_part * max(plan.target.cache_bytes):
        return 0.0
    if iterations([r for r in u.src[1:] if r is not far]) > FEW_USES:
        return 0.0
    if far_slab(plan, by, lanes) is not None:
        return 0.0
    across = iterations([r for r in kernel.outputs if r not in a.strides])
    lines = float(nbytes // plan.target.line_nbytes)
    return plan.target.costs.far_line * lines * across / (VALUES_ACROSS * lanes)


def lanes_at_places(plan: Plan, axis: UOp, lanes: int) -> int:
    """SIMD lanes of an axis along which places are loaded: as many as one value has of indices.

    Each lane is loaded or stored on its own, and more of them only spread over more lines and
    pages; unless most of what is read and stored lies in a row.
    """
    computed = [a.node.src[0].src[1] for a in plan.accesses if a.stride(axis) is None]
    loaded = [
        index
        for index in computed
        if any(u.op is Ops.LOAD and axis in u.ranges for u in toposort(index))
    ]
    few = len(loaded) * IN_A_ROW < len(plan.accesses) - len(loaded)
    if few or not loaded:
        return lanes
    return min(lanes, plan.target.vector_bits // plan.target.index_bits)


def finish_nodes(plan: Plan) -> int:
    """Operations on each result of reductions, loads and index arithmetic aside."""
    values = own_nodes(*[store.src[1] for store in plan.kernel.stores])
    mine = [u for u in values if u.op is not Ops.LOAD]
    return len(mine) + more_slots(mine, plan.target)


def meets_lanes(kernel: Kernel, axis: UOp) -> bool:
    """Whether something depends on the axis and has SIMD lanes: of a reduction inside another."""
    return any(
        axis in u.ranges and any(r.arg.kind is AxisType.VECTOR for r in u.ranges)
        for u in kernel.facts.order
        if u.op in VALUES
    )


def best_reduce_axis(plan: Plan, u: UOp, lanes: int) -> UOp | None:
    """The axis of a reduction that saves most as its SIMD axis, if any saves anything."""
    mine = plan.kernel.facts.inside[u]
    accesses = [a for a in plan.accesses if a.node in mine]
    target = plan.target
    wide = [r for r in u.src[1:] if widths(target, r, lanes)[0] > 1]
    if not accesses:
        return max(wide, key=size_of, default=None)

    nest = nest_of(plan, u)

    def price(r: UOp | None) -> float:
        arithmetic = arithmetic_cost(target, r, lanes, nest)
        each = [(vector_cost(target, r, lanes, a, nest), a) for a in accesses]
        return sum([cost / reuse_of(a, nest, r, lanes) + arithmetic for cost, a in each])

    return min([None, *wide], key=price)


def has_tile(plan: Plan, axis: UOp) -> bool:
    """Whether what is loaded from memory along an axis of a reduction serves several results.

    A register tile of these has sums enough to keep the processor busy, and one panel at most. What
    is left over of the axis runs on its own once the panel is filled (see `peeling`).
    """
    owner = plan.kernel.facts.owners
    for a in plan.accesses:
        u = owner.get(a.node)
        if u is not None and axis in u.src[1:] and a.buffer.op is Ops.PARAM:
            results = [r for r in plan.kernel.outputs if r in u.ranges and not r.arg.kind.is_lane]
            if any([size_of(r) > 1 and r not in a.strides for r in results]):
                return True
    return False


def load_slab(plan: Plan, slab: SlabCost, whole: bool = False) -> UOp:
    """Has windows loaded through scratch; the axis that they lie along, as it is then."""
    kernel, number = plan.kernel, slab.found.columns.out.arg.id
    rows = slab.found.rows
    if rows is not None and slab.rows < size_of(rows.out):
        apply(kernel, Opt(OptOps.SPLIT, axis_name(rows.out), slab.rows, how="loop"))
    axis = axis_of(kernel, number)
    apply(kernel, Opt(OptOps.STAGE, axis_name(axis), int(whole), how="halo"))
    return axis_of(kernel, number)


def apply_vector(plan: Plan, axis: UOp, lanes: int, by_rows: bool = False) -> None:
    """Splits the SIMD lanes off an axis, padding it first where that is worth it.

    Lanes that have a short row each start early at the end of the axis.
    """
    kernel = plan.kernel
    if peels(plan.target, axis, lanes) and not has_tile(plan, axis):
        reduce = next(u for u in kernel.reduces if axis in u.src[1:])
        most = min(accumulators(plan, reduce), size_of(axis) // lanes)
        # What is peeled off leaves a multiple of so many accumulators, or a few less; or whole
        # SIMD values, where a longer axis has the accumulators (see `choose_partials`).
        others = [size_of(r) for r in reduce.src[1:] if r is not axis]
        alone = size_of(axis) // lanes >= max(others, default=0)
        steps = [n * lanes for n in range(most, most * 3 // 4 - 1, -1)] if alone else [lanes]
        length = max([size_of(axis) // n * n for n in steps])
        if length != size_of(axis) and can_peel(kernel, axis):
            apply(kernel, Opt(OptOps.SPLIT, axis_name(axis), length, how="peel"))
            axis, rest = (
                next(r for r in kernel.axes if r.arg.id == i)
                for i in (axis.arg.id, kernel.next_id - 1)
            )
            # In SIMD values of the same width, so that both are folded at once.
            name, padded = axis_name(rest), ceildiv(size_of(rest), lanes) * lanes
            if padded != size_of(rest):
                apply(kernel, Opt(OptOps.SPLIT, name, padded, how="mask"))
            apply(kernel, Opt(OptOps.VECTOR, name, lanes))
            axis = next(r for r in kernel.axes if r.arg.id == axis.arg.id)
    early = by_rows or may_shift_tail(kernel, plan.target, axis, lanes)
    early = early or rows_start_early(plan, axis, lanes) or kernel.loads_slab(axis)
    width, padded = widths(plan.target, axis, lanes, early)
    if padded != size_of(axis) and not (early and size_of(axis) > lanes):
        apply(kernel, Opt(OptOps.SPLIT, axis_name(axis), padded, how="mask"))
        axis = next(r for r in kernel.axes if r.arg.id == axis.arg.id)
    if axis in kernel.outputs:
        plan.vector_id = axis.arg.id
        plan.by_rows = runs_by_rows(kernel, plan.target, axis, lanes)
    apply(kernel, Opt(OptOps.VECTOR, axis_name(axis), width))
