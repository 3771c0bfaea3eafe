"""One recording of a jitted function: what is run again, with which memory exchanged.

Receives an observed run (`jit_run.Run`); returns results for other arguments by replaying it, and
says when that would not be what the function does. Which recording is taken is not decided here.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from aster_ml.device import Buffer
from aster_ml.engine import storage
from aster_ml.engine.realize import realize_readers
from aster_ml.engine.realized import find_realized
from aster_ml.errors import DeviceError
from aster_ml.jit.guards import Watch
from aster_ml.jit.invariants import prune as prune_items
from aster_ml.jit.observed_run import Run, late_part, number_shared, places_of
from aster_ml.jit.pickling import pack_recording, unpack_recording
from aster_ml.jit.pytree import (
    Inputs,
    InputTemplate,
    Template,
    leaves,
    memory_of_whole,
    param_of,
    rebuild,
)
from aster_ml.jit.replay import Alias, Replay
from aster_ml.jit.results import ResultPlace
from aster_ml.ops import random
from aster_ml.ops.live import LIVE
from aster_ml.ops.views import Cell, is_view, listed, new_cell, steps_to
from aster_ml.schedule.fusion.unpacked import nodes_of_unpacked
from aster_ml.tensor import Tensor
from aster_ml.uop.node import UOp

T = TypeVar("T")


def memory_named_by(t: Any) -> list[UOp]:
    """The BUFFERs that a tensor names."""
    return [b for place in places_of(t) for b in storage.buffers_below(place)]


class State:
    """A tensor from before that a recording reads or writes, and what it has to name for that."""

    __slots__ = ("buffers", "place", "ref", "uop")

    def __init__(self, ref: weakref.ref[Any], uop: UOp, place: UOp) -> None:
        self.ref = ref
        self.uop = uop
        self.place = place
        self.look_again()

    def look_again(self) -> None:
        """Which memory it has now."""
        self.buffers = self.memory_now()

    def memory_now(self) -> list[tuple[Buffer, Any]]:
        """Buffers and the memory that they have."""
        found = [storage.buffer_of(b) for b in storage.buffers_below(self.place)]
        return [(b, b.handle if b.is_allocated() else None) for b in found]

    def renew(self, t: Tensor) -> bool:
        """Whether it still names that memory; effects pending on it are run."""
        if self.place not in places_of(t):
            return False
        part = late_part(t)
        if find_realized(part.uop) is None:
            part.realize()
        self.uop = t.uop
        pairs = zip(self.memory_now(), self.buffers, strict=True)
        return all([a is b and x is y for (a, x), (b, y) in pairs])


class Recording(Generic[T]):
    """A run that can be replayed, and the conditions under which it may."""

    def __init__(
        self, run: Run, result: T, watch: Watch, bound: list[int], prune: bool = False
    ) -> None:
        recorder, inputs = run.recorder, run.inputs
        # The token of the fast path that knows what is in the places of the replay.
        self.latest: object = None
        self.watch = watch
        # Arguments that the function gets at by itself, too: both uses are one in the recording,
        # so it is right for these very tensors alone.
        self.bound = [(i, weakref.ref(inputs.tensors[i])) for i in bound]
        # The same of memory that is an argument's and a state's.
        self.staying = [
            (i, weakref.ref(base)) for i, base in enumerate(inputs.bases) if base in run.reached
        ]
        self.draws = [
            (storage.buffer_of(state), str(state.device), count) for state, count in run.draws
        ]
        # Memory from before: who names it and how, under which it may be replayed.
        mine, known = {id(t) for t in inputs.tensors}, recorder.states
        self.states = [
            State(ref, t.uop, place)
            for ref in list(LIVE)
            if (t := ref()) is not None and id(t) not in mine
            for place in [
                p for p in places_of(t) if any([b in known for b in storage.buffers_below(p)])
            ][:1]
        ]
        # Weights that it unpacks itself: where their bytes are overwritten, they are memory.
        lazy = [t for ref in run.before if (t := ref()) is not None and t.uop in recorder.outside]
        self.unpacked = [weakref.ref(t) for t in lazy if nodes_of_unpacked(t.uop, ())]
        # Gradients that it adds to, and whose they are.
        self.grads = [
            (t._ref, grad._ref)
            for ref in list(LIVE)
            if (t := ref()) is not None and (grad := t.grad) is not None and grad._ref in run.before
            if not known.keys().isdisjoint(memory_named_by(grad))
        ]
        self.exchanges = storage.CLOCK.exchanges
        self.state_ids = {id(b.base) for b in recorder.states.values()}
        self.written_ids = {id(b.base) for u, b in recorder.states.items() if u in recorder.written}
        self.written_inputs = {i for u, i in recorder.inputs.items() if u in recorder.written}
        self.written_states = [weakref.ref(u) for u in recorder.states if u in recorder.written]
        # Results with memory of their own: each replay has a place for them.
        places = list(run.places.values())
        fresh = list(
            dict.fromkeys(
                [
                    base
                    for t in run.outputs
                    for base in storage.buffers_below(t.uop)
                    if base in recorder.made or base in recorder.content
                ]
            )
        )
        self.n_inputs = len(places)
        self.fresh = [(b.arg.device, b.arg.size, b.dtype) for b in fresh]
        self.wants_gradient = [b in storage.NO_GRADIENT for b in fresh]
        order = [*inputs.bases, *fresh]
        params = {b: param_of(b, i) for i, b in enumerate(order)}
        self.result = self.take_result(result, inputs, run, params)
        self.make_places([weakref.ref(b) for b in fresh])
        buffers = [storage.buffer_of(u) for u in (*places, *fresh)]
        for i, _ in self.staying:
            # Nothing is exchanged there: it is no place of the replay.
            buffers[i] = Alias(buffers[i])
        # Content that the function brings in and then changes, or returns, is brought in anew.
        self.content = [
            (buffers.index(b) if b in buffers else b, data)
            for u, data in recorder.content.items()
            if u in recorder.written or u in fresh
            for b in (storage.buffer_of(u),)
        ]
        items = recorder.items
        renewed = [b for b, _ in self.content if isinstance(b, Buffer)]
        if prune:
            changing = {id(b.base) for b in [*buffers, *renewed, *[b for b, _, _ in self.draws]]}
            items = prune_items(items, changing | self.written_ids)
        kept = [*recorder.states.values(), *[storage.buffer_of(u) for u in recorder.content]]
        kept += [b for b, _, _ in self.draws]
        self.replay = Replay(items, buffers, self.n_inputs, [id(b.base) for b in kept])
        self.replay.on_move.append(self.look_again)
        self.replay.on_free.append(self.forget_results)

    @property
    def is_bound(self) -> bool:
        """Whether it is right for the very tensors, or the memory, of arguments alone."""
        return bool(self.bound or self.staying)

    @property
    def is_pure(self) -> bool:
        """Whether a replay does no more than to compute its results from memory."""
        return not (self.written_ids or self.written_inputs or self.content or self.draws)

    def make_places(self, last: list[Callable[[], Any]]) -> None:
        """A place for each result; `last` gives the nodes that have the memory there now."""
        templates = [leaf for _, leaf in leaves(self.result) if isinstance(leaf, Template)]
        shapes = dict([t.whole for t in templates if t.whole is not None])
        self.places = [
            ResultPlace(number, form, shapes.get(number), self.wants_gradient[k], last[k])
            for k, form in enumerate(self.fresh)
            for number in (self.n_inputs + k,)
        ]

    def forget_results(self) -> None:
        """Lets go of the results of the last call; spare ones stay for the next."""
        for place in self.places:
            place.forget()

    def __getstate__(self) -> dict[str, Any]:
        return pack_recording(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        unpack_recording(self, state)

    def look_again(self) -> None:
        """The memory of states has moved: what is known of it by address is read again."""
        for state in self.states:
            state.look_again()
        self.state_ids |= {id(b.base) for state in self.states for b, _ in state.buffers}
        self.exchanges = storage.CLOCK.exchanges

    def take_result(self, result: Any, inputs: Inputs, run: Run, params: dict[UOp, UOp]) -> Any:
        """The result with templates in place of tensors; those from before stay themselves."""
        made: dict[int, Any] = {id(t): InputTemplate(i) for i, t in enumerate(inputs.tensors)}
        outputs = {id(leaf): leaf for _, leaf in leaves(result) if isinstance(leaf, Tensor)}
        cells = {id(t._cell) for t in outputs.values() if t._cell is not None}
        before = [t for ref in run.before if (t := ref()) is not None]
        shown = [t for t in before if id(t._cell) in cells and t._cell is not None]
        self.shown = [weakref.ref(t) for t in shown]
        hosts: list[tuple[str, int, Any]] = [
            *[("input", i, t) for i, t in enumerate(inputs.tensors)],
            *[("before", i, t) for i, t in enumerate(shown)],
            *sorted(
                [("result", i, t) for i, t in enumerate(outputs.values())],
                key=lambda host: len(listed(host[2]._steps)),
            ),
        ]
        known = {id(t) for ref in run.before if (t := ref()) is not None}

        def change(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or (id(leaf) in known and id(leaf) not in made):
                return leaf
            found = made.get(id(leaf))
            if found is None:
                found = made[id(leaf)] = Template(leaf, params)
                found.find_host(leaf, hosts)
            return found

        for leaf in outputs.values():
            change(leaf)
        # In the order of `hosts`: what is a view of a result names its place here.
        self.outputs = [made.get(number, leaf) for number, leaf in outputs.items()]
        return rebuild(result, change)

    def fits(self, inputs: Inputs) -> str | None:
        """None when this recording may be replayed on these arguments, else what is against it."""
        for i, ref in self.bound:
            if inputs.tensors[i] is not ref():
                return f"{inputs.tensors[i]!r}, an argument in place of what it reads by itself"
        for i, base in self.staying:
            if inputs.bases[i] is not base():
                return f"{inputs.bases[i]!r}, in place of memory that it reads by itself"
        broken = self.watch.broken()
        if broken is not None:
            return broken.where
        if self.written_ids or self.written_inputs:
            staying = [inputs.bases[i] for i, _ in self.staying]
            written, states = self.written_ids, self.state_ids
            if number_shared(inputs, self.written_inputs, written, states, staying) is not None:
                return "memory that is an argument and is written to in another way"
        exchanged = self.exchanges != storage.CLOCK.exchanges
        for state in self.states:
            t: Any = state.ref()
            if t is not None and (exchanged or t.uop is not state.uop) and not state.renew(t):
                return repr(t)
        for ref in self.unpacked if exchanged else ():
            t = ref()
            if t is not None and storage.realized_view(t.uop) is not None:
                return repr(t)
        self.exchanges = storage.CLOCK.exchanges
        for owner, grad in self.grads:
            t = owner()
            if t is not None and (t.grad is None or t.grad._ref is not grad):
                return f"another gradient of {t!r}"
        return None

    def lacks_gradients(self) -> bool:
        """Whether a gradient that it adds to was taken away."""
        return any([(t := owner()) is not None and t.grad is None for owner, _ in self.grads])

    def may_fit_again(self) -> bool:
        """Whether all memory that it uses has its names still; weights that are gone stay so."""
        return all(
            (t := state.ref()) is not None and state.place in places_of(t) for state in self.states
        )

    def prepare(self, inputs: Inputs) -> set[UOp] | None:
        """Puts memory in its places before `run`, and returns what memory that will write to."""
        replay, self.latest = self.replay, None
        written = self.written_now(inputs) if self.written_ids or self.written_inputs else None
        if written is not None:
            self.prepare_writes(inputs, written)
        for i, base in enumerate(inputs.bases):
            replay.set_input(i, storage.buffer_of(base).ensure_allocated())
        for place in self.places:
            place.take(replay)
        replay.prepare()
        return written

    def run(self, inputs: Inputs, written: set[UOp] | None) -> T:
        """Replays on these inputs, for which it is prepared."""
        replay = self.replay
        for where, data in self.content:
            (replay.input(where) if isinstance(where, int) else where).copyin(data)
        for buffer, device, count in self.draws:
            buffer.copyin(random.draw_state(device, count))
        replay.run(inputs.values)
        if written is not None:
            storage.note_overwritten([storage.buffer_of(u) for u in written])
            self.renew_views(inputs)
        return self.fill(inputs.bases, inputs.tensors, inputs.values)

    def renew_views(self, inputs: Inputs) -> None:
        """Makes tensors anew that show what was written in a way that is computed."""
        before = [t for s in self.states if (t := s.ref()) is not None]
        for t in [*inputs.tensors, *before]:
            if t._cell is not None:
                t._leave()
            if t._cell is not None and memory_of_whole(t):
                t._cell.renew(t._cell.root)

    def fill(self, bases: list[UOp], tensors: list[Tensor], values: dict[str, int]) -> T:
        """The result over the memory in its places, and over these inputs."""
        filling = Filling(self, bases, tensors, values)
        return rebuild(self.result, filling.leaf)  # type: ignore[no-any-return]

    def written_now(self, inputs: Inputs) -> set[UOp]:
        """The BUFFERs that a replay on these inputs writes to, results aside."""
        states = [u for ref in self.written_states if (u := ref()) is not None]
        return {*states, *[inputs.bases[i] for i in self.written_inputs]}

    def prepare_writes(self, inputs: Inputs, written: set[UOp]) -> None:
        """Before memory is overwritten: checks that it may be, computes what wants its content."""
        for i in self.written_inputs:
            buffer = storage.buffer_of(inputs.bases[i]).ensure_allocated()
            if buffer.is_readonly():
                raise DeviceError(
                    f"a jitted function writes to its argument, and {buffer!r} is "
                    "read-only; pass a copy (clone)"
                )
        realize_readers(written)


class Filling:
    """The results of one replay while they are made."""

    def __init__(
        self, recording: Recording[Any], bases: list[UOp], tensors: list[Tensor], values: Any
    ) -> None:
        self.recording = recording
        self.tensors = tensors
        self.values = values
        self.current = [held for p in recording.places if (held := p.current) is not None]
        self.memory = [*bases, *[held.base for held in self.current]]
        self.filled: dict[int, Any] = {}
        # Results that are parts of one new memory which is none itself.
        self.cells: dict[int, Cell] = {}

    def leaf(self, leaf: Any) -> Any:
        """Placeholder of a leaf of the recorded result."""
        if isinstance(leaf, InputTemplate):
            return self.tensors[leaf.number]
        if not isinstance(leaf, Template):
            return leaf
        found = self.filled.get(id(leaf))
        if found is None:
            host = self.host_of(leaf)
            found = self.made(leaf) if host is None else host._view_by(leaf.steps, leaf.flag)
            self.filled[id(leaf)] = found
        return found

    def host_of(self, leaf: Template) -> Any:
        """The tensor that a result is a view of, or None."""
        kind, number = leaf.host or ("", 0)
        if kind == "input":
            return self.tensors[number]
        if kind == "before":
            return self.recording.shown[number]() if self.recording.shown else None
        return self.leaf(self.recording.outputs[number]) if kind else None

    def made(self, leaf: Template) -> Tensor:
        """A result that is no view of anything that is there."""
        recording = self.recording
        slot, shape = leaf.whole or (0, None)
        k = slot - recording.n_inputs
        if k >= 0 and leaf.whole is not None and shape == recording.places[k].shape:
            return Tensor._naming(self.current[k].view, leaf.flag)
        found = leaf.fill(self.memory, self.values)
        if leaf.whole is None and is_view(found.uop):
            base = found.uop.base
            if base in self.memory[recording.n_inputs :]:
                cell = self.cells.get(id(base))
                if cell is None:
                    cell = self.cells[id(base)] = new_cell(base)
                found._join(cell, steps_to(found.uop, base))
        return found
