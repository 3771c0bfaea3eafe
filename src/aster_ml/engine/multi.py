"""Nodes on several devices, and the nodes of one device that stand for them from realizing on.

Receives a node; returns its parts, one a device (`uop.multi` says what they are), and keeps them as
long as the node lives: what is realized are the parts, and they are what storage knows. A node
without MULTI below is its own only part and costs one look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aster_ml.engine import storage
from aster_ml.thread_state import SharedWeakTable
from aster_ml.uop.multi import parts_of
from aster_ml.uop.node import REDUCERS, UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.sharding import MULTI_SEEN

PARTS: SharedWeakTable[UOp, Sequence[UOp]] = SharedWeakTable()


def reduce_multi(u: UOp) -> tuple[Any, ...]:
    """Pickles a MULTI: the process that reads it has to know that there is one."""
    return restore_multi, (u.src, u.arg.axis)


def restore_multi(src: tuple[UOp, ...], axis: int | None) -> UOp:
    """A MULTI from what pickling wrote."""
    return src[0].beside(src[1:], axis)


REDUCERS[Ops.MULTI] = reduce_multi


def parts(root: UOp) -> Sequence[UOp]:
    """The nodes of one device each that `root` stands for; itself where it is one."""
    if not MULTI_SEEN or not root.has_multi:
        return (root,)
    found = PARTS.get(root)
    if found is not None:
        return found
    stack = [root]
    while stack:
        u = stack[-1]
        if u in PARTS:
            stack.pop()
            continue
        missing = [s for s in u.src if s.has_multi and s not in PARTS]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        PARTS[u] = made = parts_of(u, known)
        for part in made:
            storage.note_owner(part, u)
    return PARTS[root]


def known(u: UOp) -> Sequence[UOp]:
    """The parts of a node that have been worked out."""
    return PARTS[u] if u.has_multi else (u,)


def all_parts(nodes: Iterable[UOp]) -> list[UOp]:
    """The parts of all nodes, each once."""
    return list(dict.fromkeys([part for u in nodes for part in parts(u)]))


def open_nodes(nodes: Iterable[UOp]) -> set[UOp]:
    """The nodes with MULTI at or below them that computing these nodes goes through."""
    seen: set[UOp] = set()
    stack = list(nodes)
    while stack:
        u = stack.pop()
        if u not in seen and u.has_multi and storage.realized_view(u) is None:
            seen.add(u)
            stack.extend(u.src)
    return seen


def is_copied(u: UOp) -> bool:
    """Whether a value was just put on several devices, so that it lies in memory there anyway."""
    return u.op is Ops.MULTI and all([s.op is Ops.COPY for s in u.src])


def have_happened(u: UOp) -> bool:
    """Whether the effects of an AFTER have happened on every device."""
    return all([storage.realized_view(part) is not None for part in parts(u)])
