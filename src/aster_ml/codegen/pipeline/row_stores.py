"""Chooses the parts of a row that is stored late: in the loop that computes the next row.

Receives a Linear and the id of its loop over rows; returns the parts that `rows` runs an iteration
apart.

rewrite, for each row i: A(i); fill scratch[j] for all j; B(i); store f(scratch[j]) for all j
-> A(i); for all j: store f(scratch[j]) of row i - 1, then fill scratch[j] for row i; B(i)
and the last row is stored after the loop over rows
when: the last loop reads and the filling loop writes the same elements of scratch at each step
(`staging/row` sees to it), and nothing that the kernel reads is stored by it
why: stores past the caches are bound by memory, exponentials by arithmetic; one after the other,
each waits while the other works
"""

from __future__ import annotations

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.pipeline.lists import loop_at, sources
from aster_ml.codegen.pipeline.rows import Nest, RowPipeline, nests_of
from aster_ml.dtype import DType
from aster_ml.errors import KernelOptError
from aster_ml.uop.graph import substitute
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops

# What has no place in a loop that is run elsewhere.
FOLDS = frozenset({Ops.DEFINE_REG, Ops.ACCUMULATE, Ops.REDUCE, Ops.BARRIER})


def store_later(linear: Linear, axis_id: int) -> RowPipeline:
    """All of a row, which runs ahead, but the loop that stores it.

    Raises: KernelOptError where the loops do not fit.
    """
    place = loop_at(linear.uops, axis_id)
    if place is not None:
        nests = nests_of(list(linear.uops[place[0] + 1 : place[1]]))
        rows = parts_of(linear, place, nests[-1]) if nests else None
        if rows is not None:
            return rows
    raise KernelOptError(
        f"{linear.name}: PIPELINE stores wants one loop that fills a row of scratch and one that "
        "stores it at the same steps; other Opts have left none"
    )


def parts_of(linear: Linear, place: tuple[int, int], last: Nest) -> RowPipeline | None:
    """Cuts a row before its last loop; None where that does not store what another loop fills."""
    read = [u for u in last.inside if u.op is Ops.LOAD]
    scratch = {memory_of(u) for u in read if memory_of(u).op is Ops.DEFINE_LOCAL}
    stores = [u for u in last.before if u.op is Ops.STORE and memory_of(u) in scratch]
    fills = [nest for nest in nests_of(last.before) if not {*nest.inside}.isdisjoint(stores)]
    if last.behind or len(scratch) != 1 or len(stores) != 1 or len(fills) != 1:
        return None
    (fill,), (memory,) = fills, scratch
    if fill.loops[0].src != last.loops[0].src or len(fill.loops) + len(last.loops) > 2:
        return None
    loads = {memory_of(u) for u in linear.uops if u.op is Ops.LOAD}
    early = [memory_of(u) for u in (*fill.before, *fill.inside) if u.op is Ops.LOAD]
    # The same elements at each step.
    same = {last.loops[0]: fill.loops[0]}
    ends = [u.src[0].src for u in (*stores, *read) if memory_of(u) is memory]
    places = {(substitute(base, same), steps_of_lanes(offset)) for _, base, offset in ends}
    handed = handed_on(last, linear.uops[place[0]].dtype)
    fits = (
        last.loops[0].src[0].op is Ops.CONST
        and FOLDS.isdisjoint([u.op for u in (*last.inside, *fill.inside)])
        and loads.isdisjoint([memory_of(u) for u in last.inside if u.op is Ops.STORE])
        and memory not in early
        and len(places) == 1
    )
    return RowPipeline(linear, place, fill, last, *handed) if handed and fits else None


def steps_of_lanes(offset: UOp) -> frozenset[tuple[AxisType | UOp, int, int]]:
    """Summands of a sum of lanes times constants: the kind of each lane, its size

    Lanes of two loops that are alike are not the same nodes; all else has to be.
    """
    found: set[tuple[AxisType | UOp, int, int]] = set()
    stack = [(offset, 1)]
    while stack:
        u, step = stack.pop()
        if u.op is Ops.ADD:
            stack += [(s, step) for s in u.src]
        elif u.op is Ops.MUL and u.src[1].op is Ops.CONST:
            stack.append((u.src[0], step * u.src[1].arg))
        elif u.op is Ops.RANGE:
            found.add((u.arg.kind, u.src[0].arg, step))
        elif u.op is not Ops.CONST or u.arg:
            found.add((u, 1, step))
    return frozenset(found)


def handed_on(last: Nest, number: DType) -> tuple[list[UOp], list[UOp]] | None:
    """Values of a row that its stores need: made again from its number, and kept in scratch.

    None where one of them has lanes, or stands in a loop within the row.
    """
    wanted = {s for u in last.inside for s in sources(u)}
    again, kept, depth = list[UOp](), list[UOp](), 0
    for u in reversed(last.before):
        depth -= u.op is Ops.RANGE
        if u in wanted:
            is_again = u.op in ELEMENTWISE and u.dtype is number
            if depth or (not is_again and any([r.arg.kind.is_lane for r in u.ranges])):
                return None
            (again if is_again else kept).append(u)
            wanted.update(sources(u) if is_again else ())
        depth += u.op is Ops.END
    return again[::-1], kept[::-1]
