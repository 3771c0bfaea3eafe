"""Lowers products whose operands TMA loads into local memory for asynchronous MMA.

Receives a kernel whose Opts are applied, with a row of `target/tensor_cores` whose operands lie in
local memory; returns its graph with one TMA_LOAD for each part of a tile, and an MMA of their
places.
A tile is rows of 128 bytes, whose pieces of 16 bytes a box puts in the order in which the tensor
core looks for them: no address in a row is computed here.

rewrite: REDUCE(a(m, k) * b(k, n), k) -> REDUCE(MMA(first element of a's tile, that of b's), k)
after a BARRIER that follows the TMA loads of both tiles
when: both operands are plain loads, with m, n or k contiguous and all other strides multiples of
16 bytes; gates only bound m, n and k, as TMA does itself
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import BlockCluster, CopyPipeline, ResultTile
from aster_ml.codegen.staging.stage import Stage, new_stage
from aster_ml.codegen.work_groups.tensor_map_axes import (
    TILE_KINDS,
    Side,
    bounded,
    refuse,
    side_of,
    whole_strides,
)
from aster_ml.codegen.work_groups.tma_epilogue import result_of, store_by_tma
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.target.tensor_maps import ALIGNMENT, MOST_BOX, MOST_DIMS, ROW_NBYTES
from aster_ml.uop.node import UOp, index_alu, index_sum, index_times
from aster_ml.uop.ops import AxisType, MmaArg, Ops, TmaArg
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.linear_form import Form
from aster_ml.uop.rules.symbolic import affine_form, simplify

# Rows after which the swizzle repeats.
# Source: PTX ISA 8.7, "Swizzling Modes" (128 bytes).
ROWS_IN_ORDER = 8
# Operands of this width may be contiguous along m or n; others along k only.
# Source: PTX ISA 8.7, "wgmma.mma_async" (imm-trans is of .f16 and .bf16).
TURNED_NBYTES = 2


class Tile(NamedTuple):
    """The tile of an operand: its axis along m or n, its axis along k, and its other axes."""

    load: UOp
    side: Side
    depth: Side
    others: dict[UOp, int]
    start: int

    @property
    def major(self) -> bool:
        """Whether elements along k are contiguous."""
        return self.depth.stride == 1


def address_of(load: UOp, core: TensorCore) -> Form:
    """The address of a plain load. Raises: KernelOptError for any other operand."""
    if load.op is not Ops.LOAD or load.src[0].src[0].op is not Ops.PARAM:
        raise refuse(core, "one of them is computed")
    form, _ = affine_form(simplify(load.src[0].src[1]), set())
    if form.const < 0 or any([r.op is not Ops.RANGE for r in form.terms]):
        raise refuse(core, "one of them is loaded by an index that is not affine")
    return form


def can_be_boxes(load: UOp, core: TensorCore, side: UOp, depth: UOp) -> bool:
    """Whether TMA can load an operand with these two axes, before any split."""
    try:
        form = address_of(load, core)
    except KernelOptError:
        return False
    nbytes = load.dtype.itemsize
    strides = form.terms.get(side, 0), form.terms.get(depth, 0)
    near = [strides[1] == 1, strides[0] == 1 and nbytes == TURNED_NBYTES]
    far = [n for r, n in form.terms.items() if n != 1 or r not in (side, depth)]
    fixed = all([r.src[0].op is Ops.CONST for r in form.terms])
    whole = whole_strides(far, nbytes)
    return any(near) and whole and fixed and len(load.src) == 1 and len(form.terms) <= MOST_DIMS


def tile_of(core: TensorCore, load: UOp, side_id: int, folded: list[UOp]) -> Tile:
    """Layout of an operand's tile in memory. Raises: KernelOptError where TMA cannot load it."""
    form, nbytes = address_of(load, core), load.dtype.itemsize
    mine = [
        r
        for r in form.terms
        if r not in folded and (r.arg.id == side_id or r.arg.kind in TILE_KINDS)
    ]
    sides = side_of(core, form, mine), side_of(core, form, folded)
    side, depth = bounded(core, sides, load.src[1:])
    others = {r: n for r, n in form.terms.items() if r not in mine and r not in folded}
    far = [n for n in (side.stride, depth.stride, *others.values()) if n != 1]
    if len(far) != len(others) + 1 or not whole_strides(far, nbytes):
        raise refuse(core, f"strides are no multiples of {ALIGNMENT} bytes")
    if depth.stride != 1 and nbytes != TURNED_NBYTES:
        raise refuse(core, f"numbers of {8 * nbytes} bits are not contiguous along k")
    if depth.tile * nbytes != ROW_NBYTES:
        raise refuse(core, f"a strip of k is {ROW_NBYTES} bytes, not {depth.tile * nbytes}")
    if 2 + len(others) > MOST_DIMS or (depth.stride == 1 and side.tile > MOST_BOX):
        raise refuse(core, "they have too many axes or are too long")
    return Tile(load, side, depth, others, form.const)


