"""Prefetch of the next block of a matrix that is read across its rows.

Receives a kernel whose loops are final; returns its graph with a PREFETCH beside the stores. Which
loops make a block is decided in `cpu/transpose`.

why: rows lie pages apart, so processors do not ask for what comes by themselves; and memory wants
long pieces of one row after the other, not a line of each row in turn as tiles read them
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.prefetch import Block, find_block
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


def ask_for_next_blocks(kernel: Kernel, target: Target) -> None:
    """Each tile prefetches a piece of a row of the block that follows.

    The pieces are as long as the tile has rows, so that all tiles together ask for all of it.

    Raises: KernelOptError where an Opt asks for that and there are no blocks.
    """
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    axis = next((r for r in loops if r.arg.id == kernel.roles.prefetched), None)
    if kernel.roles.prefetched is None:
        return
    asks: list[UOp] = []
    for a in kernel.accesses():
        block = find_block(kernel.outputs, axis, a) if axis is not None else None
        if axis is not None and block is not None:
            line = max(target.line_nbytes // a.buffer.dtype.itemsize, 1)
            piece = kernel.new_range(
                ceildiv(size_of(block.lane) * block.run, line), AxisType.UPCAST
            )
            at = a.buffer.index(next_index(a, axis, block, loops, piece, line))
            asks.append(UOp(Ops.PREFETCH, dtypes.void, (at,)).end(*loops, piece))
    if not asks:
        raise KernelOptError(
            "PREFETCH: blocks of rows that are read across are wanted in each step of the axis; "
            "other Opts have left none"
        )
    kernel.sink = kernel.sink.replace(src=(*asks, *kernel.sink.src))


def next_index(a: Access, axis: UOp, block: Block, loops: list[UOp], piece: UOp, line: int) -> UOp:
    """Where a tile asks: in the block that follows, in the row of its part that has its number.

    Tiles beyond the number of rows ask for further pieces of the rows.
    """
    index = a.node.src[0].src[1]
    zero, rows = UOp.index_const(0), UOp.index_const(size_of(block.lane))
    start = {r: zero for r in index.ranges if r.arg.kind.is_lane}
    start |= {block.tiles: zero, block.lane: index_alu(Ops.MOD, block.tiles, rows)}
    mine = [r for r in loops[: loops.index(axis) + 1] if r in index.ranges]
    following = step_on(substitute(index, start), mine)
    length = UOp.index_const(size_of(block.lane) * block.run)
    place = index_alu(Ops.MUL, index_alu(Ops.IDIV, block.tiles, rows), length)
    place = index_alu(Ops.ADD, place, index_alu(Ops.MUL, piece, UOp.index_const(line)))
    return index_alu(Ops.ADD, following, place)


def step_on(index: UOp, loops: list[UOp]) -> UOp:
    """The index one step later: of the innermost loop, or after its last step of those outside."""
    # Of each loop, the innermost first: whether it has a step left, and the index at that step.
    steps: list[tuple[UOp, UOp]] = []
    for axis in reversed(loops):
        later = index_alu(Ops.ADD, axis, UOp.index_const(1))
        steps.append((later < size_of(axis), substitute(index, {axis: later})))
        index = substitute(index, {axis: UOp.index_const(0)})
    if not steps:
        return index
    _, found = steps.pop()
    for is_left, within in reversed(steps):
        found = is_left.where(within, found)
    return found
