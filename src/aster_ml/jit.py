"""TinyJit: record what a function runs, and replay it without running the function.

The first call runs the function as it is. The second runs it again and records every kernel; from
the third on the recording is replayed on the new inputs. A recording is only replayed for calls
that it fits: same structure of arguments, shapes, dtypes, devices and views, same plain values
(also those that the function reads from its closure, its globals and its object). Another
combination is recorded apart. What no recording can honour raises JitError.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from aster_ml.config import JIT
from aster_ml.device import Buffer
from aster_ml.engine import storage
from aster_ml.engine.launch import RECORDER
from aster_ml.engine.replay import Recorder, Replay
from aster_ml.errors import JitError
from aster_ml.mixin import random
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, ParamArg

T = TypeVar("T")
# More combinations than this mean that some argument changes with every call.
MAX_RECORDINGS = 64
PLAIN = (int, float, bool, str, bytes, type(None))


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf of nested lists, tuples and dicts, with where it stands."""
    if isinstance(value, (list, tuple)):
        for i, v in enumerate(value):
            yield from leaves(v, f"{path}[{i}]")
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from leaves(v, f"{path}[{k!r}]")
    else:
        yield path, value


def base_buffer(u: UOp) -> UOp:
    """The BUFFER that a view shows."""
    while u.op is not Ops.BUFFER:
        u = u.src[0]
    return u


def memory_id(u: UOp) -> int:
    """Which memory a view shows, whatever its name."""
    return id(storage.buffer_of(u).base)


