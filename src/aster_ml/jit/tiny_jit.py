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

from aster_ml.config import CHECK_INDEX, DEV, EXACT, JIT, JIT_BYTES
from aster_ml.dtype import dtypes
from aster_ml.engine import storage
from aster_ml.engine.fallback import may_fall_back, report_fallback
from aster_ml.engine.items import ExecItem
from aster_ml.engine.launch import is_recording
from aster_ml.engine.realize import run_due
from aster_ml.errors import JitError, JitShapeError, ShapeError
from aster_ml.jit.fast_path import DIFFERENT, FastPath
from aster_ml.jit.graph_runner import grouped_items_of, items_of
from aster_ml.jit.guards import Watch
from aster_ml.jit.moving_slices import MovingSlices
from aster_ml.jit.observed_run import Run
from aster_ml.jit.pickling import means_something_elsewhere
from aster_ml.jit.pytree import (
    Inputs,
    check_result,
    leaves,
)
from aster_ml.jit.recording import Recording
from aster_ml.jit.replay import Recorded, Replay
from aster_ml.tensor import Tensor
from aster_ml.thread_state import ENGINE, new_lock, take_turn
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

T = TypeVar("T")
# More recordings than this mean that some argument changes with every call.
MAX_RECORDINGS = 64
# So often in a row may the function do something else, or a recording be outdated when it is made.
MAX_UNEQUAL_RUNS, MAX_OUTDATED = 4, 16


