"""TinyJit: record what a function runs, and replay it without running the function.

The first call runs the function as it is; the second runs it again and records every kernel; from
the third on the recording is replayed on the new inputs. A recording is only replayed for calls
that it fits: same structure of arguments, shapes, dtypes, devices and views, same plain values, and
nothing exchanged of what the function reads besides (closure, globals, attributes). Another
combination is recorded apart. Two runs have to do the same before one of them is kept, so numbers
that nobody can watch (from `random`, say) do not get frozen. What no recording can honour raises
JitError.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from aster_ml.config import DEV, JIT
from aster_ml.device import Buffer
from aster_ml.dtype import dtypes
from aster_ml.engine import storage
from aster_ml.engine.graph_runner import grouped_items_of, items_of
from aster_ml.engine.items import ExecItem
from aster_ml.engine.launch import is_recording
from aster_ml.engine.prune import prune as prune_items
from aster_ml.engine.realize import realize_readers, run_due, settle, strip_effects
from aster_ml.engine.replay import Replay
from aster_ml.engine.watch import Watch
from aster_ml.errors import DeviceError, JitError, JitShapeError, ShapeError
from aster_ml.jit_run import Run
from aster_ml.jit_values import (
    Inputs,
    InputTemplate,
    Template,
    check_result,
    leaves,
    param_of,
    rebuild,
)
from aster_ml.mixin import random
from aster_ml.mixin.handle import LIVE
from aster_ml.tensor import Tensor
from aster_ml.uop.node import UOp

T = TypeVar("T")
# More recordings than this mean that some argument changes with every call.
MAX_RECORDINGS = 64
# So often in a row may the function do something else, or a recording be outdated when it is made.
MAX_UNEQUAL_RUNS, MAX_OUTDATED = 4, 16


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
        if strip_effects(t.uop) is not self.place:
            return False
        if settle(t.uop) is None:
            t.realize()
        self.uop = t.uop
        pairs = zip(self.memory_now(), self.buffers, strict=True)
        return all([a is b and x is y for (a, x), (b, y) in pairs])


class Recording(Generic[T]):
    """A run that can be replayed, and the conditions under which it may."""

    def __init__(self, run: Run, result: T, watch: Watch, prune: bool = False) -> None:
        recorder, inputs = run.recorder, run.inputs
        self.watch = watch
        self.draws = [
            (storage.buffer_of(state), str(state.device), count) for state, count in run.draws
        ]
        # Memory from before: who names it and how, under which it may be replayed.
        self.states = [
            State(ref, t.uop, place)
            for ref in list(LIVE)
            if (t := ref()) is not None
            and (place := strip_effects(t.uop)) is not None
            and any([b in recorder.states for b in storage.buffers_below(place)])
        ]
        self.exchanges = storage.EXCHANGES.count
        self.state_ids = {id(b.base) for b in recorder.states.values()}
        self.written_ids = {id(b.base) for u, b in recorder.states.items() if u in recorder.written}
        self.written_inputs = {i for u, i in recorder.inputs.items() if u in recorder.written}
        self.written_states = weakref.WeakSet([u for u in recorder.states if u in recorder.written])
        self.check_inputs(inputs)
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
        self.last = [weakref.ref(b) for b in fresh]
        self.wants_gradient = [b in storage.NO_GRADIENT for b in fresh]
        order = [*inputs.bases, *fresh]
        params = {b: param_of(b, i) for i, b in enumerate(order)}
        self.result = self.take_result(result, inputs, run, params)
        buffers = [storage.buffer_of(u) for u in (*places, *fresh)]
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
        self.replay = Replay(items, buffers, self.n_inputs, [id(b.base) for b in kept])
        self.replay.on_move.append(self.look_again)

    def look_again(self) -> None:
        """The memory of states has moved: what is known of it by address is read again."""
        for state in self.states:
            state.look_again()
        self.state_ids |= {id(b.base) for state in self.states for b, _ in state.buffers}
        self.exchanges = storage.EXCHANGES.count

    def take_result(self, result: Any, inputs: Inputs, run: Run, params: dict[UOp, UOp]) -> Any:
        """The result with templates in place of tensors; those from before stay themselves."""
        made: dict[int, Any] = {id(t): InputTemplate(i) for i, t in enumerate(inputs.tensors)}
        known = {id(t) for ref in run.before if (t := ref()) is not None}

        def change(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or (id(leaf) in known and id(leaf) not in made):
                return leaf
            return made.setdefault(id(leaf), Template(leaf, params))

        return rebuild(result, change)

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises JitError where an argument is memory that the function also gets at by itself."""
        for i, base in enumerate(inputs.bases):
            memory = id(storage.buffer_of(base).base)
            if memory in self.written_ids or (
                i in self.written_inputs and memory in self.state_ids
            ):
                t = next(t for t in inputs.tensors if base in storage.buffers_below(t.uop))
                raise JitError(
                    f"{t!r} is an argument of a jitted function, which also uses it by "
                    "another way and writes to it; pass it in one way only"
                )

    def fits(self) -> str | None:
        """None when this recording may be replayed, else what stands against it."""
        broken = self.watch.broken()
        if broken is not None:
            return broken.where
        exchanged = self.exchanges != storage.EXCHANGES.count
        for state in self.states:
            t: Any = state.ref()
            if t is not None and (exchanged or t.uop is not state.uop) and not state.renew(t):
                return repr(t)
        self.exchanges = storage.EXCHANGES.count
        return None

    def may_fit_again(self) -> bool:
        """Whether all memory that it uses has its names still; weights that are gone stay so."""
        return all(
            (t := state.ref()) is not None and strip_effects(t.uop) is state.place
            for state in self.states
        )

    def run(self, inputs: Inputs) -> T:
        """Replays on these inputs."""
        replay = self.replay
        if self.written_ids or self.written_inputs:
            self.prepare_writes(inputs)
        bases = list(inputs.bases)
        for i, base in enumerate(inputs.bases):
            replay.set_input(i, storage.buffer_of(base).ensure_allocated())
        for k, (device, size, dtype) in enumerate(self.fresh):
            # The output of the last call is written again only when nobody has it any more.
            base = UOp.new_buffer(device, size, dtype)
            number = self.n_inputs + k
            if self.last[k]() is None and not replay.input(number).is_exported():
                storage.attach(base, replay.input(number))
            else:
                storage.attach(base, Buffer(device, size, dtype).allocate())
                replay.set_input(number, storage.buffer_of(base))
            self.last[k] = weakref.ref(base)
            bases.append(base)
            if self.wants_gradient[k]:
                storage.NO_GRADIENT.add(base)
        for where, data in self.content:
            (replay.input(where) if isinstance(where, int) else where).copyin(data)
        for buffer, device, count in self.draws:
            buffer.copyin(random.draw_state(device, count))
        replay.run(inputs.values)
        if self.written_ids or self.written_inputs:
            storage.note_overwritten([storage.buffer_of(u) for u in self.written_now(inputs)])
        filled: dict[int, Any] = {}

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, InputTemplate):
                return inputs.tensors[leaf.number]
            if not isinstance(leaf, Template):
                return leaf
            if id(leaf) not in filled:
                filled[id(leaf)] = leaf.fill(bases, inputs.values)
            return filled[id(leaf)]

        return rebuild(self.result, fill)  # type: ignore[no-any-return]

    def written_now(self, inputs: Inputs) -> set[UOp]:
        """The BUFFERs that a replay on these inputs writes to, results aside."""
        return {*self.written_states, *[inputs.bases[i] for i in self.written_inputs]}

    def prepare_writes(self, inputs: Inputs) -> None:
        """Before memory is overwritten: checks that it may be, computes what wants its content."""
        self.check_inputs(inputs)
        for i in self.written_inputs:
            buffer = storage.buffer_of(inputs.bases[i]).ensure_allocated()
            if buffer.is_readonly():
                raise DeviceError(
                    f"a jitted function writes to its argument, and {buffer!r} is "
                    "read-only; pass a copy (clone)"
                )
        realize_readers(self.written_now(inputs))


