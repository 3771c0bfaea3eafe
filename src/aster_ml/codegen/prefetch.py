"""Prefetch and non-temporal hints on loads and stores.

Receives what is known of a kernel's graph; returns the graph with hints on its loads and stores.
They change nothing that a kernel computes. Whether they pay is said in `cpu/costs`.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.analysis import Access, Facts
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, prod
from aster_ml.uop.graph import holds, substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, AxisType, LoadArg, Ops, StoreArg
from aster_ml.uop.ranges import size_of

# Bytes beyond whole rows that are asked for: a row is read from its beginning as soon as the one
# before it is done, so what comes exactly a row later has less time than all that follows it.
BEYOND_NBYTES = 2048


class Pass(NamedTuple):
    """A loop over a row: what it computes, of how many nodes, and which loads happen in it."""

    root: UOp
    values: int
    loads: tuple[Access, ...]


def passes_of(facts: Facts) -> list[Pass]:
    """What reductions fold, what STAGEs keep and what is stored, each with its own loads."""
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


def look_ahead(sink: UOp, loads: tuple[Access, ...], axis: UOp, steps: int) -> UOp:
    """The graph in which these loads ask for what they read so many steps of the axis later."""
    asked = {}
    for a in loads:
        further = (a.stride(axis) or 0) * steps + BEYOND_NBYTES // a.node.dtype.itemsize
        asked[a.node] = UOp(Ops.LOAD, a.node.dtype, a.node.src, LoadArg(further))
    return substitute(sink, asked)


def row_stage(facts: Facts, outputs: list[UOp], axis: UOp) -> tuple[UOp, UOp] | None:
    """The STAGE of a row that each step of an output axis has, and where its stores read it.

    They read every element of it once, lane by lane, in one loop inside of the axis.
    """
    loops = [r for r in outputs if not r.arg.kind.is_lane]
    stages = facts.by_op[Ops.STAGE]
    if facts.stores_over_reads or len(stages) != 1 or loops[-2:-1] != [axis]:
        return None
    (stage,) = stages
    reads = [a for a in facts.accesses if a.buffer is stage and loops[-1] in a.strides]
    rows = [r for r in outputs if r not in stage.ranges]
    lanes = any(r.arg.kind.is_lane for r in stage.ranges)
    if lanes or len(reads) != 1 or set(rows) != set(reads[0].strides):
        return None
    # Each axis goes on where those before it end.
    run = 1
    for r in sorted(rows, key=lambda r: reads[0].stride(r) or 0):
        if reads[0].stride(r) != run or r.src[0].op is not Ops.CONST:
            return None
        run *= r.src[0].arg
    whole = stage.src[1].src[0]
    return (stage, reads[0].node) if whole.op is Ops.CONST and run == whole.arg else None


def folds_of_next(facts: Facts, axis: UOp) -> tuple[UOp, UOp] | None:
    """The first and the last fold in a step of an output axis, if the first of the next step can
    share the loops of the last one.

    It gives one number out of SIMD lanes, reads nothing but memory that the kernel does not store,
    each element in its own loops, and these have as many turns as those of the last fold.
    """
    folds = [u for u in facts.reduces if axis in u.ranges]
    if len(folds) < 2 or axis.src[0].op is not Ops.CONST:
        return None
    first, last = folds[0], folds[-1]
    loops, others = ([r for r in u.src[1:] if not r.arg.kind.is_lane] for u in (first, last))
    if not loops or any([r.src[0].op is not Ops.CONST for r in loops + others]):
        return None
    if not any([r.arg.kind.is_lane for r in first.src[1:]]):
        return None
    # Of more than two, one comes before all others, and one after them.
    leaves = [u for u in folds if not holds(u.src[0], {Ops.REDUCE})]
    roots = [u for u in folds if not any([u in toposort(x.src[0]) for x in folds if x is not u])]
    if len(folds) > 2 and (leaves != [first] or roots != [last]):
        return None
    turns, wanted = [size_of(r) for r in loops], [size_of(r) for r in others]
    if turns not in (wanted, [prod(wanted)]) or any([r.arg.kind.is_lane for r in first.ranges]):
        return None
    stored = {u.src[0].src[0] for u in facts.stores}
    for u in toposort(first.src[0]):
        if u.op is Ops.REDUCE or u.op is Ops.STAGE:
            return None
        if u.op is Ops.LOAD and (
            u.src[0].src[0] in stored or (axis in u.ranges and u.ranges.isdisjoint(loops))
        ):
            return None
    return first, last


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
    """How many neighbours the lanes of an access take at once, 1 where its SIMD lanes lie apart."""
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


def prefetch_offset(sink: UOp, loads: list[tuple[Access, int]], steps: int) -> UOp:
    """The graph in which loads ask for what lies so many steps further, of so many elements."""
    asked = {a.node: UOp(Ops.LOAD, a.node.dtype, a.node.src, LoadArg(n * steps)) for a, n in loads}
    return substitute(sink, asked)


def may_stream(a: Access) -> bool:
    """Whether an access stores whole SIMD values of numbers, which can go past the caches."""
    whole = any([r.arg.kind is AxisType.VECTOR and a.strides[r] == 1 for r in a.strides])
    return a.is_store and whole and not a.node.src[2:] and a.buffer.dtype is not dtypes.bool


def stream_stores(sink: UOp, stores: list[UOp]) -> UOp:
    """The graph in which stores go past the caches."""
    return substitute(sink, {u: UOp(u.op, u.dtype, u.src, StoreArg(True)) for u in stores})
