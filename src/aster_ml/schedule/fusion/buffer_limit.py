"""Stores more values where a kernel would have more buffers than its device allows.

Receives a planned body and the largest number of buffers for each device; returns a body in which
values inside of such kernels are stored, to be planned again.
"""

from __future__ import annotations

from aster_ml.schedule.fusion.materialize import StagePlanner
from aster_ml.schedule.fusion.uses import Materialized
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops

# Ops whose values may be stored: all that compute.
STORABLE = ELEMENTWISE | {Ops.REDUCE}


def without_crowds(body: UOp, planner: StagePlanner, limits: dict[str, int]) -> UOp:
    """The body, with one value inside of each kernel with too many buffers stored; else itself.

    A kernel in which no value helps stays unchanged, and its device reports the error.
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
    """The value that reads the most buffers among those that fit a kernel of their own."""
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
            # Of equals, the one nearest to the root.
            best = (len(found), u) if best is None or len(found) >= best[0] else best
    return None if best is None else best[1]
