"""Prefetch distance and non-temporal stores of kernels whose working set exceeds the caches.

Receives a Plan and accesses; gives steps, bytes and costs, none where it does not pay, and applies
PREFETCH to reductions; hints of elementwise kernels are applied in `policy/cpu/elementwise`.
Where constants come from: docs/explanation/tuning/prefetch.md and non-temporal-stores.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Access, Decision
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.plans import RowSums, Strips
from aster_ml.codegen.policy.cpu.costs import (
    TILE_REUSE,
    Plan,
    arithmetic_cost,
    axis_of,
    execution_count,
    nest_of,
)
from aster_ml.codegen.prefetch import (
    broadcast_columns,
    broadcast_rows,
    column_loads,
    run_of_lanes,
    streamed_loads,
    tile_loads,
)
from aster_ml.codegen.staging.panel import max_nbytes, panel_nbytes, panel_of
from aster_ml.codegen.tails import may_split
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# Nodes of a kernel up to which memory is all that it waits for. Measured: on a Zen 4, 2026-11-23
# (docs/explanation/tuning/non-temporal-stores.md).
MAX_MOVED = 12


def least_row(target: Target) -> int:
    """Bytes of the shortest row that is asked for: memory has to rest meanwhile."""
    return target.page_nbytes // 4


def streamed_nbytes(plan: Plan, a: Access) -> int:
    """Bytes that a store writes in whole lines of memory, past which nothing reads them; or 0.

    Its lanes, or they and the innermost loop, go along neighbours; nothing else is in the way.
    """
    outputs = plan.kernel.outputs
    lanes = [r for r in outputs if r.arg.kind is AxisType.VECTOR]
    if len(lanes) != 1 or a.stride(lanes[0]) != 1 or a.buffer.op is not Ops.PARAM:
        return 0
    itemsize = a.buffer.dtype.itemsize
    # Rows that begin anywhere in a line have lines that no store fills.
    whole = min(size_of(lanes[0]) * itemsize, plan.target.line_nbytes)
    if any((a.stride(r) or 0) * itemsize % whole for r in outputs if r is not lanes[0]):
        return 0
    kernel = plan.kernel
    if a.node.src[2:] or kernel.plan(Strips) is not None or kernel.facts.stores_over_reads:
        return 0
    run = size_of(lanes[0])
    for r in sorted((r for r in outputs if r.arg.kind is AxisType.UPCAST), key=size_of):
        run *= size_of(r) if a.stride(r) == run else 1
    loops = [r for r in outputs if not r.arg.kind.is_lane]
    goes_on = bool(loops) and a.stride(loops[-1]) == run
    if run * itemsize < plan.target.line_nbytes and not goes_on:
        return 0
    return held_nbytes(a)


def past_caches(plan: Plan) -> Decision | None:
    """Why the stores of a kernel should go past the caches; None where they should not.

    They should where the kernel moves so much that the last cache keeps little of what is stored:
    a line that is not in it is read before it is written. A kernel with small results leaves them
    in the cache, whatever it has read.
    """
    last, figures = max(plan.target.cache_bytes), plan.target.costs
    stored = [streamed_nbytes(plan, a) for a in plan.accesses if a.is_store]
    if not last or min(stored, default=0) < figures.kept_part * last:
        return None
    costs = (
        ("moved bytes", float(moved_nbytes(plan))),
        ("bytes from which on", figures.full_part * last),
    )
    return Decision("stores", "past the caches", costs) if costs[0][1] >= costs[1][1] else None


def moved_nbytes(plan: Plan) -> int:
    """Bytes of memory that a kernel reads and writes, each element once."""
    moved: dict[UOp, int] = {}
    for a in plan.accesses:
        if a.buffer.op is Ops.PARAM:
            moved[a.buffer] = max(moved.get(a.buffer, 0), held_nbytes(a))
    return sum(moved.values())


def moved_lanes(plan: Plan, lanes: int) -> int:
    """The SIMD lanes of a kernel that waits for memory: where registers are wider, what one load
    moves at a time.

    That is quicker by a tenth where little is computed with each element of the largest buffer,
    once, and everything lies along one axis: that of a reduction, where there is one.
    """
    target, last = plan.target, max(plan.target.cache_bytes)
    if not 0 < target.move_bits < target.vector_bits or not last:
        return lanes
    if plan.values > MAX_MOVED or plan.extra or moved_nbytes(plan) < target.costs.full_part * last:
        return lanes
    kernel = plan.kernel
    if kernel.reduces and kernel.outputs:
        # What rows share makes tiles of them, and these are asked for in whole lines.
        row, loads = kernel.outputs[-1], [a for a in plan.accesses if not a.is_store and a.strides]
        tiles = [(a, TILE_REUSE * (a.stride(row) or 0)) for a in loads if row in a.strides]
        if len(tiles) < len(loads) and tile_ahead(plan, tiles):
            return lanes
    axes = {r for u in kernel.reduces for r in u.src[1:]} or set(kernel.outputs)
    once = False
    for a in plan.accesses:
        if a.strides and not (a.is_store and kernel.reduces):
            axes = {r for r in axes if a.stride(r) == 1}
            nest = nest_of(plan, kernel.facts.owners.get(a.node))
            once |= execution_count(a) == iterations(nest) <= a.buffer.arg.size
    return lanes * target.move_bits // target.vector_bits if axes and once else lanes


def columns_ahead(plan: Plan, loads: list[Access]) -> int:
    """Prefetch distance of columns that a product goes down, in steps; 0 for none.

    It pays where each row is on a page of its own, which prefetchers do not cross, and no near
    cache holds all of the matrix. What is asked for should fit the second one until it is wanted.
    """
    target = plan.target
    near, last = target.cache_bytes[1], target.costs.several_part * max(target.cache_bytes)
    ahead = steps = target.costs.lines_ahead * target.line_nbytes
    for a in loads:
        itemsize = a.buffer.dtype.itemsize
        axes = [r for r in a.strides if r.arg.kind is AxisType.REDUCE]
        far = min(abs(a.strides[r] or 0) for r in axes) * itemsize
        if far < plan.target.page_nbytes // 2 or execution_count(a) * itemsize <= near:
            return 0
        nbytes = run_of_lanes(a) * itemsize
        most = near // (nbytes * iterations(axes))
        # Processors go on by themselves after so many lines. And from the last cache a matrix comes
        # as quickly as what it would push out of the second one.
        if nbytes >= ahead or (most < 2 and execution_count(a) * itemsize <= last):
            return 0
        steps = min(steps, ceildiv(ahead, nbytes), max(most, 1))
    return steps


def tile_ahead(plan: Plan, loads: list[tuple[Access, int]]) -> bool:
    """Whether a reduction asks for the next rows of a matrix while it goes along some of them.

    It pays where these come from memory: processors ask for what follows in a row by themselves,
    but not across its pages, nor for other rows. They should fit the second cache beside these.
    """
    target = plan.target
    near, last = target.cache_bytes[1], target.costs.full_part * max(target.cache_bytes)
    nbytes = sum([n * a.buffer.dtype.itemsize for a, n in loads])
    return max([held_nbytes(a) for a, _ in loads], default=0) > last and nbytes <= near // 2


def broadcast_rows_ahead(plan: Plan, loads: list[tuple[Access, int]]) -> bool:
    """Whether a product asks for the next rows that it broadcasts while it goes along some.

    It pays where these come from afar for each panel of the other operand: processors ask for what
    follows in a row, but each tile has new ones. They should fit the second cache beside the panel.
    """
    for a, n in loads:
        row = iterations(summed_axes(a)) * a.buffer.dtype.itemsize
        nbytes = n * a.buffer.dtype.itemsize
        if row < least_row(plan.target) or not row <= nbytes <= plan.target.cache_bytes[1] // 4:
            return False
        asks = iterations([r for r in a.strides if r.arg.kind is AxisType.UPCAST])
        if not (is_broadcast_from_afar(plan, a) and can_ask(plan, asks)):
            return False
    return bool(loads)


def broadcast_columns_ahead(plan: Plan, loads: list[tuple[Access, int]]) -> bool:
    """The same of columns, each row of which is on a page of its own."""
    for a, _ in loads:
        steps = [abs(a.strides[r] or 0) for r in summed_axes(a)]
        if min(steps) * a.buffer.dtype.itemsize < plan.target.page_nbytes // 2:
            return False
        if not (is_broadcast_from_afar(plan, a) and can_ask(plan, 1)):
            return False
    return bool(loads)


def is_broadcast_from_afar(plan: Plan, a: Access) -> bool:
    """Whether what is broadcast comes from so far that a product waits for it.

    That is beyond the second cache. Where a broadcast is a load of its own, to ask takes 2 to 10%
    of a product, which comes back where the last cache does not hold the operand for sure.
    """
    embedded = plan.target.broadcasts
    lost = 0.0 if embedded else plan.target.costs.kept_part * max(plan.target.cache_bytes)
    return held_nbytes(a) > max(plan.target.cache_bytes[1], lost)


def summed_axes(a: Access) -> list[UOp]:
    """The axes of reductions that an access changes with."""
    kinds = AxisType.REDUCE, AxisType.UNROLL
    return [r for r in a.strides if r.arg.kind in kinds]


def held_nbytes(a: Access) -> int:
    """Bytes of memory that an access goes to in all."""
    return int(min(execution_count(a), a.buffer.arg.size)) * a.buffer.dtype.itemsize


def can_ask(plan: Plan, count: int) -> bool:
    """Whether a step of a product has room for so many more loads beside those of its tile.

    Where it has none, asking takes longer than waiting (docs/explanation/tuning/prefetch.md).
    """
    sides = [size_of(r) for r in plan.kernel.outputs if r.arg.kind is AxisType.UPCAST]
    results = prod(sides)
    return bool(sum(sides) + (len(sides) < 2) + count <= results * plan.target.costs.loads_a_result)


def columns_cost(plan: Plan, axis: UOp | None, lanes: int, a: Access, reduce: UOp) -> float:
    """Cycles for an operand without SIMD lanes that goes down columns of a large matrix.

    Nothing asks for these in time: they are read again for each panel of the other operand, a few
    neighbours at each step, while SIMD lanes along them would be asked for, or packed once.
    """
    if axis is None or axis in a.strides or a.is_store or axis not in plan.kernel.outputs:
        return 0.0
    itemsize = a.buffer.dtype.itemsize
    steps = [abs(a.strides[r] or 0) for r in reduce.src[1:] if r in a.strides]
    nbytes = execution_count(a) * itemsize
    target, costs = plan.target, plan.target.costs
    near = min(steps, default=0) * itemsize < least_row(target)
    if near or nbytes <= target.cache_bytes[1]:
        return 0.0
    lost = min(nbytes / (costs.kept_part * max(target.cache_bytes)), 1.0)
    each = arithmetic_cost(target, axis, lanes, nest_of(plan, reduce))
    return costs.down_columns * lost * each


def rows_ahead(plan: Plan, axis: UOp, loads: Iterable[Access]) -> int:
    """Prefetch distance of further rows, in steps of an axis; 0 where it does not pay.

    It pays where passes after the first find a row in the cache, and the row is long enough for
    memory to rest meanwhile.
    """
    nbytes = [abs(a.stride(axis) or 0) * a.buffer.dtype.itemsize for a in loads]
    total = sum(size_of(axis) * n for n in nbytes)
    caches = plan.target.cache_bytes
    steps = ceildiv(plan.target.costs.pages_ahead * plan.target.page_nbytes, max(min(nbytes), 1))
    kept = plan.target.costs.kept_part * max(caches)
    if min(nbytes) < least_row(plan.target) or total <= kept:
        return 0
    return steps if (steps + 1) * sum(nbytes) <= caches[1] // 2 else 0


def ask_for_columns(plan: Plan) -> None:
    """A product asks for columns of a large matrix some steps before it goes down them.

    Of whole rows that serve one result alone, processors ask for what follows by themselves.
    """
    kernel = plan.kernel
    by_rows = kernel.plan(RowSums) is not None
    if by_rows and not any(r.arg.kind is AxisType.UPCAST for r in kernel.outputs):
        return
    panel = panel_of(kernel)
    fits = panel is not None and panel_nbytes(kernel, panel) <= max_nbytes(plan.target)
    packed = panel.node if panel is not None and fits else None
    for axis in [r for r in kernel.outputs if not r.arg.kind.is_lane][::-1]:
        loads = column_loads(kernel.facts, axis)
        if any(a.node is packed or a.node.arg is not None for a in loads):
            return
        if loads:
            steps = columns_ahead(plan, loads)
            if steps:
                apply(kernel, Opt(OptOps.PREFETCH, axis_name(axis), steps))
            return


def ask_for_rows(plan: Plan) -> bool:
    """A reduction that goes along some rows of a large matrix at a time asks for the next ones."""
    kernel = plan.kernel
    for axis in [r for r in kernel.outputs if not r.arg.kind.is_lane][::-1]:
        loads = tile_loads(kernel.facts, axis, kernel.count(RowSums))
        if any(a.node.arg for a, _ in loads) or not tile_ahead(plan, loads):
            continue
        # Steps that are a line together ask for it once.
        run = min([run_of_lanes(a) * a.node.dtype.itemsize for a, _ in loads])
        steps = ceildiv(plan.target.line_nbytes, run)
        if kernel.plan(RowSums) is not None:
            along, op = [axis], OptOps.UPCAST
        else:
            along, op = list(loads[0][0].strides), OptOps.UNROLL
            along = [r for r in kernel.axes if r.arg.kind is AxisType.REDUCE and r in along]
        if steps > 1:
            if not along or not may_split(kernel, along[-1], steps):
                continue
            if along[-1] is axis and steps == size_of(axis):
                continue
            apply(kernel, Opt(op, axis_name(along[-1]), steps))
        left = axis_of(kernel, axis.arg.id)
        apply(kernel, Opt(OptOps.PREFETCH, axis_name(left), 1))
        return True
    return False


def ask_for_broadcasts(plan: Plan) -> None:
    """A product asks for the next rows, or columns, of a large matrix that it broadcasts.

    Columns of the next tile may begin in one line and end in another, so it asks for those of the
    one after.
    """
    kernel = plan.kernel
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if not loops:
        return
    rows, columns = broadcast_rows(kernel.facts, loops[-1]), []
    steps = 1 if broadcast_rows_ahead(plan, rows) else 0
    if not rows:
        columns = broadcast_columns(kernel.facts, loops[-1])
        steps = 2 if broadcast_columns_ahead(plan, columns) else 0
    if steps and not any(a.node.arg for a, _ in rows + columns):
        apply(kernel, Opt(OptOps.PREFETCH, axis_name(loops[-1]), steps))


def ask_for_words(plan: Plan) -> None:
    """The words of blocks to come are asked for while those of one are multiplied.

    why: a block takes so many instructions that a processor sees only a few loads ahead, and what
    comes from memory one after the other then takes nearly twice the time of a plain sum; asking
    costs nothing where all is in the caches
    """
    kernel, target = plan.kernel, plan.target
    for axis in [r for r in kernel.facts.reduced if r.arg.kind is AxisType.REDUCE]:
        found = streamed_loads(kernel.facts, axis, target.line_nbytes)
        steps = [n for a, n in found if a.buffer.dtype in (dtypes.uint8, dtypes.int8)]
        if steps:
            ahead = ceildiv(target.costs.words_ahead_nbytes, min(steps))
            apply(kernel, Opt(OptOps.PREFETCH, axis_name(axis), ahead))
            return
