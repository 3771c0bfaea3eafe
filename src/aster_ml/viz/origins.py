"""Traces origins: from nodes of a body to nodes of kernels, from those to lists, to lines.

Receives what the stages hold while they are there (a planner's readings, a writer's cells); returns
maps. Each is exact where a stage knows it; from a kernel's graph to its Linear, whose nodes are
others, two nodes belong together that do the same to the same memory (`signature`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops, RunArg

NAME = re.compile(r"%?[A-Za-z_][\w.]*$")
DEFINED = re.compile(r"^\s*(?:[\w *]+\s)?(%?[A-Za-z_][\w.]*) [+*/|&-]?= ")
FOLDING = frozenset({Ops.REDUCE, Ops.ACCUMULATE})
FILLING = frozenset({Ops.STORE, Ops.ACCUMULATE})
HOLDING = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})


def values_by_slot(drafts: Iterable[Any]) -> dict[int, UOp]:
    """Slot -> the expression that is stored there, as drafts were first made."""
    return {part.slot: part.value for draft in drafts for part in draft.parts}


def stores_of(kernel: UOp) -> list[tuple[int, UOp]]:
    """Number of the PARAM and value of each STORE of a kernel's graph."""
    found = []
    for end in kernel.src:
        store = end.src[0] if end.op is Ops.END else end
        if store.op is Ops.STORE and store.src[0].op is Ops.INDEX:
            found.append((store.src[0].src[0].arg.slot, store.src[1]))
    return found


def walk_together(first: UOp, second: UOp, found: dict[UOp, UOp]) -> None:
    """Pairs the nodes of two expressions of one form; where they differ, it goes no deeper."""
    stack = [(first, second)]
    while stack:
        a, b = stack.pop()
        if a in found or a.op is not b.op or len(a.src) != len(b.src):
            continue
        found[a] = b
        stack.extend(zip(a.src, b.src, strict=True))


def expressed_by(planner: Any) -> dict[UOp, list[UOp]]:
    """Expression of a planner -> the nodes of its body whose value it is."""
    origin: dict[UOp, list[UOp]] = {}
    for u, uses in planner.readings.items():
        for use in uses.values():
            # What is read where data say has no expression of its own.
            if getattr(use, "value", None) is not None:
                origin.setdefault(use.value, []).append(u)
    for u, stored in planner.stored.items():
        if stored.value is not None:
            origin.setdefault(stored.value, []).append(u)
    return origin


def body_origins(
    origin: dict[UOp, list[UOp]], values: dict[int, UOp], step: Any
) -> list[dict[UOp, list[UOp]]]:
    """For each kernel of a step: a node of it -> the nodes of the body whose value it is.

    `values` has by slot what was first to be stored there.
    """
    if step.ast is None:
        return []
    result = []
    is_run = isinstance(step.ast.arg, RunArg)
    kernels = step.ast.src if is_run else (step.ast,)
    for k, kernel in enumerate(kernels):
        pairs: dict[UOp, UOp] = {}
        for number, value in stores_of(kernel):
            place = step.ast.arg.slots[k][number] if is_run else number
            known = values.get(step.slots[place])
            if known is not None:
                walk_together(known, value, pairs)
        found: dict[UOp, list[UOp]] = {}
        for expr, node in pairs.items():
            if expr in origin:
                found.setdefault(node, []).extend(origin[expr])
        result.append({node: [*dict.fromkeys(us)] for node, us in found.items()})
    return result


def source_lines(writer: Any, marks: list[int], text: str) -> list[int]:
    """For each line of a text, the place in the Linear of the node that it writes; else -1."""
    uops = writer.linear.uops
    place = {u: i for i, u in enumerate(uops)}
    by_name: dict[str, int] = {}
    for u, cell in writer.cells.items():
        for value in cell.values:
            if isinstance(value, str) and NAME.match(value) and u in place:
                by_name.setdefault(value, place[u])
    lines: list[str] = []
    listed: list[int] = []
    for i, mark in enumerate(marks):
        stop = marks[i + 1] if i + 1 < len(marks) else len(writer.lines)
        for line in writer.lines[mark:stop]:
            for piece in line.split("\n"):
                lines.append(piece)
                listed.append(i)
    result = [-1] * (text.count("\n") + 1)
    body = "\n".join(lines)
    at = text.find(body) if body else -1
    first = text.count("\n", 0, at) if at >= 0 else 0
    for i, place_in_list in enumerate(listed if at >= 0 else ()):
        result[first + i] = place_in_list
    for i, line in enumerate(text.split("\n")):
        match = DEFINED.match(line)
        if match is not None and match[1] in by_name:
            result[i] = by_name[match[1]]
    return result


def signatures(order: Iterable[UOp]) -> dict[UOp, tuple[object, ...]]:
    """Signs each node by what it does to which memory: equal before and after lowering.

    The nodes are given in the order in which they run. Scratch and accumulators count as the memory
    that they are filled from. Nodes that only say where memory is read have no signature.
    """
    slots: dict[UOp, frozenset[int]] = {}
    result: dict[UOp, tuple[object, ...]] = {}
    done: dict[UOp, None] = {}
    for root in order:
        count = len(done)
        for u in islice(toposort(root, done=done), count, None):
            below = frozenset[int]().union(*[slots[s] for s in u.src])
            slots[u] = frozenset({u.arg.slot}) if u.op is Ops.PARAM else below
            key = signature(u, slots[u])
            if key is not None:
                result[u] = key
            filled = memory_below(u.src[0]) if u.op in FILLING and u.src else None
            if filled is not None and filled.op is not Ops.PARAM:
                slots[filled] = slots[filled] | below
    return result


def memory_below(u: UOp) -> UOp:
    """The memory, scratch or accumulator that a place is in."""
    while u.op not in HOLDING and u.src:
        u = u.src[0]
    return u


def signature(u: UOp, slots: frozenset[int]) -> tuple[object, ...] | None:
    """That of one node, whose value comes from these slots."""
    op = u.op
    if op is Ops.PARAM:
        return "memory", u.arg.slot
    if op in (Ops.LOAD, Ops.STORE):
        place = memory_below(u.src[0])
        return (op.name, place.arg.slot) if place.op is Ops.PARAM else None
    if op in FOLDING:
        fold = getattr(u.arg, "op", u.arg)
        return "fold", getattr(fold, "name", str(fold)), slots
    if op in ELEMENTWISE and u.dtype.kind in ("float", "bool"):
        return op.name, u.dtype.name, slots
    return None


def alike(before: UOp, after: Sequence[UOp]) -> dict[UOp, list[int]]:
    """Nodes of a graph -> places in a list of those nodes that do the same."""
    places: dict[tuple[object, ...], list[int]] = {}
    index = {u: i for i, u in enumerate(after)}
    for u, key in signatures(after).items():
        if u in index:
            places.setdefault(key, []).append(index[u])
    known = signatures(toposort(before))
    return {
        u: sorted(places[known[u]]) for u in toposort(before) if u in known and places.get(known[u])
    }