class Entry(Generic[T]):
    """All that is known for one combination of arguments."""

    def __init__(self) -> None:
        self.recordings: list[Recording[T]] = []
        self.last_log: list[tuple[Any, ...]] | None = None
        self.last_watch: Watch | None = None
        self.unequal = 0
        self.outdated = 0
        self.reason = ""

    def fitting(self) -> Recording[T] | None:
        """A recording that may be replayed; one that never may again is dropped."""
        for recording in self.recordings:
            reason = recording.fits()
            if reason is None:
                self.outdated = 0
                return recording
            self.reason = reason
        return None


class Captured:
    """A recording to look at, and its memory in hand."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    @property
    def jit_cache(self) -> list[ExecItem]:
        """What it runs, kernel by kernel."""
        return items_of(self.replay)

    def free_intermediates(self) -> None:
        """Gives back the memory that nothing needs between two calls; the next one takes it again.

        Results that somebody still has stay readable: they go to memory of the host, where the
        device works on that too.
        """
        self.replay.free_intermediates()

    def replan_buffers_memory_layout(self) -> None:
        """Puts the memory of all steps in one block a device, intermediates in turn.

        What lives on between calls (weights, say) is copied there, under the names that it has.
        Then nothing is left for `free_intermediates`.
        """
        self.replay.replan()


class TinyJit(Generic[T]):
    """Records a function at its second call and replays it from the third on.

    As a decorator on a method it keeps the recordings of each object apart. Beside tensors the
    arguments may be plain values (each one is a recording of its own) and bound variables.

    Raises: JitError where a replay could not do what the function does: an input without memory, a
    value read (`item`, `numpy`) while recording, a variable bound inside, a tensor replaced instead
    of assigned, Python numbers that change with every call, nothing to record.
    """

    def __init__(
        self, function: Callable[..., T], prune: bool = False, optimize: bool = False
    ) -> None:
        if not callable(function):
            raise JitError(f"TinyJit wants a function, given {function!r}")
        self.function = function
        self.prune = prune
        self.entries: dict[Any, Entry[T]] = {}
        self.calls = 0
        self.latest: Recording[T] | None = None
        self.of_object: dict[int, tuple[weakref.ref[Any], TinyJit[T]]] = {}
        functools.update_wrapper(self, function)

    def __get__(self, instance: Any, owner: Any = None) -> TinyJit[T]:
        """The jit of this object's method; it lives as long as the object."""
        if instance is None:
            return self
        number = id(instance)
        found = self.of_object.get(number)
        if found is not None and found[0]() is instance:
            return found[1]
        try:
            ref = weakref.ref(instance, lambda _: self.of_object.pop(number, None))
        except TypeError:
            raise JitError(
                f"a method of {type(instance).__name__} cannot be jitted: its objects "
                "take no weak references; add '__weakref__' to its __slots__"
            ) from None
        method = self.function.__get__(instance, owner)
        jit: TinyJit[T] = TinyJit(WeakMethod(method), self.prune)
        self.of_object[number] = ref, jit
        return jit

    def reset(self) -> None:
        """Forgets every recording."""
        self.entries.clear()
        self.latest = None
        self.calls = 0

    @property
    def captured(self) -> Captured | None:
        """The latest recording, if there is one."""
        return None if self.latest is None else Captured(self.latest.replay)

    @property
    def jit_cache(self) -> list[ExecItem]:
        """What the latest recording runs, a native graph as one item; nothing before that."""
        return [] if self.latest is None else grouped_items_of(self.latest.replay)

    @property
    def func(self) -> Callable[..., T]:
        """The call itself, as `functools.partial` names it: its `__self__` is the jit."""
        return self.__call__

    @property
    def cnt(self) -> int:
        """How often the function was called, over all combinations of arguments."""
        return self.calls

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        """Runs, records or replays. While an outer jit records, it runs."""
        if not JIT or is_recording():
            return self.function(*args, **kwargs)
        if storage.DUE.data:
            run_due(list(storage.DUE))
        inputs = Inputs(args, kwargs)
        entry = self.entry_for(inputs)
        self.calls += 1
        recording = entry.fitting()
        if recording is None:
            if entry.last_log is None:
                return self.run_plain(entry, inputs, args, kwargs)
            if inputs.take_own_memory():
                inputs = Inputs(args, kwargs)
                entry = self.entry_for(inputs)
            return self.record(entry, inputs, args, kwargs)
        if recording.written_inputs and inputs.take_own_memory(recording.written_inputs):
            return self(*args, **kwargs)
        return recording.run(inputs)

    def entry_for(self, inputs: Inputs) -> Entry[T]:
        """What is known for a combination of arguments and of settings that change results."""
        key = (inputs.key, Tensor.training, dtypes.default_float, dtypes.default_int, DEV.value)
        entry = self.entries.get(key)
        if entry is None:
            if len(self.entries) >= MAX_RECORDINGS:
                raise JitError(
                    f"{MAX_RECORDINGS} different combinations of arguments: some plain "
                    "value or size changes with every call; pass a number as a Tensor, "
                    f"a size as a bound Variable (last: {inputs.key})"
                )
            entry = self.entries[key] = Entry()
        return entry

    def run_plain(
        self, entry: Entry[T], inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        """The function as it is, its results realized as a replay's are."""
        run = Run(inputs, records=False)
        try:
            result = run.call(self.function, args, kwargs)
        except ShapeError as error:
            if self.latest is None:
                raise
            raise JitShapeError(
                f"a jitted function that was recorded for other arguments fails for these: {error}"
            ) from error
        check_result(result, inputs)
        run.give_memory()
        entry.last_log = run.recorder.log
        return result

    def record(
        self, entry: Entry[T], inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        """Runs the function, and keeps what it ran when it was the same as in the run before."""
        watch = self.watch(inputs)
        entry.outdated += 1
        broken = None if entry.last_watch is None else entry.last_watch.broken()
        if broken is not None:
            entry.reason = broken.where
        entry.last_watch = watch
        # Both uses would be one in the recording; another call may tell them apart.
        shared = watch.place_of(inputs.tensors)
        if shared is not None:
            entry.reason = f"{shared}, which is an argument too"
        if entry.outdated > MAX_OUTDATED:
            raise JitError(
                f"a jitted function was recorded {MAX_OUTDATED} times in a row, because "
                f"what it reads is another with every call: {entry.reason}; write "
                "tensors in place with assign, pass the others as arguments"
            )
        if shared is not None:
            return self.run_plain(entry, inputs, args, kwargs)
        run = Run(inputs, records=True)
        result = run.call(self.function, args, kwargs)
        check_result(result, inputs)
        run.check_replaced()
        run.lose_escaped()
        self.check_watched(watch)
        if not run.recorder.items:
            raise JitError(
                "a jitted function ran no kernel: its result does not depend on "
                "computation, so there is nothing to record"
            )
        self.check_variables(run)
        before, entry.last_log = entry.last_log, run.recorder.log
        if before is not None and not run.recorder.equals(before):
            entry.unequal += broken is None
            if entry.unequal >= MAX_UNEQUAL_RUNS:
                raise JitError(
                    f"a jitted function did something else in each of {entry.unequal} "
                    "calls with equal arguments: it uses numbers that change with every "
                    "call (random, time, a counter); pass them as tensors"
                )
            return result
        entry.unequal = 0
        recording = Recording(run, result, watch, self.prune)
        others = [r for r in entry.recordings if r.may_fit_again()]
        entry.recordings = [recording, *others[: MAX_RECORDINGS - 1]]
        self.latest = recording
        return result

    def watch(self, inputs: Inputs) -> Watch:
        """What the function reads besides its arguments."""
        roots = [(self.function, "function"), *[(x, "argument") for x in inputs.objects]]
        if isinstance(self.function, WeakMethod):
            roots.append((self.function.ref(), "self"))
        return Watch(roots, lambda x: isinstance(x, Tensor))

    def check_watched(self, watch: Watch) -> None:
        """Raises JitError where the function itself changes what it reads, or leaves tensors."""
        read, stored = watch.changed_while_running()
        for condition in read:
            raise JitError(
                f"{condition.where} changes inside of a jitted function, which a replay "
                "would not do; keep it in a tensor and use assign, or change it outside"
            )
        for condition in stored:
            if any(isinstance(leaf, Tensor) for _, leaf in leaves(condition.read())):
                raise JitError(
                    f"{condition.where} is set to a tensor inside of a jitted function, "
                    "which a replay would not do; return the tensor instead"
                )

    def check_variables(self, run: Run) -> None:
        """Raises JitError for variables that are no arguments."""
        for item in run.recorder.items:
            for name in item.values:
                if name not in run.inputs.values:
                    raise JitError(
                        f"variable {name} is bound inside the jitted function, so its "
                        "value would be frozen; pass the bound variable as an argument"
                    )


class WeakMethod:
    """A bound method that does not keep its object alive."""

    def __init__(self, method: Any) -> None:
        self.ref = weakref.WeakMethod(method)
        functools.update_wrapper(self, method.__func__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        method = self.ref()
        if method is None:
            raise JitError("the object of this jitted method is gone")
        return method(*args, **kwargs)
