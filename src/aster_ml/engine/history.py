"""Keeps what memory was computed from, for gradients after its tensor was realized.

Receives nodes and the memory that they have become; returns the nodes again when a gradient walks
back. Kept are the fields of a node and not the node, whose realized view would keep the memory, and
so itself, alive for ever. Rules of gradients and tensors do not belong here.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from aster_ml.engine import storage
from aster_ml.engine.multi import PARTS
from aster_ml.errors import GradientError
from aster_ml.helpers import pluralize
from aster_ml.thread_state import SharedWeakSet
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import GRADIENT_MARKS, Ops
from aster_ml.uop.sharding import MULTI_SEEN

# What shows the elements of its source, so that its memory is that of the source.
SAME_ELEMENTS = storage.VIEWS | {Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD}
MEMORY = frozenset({Ops.BUFFER, Ops.MULTI})


class Past(NamedTuple):
    """The fields of the node that memory was, its shape, and when it was computed."""

    op: Ops
    src: tuple[UOp, ...]
    arg: Any
    shape: tuple[Any, ...]
    time: int


class PastTable:
    """The past of BUFFERs (MULTIs of several) that are alive.

    Each past keeps the memory that it was computed from, and with it the past of that: a chain of
    any length, which goes link by link and not by one call in the other.
    """

    def __init__(self) -> None:
        self.data: dict[weakref.ref[UOp], Past] = {}
        self.gone: list[Past | None] = []
        self.is_dropping = False

    def get(self, memory: UOp) -> Past | None:
        """The past of this memory, if it is kept."""
        return self.data.get(weakref.ref(memory))

    def keep(self, memory: UOp, past: Past) -> None:
        """Keeps a past as long as the node of its memory is alive."""
        self.data[weakref.ref(memory, self.drop)] = past

    def drop(self, ref: weakref.ref[UOp]) -> None:
        """The node of a memory is gone."""
        self.gone.append(self.data.pop(ref, None))
        if self.is_dropping:
            return
        self.is_dropping = True
        while self.gone:
            self.gone.pop()
        self.is_dropping = False


PASTS = PastTable()
# Memory whose past was not kept, although it led to what wants gradients.
CUT: SharedWeakSet[UOp] = SharedWeakSet()


# Values that were assigned to tensors without memory, set to require gradients: each is the end of
# a gradient's way to its tensor, as memory after a write is.
ASSIGNED: SharedWeakSet[UOp] = SharedWeakSet()


def note_cut(memory: UOp) -> None:
    """The past of this memory is not kept."""
    CUT.update(storage.buffers_below(memory))


def note_rewritten(node: UOp, memory: UOp, passes: Callable[[UOp], bool]) -> None:
    """Memory has no past that matters once all of it is written from what has none."""
    own = CUT.intersection(storage.buffers_below(memory))
    if own and node.op is Ops.AFTER and node.src[1].src[0] is node.src[0]:
        below = toposort(node.src[1].src[1], enter=passes)
        if not any([u in CUT for u in below]):
            CUT.difference_update(own)


def check_kept(found: Mapping[UOp, UOp], names: Container[UOp]) -> None:
    """Raises GradientError where a gradient has come to memory whose past was not kept."""
    for u in found:
        if u in CUT and u not in names:
            raise GradientError(
                f"gradient: it would go on to what was written to "
                f"{pluralize('element', u.arg.size)} of memory that was not set to require a "
                "gradient, which does not keep that once it is realized; make a new tensor instead "
                "(t = t + x for t += x), or detach() it"
            )


def keep_past(node: UOp, wanted: Container[UOp], passes: Callable[[UOp], bool]) -> bool:
    """Keeps what a realized node was computed from, where it leads to one that is `wanted`.

    `passes` says through which nodes a gradient goes. Returns False where the past cannot be kept
    by memory (a value that repeats its memory, one number, a write to a part, a view, whose memory
    does not tell which of several equal tensors it shows): then the node itself has to be.
    """
    given = node
    found = storage.realized_view(node)
    while found is None and node.op in SAME_ELEMENTS:
        node = node.src[0]
        found = storage.realized_view(node)
    if storage.is_memory_view(given) or node.dtype.kind != "float" or not passes(given):
        return True
    if not leads(toposort(given, enter=passes), wanted):
        return True
    if node is not given:
        return False
    memory = found
    while memory is not None and memory.op is Ops.RESHAPE and len(memory.src) == 1:
        memory = memory.src[0]
    if memory is None or not (memory.op in MEMORY and storage.is_memory_view(memory)):
        return False
    past = Past(node.op, node.src, node.arg, node.shape, time_of(node))
    if node.op is Ops.AFTER:
        store = node.src[1]
        if len(node.src) != 2 or store.op is not Ops.STORE or store.src[0] is not node.src[0]:
            return False
        past = past._replace(op=Ops.CAST, src=(store.src[1],), arg=None)
    elif PASTS.get(memory) is not None:
        return True
    own = {memory, *storage.buffers_below(memory)}
    for u in toposort(*past.src):
        shown = storage.REALIZED_VIEWS.data.get(weakref.ref(u))
        if u in own or (shown is not None and shown.base in own):
            return False
    PASTS.keep(memory, past)
    return True


def has_past(view: UOp) -> bool:
    """Whether a view shows memory whose past is kept, so that gradients may need its content."""
    while view.op in storage.VIEWS or view.op in GRADIENT_MARKS:
        view = view.src[0]
    return PASTS.get(view) is not None


def leads(order: Iterable[UOp], wanted: Container[UOp]) -> bool:
    """Whether one of the nodes is wanted, has a past, or is an end that gradients may not reach."""
    for u in order:
        if u in wanted or u in storage.NO_GRADIENT or PASTS.get(u) is not None:
            return True
        shown = storage.REALIZED_VIEWS.data.get(weakref.ref(u))
        if shown is not None and shown in wanted:
            return True
    return False


def restored(memory: UOp, past: Past) -> UOp:
    """The node that memory was, with this memory for its realized view."""
    value = UOp(past.op, memory.dtype, past.src, past.arg)
    shown = storage.REALIZED_VIEWS.data.get(weakref.ref(value))
    if shown is None or shown.base is not memory:
        value = computed_node(value, past.src, memory.shaped(past.shape), past.time)
    return value


def computed_node(like: UOp, src: tuple[UOp, ...], memory: UOp, time: int) -> UOp:
    """A node like another one, of these sources, that was computed to this memory.

    The same expression of now may have another value: it is another node.
    """
    UOp(like.op, like.dtype, src, like.arg).forget()
    value = UOp(like.op, like.dtype, src, like.arg)
    value.forget()
    storage.set_realized_view(value, memory)
    value._at = time
    return value


def walk_back(
    root: UOp, passes: Callable[[UOp], bool], known: Mapping[UOp, UOp] = MappingProxyType({})
) -> tuple[dict[UOp, None], dict[UOp, UOp]]:
    """The nodes below `root` and in the past of its memory, sources first; and what memory was.

    Of some memory this may be `known`.
    """
    values: dict[UOp, UOp] = {}
    order: dict[UOp, None] = {}
    seen: set[UOp] = set()
    done: set[UOp] = set()

    def enter(u: UOp) -> bool:
        return passes(u) and u not in values

    def goes_on(u: UOp) -> bool:
        return u.op in MEMORY and PASTS.get(u) is not None and u not in storage.NO_GRADIENT

    stack = [root]
    while stack:
        u = stack[-1]
        if u in seen:
            stack.pop()
            if u not in done:
                done.add(u)
                toposort(u, enter=enter, done=order)
            continue
        seen.add(u)
        for below in toposort(u, enter=lambda v: passes(v) and not goes_on(v)):
            if goes_on(below):
                if below not in values:
                    value = known.get(below)
                    if value is None:
                        value = restored(below, PASTS.data[weakref.ref(below)])
                    values[below] = value
                if values[below] not in done:
                    stack.append(values[below])
    return order, values


# The nodes below a root, where they have been listed, and what memory among them was.
WalkedBack = tuple[dict[UOp, None] | None, dict[UOp, UOp]]


def past_of(root: UOp, passes: Callable[[UOp], bool]) -> WalkedBack:
    """`walk_back`, which lists nothing where no memory has a past."""
    return walk_back(root, passes) if PASTS.data else (None, {})


# What has not been computed reads memory as it is now; what is written to is not read.
NOW, PLACE = sys.maxsize, -1


def time_of(u: UOp) -> int:
    """When a node was computed: as memory was then it was read."""
    times = [u._at]
    # A view of what was there after a write shows that.
    while u.op in storage.VIEWS or u.op in GRADIENT_MARKS:
        u = u.src[0]
    if u.op is Ops.AFTER:
        times = [s._at for s in u.src[1:] if s._at is not UNSET] or times
    return NOW if UNSET in times else min(times)


def written_at(u: UOp) -> int:
    """When memory that a node shows was last overwritten."""
    time = 0
    for b in storage.buffers_below(u):
        buffer = storage.BUFFERS.data.get(weakref.ref(b))
        if buffer is not None:
            time = max(time, buffer.base.written_at)
    return time


def asked(u: UOp, time: int) -> tuple[UOp, int]:
    """A node as it was at some time; what comes after a write is that, whenever it is read."""
    return (u, NOW) if u.op is Ops.AFTER else (u, time)


class AsRead:
    """The graph below nodes as it was read: what was overwritten since is a node by itself.

    A node that was computed has read the memory below it as it was at its time, which no other node
    tells: of `h = a * a`, computed before a write to `a`, the gradient would be that of the new
    `a`. So nodes with such memory below are made anew, over `lost` memory, which no gradient may
    read. `anew` has, for each node, those made from it.
    """

    def __init__(self) -> None:
        self.done: dict[tuple[UOp, int], UOp] = {}
        self.lost: dict[UOp, UOp] = {}
        self.anew: dict[UOp, dict[UOp, None]] = {}
        # Writes that are still to run, once, whose values would have to be made anew.
        self.unread: set[UOp] = set()

    def read(self, root: UOp) -> UOp:
        """The node as it is to be read now."""
        stack = [(root, NOW)]
        while stack:
            u, time = key = stack[-1]
            if key in self.done:
                stack.pop()
                continue
            shown, own = storage.realized_view(u), time
            if shown is not None:
                own = min(time, time_of(u))
            left = [asked(s, own) for s in u.src]
            if u.op is Ops.AFTER or u.op is Ops.STORE:
                left[0] = asked(u.src[0], PLACE)
            missing = [pair for pair in left if pair not in self.done]
            if missing:
                stack += missing
                continue
            stack.pop()
            src = tuple([self.done[pair] for pair in left])
            made = self.made(u, src, shown, own)
            self.done[key] = made
            if made is not u:
                self.anew.setdefault(u, {})[made] = None
        return self.done[root, NOW]

    def made(self, u: UOp, src: tuple[UOp, ...], shown: UOp | None, time: int) -> UOp:
        """A node over sources as they were read; `u` itself where those are the same."""
        if time == PLACE and u.op is Ops.BUFFER:
            return u
        if u.op is Ops.AFTER and shown is None and src != u.src:
            self.unread.add(u)
            return u
        if u.op is Ops.BUFFER:
            return self.lost_memory(u) if written_at(u) > time else u
        if shown is None or shown.base.op is Ops.CONST:
            return u if src == u.src else UOp(u.op, u.dtype, src, u.arg)
        computed = time_of(u)
        if src != u.src and computed > time:
            # It was computed once more since, from other values.
            return UOp(u.op, u.dtype, src, u.arg)
        if written_at(shown) > computed + 1:
            gone = {b: self.lost_memory(b) for b in storage.buffers_below(shown)}
            shown = substitute_all([shown], gone)[0]
        elif src == u.src:
            return u
        return computed_node(u, src, shown, computed)

    def lost_memory(self, u: UOp) -> UOp:
        """Node that stands for memory whose content of that time is gone."""
        found = self.lost.get(u)
        if found is None:
            found = self.lost[u] = UOp.new_buffer(u.arg.device, u.arg.size, u.dtype)
        return found

    def check(
        self,
        found: Mapping[UOp, UOp],
        names: Collection[UOp],
        ends: Container[UOp],
        passes: Callable[[UOp], bool],
    ) -> None:
        """Raises GradientError where gradients need memory as it was before it was written to."""
        writes = [u for u in found if u in self.unread and u not in ends]
        if any([leads(toposort(u, enter=passes), names) for u in writes]):
            raise GradientError(
                "gradient: it goes through a write that has not run, of a value on the way that "
                "was computed from memory which has been written to since; realize() what was "
                "written, or compute it again"
            )
        gradients = [found[name] for name in names if name in found]
        gone = set(self.lost.values())
        for u in toposort(*gradients, enter=lambda v: storage.realized_view(v) is None):
            shown = storage.realized_view(u)
            for b in storage.buffers_below(u if shown is None else shown):
                if b in gone:
                    raise GradientError(
                        f"gradient: it reads {pluralize('element', b.arg.size)} as they were when "
                        "a value on the way was computed, and they have been written to since (by "
                        "assign, +=, an optimiser's step); compute that value again, call "
                        "backward() before the write, or write to a copy (x.clone())"
                    )


def note_parts(order: Iterable[UOp]) -> None:
    """Values on several devices whose parts have been computed are computed too."""
    for u in order:
        if not u.has_multi or storage.realized_view(u) is not None:
            continue
        made = PARTS.get(u, ())
        shown = [found for part in made if (found := storage.realized_view(part)) is not None]
        if made and len(shown) == len(made):
            storage.set_realized_view(u, shown[0].beside(shown[1:], u.axis))
            u._at = min([time_of(part) for part in made])


def as_read(root: UOp, values: Iterable[UOp]) -> AsRead | None:
    """The graph below a node and what memory was as it was read; None where nothing changed."""
    order = toposort(root, *values)
    if MULTI_SEEN:
        note_parts(order)
    times = [time_of(u) for u in order if u._at is not UNSET]
    if not times:
        return None
    since = min(times)
    shown = [storage.REALIZED_VIEWS.data.get(weakref.ref(u)) for u in order]
    memory = {u for u in order if u.op is Ops.BUFFER}
    memory.update([u.base for u in shown if u is not None])
    if all([written_at(u) <= since for u in memory]):
        return None
    return AsRead()
