"""Stages tiles of operands in local memory, filled 16 bytes at a time.

Receives a kernel whose Opts are applied; returns its graph. The strides of a load decide the order
of the fill and the layout of the tile: axes that are contiguous in memory stay contiguous. Rows
are padded, or swizzled where tensor cores read them (`swizzle`), to avoid bank conflicts.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import CopyPipeline, Fragments
from aster_ml.codegen.staging.stage import Stage, new_stage, position
from aster_ml.codegen.work_groups.numbering import delinearize, items_in, size
from aster_ml.codegen.work_groups.swizzle import Xor, xor_of_rows
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.rules.symbolic import affine_form, simplify

# Widest access of a work-item. Source: PTX ISA 8.7, "ld" and "cp.async" (16 bytes).
WIDE_NBYTES = 16
TILE_KINDS = (AxisType.LOCAL, AxisType.UPCAST, AxisType.UNROLL, AxisType.VECTOR)
# Rows whose length is a multiple of this start in few of the 32 banks of 4 bytes each.
# Source: CUDA C++ Programming Guide, "Shared Memory" of each compute capability.
BANKED_NBYTES = 32


class Layout(NamedTuple):
    """The layout of a tile in rows: `far` axes number the rows, `near` axes are contiguous.

    Each row has `pad` unused elements; a fill moves `lanes` elements at a time. Axes of `chains`
    continue one another in memory, so that they act as one. A `turned` tile is transposed in local
    memory. Elements of a row are `stride` elements apart in memory.
    """

    far: tuple[UOp, ...]
    near: tuple[UOp, ...]
    lanes: int
    chains: tuple[tuple[UOp, ...], ...] = ()
    pad: int = 0
    xor: Xor | None = None
    turned: bool = False
    stride: int = 1

    @property
    def run(self) -> int:
        """Elements of a row."""
        return int(prod([size(r) for r in self.near]))

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(prod([size(r) for r in self.far]))

    @property
    def length(self) -> int:
        """Elements of a row of local memory."""
        return self.rows if self.turned else self.run

    @property
    def room(self) -> int:
        """Elements of the tile in local memory, with padding."""
        return (self.length + self.pad) * (self.run if self.turned else self.rows)

    def at(self, row: UOp, step: UOp) -> UOp:
        """The offset of an element of a row in local memory."""
        if self.turned:
            row, step = step, row
        start = index_alu(Ops.MUL, row, UOp.index_const(self.length + self.pad))
        return index_alu(Ops.ADD, start, step)


def stage_loads(kernel: Kernel, strip_id: int, order: list[int], target: Target) -> None:
    """Routes loads of a strip of a reduction through local memory.

    rewrite: LOAD(INDEX(p, f(tile axes))) -> LOAD(INDEX(local, position of the tile axes)), after
    all work-items together have filled `local` with f over the tile, and a barrier
    why: each element of the tile is read by many work-items, and from memory only once
    """
    strip = next(r for r in kernel.facts.order if r.op is Ops.RANGE and r.arg.id == strip_id)
    items = items_in(kernel, order)
    loads = [x for x in kernel.facts.order if x.op is Ops.LOAD and strip in x.ranges]
    nbytes = min(WIDE_NBYTES, target.moved_nbytes)
    parts = kernel.plan(Fragments)
    kind, n_items = side_by_side(target), prod([size(r) for r in items])
    layouts = [
        layout_of(u, n_items, nbytes, parts is not None, kind is not AxisType.VECTOR) for u in loads
    ]
    if parts is None and target.warp and target.copies.go_on:
        layouts = [
            turned(layout, u.dtype.itemsize, target)
            for u, layout in zip(loads, layouts, strict=True)
        ]
    spread = [
        in_banks(layout, u.dtype.itemsize, parts) for u, layout in zip(loads, layouts, strict=True)
    ]
    taken = [x.room * u.dtype.itemsize for u, x in zip(loads, spread, strict=True)]
    stages = kernel.count(CopyPipeline) or 1
    if target.warp and sum(taken) * stages <= target.local_bytes:
        layouts = spread
    nodes = list(kernel.facts.order)
    fills: list[UOp] = []
    tiles: list[Stage] = []
    for u, layout in zip(loads, layouts, strict=True):
        local = new_stage(nodes, u.dtype, size=layout.room, xor=layout.xor)
        nodes.append(local.memory)
        tiles.append(local)
        fills.append(fill_tile(kernel, u, layout, local, items, kind))
    reads = {
        u: local.after_all(*fills).load(layout.at(position(layout.far), position(layout.near)))
        for u, layout, local in zip(loads, layouts, tiles, strict=True)
    }
    kernel.sink = substitute(kernel.sink, reads)


def items_in_turn(kernel: Kernel, order: list[int]) -> list[int]:
    """An order of work-item axes that alternates between the two sides of a tile.

    why: 16 work-items that read 16 bytes each need one access to local memory where neighbours, or
    every second neighbours, read the same bytes (broadcast)
    """
    axes = {r.arg.id: r for r in items_in(kernel, order)}
    loads = [x for x in kernel.facts.order if x.op is Ops.LOAD]
    sides: dict[frozenset[UOp], list[int]] = {}
    for i in reversed(order):
        if i in axes:
            side = frozenset([x for x in loads if axes[i] in x.ranges])
            sides.setdefault(side, []).append(i)
    turns = [i for some in itertools.zip_longest(*sides.values()) for i in some if i is not None]
    return [*[i for i in order if i not in axes], *reversed(turns)]


def layout_of(
    load: UOp, items: int, nbytes: int, on_cores: bool = False, singly: bool = False
) -> Layout:
    """The layout of the tile that a load reads, and how many elements a fill moves at a time.

    Rows for tensor cores have axes of the sum alone, or of results alone, even where memory is
    contiguous further. Elements that a language copies `singly` need neither alignment nor
    contiguity in memory.
    """
    axes = sorted([r for r in load.ranges if r.arg.kind in TILE_KINDS], key=lambda r: r.arg.id)
    count = int(prod([size(r) for r in axes]))
    if count % items:
        raise KernelOptError(
            f"STAGE local: {items} work-items cannot share a tile of {count} elements; longer "
            "strips or more lanes would do"
        )
    rest, strides = affine_form(simplify(load.src[0].src[1]), set(axes))
    near: list[UOp] = []
    run = 1
    while beside := [
        r
        for r in axes
        if strides.get(r) == run
        and r not in near
        and not (on_cores and near and is_of_sum(r) != is_of_sum(near[0]))
    ]:
        near.insert(0, beside[0])
        run *= size(beside[0])
    # Rows in memory order.
    far = sorted([r for r in axes if r not in near], key=lambda r: -(strides.get(r) or 0))
    stride = 1
    if singly and not near and far and strides.get(far[-1]):
        near = [far.pop()]
        run, stride = size(near[0]), strides[near[0]]
    chains: list[list[UOp]] = []
    for r in far:
        last = chains[-1][-1] if chains else None
        step = strides.get(r)
        if last is not None and step and strides.get(last) == step * size(r):
            chains[-1].append(r)
        else:
            chains.append([r])
    steps = [rest.const, *rest.terms.values(), *[strides[r] or 1 for r in far if r in strides]]
    lanes = max(1, nbytes // load.dtype.itemsize) if near else 1
    while lanes > 1 and (
        run % lanes
        or count % (items * lanes)
        or (not singly and any([n % lanes for n in steps]))
        or not (singly or all([holds_together(g, near, lanes) for g in load.src[1:]]))
    ):
        lanes //= 2
    whole = tuple(map(tuple, chains))
    return Layout(tuple(far), tuple(near), lanes, whole, stride=stride)


def is_of_sum(r: UOp) -> bool:
    """Whether an axis belongs to a reduction."""
    return bool(r.arg.kind is AxisType.UNROLL)


def holds_together(gate: UOp, near: list[UOp], lanes: int) -> bool:
    """Whether a gate is the same for `lanes` neighbours along these axes."""
    both = [gate]
    for g in both:
        if g.op is Ops.AND:
            both += g.src
        elif any([r in g.ranges for r in near]) and not begins_with(g, near, lanes):
            return False
    return True


def begins_with(gate: UOp, near: list[UOp], lanes: int) -> bool:
    """Whether a comparison along these axes changes only at multiples of `lanes` steps."""
    if gate.op is not Ops.CMPLT or gate.src[1].op is not Ops.CONST:
        return False
    rest, strides = affine_form(simplify(gate.src[0]), set(near))
    run, steps = 1, []
    for r in reversed(near):
        steps.append(strides.get(r) == run)
        run *= size(r)
    numbers = (gate.src[1].arg, rest.const, *rest.terms.values())
    return all(steps) and not any([n % lanes for n in numbers])


def turned(layout: Layout, itemsize: int, target: Target) -> Layout:
    """The transposed layout, contiguous along results, of a tile contiguous along the sum.

    why: a work-item reads 16 bytes along its results for one step of the sum; several steps of each
    result would occupy more registers
    when: the target copies single elements, so that the fill needs no registers either
    """
    along = bool(layout.near) and all([is_of_sum(r) for r in layout.near])
    if not along or layout.rows % WIDE_NBYTES or itemsize not in target.copies.nbytes:
        return layout
    return layout._replace(turned=True, lanes=1)


def padding(layout: Layout, itemsize: int) -> int:
    """Padding of each row in elements, a multiple of the elements moved at a time."""
    banked = min(layout.rows, layout.run) > 1 and layout.length * itemsize % BANKED_NBYTES == 0
    return WIDE_NBYTES // itemsize if banked else 0


def in_banks(layout: Layout, itemsize: int, parts: Fragments | None) -> Layout:
    """The layout, padded or swizzled so that rows start in different banks.

    Tensor cores read rows of 16 bytes, or single words where the sum is not contiguous. Other
    kernels read one row at a time where results are contiguous.
    """
    pad, xor = padding(layout, itemsize), None
    if parts is None and layout.near and not any([is_of_sum(r) for r in layout.near]):
        pad = 0
    if pad and parts is not None:
        steps = {i for word, i in parts.ids if word[0] == "k"}
        apart = itemsize == 4 and layout.near[-1].arg.id not in steps
        xor = xor_of_rows(layout.run, itemsize, apart)
    return layout._replace(xor=xor, pad=0 if xor else pad)


def side_by_side(target: Target) -> AxisType:
    """Kind of the lanes of a wide load or store."""
    return AxisType.VECTOR if target.vector_bits else AxisType.UPCAST


def fill_tile(
    kernel: Kernel, load: UOp, layout: Layout, local: Stage, items: list[UOp],
    kind: AxisType = AxisType.VECTOR,
) -> UOp:  # fmt: skip
    """Loads a tile by all work-items; consecutive work-items load consecutive pieces."""
    n_items, lanes = int(prod([size(r) for r in items])), layout.lanes
    turn = kernel.new_range(layout.run * layout.rows // (n_items * lanes), AxisType.UPCAST)
    piece = index_alu(Ops.ADD, index_alu(Ops.MUL, turn, UOp.index_const(n_items)), position(items))
    row, step = walked(piece, layout, load.dtype.itemsize)
    step = first = index_alu(Ops.MUL, step, UOp.index_const(lanes))
    if lanes > 1:
        step = index_alu(Ops.ADD, step, kernel.new_range(lanes, kind))
    place = delinearize(row, layout.far)
    # The address advances evenly along a row, whose axes act as one.
    start = dict.fromkeys(layout.near, UOp.index_const(0))
    index = substitute(load.src[0].src[1], {**chained(row, layout), **start})
    index = index_alu(Ops.ADD, index, index_alu(Ops.MUL, step, UOp.index_const(layout.stride)))
    # One gate for all neighbours, or one for each.
    together = all([holds_together(g, list(layout.near), lanes) for g in load.src[1:]])
    whole = {**place, **delinearize(first if together else step, layout.near)}
    gates = [substitute(g, whole) for g in load.src[1:]]
    memory = load.src[0].replace(src=(load.src[0].src[0], index))
    value = UOp(Ops.LOAD, load.dtype, (memory, *gates), load.arg)
    return local.fill(layout.at(row, step), value)


def walked(piece: UOp, layout: Layout, itemsize: int) -> tuple[UOp, UOp]:
    """The row of a piece of a tile, and its place in the row: in memory order.

    A transposed tile takes a few neighbours of each row at a time, as many as memory moves at once:
    four rows then occupy each bank once.
    """
    pieces = layout.run // layout.lanes
    few = min(pieces, BANKED_NBYTES // itemsize) if layout.turned else pieces
    if pieces % few:
        few = pieces
    step = index_alu(Ops.MOD, piece, UOp.index_const(few))
    row = index_alu(Ops.IDIV, piece, UOp.index_const(few))
    if few < pieces:
        rows = UOp.index_const(layout.rows)
        more = index_alu(Ops.MUL, index_alu(Ops.IDIV, row, rows), UOp.index_const(few))
        row, step = index_alu(Ops.MOD, row, rows), index_alu(Ops.ADD, more, step)
    return row, step


def chained(row: UOp, layout: Layout) -> dict[UOp, UOp]:
    """The axes that number rows; a chain is represented by its last axis."""
    places: dict[UOp, UOp] = {}
    for chain in reversed(layout.chains):
        count = UOp.index_const(int(prod([size(r) for r in chain])))
        whole = chain is layout.chains[0]
        places |= dict.fromkeys(chain[:-1], UOp.index_const(0))
        places[chain[-1]] = row if whole else index_alu(Ops.MOD, row, count)
        row = index_alu(Ops.IDIV, row, count)
    return places
