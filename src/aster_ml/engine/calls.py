"""Hand-written kernels: a CALL is run when somebody wants what it leaves behind.

Receives tensors' nodes; runs the CALLs below them that have not run, sources first, and gives each
the memory that it wrote as realized view, so that the rest of the engine sees memory alone. A
kernel writes in place: memory among its sources that it writes is overwritten, other values are
copied beforehand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from aster_ml.engine import storage
from aster_ml.engine.launch import run_schedule
from aster_ml.engine.multi import parts
from aster_ml.helpers import prod
from aster_ml.schedule.steps import Schedule, Slot, Step
from aster_ml.thread_state import SharedWeakSet
from aster_ml.uop.graph import reaches, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import GRADIENT_MARKS, CallArg, Ops

Realize = Callable[[list[UOp]], list[UOp]]
# CALLs that have not run, though they may be wanted.
PENDING: SharedWeakSet[UOp] = SharedWeakSet()


def new_calls(sources: tuple[UOp, ...], arg: CallArg) -> list[UOp]:
    """Makes a node of each source after the kernel, which runs when one of them is wanted."""
    result = []
    for i, source in enumerate(sources):
        u = UOp(Ops.CALL, source.dtype, sources, arg._replace(output=i))
        # What has run on this memory before is to run again.
        done = [p for p in (u, *parts(u)) if storage.realized_view(p) is not None]
        for p in done:
            p.forget()
        if done:
            u = UOp(Ops.CALL, source.dtype, sources, arg._replace(output=i))
        PENDING.update(parts(u))
        result.append(u)
    return result


def run_pending(
    nodes: Iterable[UOp], realize: Realize, readers: Callable[[set[UOp], set[UOp]], list[UOp]]
) -> None:
    """Runs the CALLs that these nodes need.

    `readers` gives the live nodes that still want what memory holds, none that a CALL gives.
    """
    order = toposort(*nodes, enter=lambda u: storage.realized_view(u) is None)
    for u in order:
        if u.op is Ops.CALL and storage.realized_view(u) is None:
            run_call(u, realize, readers)


def run_call(
    call: UOp, realize: Realize, readers: Callable[[set[UOp], set[UOp]], list[UOp]]
) -> None:
    """Runs one kernel; all of its results are memory afterwards."""
    arg: CallArg = call.arg
    written = written_slots(arg)
    views = [memory_for(s, i in written) for i, s in enumerate(call.src)]
    memory = [u if u.base.op is Ops.BUFFER and is_whole(u) else None for u in views]
    found = iter(realize([u for u, m in zip(views, memory, strict=True) if m is None]))
    places = [next(found) if m is None else m for m in memory]
    results = {arg._replace(output=i) for i in range(len(call.src))}
    siblings = {u for u in PENDING if u.src == call.src and u.arg in results} | {call}
    kept = {places[i].base for i in written if storage.buffer_of(places[i].base).is_allocated()}
    if kept:
        late = readers(kept, siblings)
        if any(reaches(u, siblings.__contains__) for u in late):
            # Somebody wants the old content and the new one at once: the kernel gets a copy.
            for i in written:
                if places[i].base in kept:
                    places[i] = realize([copied(places[i])])[0]
        elif late:
            realize(late)
    buffers = [storage.buffer_of(p.base) for p in places]
    if arg.kernel.src:
        slots = [
            Slot(b.size, p.dtype, b.device)
            for p, b in zip([places[i] for i in arg.slots], [buffers[i] for i in arg.slots])
        ]
        local = frozenset([k for k, i in enumerate(arg.slots) if i in written])
        schedule = schedule_of(arg.kernel, tuple(slots), str(call.device), local)
        arguments = [buffers[i] for i in arg.slots]
        run_schedule(schedule, arguments, dict(arg.values), [places[i].base for i in arg.slots])
        storage.note_overwritten([buffers[i] for i in written])
    storage.set_computed([(u, places[u.arg.output]) for u in siblings], buffers)
    for u in siblings:
        PENDING.discard(u)


@functools.lru_cache(maxsize=1000)
def schedule_of(
    kernel: UOp, slots: tuple[Slot, ...], device: str, written: frozenset[int]
) -> Schedule:
    """The schedule of one kernel: the same object for the same memory sizes."""
    step = Step("kernel", tuple(range(len(slots))), kernel, device)
    return Schedule([step], list(slots), len(slots), written, written)


def written_slots(arg: CallArg) -> set[int]:
    """The sources that the kernel stores to."""
    found = set()
    for u in toposort(arg.kernel):
        if u.op is Ops.STORE:
            place = u.src[0].src[0]
            while place.op is Ops.AFTER:
                place = place.src[0]
            if place.op is Ops.PARAM:
                found.add(arg.slots[place.arg.slot])
    return found


def is_whole(u: UOp) -> bool:
    """Whether a node is all of a BUFFER, in order."""
    while u.op is Ops.RESHAPE or u.op is Ops.NAME:
        u = u.src[0]
    return u.op is Ops.BUFFER


def memory_for(source: UOp, written: bool) -> UOp:
    """A node that is memory once it is realized, and, if the kernel writes it, no other's."""
    x = source
    while True:
        found = storage.realized_view(x)
        if found is None and (x.op in GRADIENT_MARKS or x.op is Ops.NAME):
            found = x.src[0]
        if found is None:
            break
        x = found
    if is_whole(x) or (not written and x.op is Ops.AFTER):
        return x
    return copied(x) if written else UOp(Ops.CONTIGUOUS, x.dtype, (x,))


def copied(x: UOp) -> UOp:
    """A value in memory that no other node has."""
    buffer = UOp.new_buffer(str(x.device), prod(x.shape), x.dtype)
    view = buffer if x.shape == buffer.shape else buffer.reshape(x.shape)
    return view.after(view.store(x))