class Inputs:
    """The arguments of one call, taken apart."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self.values: dict[str, int] = {}
        key: list[Any] = []
        for path, leaf in leaves((args, kwargs), "argument "):
            if isinstance(leaf, Tensor):
                key.append((path, "tensor"))
                self.tensors.append(leaf)
            elif isinstance(leaf, UOp):
                key.append((path, self.add_variable(path, leaf)))
            elif isinstance(leaf, PLAIN):
                key.append((path, type(leaf), leaf))
            else:
                key.append((path, id(leaf)))
        lazy = [t for t in self.tensors if not storage.is_memory_view(t.uop)]
        if lazy:
            Tensor.realize(*lazy)
        self.bases: list[UOp] = []
        for t in self.tensors:
            if not storage.is_memory_view(t.uop):
                raise JitError(f"a jitted function was given {t!r}, which is a constant without "
                               "memory; pass x.contiguous().realize() instead")
            base = base_buffer(t.uop)
            if base not in self.bases:
                self.bases.append(base)
            slot = self.bases.index(base)
            form = UOp(Ops.PARAM, base.dtype, (), ParamArg(slot, base.arg.size, base.arg.device))
            key.append(substitute(t.uop, {base: form}))
        self.key = tuple(key)

    def add_variable(self, path: str, u: UOp) -> UOp:
        """Notes a bound variable; the key has the variable, not its value."""
        if u.op is not Ops.BIND:
            raise JitError(f"{path} is {u!r}; a jitted function takes bound variables: "
                           "Variable(name, low, high).bind(value)")
        variable, value = u.unbind()
        name = variable.arg.name
        if self.values.setdefault(name, value) != value:
            raise JitError(f"{path} binds {name} to {value}, another argument binds it to "
                           f"{self.values[name]}")
        return variable


class Drawn:
    """Random numbers that a recorded function draws: the node that holds key and counter."""

    def __init__(self, state: UOp, count: int) -> None:
        self.state = state
        self.count = count

    def advance(self) -> None:
        """Writes the key and counter of a new draw, as drawing anew would."""
        device = str(self.state.device)
        storage.buffer_of(self.state).copyin(random.draw_state(device, self.count))


class Recording(Generic[T]):
    """What one combination of arguments runs."""

    def __init__(self, function: Callable[..., T]) -> None:
        self.function = function
        self.calls = 0
        self.replay: Replay | None = None
        self.result: Any = None
        self.outputs: list[tuple[UOp, int]] = []
        self.random: list[Drawn] = []
        self.last: list[weakref.ref[UOp]] = []
        self.overwritten: list[Buffer] = []
        self.n_inputs = 0

    def capture(self, inputs: Inputs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """Runs the function and records it.

        While it runs, inputs are names of their own for the same memory, so that a use of that
        memory by any other way (a weight, say) is told from a use of the input.
        """
        places: dict[UOp, UOp] = {}
        for base in inputs.bases:
            place = UOp.new_buffer(base.arg.device, base.arg.size, base.dtype)
            memory = storage.buffer_of(base).ensure_allocated()
            storage.attach(place, memory.view(memory.size, memory.dtype))
            places[base] = place
        before = [t.uop for t in inputs.tensors]
        views = [substitute(u, places) for u in before]
        recorder = Recorder()
        # Kept alive while recording, so that no new memory is taken for one of them.
        known = list(storage.BUFFERS.values())
        drawn: list[Drawn] = []
        RECORDER.append(recorder)
        random.ACTIVE_RECORDER = lambda state, count: drawn.append(Drawn(state, count))
        for t, u in zip(inputs.tensors, views, strict=True):
            t.uop = u
        try:
            result = self.function(*args, **kwargs)
            outputs = [leaf for _, leaf in leaves(result, "result") if isinstance(leaf, Tensor)]
            if outputs:
                Tensor.realize(*outputs)
            late = [t for t in inputs.tensors if not storage.is_memory_view(t.uop)]
            if late:
                Tensor.realize(*late)
        finally:
            RECORDER.pop()
            random.ACTIVE_RECORDER = None
            back = {place: base for base, place in places.items()}
            for t, view, u in zip(inputs.tensors, views, before, strict=True):
                t.uop = u if t.uop is view else substitute(t.uop, back)
        self.finish(recorder, drawn, inputs, places, result, outputs, known)
        for t in outputs:
            t.uop = substitute(t.uop, {place: base for base, place in places.items()})
        return result

    def finish(
        self, recorder: Recorder, drawn: list[Drawn], inputs: Inputs,
        places: dict[UOp, UOp], result: Any, outputs: list[Tensor], known: list[Buffer],
    ) -> None:
        """Turns what was recorded into something that replays."""
        if not recorder.items:
            raise JitError("a jitted function ran no kernel: its result does not depend on "
                           "computation, so there is nothing to record")
        for item in recorder.items:
            for name in item.values:
                if name not in inputs.values:
                    raise JitError(f"variable {name} is bound inside the jitted function, so its "
                                   "value would be frozen; pass the bound variable as an argument")
        exchanged = [storage.buffer_of(places[b]) for b in inputs.bases]
        self.n_inputs = len(exchanged)
        fresh: list[UOp] = []
        seen = {id(b.base) for b in known}
        for t in outputs:
            # Memory that was there before is an input's, or state, which stays where it is.
            if storage.is_memory_view(t.uop) and memory_id(t.uop) not in seen:
                seen.add(memory_id(t.uop))
                fresh.append(base_buffer(t.uop))
        self.replay = Replay(recorder.items, exchanged + [storage.buffer_of(b) for b in fresh])
        self.result = rebuild(result, lambda t: self.template(t, places, fresh))
        self.random = drawn
        self.overwritten = [b for b in recorder.overwritten if id(b.base) not in {
            id(storage.buffer_of(f).base) for f in fresh}]
        self.fresh = [(b.arg.device, b.arg.size, b.dtype) for b in fresh]
        self.last = [weakref.ref(b) for b in fresh]

    def template(self, t: Tensor, places: dict[UOp, UOp], fresh: list[UOp]) -> Any:
        """A result tensor as a function of inputs and fresh outputs: a view over a PARAM."""
        if not storage.is_memory_view(t.uop):
            return t
        base = base_buffer(t.uop)
        # Memory that was overwritten has another name by now.
        order = [memory_id(u) for u in (*places.values(), *fresh)]
        if memory_id(base) not in order:
            return t
        slot = order.index(memory_id(base))
        form = UOp(Ops.PARAM, base.dtype, (), ParamArg(slot, base.arg.size, base.arg.device))
        return Template(substitute(t.uop, {base: form}), form, slot, t.requires_grad)

    def run(self, inputs: Inputs) -> T:
        """Replays on these inputs."""
        replay = self.replay
        assert replay is not None
        bases = list(inputs.bases)
        for i, base in enumerate(inputs.bases):
            replay.set_input(i, storage.buffer_of(base).ensure_allocated())
        for k, (device, size, dtype) in enumerate(self.fresh):
            # The output of the last call is written again only when nobody has it any more.
            base = UOp.new_buffer(device, size, dtype)
            number = self.n_inputs + k
            if self.last[k]() is None and not replay.current[number].is_exported():
                storage.attach(base, replay.current[number])
            else:
                storage.attach(base, Buffer(device, size, dtype).allocate())
                replay.set_input(number, storage.buffer_of(base))
            self.last[k] = weakref.ref(base)
            bases.append(base)
        for draw in self.random:
            draw.advance()
        replay.run(inputs.values)
        storage.note_overwritten([replay.memory_now(b) for b in self.overwritten])
        return rebuild(self.result, lambda t: t.fill(bases) if isinstance(t, Template) else t)


class Template:
    """A tensor of the result, with the place of its memory left open."""

    def __init__(self, form: UOp, param: UOp, slot: int, requires_grad: bool | None) -> None:
        self.form = form
        self.param = param
        self.slot = slot
        self.requires_grad = requires_grad

    def fill(self, bases: list[UOp]) -> Tensor:
        """The tensor over one of these buffers."""
        t = Tensor.from_uop(substitute(self.form, {self.param: bases[self.slot]}))
        t.requires_grad = self.requires_grad
        return t


def rebuild(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of lists, tuples and dicts with tensors (or templates) changed."""
    if isinstance(value, (Tensor, Template)):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[rebuild(v, change) for v in value])
    if isinstance(value, (list, tuple)):
        return type(value)([rebuild(v, change) for v in value])
    if isinstance(value, dict):
        return {k: rebuild(v, change) for k, v in value.items()}
    return value


