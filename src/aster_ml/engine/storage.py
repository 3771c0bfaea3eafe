"""Keeps which node owns which memory.

BUFFER nodes have a `Buffer`. Other nodes that were realized have a realized view: a view of a
BUFFER node that shows the same value. Both tables are weak: memory goes when the last node that
names it does.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable, Sequence
from typing import Any, Protocol

from aster_ml.device import NAMES_OF, Buffer, Lent
from aster_ml.dtype import DType
from aster_ml.thread_state import SharedWeakSet, SharedWeakTable
from aster_ml.uop.node import REDUCERS, UOp
from aster_ml.uop.ops import MOVEMENT, Ops
from aster_ml.uop.sharding import MULTI_SEEN
from aster_ml.uop.users import link


class Unfinished(Protocol):
    """Rest of a schedule that has not run."""

    def finish(self) -> None:
        """Runs it."""

    def touches(self, memory: set[int]) -> bool:
        """Whether it reads or writes memory with one of these ids."""

    def note_filled(self, item: Any) -> None:
        """Somebody has run an item that fills a buffer."""


BUFFERS: SharedWeakTable[UOp, Buffer] = SharedWeakTable()
REALIZED_VIEWS: SharedWeakTable[UOp, UOp] = SharedWeakTable()
AFTER = Ops.AFTER
# Movement that shows memory; what is padded is computed.
VIEWS = MOVEMENT - {Ops.PAD}


class Nodes(list[weakref.ref[UOp]]):
    """Nodes, known weakly. References have no callbacks: see `ops.views.Cell`."""

    sweep_at = 16

    def sweep(self) -> None:
        """Drops those that are gone."""
        self[:] = [ref for ref in self if ref() is not None]
        self.sweep_at = max(Nodes.sweep_at, 2 * len(self))

    def are_left(self) -> bool:
        """Whether some of them are alive; drops the last ones that are gone."""
        while self and self[-1]() is None:
            self.pop()
        return bool(self)


# For each realized view the nodes that have it, for gradients of graphs built before.
ORIGINS: SharedWeakTable[UOp, Nodes] = SharedWeakTable()


# For each memory, the nodes with a realized view that were computed from it, by the schedules that
# did. What one schedule computes has read all of its memory, for all it is known here, so its nodes
# are one group: a step over n parameters notes n groups and not n * n nodes.
class Groups(list[Nodes]):
    """Groups of nodes, and how many there are when those without nodes are swept out."""

    sweep_at = 16


READERS: SharedWeakTable[Buffer, Groups] = SharedWeakTable()

# STOREs that have run.
HAPPENED: SharedWeakSet[UOp] = SharedWeakSet()


# BUFFER nodes that a schedule fills which has not run to its end.
DUE: SharedWeakTable[UOp, Unfinished] = SharedWeakTable()

# For each part of a value on several devices, the nodes of all of it.
OWNERS: SharedWeakTable[UOp, SharedWeakSet[UOp]] = SharedWeakTable()

# Memory with results whose graph was never built, though it leads to tensors that want gradients.
NO_GRADIENT: SharedWeakSet[UOp] = SharedWeakSet()


class Clock:
    """Clock of overwritten memory, and count of exchanges of a BUFFER node's memory.

    The `time` ticks twice for each schedule that overwrites some. A value has the time when its
    schedule began to read. Memory that was overwritten later than that, also by the same schedule,
    is not what the value was computed from. What a STORE wrote is there until its memory is
    overwritten later than one tick after the STORE's own time. Recordings look again after one of
    the `exchanges`.
    """

    def __init__(self) -> None:
        self.time = self.exchanges = 0


CLOCK = Clock()


def attach(node: UOp, buffer: Buffer) -> None:
    """Gives a BUFFER node its memory."""
    if node in BUFFERS:
        CLOCK.exchanges += 1
    BUFFERS[node] = buffer


def buffer_of(u: UOp) -> Buffer:
    """The Buffer of a BUFFER node, made (not yet allocated) when first asked for."""
    while u.op in MOVEMENT:
        u = u.src[0]
    found = BUFFERS.data.get(weakref.ref(u))
    if found is None:
        found = BUFFERS[u] = Buffer(u.arg.device, u.arg.size, u.dtype)
    return found


def names_of(buffer: Buffer) -> int:
    """Counts the live BUFFER nodes of this memory."""
    # A copy, since other threads may make tensors meanwhile.
    return sum([found is buffer for found in BUFFERS.data.copy().values()])


NAMES_OF.append(names_of)


def reduce_node(u: UOp) -> tuple[Any, ...]:
    """Pickles a BUFFER node: its number means nothing elsewhere, its memory goes along."""
    return restore_node, (u.arg.device, u.arg.size, u.dtype, BUFFERS.get(u))


def restore_node(device: str, size: int, dtype: DType, buffer: Buffer | None) -> UOp:
    """A BUFFER node from what pickling wrote."""
    node = UOp.new_buffer(device, size, dtype)
    if buffer is not None:
        attach(node, buffer)
    return node


REDUCERS[Ops.BUFFER] = reduce_node


def realized_view(u: UOp) -> UOp | None:
    """The buffer-backed node that has the value of `u`, if `u` was realized."""
    found = REALIZED_VIEWS.data.get(weakref.ref(u))
    if found is None and u.op is AFTER:
        found = place_after(u)
        if found is not None:
            set_realized_view(u, found)
    return found


def place_after(u: UOp) -> UOp | None:
    """The memory that an AFTER shows, if all of its effects have happened."""
    views: list[UOp] = []
    while u.op is not Ops.BUFFER:
        if u.op is Ops.AFTER:
            if not all([s in HAPPENED for s in u.src[1:]]):
                return None
        elif u.op in MOVEMENT:
            views.append(u)
        else:
            return None
        u = u.src[0]
    for v in reversed(views):
        u = UOp(v.op, v.dtype, (u, *v.src[1:]), v.arg)
    return u


def note_happened(stores: Iterable[UOp], superseded: Container[UOp] = ()) -> None:
    """These effects have happened, and do not again, whoever asks for what comes after them.

    The same write, built again, is another one. What the `superseded` wrote was overwritten on the
    way.
    """
    for s in stores:
        s._at = CLOCK.time + (s not in superseded)
        HAPPENED.add(s)
        s.forget()


def set_realized_view(u: UOp, memory: UOp) -> None:
    """From now on `memory` (a view of a BUFFER) is read wherever `u` stands."""
    if u is memory:
        return
    u._at = CLOCK.time
    REALIZED_VIEWS[u] = memory
    if memory.base.op is Ops.CONST:
        # Equal numbers are one node, whatever they were made of.
        return
    nodes = ORIGINS.get(memory)
    if nodes is None:
        nodes = ORIGINS[memory] = Nodes()
        if memory.op is not Ops.BUFFER:
            link(memory)
    nodes.append(weakref.ref(u))
    if len(nodes) >= nodes.sweep_at:
        nodes.sweep()


def set_computed(results: Iterable[tuple[UOp, UOp]], made_from: Iterable[Buffer]) -> None:
    """`set_realized_view` for pairs of a node and its memory, all computed from `made_from`.

    `made_from` may be more than that.
    """
    group = Nodes()
    for u, memory in results:
        set_realized_view(u, memory)
        if u is not memory:
            group.append(weakref.ref(u))
    for b in made_from if group else ():
        base = b.base
        if base.opaque.__class__ is Lent or (base._exports and base.is_exported()):
            # Others may write there at any time, so the same expression is computed anew.
            forget_group(group)
        groups = READERS.data.get(weakref.ref(base))
        if groups is None:
            READERS[base] = Groups((group,))
            continue
        groups.append(group)
        if len(groups) >= groups.sweep_at:
            # A weight that is read for ever keeps few groups, at a constant cost each.
            groups[:] = [g for g in groups if g.are_left()]
            groups.sweep_at = max(Groups.sweep_at, 2 * len(groups))


def origins_of(memory: UOp) -> list[UOp]:
    """The nodes, still alive, that `memory` stands in for."""
    found = [u for ref in ORIGINS.get(memory, ()) if (u := ref()) is not None]
    return list(dict.fromkeys(found))


def note_owner(part: UOp, owner: UOp) -> None:
    """`owner`, on several devices, is made of this part: when one is forgotten, so is the other."""
    if part is not owner:
        owners = OWNERS.get(part)
        if owners is None:
            owners = OWNERS[part] = SharedWeakSet()
        owners.add(owner)


def note_overwritten(memories: Sequence[Buffer]) -> None:
    """This memory holds new values.

    Who has a node that was computed from the old ones keeps its realized view; but the same
    expression, built again, is another node from now on, with no realized view.
    """
    CLOCK.time += 2
    for b in memories:
        b.base.written_at = CLOCK.time
    forget_readers(memories)


def forget_readers(memories: Iterable[Buffer]) -> None:
    """Makes nodes built again from this memory other nodes than those before."""
    groups = {id(group): group for b in memories for group in READERS.pop(b.base, ())}
    for group in groups.values():
        forget_group(group)


def forget_group(group: Nodes) -> None:
    """These expressions, built again, are other nodes from now on."""
    for u in [u for ref in group if (u := ref()) is not None]:
        forget_node(u)


def forget_node(u: UOp) -> None:
    """The same expression, on one device or as a part of several, is another node from now on."""
    u.forget()
    for owner in OWNERS.get(u, ()) if MULTI_SEEN else ():
        owner.forget()


def forget_values(open_nodes: Iterable[UOp]) -> None:
    """The expressions of now, built again, are other nodes: those with a realized view, and these.

    Who has a node goes on with it. Nodes that stand for memory, or what happens to it, stay.
    """
    for u in [*REALIZED_VIEWS, *open_nodes]:
        if not u.src or u.op in KEEPS_ITS_NODE or is_memory_view(u):
            continue
        forget_node(u)


KEEPS_ITS_NODE = frozenset({Ops.AFTER, Ops.STORE, Ops.BIND, Ops.MULTI})


def is_memory_view(u: UOp) -> bool:
    """Whether `u` shows a BUFFER, or one on each of several devices, through movement alone."""
    while u.op in VIEWS:
        u = u.src[0]
    return u.op is Ops.BUFFER or (u.op is Ops.MULTI and all([is_memory_view(s) for s in u.src]))


def buffers_below(u: UOp) -> list[UOp]:
    """The BUFFERs that a view of memory shows, one a device; none of what is no such view."""
    while u.op in VIEWS:
        u = u.src[0]
    if u.op is Ops.MULTI:
        return [b for s in u.src for b in buffers_below(s)]
    return [u] if u.op is Ops.BUFFER else []


class LostBuffer(Buffer):
    """Memory of a value that is gone: whoever reads it is told why."""

    __slots__ = ("error",)
    error: Exception

    def ensure_allocated(self) -> Buffer:
        """Raises: the error that says where the value went."""
        raise self.error


def is_lost(u: UOp) -> bool:
    """Whether a node is a value that is gone."""
    while u.op in MOVEMENT:
        u = u.src[0]
    return u.op is Ops.BUFFER and isinstance(BUFFERS.data.get(weakref.ref(u)), LostBuffer)


def lost_node(u: UOp, error: Exception) -> UOp:
    """A node of the shape of `u` whose memory raises an error when it is read."""
    device = u.device or "CPU"
    if device.__class__ is tuple:
        device = device[0]
    base = UOp.new_buffer(device, 1, u.dtype)
    buffer = LostBuffer(device, 1, u.dtype)
    buffer.error = error
    attach(base, buffer)
    shape = u.shape
    ones = base._mop(Ops.RESHAPE, (1,) * len(shape))
    return ones._mop(Ops.EXPAND, shape) if shape else ones
