"""Staged tiles: loads of a strip of a reduction go through local memory, filled 16 bytes at a time.

Receives a kernel whose Opts are applied; returns its graph. How the fill walks a tile, and where an
element lies in local memory, follow from the strides of the load: axes whose steps are neighbours
in memory are neighbours there too, and rows are padded so that those one below the other lie in
different banks.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.gpu.numbering import items_in, size, taken_apart
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.staging.stage import Stage, new_stage, position
from aster_ml.errors import InternalError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.rules.symbolic import affine_form, simplify

# What a work-item moves at a time, at most.
WIDE_NBYTES = 16
TILE_KINDS = (AxisType.LOCAL, AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)
# Rows whose length is a multiple of this begin in few banks of local memory, of which there are 32
# of 4 bytes each.
BANKED_NBYTES = 32


class Layout(NamedTuple):
    """A tile as rows: the axes that number them, and those along one, whose steps are neighbours.

    `pad` elements behind each row are not used; a fill takes `lanes` neighbours at a time.
    """

    far: tuple[UOp, ...]
    near: tuple[UOp, ...]
    lanes: int
    pad: int = 0

    @property
    def run(self) -> int:
        """Elements of a row."""
        return int(prod([size(r) for r in self.near]))

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(prod([size(r) for r in self.far]))

    def at(self, row: UOp, step: UOp) -> UOp:
        """Where the element of a row lies."""
        start = index_alu(Ops.MUL, row, UOp.index_const(self.run + self.pad))
        return index_alu(Ops.ADD, start, step)


def stage_loads(kernel: Kernel, strip_id: int, order: list[int], target: Target) -> None:
    """Loads of a strip of a reduction go through local memory.

    rewrite: LOAD(INDEX(p, f(tile axes))) -> LOAD(INDEX(local, position of the tile axes)), after
    all work-items together have filled `local` with f over the tile, and a barrier
    why: each element of the tile is read by many work-items, and from memory only once
    """
    strip = next(r for r in kernel.facts.order if r.op is Ops.RANGE and r.arg.id == strip_id)
    items = items_in(kernel, order)
    loads = [x for x in kernel.facts.order if x.op is Ops.LOAD and strip in x.ranges]
    nbytes = min(WIDE_NBYTES, target.vector_bits // 8)
    layouts = [layout_of(u, prod([size(r) for r in items]), nbytes) for u in loads]
    padded = [
        layout._replace(pad=padding(layout, u.dtype.itemsize))
        for u, layout in zip(loads, layouts, strict=True)
    ]
    taken = [
        (x.run + x.pad) * x.rows * u.dtype.itemsize for u, x in zip(loads, padded, strict=True)
    ]
    if target.warp and sum(taken) <= target.local_bytes:
        layouts = padded
    nodes = list(kernel.facts.order)
    fills: list[UOp] = []
    tiles: list[Stage] = []
    for u, layout in zip(loads, layouts, strict=True):
        local = new_stage(nodes, u.dtype, size=(layout.run + layout.pad) * layout.rows)
        nodes.append(local.memory)
        tiles.append(local)
        fills.append(fill_tile(kernel, u, layout, local, items))
    reads = {
        u: local.after_all(*fills).load(layout.at(position(layout.far), position(layout.near)))
        for u, layout, local in zip(loads, layouts, tiles, strict=True)
    }
    kernel.sink = substitute(kernel.sink, reads)


def layout_of(load: UOp, items: int, nbytes: int) -> Layout:
    """The layout of the tile that a load reads, and how many neighbours a fill takes at a time."""
    axes = sorted([r for r in load.ranges if r.arg.kind in TILE_KINDS], key=lambda r: r.arg.id)
    count = int(prod([size(r) for r in axes]))
    if count % items:
        raise InternalError(f"blocks: {items} work-items cannot share {count} elements")
    rest, strides = affine_form(simplify(load.src[0].src[1]), set(axes))
    near: list[UOp] = []
    run = 1
    while beside := [r for r in axes if strides.get(r) == run and r not in near]:
        near.insert(0, beside[0])
        run *= size(beside[0])
    far = tuple([r for r in axes if r not in near])
    steps = [rest.const, *rest.terms.values(), *[strides[r] or 1 for r in far if r in strides]]
    gated = any([r in g.ranges for g in load.src[1:] for r in near])
    lanes = 1 if gated or not near else max(1, nbytes // load.dtype.itemsize)
    while lanes > 1 and (run % lanes or count % (items * lanes) or any([n % lanes for n in steps])):
        lanes //= 2
    return Layout(far, tuple(near), lanes)


def padding(layout: Layout, itemsize: int) -> int:
    """Elements behind each row, a multiple of what is moved at a time."""
    banked = layout.rows > 1 and layout.run * itemsize % BANKED_NBYTES == 0
    return WIDE_NBYTES // itemsize if banked else 0


def fill_tile(kernel: Kernel, load: UOp, layout: Layout, local: Stage, items: list[UOp]) -> UOp:
    """All work-items together load a tile, pieces that follow one another for neighbours."""
    n_items, lanes = int(prod([size(r) for r in items])), layout.lanes
    turn = kernel.new_range(layout.run * layout.rows // (n_items * lanes), AxisType.UPCAST)
    piece = index_alu(Ops.ADD, index_alu(Ops.MUL, turn, UOp.index_const(n_items)), position(items))
    pieces = UOp.index_const(layout.run // lanes)
    row, step = index_alu(Ops.IDIV, piece, pieces), index_alu(Ops.MOD, piece, pieces)
    step = index_alu(Ops.MUL, step, UOp.index_const(lanes))
    if lanes > 1:
        step = index_alu(Ops.ADD, step, kernel.new_range(lanes, AxisType.VECTOR))
    place = taken_apart(row, layout.far)
    # Along a row the address goes up by one: its axes need not be told apart there.
    start = dict.fromkeys(layout.near, UOp.index_const(0))
    index = index_alu(Ops.ADD, substitute(load.src[0].src[1], {**place, **start}), step)
    whole = {**place, **taken_apart(step, layout.near)}
    gates = [substitute(g, whole) for g in load.src[1:]]
    memory = load.src[0].replace(src=(load.src[0].src[0], index))
    value = UOp(Ops.LOAD, load.dtype, (memory, *gates), load.arg)
    return local.fill(layout.at(row, step), value)