class TinyJit(Generic[T]):
    """Records a function at its second call and replays it from the third on.

    As a decorator on a method it keeps the recordings of each object apart.

    Raises: JitError where a replay could not do what the function does: an input without memory, a
    value read (`item`, `numpy`) while recording, a variable bound inside, nothing to record.
    """

    def __init__(self, function: Callable[..., T], prune: bool = False, optimize: bool = False
                 ) -> None:
        if not callable(function):
            raise JitError(f"TinyJit wants a function, given {function!r}")
        self.function = function
        self.recordings: dict[Any, Recording[T]] = {}
        self.watched = watched_values(function)
        self.of_object: weakref.WeakKeyDictionary[Any, TinyJit[T]] = weakref.WeakKeyDictionary()
        functools.update_wrapper(self, function)

    def __get__(self, instance: Any, owner: Any = None) -> TinyJit[T]:
        """The jit of this object's method."""
        if instance is None:
            return self
        found = self.of_object.get(instance)
        if found is None:
            method = self.function.__get__(instance, owner)  # type: ignore[attr-defined]
            found = self.of_object[instance] = TinyJit(WeakMethod(method))  # type: ignore
            found.watched = watched_values(method)
        return found

    def reset(self) -> None:
        """Forgets every recording."""
        self.recordings.clear()

    @property
    def captured(self) -> Replay | None:
        """The latest recording, if there is one."""
        made = [r.replay for r in self.recordings.values() if r.replay is not None]
        return made[-1] if made else None

    @property
    def cnt(self) -> int:
        """How often the function was called, over all combinations of arguments."""
        return sum(r.calls for r in self.recordings.values())

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        """Runs, records or replays. While an outer jit records, it runs."""
        if not JIT or RECORDER:
            return self.function(*args, **kwargs)
        inputs = Inputs(args, kwargs)
        key = (inputs.key, Tensor.training, tuple([read() for read in self.watched]))
        recording = self.recordings.get(key)
        if recording is None:
            if len(self.recordings) >= MAX_RECORDINGS:
                raise JitError(f"{MAX_RECORDINGS} different combinations of arguments: some plain "
                               "value changes with every call; pass it as a Tensor or a bound "
                               f"Variable (last: {[k for k in inputs.key if len(k) == 3]})")
            recording = self.recordings[key] = Recording(self.function)
        recording.calls += 1
        if recording.calls == 1:
            return self.run_plain(args, kwargs)
        if recording.calls == 2 or recording.replay is None:
            return recording.capture(inputs, args, kwargs)
        return recording.run(inputs)

    def run_plain(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """The function as it is, its results realized as a replay's are."""
        result = self.function(*args, **kwargs)
        outputs = [leaf for _, leaf in leaves(result, "result") if isinstance(leaf, Tensor)]
        if outputs:
            Tensor.realize(*outputs)
        return result


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


def watched_values(function: Any) -> list[Callable[[], Any]]:
    """Readers of the plain values that a function takes from closure, globals and object.

    A recording would freeze them; so they are part of what a call has to match.
    """
    code = getattr(function, "__code__", None) or getattr(
        getattr(function, "__func__", None), "__code__", None)
    if code is None:
        return []
    plain = getattr(function, "__func__", function)
    readers: list[Callable[[], Any]] = []
    for cell in plain.__closure__ or ():
        readers.append(functools.partial(plain_or_none, lambda c=cell: c.cell_contents))
    for name in code.co_names:
        if isinstance(plain.__globals__.get(name), PLAIN) and name in plain.__globals__:
            readers.append(functools.partial(
                plain_or_none, lambda n=name: plain.__globals__.get(n)))
    owner = getattr(function, "__self__", None)
    if owner is not None:
        ref = weakref.ref(owner)
        for name in code.co_names:
            if isinstance(getattr(owner, "__dict__", {}).get(name), PLAIN):
                readers.append(functools.partial(
                    plain_or_none, lambda n=name: getattr(ref(), n, None)))
    return readers


def plain_or_none(read: Callable[[], Any]) -> Any:
    """A plain value with its type, or None for what is not plain (or not set yet)."""
    try:
        value = read()
    except ValueError:
        return None
    return (type(value), value) if isinstance(value, PLAIN) else None
