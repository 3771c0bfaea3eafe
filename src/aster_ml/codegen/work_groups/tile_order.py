"""Maps blocks to tiles: rasterization order for the L2 cache, persistent blocks, clusters.

Receives a kernel and its Opts BLOCKS; returns the number of a tile, and the axes of blocks as
functions of it. `numbering` puts them into the graph.

rewrite, of order: block b -> r = b mod g, c = b / g within strips of g rows of tiles
rewrite, of a loop: block b of n tiles -> block g of p, and for t: b = t * p + g
rewrite, of a cluster of n: axis -> n * c + rank, where clusters are numbered as blocks else are
when: a producer warp copies ahead, from the strips of one tile on to those of the next

A block beyond the last tile of an axis computes the last tile again and stores nothing, since it
copies for the other blocks of its cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import (
    BlockCluster,
    BlockOrder,
    Fragments,
    PersistentBlocks,
    ProducerWarp,
)
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.uop.node import UOp, index_alu, index_sum, index_times, to_uop
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import simplify

# Blocks of a cluster (source: CUDA C++ Programming Guide, "Thread Block Clusters"): 8 are the most
# that every card has, and a tile has no rows for as many parts.
CLUSTERS = (2, 4)


def order_tiles(kernel: Kernel, axis: UOp, rows: int) -> None:
    """Orders tiles in strips: `rows` tiles along an axis first, then along the other axes.

    Raises: KernelOptError where the strips change nothing.
    """
    if axis not in kernel.outputs or axis.src[0].op is not Ops.CONST:
        raise KernelOptError("an axis of outputs is wanted whose size is a number")
    if not 1 < rows <= size_of(axis):
        raise KernelOptError(f"2 to {size_of(axis)} tiles of the axis are wanted, not {rows}")
    if not any([size_of(r) > 1 for r in kernel.output_loops if r is not axis]):
        raise KernelOptError("a second axis of tiles is wanted: with one there is only one order")
    kernel.add(BlockOrder(axis=axis.arg.id, count=rows))


def loop_over_tiles(kernel: Kernel, blocks: int) -> None:
    """Makes blocks persistent: a launch has `blocks` of them, each of which computes many tiles.

    Raises: KernelOptError without a producer warp.
    """
    if kernel.plan(ProducerWarp) is None:
        raise KernelOptError("a producer warp is wanted, to copy for the next tile (PIPELINE)")
    if blocks < 1:
        raise KernelOptError(f"1 block or more is wanted, not {blocks}")
    kernel.add(PersistentBlocks(count=blocks))
    whole_clusters(kernel)


def join_blocks(kernel: Kernel, axis: UOp, blocks: int) -> None:
    """Makes clusters of `blocks` neighbours along an axis, which multicast a shared operand.

    Raises: KernelOptError without a producer warp, or where the blocks share no operand.
    """
    fragments = kernel.plan(Fragments)
    if kernel.plan(ProducerWarp) is None or fragments is None:
        raise KernelOptError("a producer warp is wanted, to copy for other blocks (PIPELINE)")
    ids = dict(fragments.ids)
    if axis.src[0].op is not Ops.CONST or axis.arg.id not in (ids["m"], ids["n"]):
        raise KernelOptError("an axis of rows or of columns of a product is wanted")
    if blocks not in CLUSTERS:
        raise KernelOptError(f"a cluster has 2 or 4 blocks, not {blocks}")
    kernel.add(BlockCluster(axis=axis.arg.id, count=blocks))
    whole_clusters(kernel)


def whole_clusters(kernel: Kernel) -> None:
    """Raises: KernelOptError where persistent blocks are not a multiple of the cluster."""
    blocks, size = kernel.count(PersistentBlocks), kernel.count(BlockCluster)
    if size and blocks % size:
        raise KernelOptError(
            f"{blocks} blocks are no whole clusters of {size}; a multiple would do"
        )


class Clusters(NamedTuple):
    """The axis of the clusters, the rank of a block in its cluster, and the axis over clusters.

    Both axes have the same id.
    """

    axis: UOp
    rank: UOp
    over: UOp

    def tile(self, cluster: UOp) -> tuple[UOp, UOp | None]:
        """The step of the axis that a block computes, and a gate, false for surplus blocks."""
        count, size = size_of(self.axis), size_of(self.rank)
        step = index_alu(Ops.ADD, index_times(cluster, size), self.rank)
        if count % size == 0:
            return step, None
        # min(step, count - 1)
        over = index_alu(Ops.SUB, step, UOp.index_const(count - 1))
        last = index_alu(Ops.SUB, step, index_alu(Ops.MAX, over, UOp.index_const(0)))
        return last, step.alu(Ops.CMPLT, UOp.index_const(count))


def clusters_of(kernel: Kernel, blocks: Sequence[UOp]) -> Clusters | None:
    """Finds the clusters of blocks that an Opt asks for.

    Raises: KernelOptError where there are none along the axis.
    """
    plan = kernel.plan(BlockCluster)
    if plan is None:
        return None
    axis = next((r for r in blocks if r.arg.id == plan.axis), None)
    rank = next((u for u in kernel.facts.order if is_rank(u)), None)
    if axis is None or rank is None:
        raise KernelOptError("BLOCKS cluster wants blocks along its axis, of a product with TMA")
    over = UOp.range(-(-size_of(axis) // plan.count), plan.axis, axis.arg.kind)
    return Clusters(axis, rank, over)


def is_rank(u: UOp) -> bool:
    """Whether a node is the rank of a block in its cluster, before blocks have numbers."""
    return u.op is Ops.RANGE and u.arg.kind is AxisType.GLOBAL


def delinearize_tile(order: BlockOrder, tile: UOp, axes: Sequence[UOp]) -> dict[UOp, UOp]:
    """Delinearizes the number of a tile into an index for each axis of blocks.

    Strips cover the axis of the order and the last other axis; the remaining axes are outside.
    """
    rows, axis = order.count, next((r for r in axes if r.arg.id == order.axis), None)
    others = [r for r in axes if r is not axis]
    if axis is None or not others:
        return {}
    columns, count = others[-1], size_of(axis)
    tile, found = below(tile, others[:-1], count * size_of(columns))
    strip = index_alu(Ops.IDIV, tile, UOp.index_const(rows * size_of(columns)))
    inside = index_alu(Ops.MOD, tile, UOp.index_const(rows * size_of(columns)))
    first, high = index_times(strip, rows), UOp.index_const(rows)
    if count % rows:
        # min(rows, count - first): the last strip may have fewer rows.
        more = index_alu(Ops.MAX, first, UOp.index_const(count - rows))
        high = index_alu(Ops.SUB, UOp.index_const(count), more)
    found[axis] = index_sum([first, index_alu(Ops.MOD, inside, high)])
    found[columns] = index_alu(Ops.IDIV, inside, high)
    return found


def below(tile: UOp, axes: Sequence[UOp], size: int) -> tuple[UOp, dict[UOp, UOp]]:
    """The number of a tile within a group of `size` tiles, and the indices of the outer axes."""
    found: dict[UOp, UOp] = {}
    outside = index_alu(Ops.IDIV, tile, UOp.index_const(size))
    for i, r in enumerate(reversed(axes)):
        last = i == len(axes) - 1
        found[r] = outside if last else index_alu(Ops.MOD, outside, r.src[0])
        outside = index_alu(Ops.IDIV, outside, r.src[0])
    return (index_alu(Ops.MOD, tile, UOp.index_const(size)) if axes else tile), found


def tiles_of_block(block: UOp, tiles: int) -> UOp:
    """Counts the tiles that a persistent block computes."""
    left = index_alu(Ops.SUB, UOp.index_const(tiles - 1), block)
    turns = index_alu(Ops.IDIV, left, block.src[0])
    return simplify(index_alu(Ops.ADD, turns, UOp.index_const(1)))


def looped(kernel: Kernel, block: UOp, axes: Sequence[UOp]) -> tuple[UOp, UOp]:
    """The number of a tile, from the numbers of a block and an iteration; and the loop."""
    tiles = to_uop(prod([r.src[0] for r in axes]))
    turn = kernel.new_range(tiles_of_block(block, int(tiles.arg)), AxisType.LOOP)
    return index_alu(Ops.ADD, index_alu(Ops.MUL, turn, block.src[0]), block), turn
