"""Finds the live tensors that may still have to read given memory.

Receives the nodes of tensors, as tensors get them; returns those of them that lie above memory, in
the graph. A question costs what lies above that memory, and a bounded number of tensors that are
new, whatever else is alive. Whether such a node really needs the content is decided in
`engine.realize`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator
from typing import Any

from aster_ml.engine import storage
from aster_ml.thread_state import SharedWeakTable
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp
from aster_ml.uop.users import NOTING, link, users_of


class Tensors:
    """Access of the index to tensors, set by the layer that has them.

    `new` has references to tensors that were given a node since the last question; `nodes_of`
    gives the nodes that a tensor may have to be computed from now, none once it is gone.
    """

    new: dict[Any, None] = {}
    nodes_of: Callable[[Any], list[UOp]]


# Of nodes that have no tensor of their own, references to the tensors that show them.
SHOWN: SharedWeakTable[UOp, dict[Any, None]] = SharedWeakTable()


def enter_new() -> None:
    """Enters the tensors that were given a node since the last time."""
    with NOTING:
        new = Tensors.new
        for ref in list(new):
            # Before the nodes are asked for: who is given another one meanwhile is new once more.
            new.pop(ref, None)
            for u in Tensors.nodes_of(ref):
                if u._owner is not ref:
                    SHOWN.setdefault(u, {})[ref] = None
                if u.src and not u._is_linked:
                    link(u)


def tensors_at(u: UOp) -> list[Any]:
    """References to the live tensors of which this is the node."""
    owner = u._owner
    found = [] if owner is UNSET or u not in Tensors.nodes_of(owner) else [owner]
    if SHOWN:
        others = SHOWN.get(u, {})
        for ref in list(others):
            if u in Tensors.nodes_of(ref):
                found.append(ref)
            else:
                with NOTING:
                    # Its thread may have given it this node since, and another entered it.
                    if u not in Tensors.nodes_of(ref):
                        others.pop(ref, None)
    return found


def nodes_above(memory: Collection[UOp]) -> list[UOp]:
    """The nodes of live tensors that may read one of these BUFFERs."""
    enter_new()
    # In the order of their numbers, so that a program asks for the same in each process.
    stack = sorted(memory, key=lambda u: u.arg.id)
    seen = dict.fromkeys(stack)
    found = []
    while stack:
        u = stack.pop()
        if tensors_at(u):
            found.append(u)
        for v in [*users_of(u), *storage.origins_of(u), *storage.OWNERS.get(u, ())]:
            if v in seen:
                continue
            seen[v] = None
            shown = storage.realized_view(v)
            if shown is None or any([b in memory for b in storage.buffers_below(shown)]):
                stack.append(v)
    return found


def shown_above(u: UOp, through: Container[Any]) -> Iterator[Any]:
    """References to the live tensors that show a node through ops of these kinds alone."""
    seen = {u}
    stack = [u]
    while stack:
        u = stack.pop()
        yield from tensors_at(u)
        for v in users_of(u):
            if v not in seen and v.op in through:
                seen.add(v)
                stack.append(v)