class Entry(Generic[T]):
    """All that is known for one combination of arguments."""

    def __init__(self) -> None:
        self.recordings: list[Recording[T]] = []
        self.last_log: list[tuple[Any, ...]] | None = None
        self.last_watch: Watch | None = None
        # Arguments that are views, which the function writes through (`Inputs.by_whole`).
        self.by_whole: frozenset[int] = frozenset()
        # Whether the function has written to memory that arguments show.
        self.writes_inputs = False
        # Aster has failed at recording or replaying it, and goes on without.
        self.is_given_up = False
        self.unequal = 0
        self.outdated = 0
        self.reason = ""

    def fitting(self, inputs: Inputs) -> Recording[T] | None:
        """A recording that may be replayed on these arguments."""
        for recording in self.recordings:
            reason = recording.fits(inputs)
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
        """Items of a run, kernel by kernel."""
        return items_of(self.replay)

    def free_intermediates(self) -> None:
        """Gives back the memory that nothing needs between two calls; the next one takes it again.

        Results that somebody still has stay readable: they go to memory of the host, where the
        device works on that too. A spare result, kept for the next call, stays as well.
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

    As a decorator on a method it keeps the recordings of each object apart. Threads may share one:
    their calls come one after the other, and what other threads compute while one records is no
    part of the recording. Beside tensors the
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
        self.moving = MovingSlices()
        self.calls = 0
        self.latest: Recording[T] | None = None
        # What answers a call that is like the last one.
        self.again: FastPath | None = None
        self.of_object: dict[int, tuple[weakref.ref[Any], TinyJit[T]]] = {}
        # Held by the thread whose call it is: others wait, since there is one set of recordings.
        self.lock = new_lock()
        functools.update_wrapper(self, function)

    def portable(self) -> dict[Any, list[Recording[T]]]:
        """Recordings that another process could use, by combination of arguments."""
        return {
            key: found
            for key, entry in self.entries.items()
            if means_something_elsewhere(key)
            and (found := [r for r in entry.recordings if not r.is_bound])
        }

    def __getstate__(self) -> dict[str, Any]:
        recordings = self.portable()
        if not recordings:
            raise JitError(
                "a jitted function is pickled with its recordings, and this one has none that "
                "another process could use; call it three times with tensors and plain values"
            )
        name = getattr(self, "__name__", "function")
        return {"name": name, "prune": self.prune, "recordings": recordings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(left_behind, state["prune"])  # type: ignore[misc]
        self.__name__ = state["name"]
        for key, recordings in state["recordings"].items():
            entry: Entry[T] = Entry()
            entry.recordings = recordings
            self.entries[key] = entry
            self.latest = recordings[0]

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
        self.moving = MovingSlices()
        self.latest = None
        self.again = None
        self.calls = 0

    @property
    def captured(self) -> Captured | None:
        """The latest recording, if there is one."""
        return None if self.latest is None else Captured(self.latest.replay)

    @property
    def jit_cache(self) -> list[ExecItem]:
        """Items of the latest recording, a native graph as one item; none before that."""
        return [] if self.latest is None else grouped_items_of(self.latest.replay)

    @property
    def func(self) -> Callable[..., T]:
        """The call itself, as `functools.partial` names it: its `__self__` is the jit."""
        return self.__call__

    @property
    def cnt(self) -> int:
        """Number of calls of the function, over all combinations of arguments."""
        return self.calls

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        """Runs, records or replays. While an outer jit records, it runs."""
        again = self.again
        if again is not None:
            result: T = again.call(args, kwargs)
            if result is not DIFFERENT:
                self.calls += 1
                return result
        if not JIT or CHECK_INDEX or is_recording():
            return self.function(*args, **kwargs)
        with self.lock:
            return self.call_anew(args, kwargs)

    def call_anew(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """A call that is not known to be like the last one."""
        if storage.DUE.data:
            with ENGINE:
                take_turn()
                run_due(list(storage.DUE))
        self.again = None
        inputs = Inputs(args, kwargs)
        if inputs.slices and self.key_of(inputs) not in self.entries:
            copied = self.moving.copied(inputs, args, kwargs)
            if copied is not None:
                args, kwargs = copied
                inputs = Inputs(args, kwargs)
        entry = self.entry_for(inputs)
        if inputs.slices:
            self.moving.note(inputs, entry)
        by_whole = entry.by_whole
        if by_whole:
            inputs = Inputs(args, kwargs, by_whole)
            entry = self.entry_for(inputs)
        self.calls += 1
        with ENGINE:
            take_turn()
            recording = entry.fitting(inputs)
            if recording is not None and not recording.written_inputs:
                return self.replay(recording, inputs, args, kwargs)
        if recording is None:
            if entry.last_log is None or entry.is_given_up:
                return self.run_plain(entry, inputs, args, kwargs)
            if inputs.take_own_memory():
                inputs = Inputs(args, kwargs, by_whole)
                entry = self.entry_for(inputs)
            if any([r.lacks_gradients() for r in entry.recordings]):
                # It adds to gradients, which the first run after they are gone makes anew.
                log, entry.outdated = entry.last_log, 0
                result = self.run_plain(entry, inputs, args, kwargs)
                entry.last_log = log
                return result
            return self.record(entry, inputs, args, kwargs)
        if inputs.take_own_memory(recording.written_inputs):
            return self(*args, **kwargs)
        with ENGINE:
            return self.replay(recording, inputs, args, kwargs)

    def replay(
        self,
        recording: Recording[T],
        inputs: Inputs,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Runs a recording, and takes note of the call for the next one."""
        try:
            written = recording.prepare(inputs)
        except Exception as error:
            if not may_fall_back(error):
                raise
            entry = self.entry_for(inputs)
            self.give_up(entry, recording.replay.items, error)
            return self.run_plain(entry, inputs, args, kwargs)
        result = recording.run(inputs, written)
        if recording.is_pure and not recording.is_bound:
            again = FastPath(recording)
            self.again = again if again.remember_call(args, kwargs, inputs) else None
        return result

    def key_of(self, inputs: Inputs) -> tuple[Any, ...]:
        """Key of a combination of arguments and settings."""
        types = dtypes.default_float, dtypes.default_int
        return inputs.key, Tensor.training, *types, DEV.value, EXACT.value

    def entry_for(self, inputs: Inputs) -> Entry[T]:
        """Entry of a combination of arguments and of settings that change results."""
        key = self.key_of(inputs)
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
        if run.recorder.error is not None:
            self.give_up(entry, run.recorder.items, run.recorder.error)
        entry.last_log = run.recorder.log
        entry.by_whole = run.written_views()
        written = run.recorder.written.keys()
        entry.writes_inputs = not all([written.isdisjoint(below) for below in inputs.below])
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
        if entry.outdated > MAX_OUTDATED:
            raise JitError(
                f"a jitted function was recorded {MAX_OUTDATED} times in a row, because "
                f"what it reads is another with every call: {entry.reason}; write "
                "tensors in place with assign, pass the others as arguments"
            )
        reached = watch.reached()
        bound = inputs.numbers_of(reached)
        known = {number for r in entry.recordings for number in r.state_ids}
        run = Run(inputs, records=True, reached=inputs.memory_shared_with(reached, known))
        result = run.call(self.function, args, kwargs)
        check_result(result, inputs)
        if run.recorder.error is not None:
            self.give_up(entry, run.recorder.items, run.recorder.error)
            return result
        if run.replaces_values():
            # Gradients that a step by itself has left, say: memory from now on, which a recording
            # can write to.
            run.give_memory()
            run.lose_escaped()
            entry.last_log = run.recorder.log
            return result
        run.check_replaced()
        run.check_aliases()
        run.lose_escaped()
        self.check_watched(watch)
        if not run.recorder.items and not run.outputs:
            raise JitError(
                "a jitted function ran no kernel and returns no tensor, so there is nothing to "
                "record"
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
        try:
            with ENGINE:
                recording = Recording(run, result, watch, bound, self.prune)
        except Exception as error:
            if not may_fall_back(error):
                raise
            self.give_up(entry, run.recorder.items, error)
            return result
        others = [r for r in entry.recordings if r.may_fit_again()]
        entry.recordings = [recording, *others[: MAX_RECORDINGS - 1]]
        self.latest = recording
        self.make_room(recording.replay)
        return result

    def make_room(self, latest: Replay) -> None:
        """Past JIT_BYTES, earlier recordings give their intermediates back, the oldest first.

        They go on: the next run of one takes the memory again.
        """
        replays = [r.replay for entry in self.entries.values() for r in entry.recordings]
        held = sum([replay.scratch_nbytes for replay in replays])
        if held <= JIT_BYTES.value:
            return
        named = {id(b.base) for b in storage.BUFFERS.data.copy().values()}
        for replay in sorted(replays, key=lambda replay: replay.used):
            if held > JIT_BYTES.value and replay is not latest:
                held -= replay.scratch_nbytes
                replay.free_scratch(named)

    def give_up(self, entry: Entry[T], items: list[Recorded], error: Exception) -> None:
        """From now on the function runs as it is, for these arguments."""
        asts = [item.step.ast for item in items if item.step.ast is not None]
        root = asts[0] if asts else UOp(Ops.SINK)
        taken = "the function as it is, call by call,"
        report_fallback("recording", root, None, error, taken)
        entry.is_given_up, entry.recordings = True, []

    def watch(self, inputs: Inputs) -> Watch:
        """Watches what the function reads besides its arguments."""
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
            if any(isinstance(leaf, Tensor) for _, leaf in leaves(condition.place.read())):
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


def left_behind(*args: Any, **kwargs: Any) -> Any:
    """Stands for the function of a jit that was unpickled. Raises: JitError."""
    raise JitError(
        "this jitted function was unpickled: its recordings are here, the function is not, and "
        "none of them is for arguments of these shapes, dtypes, devices and plain values"
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
