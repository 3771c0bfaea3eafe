"""Maps output axes to block numbers and work-item numbers.

Receives a kernel whose axes are final; returns its graph with up to three GLOBAL ranges and one
LOCAL range. The range with the lowest id is the first (fastest) dimension of a launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import BlockOrder, PersistentBlocks
from aster_ml.codegen.work_groups.tile_order import clusters_of, delinearize_tile, looped
from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError, KernelOptError
from aster_ml.helpers import ceildiv, prod
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu, to_uop
from aster_ml.uop.ops import AxisType, Ops, RangeArg
from aster_ml.uop.ranges import iterations, size_of

# Largest number of blocks along each dimension.
GridLimits = tuple[int, ...]


def size(r: UOp) -> int:
    """Constant size of an axis."""
    if r.src[0].op is not Ops.CONST:
        raise InternalError(f"blocks: the axis {r!r} has no constant size")
    return int(r.src[0].arg)


def ranges_of_kind(kernel: Kernel, *kinds: AxisType) -> list[UOp]:
    """The axes of these kinds, by id."""
    return sorted(
        [r for r in kernel.facts.order if r.op is Ops.RANGE and r.arg.kind in kinds],
        key=lambda r: r.arg.id,
    )


def order_of_items(kernel: Kernel) -> list[int]:
    """The ids of work-item axes, the one with the smallest strides in memory last.

    why: consecutive work-items read consecutive elements (coalescing)
    """
    accesses = [a for a in kernel.accesses() if a.buffer.op is Ops.PARAM]
    axes = ranges_of_kind(kernel, AxisType.LOCAL, AxisType.GROUP)

    def nearest(r: UOp) -> tuple[int, ...]:
        # Loads come first, since more is loaded than stored.
        return tuple(
            min(
                [abs(n) for a in accesses if a.is_store is stores and (n := a.strides.get(r))]
                or [0]
            )
            for stores in (False, True)
        )

    return [r.arg.id for r in sorted(axes, key=nearest, reverse=True)]


def items_in(kernel: Kernel, order: list[int], more: Iterable[UOp] = ()) -> list[UOp]:
    """The work-item axes in this order, then `more` that the graph will have."""
    items = [*ranges_of_kind(kernel, AxisType.LOCAL), *more]
    return sorted(items, key=lambda r: order.index(r.arg.id))


def axes_in_rows(kernel: Kernel) -> list[UOp]:
    """Output loops that run inside a block, after a reduction that all their steps share.

    why: a block for each element of a row would reduce the whole row for that element
    """
    loops = kernel.output_loops
    rows = [r for r in loops if all([r in u.ranges for u in kernel.reduces])]
    return [r for r in loops if r not in rows]


def number_work(kernel: Kernel, order: list[int], most: GridLimits) -> UOp:
    """Replaces block axes by block numbers and work-item axes by one number; other loops stay.

    Up to three block axes that fit are dimensions of the launch, which needs no divisions. More are
    one number, made of two dimensions where it exceeds one; surplus blocks compute the last tile
    again and store nothing. Opts BLOCKS reorder tiles, give a block many, or make clusters of
    blocks, whose first dimension is the rank in the cluster (`tile_order`).
    """
    inside = axes_in_rows(kernel)
    blocks = [r for r in kernel.output_loops if r not in inside and kernel.may_reorder(r)]
    items = items_in(kernel, order)
    changes: dict[UOp, UOp] = {}
    gate = None
    clusters, order_plan = clusters_of(kernel, blocks), kernel.plan(BlockOrder)
    own, count = blocks, kernel.count(PersistentBlocks)
    if clusters is not None:
        blocks = [clusters.over if r is clusters.axis else r for r in own]
        most, count = most[1:], count // size_of(clusters.rank)
    sizes = [size_of(r) for r in reversed(blocks)]
    loops: tuple[UOp, ...] = ()
    many = 0 < count < iterations(blocks)
    if many or order_plan is not None:
        total = to_uop(prod([r.src[0] for r in blocks]))
        if many:
            first = number(kernel, UOp.index_const(count), AxisType.GLOBAL)
            tile, turn = looped(kernel, first, blocks)
            loops = (turn,)
        else:
            tile, gate = block_number(kernel, total, iterations(blocks), most)
        ordered = {} if order_plan is None else delinearize_tile(order_plan, tile, blocks)
        if order_plan is not None and not ordered:
            raise KernelOptError(
                "BLOCKS order: the axis has no blocks, or is the only one; two axes of blocks are "
                "wanted"
            )
        changes |= ordered or delinearize(tile, blocks)
    elif len(blocks) <= len(most) and all([n <= m for n, m in zip(sizes, most, strict=False)]):
        for r in reversed(blocks):
            changes[r] = number(kernel, r.src[0], AxisType.GLOBAL)
    else:
        total = to_uop(prod([r.src[0] for r in blocks]))
        block, gate = block_number(kernel, total, iterations(blocks), most)
        changes |= delinearize(block, blocks)
    if clusters is not None:
        changes[clusters.axis], own_tile = clusters.tile(changes.pop(clusters.over))
        gate = (
            gate if own_tile is None else own_tile if gate is None else gate.alu(Ops.AND, own_tile)
        )
    if items:
        total = to_uop(prod([r.src[0] for r in items]))
        changes |= delinearize(number(kernel, total, AxisType.LOCAL), items)
    kernel.outputs = [*loops, *[r for r in kernel.outputs if r not in changes]]
    parts = dict.fromkeys(changes, ())
    kernel.rewrite(changes, parts | dict.fromkeys(own[:1], loops))
    return kernel.sink if gate is None else store_where(kernel, gate)


def number(kernel: Kernel, size: UOp, kind: AxisType) -> UOp:
    """A new number of blocks or of work-items."""
    kernel.next_id += 1
    return UOp(Ops.RANGE, dtypes.index, (size,), RangeArg(kernel.next_id - 1, kind))


def block_number(
    kernel: Kernel, total: UOp, largest: int, most: GridLimits
) -> tuple[UOp, UOp | None]:
    """A block number of one or two dimensions, and a gate that is false for surplus blocks.

    Raises: InternalError where two dimensions are too small.
    """
    if largest <= most[0]:
        return number(kernel, total, AxisType.GLOBAL), None
    rows = ceildiv(largest, most[0])
    width = ceildiv(largest, rows) if total.op is Ops.CONST else most[0]
    if rows > most[1]:
        raise InternalError(f"blocks: {largest} blocks, and a launch has room for {most}")
    along = number(kernel, UOp.index_const(width), AxisType.GLOBAL)
    size = index_alu(Ops.ADD, total, UOp.index_const(width - 1))
    down = number(kernel, index_alu(Ops.IDIV, size, UOp.index_const(width)), AxisType.GLOBAL)
    block = index_alu(Ops.ADD, index_alu(Ops.MUL, down, UOp.index_const(width)), along)
    if total.op is Ops.CONST and total.arg == width * rows:
        return block, None
    # min(block, total - 1)
    over = index_alu(Ops.SUB, index_alu(Ops.ADD, block, UOp.index_const(1)), total)
    over = index_alu(Ops.MAX, over, UOp.index_const(0))
    return index_alu(Ops.SUB, block, over), block.alu(Ops.CMPLT, total)


def delinearize(whole: UOp, axes: Sequence[UOp]) -> dict[UOp, UOp]:
    """Delinearizes a number into an index for each axis; the last axis is the fastest."""
    found: dict[UOp, UOp] = {}
    for i, r in enumerate(reversed(axes)):
        found[r] = whole if i == len(axes) - 1 else index_alu(Ops.MOD, whole, r.src[0])
        whole = index_alu(Ops.IDIV, whole, r.src[0])
    return found


def store_where(kernel: Kernel, gate: UOp) -> UOp:
    """The graph with one more gate on all stores."""
    gated: dict[UOp, UOp] = {}
    for store in kernel.stores:
        # A box has its places before a gate.
        own = 2 + (len(store.arg.sizes) if store.op is Ops.TMA_STORE else 0)
        both = store.src[own].alu(Ops.AND, gate) if len(store.src) > own else gate
        gated[store] = UOp(store.op, store.dtype, (*store.src[:own], both), store.arg)
    return substitute(kernel.sink, gated)
