"""Work-groups: GROUP and STAGE axes become local memory and barriers.

Receives a kernel whose Opts are applied; returns its graph with numbers of blocks and of work-items
(`gpu/numbering`) in place of output axes. Only for targets with work-groups.
"""

from __future__ import annotations

from math import isqrt

from aster_ml.codegen.gpu.numbering import (
    items_in,
    number_work,
    order_of_items,
    ranges_of_kind,
    size,
    store_where,
)
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.staging.stage import ZERO, Stage, new_stage, position
from aster_ml.errors import InternalError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops, ReduceArg


def build_blocks(kernel: Kernel, target: Target) -> None:
    """Work-groups: one block number and one work-item number, local memory and barriers."""
    order = order_of_items(kernel)
    if kernel.roles.staged is not None:
        stage_loads(kernel, kernel.roles.staged, order)
    reduce_in_groups(kernel, order)
    kernel.sink = number_work(kernel, order, target.max_grid)


def stage_loads(kernel: Kernel, strip_id: int, order: list[int]) -> None:
    """Loads of a strip of a reduction go through local memory.

    rewrite: LOAD(INDEX(p, f(tile axes))) -> LOAD(INDEX(local, position of the tile axes)), after
    all work-items together have filled `local` with f over the tile, and a barrier
    why: each element of the tile is read by many work-items, and from memory only once
    """
    strip = next(r for r in kernel.facts.order if r.op is Ops.RANGE and r.arg.id == strip_id)
    items = items_in(kernel, order)
    n_items = prod([size(r) for r in items])
    tile_kinds = (AxisType.LOCAL, AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)
    fills: list[UOp] = []
    tiles: dict[UOp, Stage] = {}
    taken = list(kernel.facts.order)
    for u in [x for x in kernel.facts.order if x.op is Ops.LOAD and strip in x.ranges]:
        axes = sorted([r for r in u.ranges if r.arg.kind in tile_kinds], key=lambda r: r.arg.id)
        count = prod([size(r) for r in axes])
        tiles[u] = local = new_stage(taken, u.dtype, axes)
        taken.append(local.memory)
        if count % n_items:
            raise InternalError(f"blocks: {n_items} work-items cannot share {count} elements")
        turn = kernel.new_range(count // n_items, AxisType.UPCAST)
        element = index_alu(
            Ops.ADD, index_alu(Ops.MUL, turn, UOp.index_const(n_items)), position(items)
        )
        place: dict[UOp, UOp] = {}
        rest = element
        for i, r in enumerate(reversed(axes)):
            last = i == len(axes) - 1
            place[r] = rest if last else index_alu(Ops.MOD, rest, r.src[0])
            rest = index_alu(Ops.IDIV, rest, r.src[0])
        fills.append(local.fill(element, substitute(u, place)))
    reads = {u: local.after_all(*fills).load(local.at()) for u, local in tiles.items()}
    kernel.sink = substitute(kernel.sink, reads)


def rounds(count: int) -> list[int]:
    """How many values each work-item folds in each round, of so many.

    Two rounds where both together are half as many: another barrier takes time, too.
    """
    first = next((n for n in range(isqrt(count), 1, -1) if count % n == 0), 1)
    second = count // first
    return [second, first] if 2 * (first + second) <= count else [count]


def turns(item: UOp, folding: int, count: int) -> UOp:
    """`count` turns of a loop for the first of the work-items, none for the others."""
    whole = UOp.index_const(count)
    if folding == size(item):
        return whole
    return item.alu(Ops.CMPLT, UOp.index_const(folding)).where(whole, UOp.index_const(0))


def reduce_in_groups(kernel: Kernel, order: list[int]) -> None:
    """Work-items reduce a part each, and then all parts.

    rewrite: REDUCE(v, k, g) -> REDUCE(LOAD(local at r), r), after every work-item g has stored
    REDUCE(v, k) in `local` at g, and a barrier; `g` becomes the work-item's number. Of many parts
    some work-items reduce some each, and after another barrier those who want the result these
    why: a reduction with few results would leave most work-items without work
    """
    taken = list(kernel.facts.order)
    shared = None
    changes: dict[UOp, UOp] = {}
    gates: list[UOp] = []
    outputs = ranges_of_kind(kernel, AxisType.LOCAL)
    for u in kernel.reduces:
        groups = [r for r in u.src[1:] if r.arg.kind is AxisType.GROUP]
        if not groups:
            continue
        g = groups[0]
        twin = [r for r in outputs if size(r) == size(g) and r not in u.ranges]
        if twin:
            item = twin[0]
        else:
            if shared is None or size(shared) != size(g):
                shared = kernel.new_range(size(g), AxisType.LOCAL)
                gates.append(shared)
                order[order.index(g.arg.id)] = shared.arg.id
            item = shared
        value = substitute(u.src[0], {**changes, g: item})
        rest = tuple([r for r in u.src[1:] if r is not g])
        part = UOp(Ops.REDUCE, u.dtype, (value, *rest), u.arg) if rest else value
        axes = sorted(
            [
                r
                for r in part.ranges
                if r is not item and (r.arg.kind is AxisType.LOCAL or r.arg.kind.is_lane)
            ],
            key=lambda r: r.arg.id,
        )
        left = size(g)
        for count in rounds(left):
            left //= count
            local = new_stage(taken, u.dtype, [*axes, item])
            taken.append(local.memory)
            # Of this round as many work-items have a part as there will be values; in the last one
            # all who want the result fold what is left, one of them where one stores it.
            folding = left if left > 1 else size(g) if twin else 1
            again = kernel.new_range(turns(item, folding, count), AxisType.REDUCE)
            stride = UOp.index_const(left)
            at = index_alu(Ops.ADD, index_alu(Ops.MUL, again, stride), item if left > 1 else ZERO)
            read = local.after_all(local.fill(local.at(), part)).load(local.at({item: at}))
            part = UOp(Ops.REDUCE, u.dtype, (read, again), ReduceArg(u.arg.op))
        changes[u] = part
    if not changes:
        return
    kernel.sink = substitute(kernel.sink, changes)
    for item in gates:
        # Of those that share the result one stores it.
        kernel.sink = store_where(kernel, item.alu(Ops.CMPLT, UOp.index_const(1)))
