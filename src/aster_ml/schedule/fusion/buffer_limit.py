"""Stores more values where a kernel would have more buffers than its device allows.

Receives a planned body and how many buffers a kernel of each device may have; returns the body in
which values inside of what is too much are stored by themselves. It is planned again then.
"""

from __future__ import annotations

from aster_ml.schedule.fusion.materialize import StagePlanner
from aster_ml.schedule.fusion.uses import Materialized
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops

# What is stored well by itself: all that is computed, and what padding and choices make of parts.
STORABLE = ELEMENTWISE | {Ops.REDUCE}


def without_crowds(body: UOp, planner: StagePlanner, limits: dict[str, int]) -> UOp:
    """The body, with a value inside of each kernel of too many buffers stored; itself if none is.

    Where nothing inside would help it stays as it is, and its device says so.
    """
    changes: dict[UOp, UOp] = {}
    for stored in planner.stored.values():
        limit = limits.get(str(stored.node.device), 0)
        if not limit or stored.value is None or buffers_of(stored) <= limit:
            continue
        value = value_inside(planner, stored, limit)
        if value is not None:
            changes[value] = UOp(Ops.CONTIGUOUS, value.dtype, (value,))
    return substitute_all([body], changes)[0] if changes else body


def buffers_of(stored: Materialized) -> int:
    """Counts the buffers of the kernel of a stored value."""
    assert stored.value is not None
    return 1 + sum([u.op is Ops.PARAM for u in toposort(stored.value)])


def value_inside(planner: StagePlanner, stored: Materialized, limit: int) -> UOp | None:
    """The value that is made of most memory among those that fit a kernel of their own."""
    root = stored.node
    memory = planner.stored.keys() - {root}
    below: dict[UOp, frozenset[UOp]] = {}
    best: tuple[int, UOp] | None = None
    order = toposort(root, enter=lambda u: u is root or not (u in memory or u.op is Ops.PARAM))
    for u in order:
        if u in memory or u.op is Ops.PARAM:
            below[u] = frozenset({u})
            continue
        below[u] = found = frozenset().union(*[below.get(s, frozenset()) for s in u.src])
        fits = 2 <= len(found) < limit
        if fits and u.op in STORABLE and u is not root and u.device is not None:
            # Of those that are made of as much, the one nearest to the root.
            best = (len(found), u) if best is None or len(found) >= best[0] else best
    return None if best is None else best[1]
