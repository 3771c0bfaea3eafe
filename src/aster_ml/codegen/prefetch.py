"""Prefetch and non-temporal hints on loads and stores, as the Opts PREFETCH and NONTEMPORAL say.

Receives a kernel, or what is known of its graph; hints change nothing that a kernel computes.
Whether they pay is said in `policy/cpu/prefetch`.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.analysis import Access, Facts
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import PrefetchedBlocks, RowSums
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import LINE_NBYTES, Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import VALUES, AxisType, LoadArg, Ops, StoreArg
from aster_ml.uop.ranges import size_of

# Bytes beyond whole rows that are asked for: a row is read from its beginning as soon as the one
# before it is done, so what comes exactly a row later has less time than all that follows it.
BEYOND_NBYTES = 2048
# Rows closer together than this share pages and lines anyway.
APART_NBYTES = 1024


class Pass(NamedTuple):
    """A loop over a row: what it computes, of how many nodes, and which loads happen in it."""

    root: UOp
    values: int
    loads: tuple[Access, ...]


def passes_of(facts: Facts) -> list[Pass]:
    """Lists the folds of reductions, the STAGEs and the stores, each with its own loads."""
    loads = {a.node: a for a in facts.accesses if not a.is_store and a.buffer.op is Ops.PARAM}
    roots = [u.src[0] for u in facts.order if u.op in (Ops.REDUCE, Ops.STAGE)]
    roots += [store.src[1] for store in facts.stores]
    nodes = [(root, own_nodes(root)) for root in roots]
    return [Pass(r, len(own), tuple([loads[u] for u in own if u in loads])) for r, own in nodes]


def own_nodes(*roots: UOp) -> list[UOp]:
    """The values of a pass, those of passes before it and index arithmetic aside."""
    inner = frozenset({Ops.REDUCE, Ops.STAGE})
    nodes = toposort(*roots, enter=lambda u: u.op not in inner)
    values = [u for u in nodes if u.op in VALUES]
    return [u for u in values if u.dtype is not dtypes.index]


def walks_rows(a: Access, axis: UOp) -> bool:
    """Whether an access goes along a row of memory, in SIMD values, at each step of the axis."""
    # A STAGE gets its SIMD lanes when it is filled.
    lanes = [r for r in a.strides if r.arg.kind is AxisType.VECTOR] or list(a.strides)
    return bool(a.stride(axis)) and any(a.strides[r] == 1 for r in lanes)


def row_passes(facts: Facts, axis: UOp) -> list[Pass]:
    """The passes that walk rows which another pass of the same step of the axis walks too."""
    found = [
        p._replace(loads=tuple([a for a in p.loads if walks_rows(a, axis)]))
        for p in passes_of(facts)
    ]
    places = [{(a.buffer, a.strides[axis]) for a in p.loads} for p in found]
    shared = [
        tuple([
            a
            for a in p.loads
            if any((a.buffer, a.strides[axis]) in x for x in places[:i] + places[i + 1 :])
        ])
        for i, p in enumerate(found)
    ]  # fmt: skip
    return [p._replace(loads=x) for p, x in zip(found, shared, strict=True) if x]


def longest(passes: list[Pass]) -> Pass:
    """The pass that computes most, the last of several: while it does, memory can bring more."""
    return max(reversed(passes), key=lambda p: p.values)


def ask_ahead(sink: UOp, ahead: dict[UOp, int]) -> UOp:
    """The graph in which loads ask for what lies so many elements further."""
    asked = {u: UOp(Ops.LOAD, u.dtype, u.src, LoadArg(n)) for u, n in ahead.items()}
    return substitute(sink, asked)


def column_loads(facts: Facts, axis: UOp) -> list[Access]:
    """Loads in reductions that go down some columns of a matrix at each step of the axis."""
    found = [
        a
        for a in facts.accesses
        if a.buffer.op is Ops.PARAM
        and axis in a.strides
        and any(r.arg.kind is AxisType.VECTOR and a.strides[r] == 1 for r in a.strides)
        and any(r.arg.kind is AxisType.REDUCE and a.strides[r] for r in a.strides)
    ]
    inner = {x for u in facts.reduces for x in own_nodes(u.src[0])} if found else set()
    return [a for a in found if a.node in inner]


def tile_loads(facts: Facts, axis: UOp, beside: int) -> list[tuple[Access, int]]:
    """Loads in reductions that go along a tile of rows of a matrix at each step of the axis, and
    how many elements there are from these rows to the next ones.

    Of a reduction over rows, so many `beside` one another that it takes at a time, if any.
    """
    if beside:
        over = [r for u in facts.reduces for r in u.src[1:]]
        walking = [a for a in column_loads(facts, axis) if len(over) == 1 and a.stride(axis)]
        return [(a, beside * (a.stride(over[0]) or 0)) for a in walking]
    lanes = {r for u in facts.reduces for r in u.src[1:] if r.arg.kind is AxisType.VECTOR}
    return loads_along(facts, axis, lanes)


def streamed_loads(facts: Facts, axis: UOp, nbytes: int) -> list[tuple[Access, int]]:
    """Loads of SIMD values that go so many bytes or more further at each step of a reduction.

    With them how many elements that is.
    """
    found = [
        (a, a.stride(axis) or 0)
        for a in facts.accesses
        if a.buffer.op is Ops.PARAM and not a.is_store and axis in a.strides and has_simd(a)
    ]
    return [(a, n) for a, n in found if n * a.buffer.dtype.itemsize >= nbytes]


def broadcast_rows(facts: Facts, axis: UOp) -> list[tuple[Access, int]]:
    """Loads of single elements along a tile of rows at each step of the axis, as a product
    broadcasts them, and how many elements there are from these rows to the next ones.
    """
    summed = {r for u in facts.reduces for r in u.src[1:]}
    return [(a, n) for a, n in loads_along(facts, axis, summed) if not has_simd(a)]


def broadcast_columns(facts: Facts, axis: UOp) -> list[tuple[Access, int]]:
    """Loads of single elements that go down a few columns at each step of the axis, as a product
    broadcasts them where an operand is turned, and how many columns.
    """
    summed = {r for u in facts.reduces for r in u.src[1:]}
    found = []
    for a in facts.accesses:
        columns = [r for r in a.strides if r.arg.kind is AxisType.UPCAST and r not in summed]
        if a.buffer.op is not Ops.PARAM or a.is_store or axis not in a.strides or has_simd(a):
            continue
        if len(columns) == 1 and a.strides[columns[0]] == 1 and summed & a.strides.keys():
            found.append((a, size_of(columns[0])))
    inner = {x for u in facts.reduces for x in own_nodes(u.src[0])} if found else set()
    return [(a, n) for a, n in found if a.node in inner and a.stride(axis) in (n, None)]


def has_simd(a: Access) -> bool:
    """Whether an access has SIMD lanes of its own, and is no single element for all lanes."""
    return any([r.arg.kind is AxisType.VECTOR for r in a.strides])


def loads_along(facts: Facts, axis: UOp, run: set[UOp]) -> list[tuple[Access, int]]:
    """Loads in reductions along a tile of rows whose neighbours one of the axes `run` has."""
    summed = {r for u in facts.reduces for r in u.src[1:]}
    found = []
    for a in facts.accesses:
        along = any(r in run and a.strides[r] == 1 for r in a.strides)
        rows = [r for r in a.strides if r.arg.kind is AxisType.UPCAST and r not in summed]
        if a.buffer.op is Ops.PARAM and axis in a.strides and along and len(rows) == 1:
            found.append((a, size_of(rows[0]) * (a.stride(rows[0]) or 0)))
    inner = {x for u in facts.reduces for x in own_nodes(u.src[0])} if found else set()
    # The last rows of those that do not divide start early, and are no whole step further.
    return [(a, n) for a, n in found if a.node in inner and n and a.stride(axis) in (n, None)]


def run_of_lanes(a: Access) -> int:
    """Counts the neighbours that the lanes of an access take at once, 1 where they lie apart."""
    run = 1
    lanes = [(a.strides[r] or 0, r.src[0].arg) for r in a.strides if r.arg.kind.is_lane]
    for step, size in sorted(lanes):
        run *= size if step == run else 1
    return run


class Block(NamedTuple):
    """The loops over a block of rows: tiles along the rows, and inside of them parts of the rows.

    Each tile reads `run` neighbours of as many rows as `lane` has SIMD lanes.
    """

    tiles: UOp
    lane: UOp
    run: int


def is_block(tiles: int, rows: int) -> bool:
    """Whether so many tiles, each of which asks for a piece of one of its rows, ask for most.

    The pieces are as long as there are rows, and those of some tiles more begin the next ones.
    """
    return bool(4 * tiles >= 3 * ceildiv(tiles, rows) * rows)


def find_block(outputs: list[UOp], axis: UOp, a: Access) -> Block | None:
    """The block of an access that each step of an output axis reads; None if there is none."""
    loops = [r for r in outputs if not r.arg.kind.is_lane]
    inner = loops[loops.index(axis) + 1 :] if axis in loops else []
    simd = [r for r in outputs if r.arg.kind is AxisType.VECTOR]
    if len(inner) < 2 or len(simd) != 1 or a.is_store or a.buffer.op is not Ops.PARAM:
        return None
    (tiles, *parts), (lane,) = inner, simd
    run, row_stride = run_of_lanes(a), a.stride(lane)
    if not row_stride or row_stride == 1 or run == 1 or tiles not in a.strides:
        return None
    if any(a.stride(r) == 0 for r in parts):
        return None
    return Block(tiles, lane, run) if is_block(size_of(tiles), size_of(lane)) else None


def may_stream(a: Access) -> bool:
    """Whether an access stores whole SIMD values of numbers, which can go past the caches."""
    whole = any([r.arg.kind is AxisType.VECTOR and a.strides[r] == 1 for r in a.strides])
    return a.is_store and whole and not a.node.src[2:] and a.buffer.dtype is not dtypes.bool


def prefetch(kernel: Kernel, axis: UOp, steps: int) -> None:
    """The pass over rows that computes most asks for those of later steps of an output axis.

    So do loads along a tile of rows or down columns, without such rows, and SIMD values that go
    far at each step of an axis of a reduction; without sums each step
    of the axis asks for the block of rows that the next one reads across
    (`ask_for_next_blocks`).
    """
    if not kernel.reduces and any([find_block(kernel.outputs, axis, a) for a in kernel.accesses()]):
        kernel.add(PrefetchedBlocks(axis=axis.arg.id))
        return
    passes = row_passes(kernel.facts, axis) if axis in kernel.outputs else []
    aside: list[tuple[Access, int]] = []
    if axis in kernel.outputs and not passes:
        aside = (
            tile_loads(kernel.facts, axis, kernel.count(RowSums))
            or broadcast_rows(kernel.facts, axis)
            or broadcast_columns(kernel.facts, axis)
            or [(a, run_of_lanes(a)) for a in column_loads(kernel.facts, axis)]
        )
    if axis.arg.kind is AxisType.REDUCE and axis not in kernel.outputs:
        aside = streamed_loads(kernel.facts, axis, LINE_NBYTES)
    if aside:
        kernel.sink = ask_ahead(kernel.sink, {a.node: n * steps for a, n in aside})
        return
    if not passes:
        raise KernelOptError(
            "rows that are read twice in a step of an output axis are wanted, or "
            "columns or a tile of rows in a reduction, or blocks of a transpose; or SIMD values a "
            "line or more apart in each step of a reduction"
        )
    rows = [(a, (a.stride(axis) or 0) * steps) for a in longest(passes).loads]
    ahead = {a.node: n + BEYOND_NBYTES // a.node.dtype.itemsize for a, n in rows}
    kernel.sink = ask_ahead(kernel.sink, ahead)


def stream(kernel: Kernel) -> None:
    """Stores of whole SIMD values go past the caches; others cannot."""
    stores = [a.node for a in kernel.accesses() if may_stream(a)]
    if not stores:
        raise KernelOptError(
            "stores of SIMD lanes that are neighbours in memory, without a mask, are wanted"
        )
    past = {u: UOp(u.op, u.dtype, u.src, StoreArg(True)) for u in stores}
    kernel.sink = substitute(kernel.sink, past)


def ask_for_next_blocks(kernel: Kernel, target: Target) -> None:
    """Each tile prefetches a piece of a row of the block that follows.

    The pieces are as long as the tile has rows, so that all tiles together ask for all of it.

    Raises: KernelOptError where an Opt asks for that and there are no blocks.
    """
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    axis = next((r for r in loops if kernel.plan_of(PrefetchedBlocks, r) is not None), None)
    asks: list[UOp] = []
    for a in kernel.accesses():
        block = find_block(kernel.outputs, axis, a) if axis is not None else None
        if axis is not None and block is not None:
            line = max(target.line_nbytes // a.buffer.dtype.itemsize, 1)
            pieces = ceildiv(size_of(block.lane) * block.run, line)
            piece = kernel.new_range(pieces, AxisType.UPCAST)
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


def rows_to_ask_for(a: Access, axes: list[UOp], target: Target) -> int:
    """Prefetch distance of what fills a panel over these axes, in elements, for rows it comes to
    soon; or 0.

    why: of rows far apart the panel takes a run that is too short for processors to ask for it
    """
    steps = [abs(a.strides[r] or 0) for r in axes if not r.arg.kind.is_lane]
    itemsize, near = a.buffer.dtype.itemsize, target.cache_bytes[1]
    total = prod([size_of(r) for r in a.strides]) * itemsize
    if a.strides[axes[-1]] != 1 or min(steps, default=0) * itemsize < APART_NBYTES or total <= near:
        return 0
    return min(steps) * target.costs.rows_ahead
