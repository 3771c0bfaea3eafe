"""Finds the memory that has the value of a node, or that effects on the way to it write.

Receives a node; returns a view of BUFFERs (or a constant), or None where something is computed
first. Nothing is run here, and nothing is allocated but what `ready_buffer` gives.
"""

from __future__ import annotations

from aster_ml.device import Buffer
from aster_ml.engine import storage
from aster_ml.engine.calls import PENDING
from aster_ml.schedule.rewrites.copies import DATA_ONLY
from aster_ml.thread_state import STATE
from aster_ml.uop.movement import is_whole_memory
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import GRADIENT_MARKS, MOVEMENT, Ops
from aster_ml.watch import WATCHERS

MARKS = GRADIENT_MARKS | {Ops.CONTIGUOUS_BACKWARD}
MEMORY = frozenset({Ops.BUFFER, Ops.MULTI})
# Where a value may be memory, or a constant, without having been computed.
SEEN_THROUGH = frozenset(
    {*storage.VIEWS, *MARKS, *MEMORY, Ops.CONST, Ops.BIND, Ops.CONTIGUOUS, Ops.AFTER}
)
SHOWING = MARKS | MOVEMENT
# Of these the first source has the same elements; where writes count as run, they have them too.
SHOWS = storage.VIEWS | MARKS | {Ops.CONTIGUOUS}
SHOWS_WRITTEN = storage.VIEWS | MARKS | {Ops.AFTER}


def find_realized(u: UOp, written: bool = False) -> UOp | None:
    """The memory (or constant) that `u` already is, or None when there is something to compute.

    Where `written`, writes count as run: the memory under them, which is no constant.
    """
    shows = SHOWS_WRITTEN if written else SHOWS
    stack: list[UOp] = []
    x = u
    while True:
        found = storage.realized_view(x)
        if found is not None:
            x = found
        if x.op not in shows:
            break
        if x.op not in MARKS and x.op is not Ops.AFTER:
            stack.append(x)
        x = x.src[0]
    if x.op is Ops.MULTI:
        below = [found for s in x.src if (found := find_realized(s, written)) is not None]
        if len(below) < len(x.src):
            return None
        x = UOp(x.op, x.dtype, tuple(below), x.arg)
    elif x.op is not Ops.BUFFER:
        if written or (x.op is not Ops.CONST and x.op is not Ops.BIND and x.base.op not in MEMORY):
            return None
    for m in reversed(stack):
        if m.op is not Ops.CONTIGUOUS:
            x = UOp(m.op, m.dtype, (x, *m.src[1:]), m.arg)
        elif not is_whole_memory(x) and not str(x.device).startswith(DATA_ONLY):
            # Who only holds data lays out nothing: it is read as it is shown.
            return None
    return x


def find_memory(u: UOp) -> UOp | None:
    """The memory under movement ops and AFTERs, or None when something is computed."""
    return find_realized(u, written=True)


def buffers_of(u: UOp) -> list[Buffer]:
    """The memory that a node already is a view of, one buffer a device; none of what is computed.

    A constant has none. A buffer may be there and not yet allocated.
    """
    memory = find_realized(u)
    below = [] if memory is None else storage.buffers_below(memory)
    return [storage.buffer_of(b) for b in below]


def whole_buffer(u: UOp) -> Buffer | None:
    """The memory that a node is all of, in row-major order; None for parts and what is computed."""
    memory = find_realized(u)
    if memory is None or not is_whole_memory(memory):
        return None
    below = storage.buffers_below(memory)
    return storage.buffer_of(below[0]) if len(below) == 1 else None


def afters_of(u: UOp) -> list[UOp]:
    """The AFTERs on the way to the memory whose effects have not happened."""
    result: list[UOp] = []
    while u.op is not Ops.BUFFER:
        found = storage.realized_view(u)
        if found is not None:
            u = found
            continue
        if u.op is Ops.AFTER:
            result.append(u)
        u = u.src[0]
    return result


def base_buffer(u: UOp) -> UOp:
    """The BUFFER below views and effects."""
    while u.op is not Ops.BUFFER:
        u = u.src[0]
    return u


def memory_of(u: UOp) -> UOp:
    """Realized node of `u`, or `u` itself."""
    found = storage.realized_view(u)
    if found is None:
        found = find_realized(u)
    return u if found is None else found


def ready_buffer(u: UOp) -> Buffer | None:
    """The memory that a node shows whole, where nothing is to be computed or written before."""
    if STATE.observers or PENDING or storage.DUE.data or WATCHERS:
        return None
    while (u.op is Ops.RESHAPE and len(u.src) == 1) or u.op is Ops.NAME:
        u = u.src[0]
    return storage.buffer_of(u).ensure_allocated() if u.op is Ops.BUFFER else None