def tma_loads(tile: Tile, local: Stage, core: TensorCore, rank: UOp | None) -> list[UOp]:
    """The TMA loads of a tile: one, or one for each 128 bytes that are contiguous along m or n.

    A tile that all blocks of a cluster read is multicast in parts: block `rank` loads its rows.
    Raises: KernelOptError where the rows cannot be divided so.
    """
    near, far = (tile.depth, tile.side) if tile.major else (tile.side, tile.depth)
    row = ROW_NBYTES // tile.load.dtype.itemsize
    param, blocks = tile.load.src[0].src[0], 1 if rank is None else size_of(rank)
    part = far.tile // blocks
    if far.tile % (blocks * ROWS_IN_ORDER):
        raise refuse(core, f"{far.tile} rows are no {blocks} parts of {ROWS_IN_ORDER} or more")
    arg = TmaArg(
        tile.start,
        (near.size, far.size, *[size_of(r) for r in tile.others]),
        (1, far.stride, *tile.others.values()),
        (row, part, *[1] * len(tile.others)),
        blocks,
    )
    places = [near.first, far.first, *tile.others]
    before = UOp.index_const(0) if rank is None else index_times(rank, part)
    places[1] = index_alu(Ops.ADD, places[1], before)
    boxes = []
    for i in range(near.tile // row):
        start = index_alu(Ops.ADD, places[0], UOp.index_const(i * row))
        lies = [UOp.index_const(i * row * far.tile), index_times(before, row)]
        at = local.memory.index(index_sum(lies))
        boxes.append(UOp(Ops.TMA_LOAD, dtypes.void, (at, param, start, *places[1:]), arg))
    return boxes


def operand_at(tile: Tile, local: Stage, own: set[UOp]) -> UOp:
    """The first element that one MMA reads; `own` are the axes within the MMA."""
    row = ROW_NBYTES // tile.load.dtype.itemsize
    across = [r for r in tile.side.steps if r.arg.kind in TILE_KINDS and r not in own]
    along = [r for r in tile.depth.steps if r.arg.kind in TILE_KINDS and r not in own]
    side, depth = tile.side.at(across), tile.depth.at(along)
    if tile.major:
        return local.load(index_alu(Ops.ADD, index_times(side, row), depth))
    # Blocks of `row` columns one after the other, each with all of k.
    steps = [index_times(r, n * tile.depth.tile) for r, n in tile.side.steps.items() if r in across]
    return local.load(index_sum([*steps, index_times(depth, row)]))


def multiply_from_tma(
    kernel: Kernel, core: TensorCore, ids: dict[str, int], factors: tuple[UOp, UOp],
    target: Target,
) -> None:  # fmt: skip
    """Replaces a product by an MMA of two operands that TMA loads into local memory.

    With the Opt STAGE out TMA stores its results, too.

    Raises: KernelOptError where TMA cannot load the operands, or without a PIPELINE.
    """
    if kernel.plan(CopyPipeline) is None:
        raise refuse(core, "STAGE local and PIPELINE copies say so")
    ranges = {r.arg.id: r for r in kernel.facts.order if r.op is Ops.RANGE}
    axes = {word: ranges[i] for word, i in ids.items() if i in ranges and word[1:]}
    u = kernel.reduces[0]
    nodes = list(kernel.facts.order)
    tiles, stages, fills = [], [], []
    cluster, rank = kernel.plan(BlockCluster), None
    if cluster is not None:
        rank = kernel.new_range(cluster.count, AxisType.GLOBAL)
    for word, load in zip("mn", factors, strict=True):
        tile = tile_of(core, load, ids[word], list(u.src[1:]))
        local = new_stage(nodes, load.dtype, size=tile.side.tile * tile.depth.tile)
        nodes.append(local.memory)
        tiles.append(tile)
        stages.append(local)
        is_shared = cluster is not None and ids[word] != cluster.axis
        fills += tma_loads(tile, local, core, rank if is_shared else None)
    leaving = kernel.plan(ResultTile) is not None
    result = result_of(kernel, core, (tiles[0].side, tiles[1].side)) if leaving else None
    bits = set(axes.values())
    operands = [
        operand_at(tile, local.after_all(*fills), bits)
        for tile, local in zip(tiles, stages, strict=True)
    ]
    own = [axes[word] for word in core.bits("c")[1]]
    majors = "".join(["k" if t.major else word for word, t in zip("mn", tiles, strict=True)])
    arg = MmaArg(core.name, 0, 0, majors)
    product = UOp(Ops.MMA, u.dtype, (*operands, *own), arg)
    rest = [r for r in u.src[1:] if r not in bits]
    kernel.rewrite({u: UOp(Ops.REDUCE, u.dtype, (product, *rest), u.arg)})
    if result is not None:
        store_by_tma(kernel, core, axes, result, [local.memory for local in stages], target)
