"""Work-groups: GROUP and STAGE axes become local memory and barriers.

Receives a kernel whose Opts are applied; returns its graph with numbers of blocks and of work-items
(`gpu/numbering`) in place of output axes. Only for targets with work-groups.
"""

from __future__ import annotations

from aster_ml.codegen.gpu.group_reduce import reduce_in_groups
from aster_ml.codegen.gpu.numbering import (
    items_in,
    number_work,
    order_of_items,
    size,
)
from aster_ml.codegen.gpu.tensor_cores import lanes_first, multiply_together
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.staging.stage import Stage, new_stage, position
from aster_ml.errors import InternalError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops


def build_blocks(kernel: Kernel, target: Target) -> None:
    """Work-groups: one block number and one work-item number, local memory and barriers."""
    order = lanes_first(kernel, order_of_items(kernel))
    if kernel.roles.staged is not None:
        stage_loads(kernel, kernel.roles.staged, order)
    multiply_together(kernel)
    reduce_in_groups(kernel, order, target)
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
