"""Lists what each access of a Linear touches: its loops, its place, whether it stays inside.

Receives a Linear; returns rows of plain data. The page computes from the same nodes what
one iteration of the loops touches (`viz/assets/access.js`).
"""

from __future__ import annotations

from typing import Any

from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.viz.nodes import NodeTable

DATA = frozenset({Ops.LOAD, Ops.REDUCE, Ops.DEFINE_REG, Ops.ACCUMULATE})


def plain(u: UOp) -> UOp:
    """The node that AFTERs mark."""
    while u.op is Ops.AFTER:
        u = u.src[0]
    return u


def verdict_of(low: int, high: int, size: int, gated: bool, by_data: bool) -> str:
    """Says in words whether an access stays inside."""
    if 0 <= low and high < size:
        return f"inside: {low} to {high} of {size} elements"
    if gated:
        return f"guarded: {low} to {high} of {size}; where the gate fails nothing is touched"
    if by_data:
        return f"decided by data: {low} to {high} of {size} as far as bounds tell"
    return f"not shown by bounds alone: {low} to {high} of {size}"


def accesses_of(linear: Linear, nodes: NodeTable) -> dict[str, Any]:
    """The loops, outermost first, and every access in running order."""
    loops: list[UOp] = []
    open_now: list[UOp] = []
    rows: list[dict[str, Any]] = []
    lanes: dict[UOp, None] = {}
    for i, u in enumerate(linear.uops):
        if u.op is Ops.RANGE and not u.arg.kind.is_lane:
            loops.append(u)
            open_now = [*open_now, u]
        elif u.op is Ops.END:
            open_now = [r for r in open_now if r is not u.src[0]]
        elif u.op in (Ops.LOAD, Ops.STORE):
            index = plain(u.src[0])
            if index.op is not Ops.INDEX:
                continue
            memory = plain(index.src[0])
            mine = [r for r in toposort(u.src[0]) if r.op is Ops.RANGE and r.arg.kind.is_lane]
            lanes.update(dict.fromkeys(mine))
            rows.append(row_of(i, u, index, memory, mine, open_now, nodes))
    return {
        "loops": [loop_row(r, nodes) for r in loops],
        "lanes": [loop_row(r, nodes) for r in lanes],
        "rows": rows,
    }


def loop_row(r: UOp, nodes: NodeTable) -> dict[str, Any]:
    """A loop or lane: its node, size and kind."""
    size = r.src[0]
    number = int(size.arg) if size.op is Ops.CONST else int(size.vmax)
    fixed = size.op is Ops.CONST
    return {
        "node": nodes.number(r), "size": number, "kind": r.arg.kind.name, "id": r.arg.id,
        "fixed": fixed, "vector": r.arg.kind is AxisType.VECTOR,
    }  # fmt: skip


def row_of(
    place: int, u: UOp, index: UOp, memory: UOp, lanes: list[UOp], loops: list[UOp],
    nodes: NodeTable,
) -> dict[str, Any]:  # fmt: skip
    """One access."""
    is_store = u.op is Ops.STORE
    gated = len(u.src) > (2 if is_store else 1)
    low = high = 0
    for part in index.src[1:]:
        low, high = low + int(part.vmin), high + int(part.vmax)
    of_param = memory.op is Ops.PARAM
    size = int(memory.arg.size)
    by_data = any([x.op in DATA for s in index.src[1:] for x in toposort(s)])
    words = u.dtype.itemsize // index.dtype.itemsize if not is_store else 1
    return {
        "place": place,
        "op": u.op.name,
        "slot": memory.arg.slot if of_param else -1,
        "memory": nodes.number(memory),
        "size": size,
        "bytes": index.dtype.itemsize,
        "words": max(1, words),
        "at": [nodes.number(s) for s in index.src[1:]],
        "gate": nodes.number(u.src[-1]) if gated else -1,
        "lanes": [nodes.number(r) for r in lanes],
        "loops": [nodes.number(r) for r in loops],
        "by_data": by_data,
        "verdict": verdict_of(low, high, size, gated, by_data),
    }
