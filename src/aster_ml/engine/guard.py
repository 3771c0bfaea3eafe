"""A guard against graphs that grow without end: a loop that never realizes what it carries along.

Past GRAPH_LIMIT unrealized nodes under one tensor, GRAPH_GUARD decides: nothing, a warning that
names the user's line, or the tensor is realized. Counting is done only when the number of live
nodes has grown by much since it was last done, so it costs nothing in a normal program.
"""

from __future__ import annotations

import warnings

from aster_ml.config import GRAPH_GUARD, GRAPH_LIMIT
from aster_ml.engine import storage
from aster_ml.frames import user_line
from aster_ml.uop.graph import toposort
from aster_ml.uop.interned import NODES
from aster_ml.uop.node import UOp


class GraphWarning(UserWarning):
    """A graph of unrealized nodes keeps growing."""


class Guard:
    """When to look next, and which lines have been warned of."""

    def __init__(self) -> None:
        self.look_at = 0
        self.warned: set[tuple[str, int]] = set()


GUARD = Guard()


def graph_is_too_large(u: UOp) -> bool:
    """Whether `u` should be realized now; warns instead where that is set."""
    if len(NODES) <= max(GUARD.look_at, GRAPH_LIMIT.value):
        if GUARD.look_at > 2 * len(NODES):
            GUARD.look_at = 0
        return False
    GUARD.look_at = len(NODES) + GRAPH_LIMIT.value // 4
    if not GRAPH_GUARD:
        return False
    count = len(toposort(u, enter=lambda x: storage.realized_view(x) is None))
    if count <= GRAPH_LIMIT.value:
        return False
    if GRAPH_GUARD == 2:
        return True
    line = user_line()
    if line not in GUARD.warned:
        GUARD.warned.add(line)
        warnings.warn(
            f"{line[0]}:{line[1]}: the graph under this tensor has {count} unrealized nodes and "
            f"keeps growing; call realize() in the loop (GRAPH_GUARD=2 does so by itself, "
            f"GRAPH_GUARD=0 ends this warning)",
            GraphWarning,
            stacklevel=2,
        )
    return False
