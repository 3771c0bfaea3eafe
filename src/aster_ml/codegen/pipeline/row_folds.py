"""Chooses the parts of a row that is folded early: its first fold, in the loops of the last one.

Receives a Linear and the id of its loop over rows; returns the parts that `rows` runs an iteration
apart.

rewrite, for each row i: m = A(i); what reads m; s = B(i); what reads s, with folds A and B
-> once, before the first row: m = A(i)
and for each row i: what reads m; s = B(i) and m = A(i + 1) in the same loops; what reads s
when: A reads nothing but its row of memory, which the kernel does not store, and has the loops of
B, or one of as many iterations
why: a fold of a row ends with one number out of a register's lanes, for which all else waits; and
memory rests while what was loaded before is folded
The last row is folded once more. Every number is made of the same ones in the same order.
"""

from __future__ import annotations

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.pipeline.lists import loop_at, sources
from aster_ml.codegen.pipeline.rows import Nest, RowPipeline, nests_of
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops


def fold_early(linear: Linear, axis_id: int) -> RowPipeline:
    """The first fold of a row, which runs ahead, and the rest.

    Raises: KernelOptError where the loops do not fit.
    """
    place = loop_at(linear.uops, axis_id)
    if place is not None and linear.uops[place[0]].src[0].op is Ops.CONST:
        folds = folds_of(list(linear.uops[place[0] + 1 : place[1]]))
        rows = parts_of(linear, place, folds[0]) if len(folds) > 1 else None
        if rows is not None:
            return rows
    raise KernelOptError(
        f"{linear.name}: PIPELINE folds wants two folds of as many iterations in each row, the "
        "first of them of memory alone into one number; other Opts have left none"
    )


def folds_of(nodes: list[UOp]) -> list[Nest]:
    """The folds in no more than one loop in another, of fixed sizes."""
    return [
        nest
        for nest in nests_of(nodes)
        if all([r.src[0].op is Ops.CONST for r in nest.loops])
        and any([u.op is Ops.ACCUMULATE for u in nest.opened[-1]])
    ]


def parts_of(linear: Linear, place: tuple[int, int], first: Nest) -> RowPipeline | None:
    """Cuts a row behind its first fold; None where that is not of memory alone."""
    # What is loaded, or made of that, and listed too early, stands behind the fold as well.
    aside: dict[UOp, None] = {}
    for u in first.before:
        if u.op is Ops.LOAD or not aside.keys().isdisjoint(sources(u)):
            aside[u] = None
    before = [u for u in first.before if u not in aside]
    # What is computed from the number of the row: its places, for one.
    again = [u for u in before if u.op in ELEMENTWISE]
    registers = [u for u in before if u.op is Ops.DEFINE_REG]
    # What reads the registers has to be this and nothing else: numbers for all lanes each.
    totals = [u for u in first.behind if any([s in registers for s in sources(u)])]
    last = folds_of([*aside, *[u for u in first.behind if u not in totals]])[-1]
    stored = {memory_of(u) for u in linear.uops if u.op is Ops.STORE}
    read = [memory_of(u) for u in first.inside if u.op is Ops.LOAD]
    fits = (
        first.sizes in (last.sizes, [prod(last.sizes)])
        and len(again) + len(registers) == len(before)
        and all([u.op is Ops.LOAD or u.op in ELEMENTWISE for u in aside])
        and aside.keys().isdisjoint(toposort(*first.inside))
        and all([m.op is Ops.PARAM and m not in stored for m in read])
        and all([is_total(u) for u in totals])
    )
    ahead = first._replace(before=before, behind=totals)
    return RowPipeline(linear, place, ahead, last, again, totals) if fits else None


def is_total(u: UOp) -> bool:
    """Whether a node folds all lanes of a register into one number."""
    return u.op is Ops.REDUCE and not any(r.arg.kind.is_lane for r in u.ranges)
