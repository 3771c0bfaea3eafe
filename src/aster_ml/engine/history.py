"""What memory was computed from, kept for gradients after its tensor was realized.

Receives nodes and the memory that they have become; returns the nodes again when a gradient walks
back. Kept are the fields of a node and not the node, whose stand-in would keep the memory, and so
itself, alive for ever. Rules of gradients and tensors do not belong here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

from aster_ml.engine import storage
from aster_ml.errors import GradientError
from aster_ml.uop.graph import toposort
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# What shows the elements of its source, so that its memory is that of the source.
SAME_ELEMENTS = storage.VIEWS | {Ops.CONTIGUOUS, Ops.CONTIGUOUS_BACKWARD}
MEMORY = frozenset({Ops.BUFFER, Ops.MULTI})


class Past(NamedTuple):
    """The fields of the node that memory was, and its shape.

    What it reads was as it should be at the time `read_at`, the memory itself at `made_at`.
    """

    op: Ops
    src: tuple[UOp, ...]
    arg: Any
    shape: tuple[Any, ...]
    read_at: int
    made_at: int


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
storage.WRITES.pasts = PASTS.data


class Keeping:
    """While it lasts, it is noted what memory is overwritten; `time` is when it began."""

    def __enter__(self) -> int:
        storage.WRITES.watchers += 1
        return next(storage.WRITES.clock)

    def __exit__(self, *_: object) -> None:
        storage.WRITES.watchers -= 1


def keep_past(node: UOp, wanted: Container[UOp], time: int, passes: Callable[[UOp], bool]) -> bool:
    """Keeps what a realized node was computed from, where it leads to one that is `wanted`.

    `passes` says through which nodes a gradient goes. Returns False where the past cannot be kept
    by memory (a value that repeats its memory, one number, a write to a part): then the node itself
    has to be.
    """
    found = storage.realized_view(node)
    while found is None and node.op in SAME_ELEMENTS:
        node = node.src[0]
        found = storage.realized_view(node)
    if node.op in MEMORY or node.dtype.kind != "float" or not passes(node):
        return True
    if not leads(toposort(node, enter=passes), wanted):
        return True
    memory = found
    while memory is not None and memory.op is Ops.RESHAPE and len(memory.src) == 1:
        memory = memory.src[0]
    if memory is None or not (memory.op in MEMORY and storage.is_memory_view(memory)):
        return False
    past = Past(node.op, node.src, node.arg, node.shape, time, next(storage.WRITES.clock))
    if node.op is Ops.AFTER:
        store = node.src[1]
        if len(node.src) != 2 or store.op is not Ops.STORE or store.src[0] is not node.src[0]:
            return False
        past = past._replace(op=Ops.CAST, src=(store.src[1],), arg=None)
    elif PASTS.get(memory) is not None:
        return True
    own = {memory, *storage.buffers_below(memory)}
    for u in toposort(*past.src):
        shown = storage.STAND_INS.data.get(weakref.ref(u))
        if u in own or (shown is not None and shown.base in own):
            return False
    PASTS.keep(memory, past)
    return True


def has_past(view: UOp) -> bool:
    """Whether a view shows memory whose past is kept, so that gradients may need its content."""
    while view.op in storage.VIEWS or view.op is Ops.DETACH:
        view = view.src[0]
    return PASTS.get(view) is not None


def leads(order: Iterable[UOp], wanted: Container[UOp]) -> bool:
    """Whether one of the nodes is wanted, has a past, or is an end that gradients may not reach."""
    for u in order:
        if u in wanted or u in storage.NO_GRADIENT or PASTS.get(u) is not None:
            return True
        shown = storage.STAND_INS.data.get(weakref.ref(u))
        if shown is not None and shown in wanted:
            return True
    return False


def restored(memory: UOp, past: Past) -> UOp:
    """The node that memory was, with this memory for its stand-in."""
    value = UOp(past.op, memory.dtype, past.src, past.arg)
    shown = storage.STAND_INS.data.get(weakref.ref(value))
    if shown is None or shown.base is not memory:
        # The same expression of now may have another value: it is another node.
        value.forget()
        value = UOp(past.op, memory.dtype, past.src, past.arg)
        value.forget()
        storage.set_stand_in(value, memory.shaped(past.shape))
    return value


def walk_back(root: UOp, passes: Callable[[UOp], bool]) -> tuple[dict[UOp, None], dict[UOp, UOp]]:
    """The nodes below `root` and in the past of its memory, sources first; and what memory was."""
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
                    values[below] = restored(below, PASTS.data[weakref.ref(below)])
                if values[below] not in done:
                    stack.append(values[below])
    return order, values


def check_unchanged(values: dict[UOp, UOp], found: dict[UOp, UOp]) -> None:
    """Raises GradientError where gradients need memory as it was before it was written to."""
    times = storage.WRITES.times
    reached = {memory: value for memory, value in values.items() if value in found}
    if not times or not reached:
        return

    def written(buffers: Iterable[UOp], time: int) -> bool:
        return any([times.get(storage.buffer_of(b).base, -1) > time for b in buffers])

    read = buffers_read(found.values())
    for memory, value in reached.items():
        past = PASTS.data[weakref.ref(memory)]
        own, below = storage.buffers_below(memory), read & buffers_read(value.src)
        if written(own, past.made_at) or written(below, past.read_at):
            raise GradientError(
                f"gradient: of {show_shape(value.shape)}, computed before memory was written to "
                "that its gradient reads (by assign, +=, an optimiser's step); compute it again, "
                "call backward() before the write, or write to a copy (x.clone())"
            )


def buffers_read(roots: Iterable[UOp]) -> set[UOp]:
    """The BUFFERs that computing these nodes reads."""
    found = set()
    for u in toposort(*roots, enter=lambda v: storage.realized_view(v) is None):
        shown = storage.realized_view(u)
        if shown is not None or u.op is Ops.BUFFER:
            found.update(storage.buffers_below(u if shown is None else shown))
    return found
