"""Traces a function to data: the schedules that it ran, and the role of each argument.

Receives a function and tensors to call it with; returns a `Trace`. The function is recorded by
TinyJit, whose conditions hold: it takes its numbers from arguments and weights, and looks at no
value. Nothing here knows of targets or languages.
"""

from __future__ import annotations

import functools
import keyword
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aster_ml.config import CAPTURING, DEPTH_FIRST, JIT, Context
from aster_ml.device import Buffer
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import ArgumentError, InternalError, JitError, UnsupportedError
from aster_ml.export.names import Named, named_weights
from aster_ml.extend import Observed, Recording, Schedule, buffers_of
from aster_ml.extend import Ran as Row
from aster_ml.jit.pytree import InputTemplate, Template, leaves
from aster_ml.jit.tiny_jit import TinyJit
from aster_ml.tensor import Tensor

# Calls after which a function that can be recorded has been.
MOST_CALLS = 6


@dataclass(frozen=True)
class Value:
    """An input or an output: its name, sizes and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.name}[{', '.join(map(str, self.shape))}]"


@dataclass(eq=False)
class Memory:
    """One piece of memory that the function touches.

    `role` is "input", "output" (both with their `number`), "weight" (read only), "state" (kept from
    call to call) or "temporary". `data` is the content before the first call of a weight or state.
    `renewed` says that a temporary begins each call with `data`. What a network has a name for has
    it, and the shape that it has there.
    """

    role: str
    nbytes: int
    dtype: DType
    number: int = 0
    data: bytes | None = None
    renewed: bool = False
    name: str = ""
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Part:
    """Bytes of a piece of memory, from `offset` on."""

    memory: Memory
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Ran:
    """A schedule that ran, what its arguments were, and the values of its variables."""

    schedule: Schedule
    arguments: tuple[Part, ...]
    values: Mapping[str, int]


@dataclass
class Trace:
    """All that a call of the function does, in order.

    `numbers` are outputs that are one number everywhere, which nothing computes, and `moved` those
    that are other memory as it is: an input, a weight.
    """

    name: str
    inputs: list[Value]
    outputs: list[Value]
    ran: list[Ran] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    numbers: dict[int, bytes] = field(default_factory=dict)
    moved: list[tuple[Part, Part]] = field(default_factory=list)


def named_inputs(inputs: Any, names: Sequence[str]) -> dict[str, Tensor]:
    """Example inputs by name: of a mapping, or one or several, named as the parameters are.

    Raises: ArgumentError for what is no tensor or array.
    """
    if isinstance(inputs, Mapping):
        given = {str(name): value for name, value in inputs.items()}
    else:
        values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        given = {names[i] if i < len(names) else f"input{i}": v for i, v in enumerate(values)}
    found = {}
    for name, value in given.items():
        if isinstance(value, np.ndarray):
            value = Tensor(np.ascontiguousarray(value).reshape(value.shape))
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"export: input {name} is {type(value).__name__}; tensors or arrays are wanted: "
                "they say which shape and dtype the input has"
            )
        if not all([isinstance(size, int) for size in value.shape]):
            raise ArgumentError(
                f"export: input {name} has the shape {value.shape}; sizes are fixed in what is "
                "exported, so give numbers"
            )
        found[name] = value.detach().clone().contiguous().realize()
    return found


def named_results(found: Any) -> dict[str, Tensor]:
    """Flattens the results of a function, by name. Raises: ArgumentError for what is no tensor."""
    if isinstance(found, Tensor):
        return {"result": found}
    results: dict[str, Tensor] = {}
    for path, leaf in leaves(found):
        if leaf is None:
            continue
        if not isinstance(leaf, Tensor):
            raise ArgumentError(
                f"export: the function returns {type(leaf).__name__} (result{path}); tensors are "
                "wanted, in lists, tuples and dicts"
            )
        words = path.replace("[", " ").replace("]", " ").replace("'", " ").split()
        name = "_".join(words)
        results[f"result{name}" if name[:1].isdigit() else name] = leaf
    if not results:
        raise ArgumentError("export: the function returns no tensor, so there is nothing to export")
    return results


def identifier(text: str, taken: Iterable[str] = (), reserved: Iterable[str] = ()) -> str:
    """A name that is one in C and JavaScript, and none that is taken."""
    name = "".join([x if x.isascii() and (x.isalnum() or x == "_") else "_" for x in text]) or "_"
    if name[0].isdigit():
        name = f"_{name}"
    while name in {*taken, *reserved} or keyword.iskeyword(name):
        name += "_"
    return name


def trace(
    function: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    name: str,
    by_name: bool = False,
    reserved: Iterable[str] = (),
) -> Trace:
    """Runs the function until it is recorded, and says what it does.

    What it writes to has the content of before afterwards. `inputs` have memory of their own.

    Raises: JitError, with what would do, for a function that looks at values or does what no
    replay repeats; UnsupportedError for one that draws random numbers, or writes to an input.
    """
    if isinstance(function, TinyJit):
        function = function.function
    tensors = list(inputs.values())

    def call(*given: Tensor) -> Any:
        return function(**dict(zip(inputs, given))) if by_name else function(*given)

    settings = {JIT.name: 1, CAPTURING.name: 1, DEPTH_FIRST.name: 0}
    with Context(**settings), Tensor.train(False):
        with Observed() as first:
            results = named_results(call(*tensors))
            Tensor.realize(*results.values())
        found = [t.numpy() for t in results.values()]
        try:
            recording, rows = recorded(functools.partial(run_flat, call), tensors)
        finally:
            for base, data in first.before.values():
                base.copyin(data)
    values: list[Value] = []
    for group in (inputs, results):
        for key, t in group.items():
            known = identifier(key, [v.name for v in values], reserved)
            values.append(Value(known, tuple([int(s) for s in t.shape]), t.dtype))
    made = Trace(name, values[: len(inputs)], values[len(inputs) :])
    before = {number: data for number, (_, data) in first.before.items()}
    Reader(made, recording, rows, before, named_weights(function)).read(found)
    return made


def run_flat(call: Callable[..., Any], *given: Tensor) -> list[Tensor]:
    """The results in a flat list, each laid out in row-major order."""
    return [t.contiguous() for _, t in leaves(call(*given)) if isinstance(t, Tensor)]


def recorded(
    function: Callable[..., list[Tensor]], tensors: list[Tensor]
) -> tuple[Recording[Any], list[Row]]:
    """The recording of a function, and what ran when it was made."""
    jit: TinyJit[list[Tensor]] = TinyJit(function)
    for _ in range(MOST_CALLS):
        with Observed() as observed:
            jit(*tensors)
        if jit.latest is not None:
            return jit.latest, observed.rows
    raise JitError(
        f"export: the function was called {MOST_CALLS} times and did something else each time, so "
        "there is nothing to export; it has to do the same with equal arguments"
    )


class Reader:
    """Says of each buffer of a recording what it is."""

    def __init__(
        self, made: Trace, recording: Recording[Any], rows: list[Row], before: dict[int, bytes],
        named: Iterable[Named] = (),
    ) -> None:  # fmt: skip
        self.trace = made
        # What networks call memory, by its base and the bytes of it.
        self.names = {
            (id(b.base), b.offset, b.offset + b.nbytes): (name, shape)
            for name, shape, b in named
            if b.dtype is b.base.dtype
        }
        self.recording = recording
        self.rows = rows
        self.before = before
        self.of_base: dict[int, Memory] = {}
        # What is read of each weight, as disjoint parts of its base in order.
        self.read_of: dict[int, list[tuple[int, int, Memory]]] = {}
        self.written = {
            id(buffers[i].base) for schedule, buffers, _ in rows for i in schedule.written
        }

    def read(self, found: list[np.ndarray[Any, Any]]) -> None:
        """Fills the trace in; `found` are the results of a call."""
        recording, made = self.recording, self.trace
        if recording.draws:
            raise UnsupportedError(
                "export: the function draws random numbers, and what is exported has no generator; "
                "draw them outside and pass them as an input"
            )
        if recording.written_inputs:
            names = [made.inputs[i].name for i in sorted(recording.written_inputs)]
            raise UnsupportedError(
                f"export: the function writes to its input {', '.join(names)}; return the new "
                "value instead"
            )
        # The memory of an input that nothing reads is gone.
        current = [b() if isinstance(b, weakref.ref) else b for b in recording.replay.current]
        places = {i: b for i, b in enumerate(current) if b is not None}
        for i, buffer in places.items():
            if i < recording.n_inputs:
                self.add(buffer, "input", i)
        for where, data in recording.content:
            buffer = places[where] if isinstance(where, int) else where
            memory = self.add(buffer, "temporary")
            memory.data, memory.renewed = data, True
        self.read_outputs(places, found)
        self.find_weights()
        for schedule, buffers, values in self.rows:
            parts = tuple([self.part_of(b) for b in buffers])
            made.ran.append(Ran(schedule, parts, values))

    def add(self, buffer: Buffer, role: str, number: int = 0) -> Memory:
        """New memory of the trace, which a buffer stands for."""
        base = buffer.base
        memory = Memory(role, base.nbytes, base.dtype, number)
        self.of_base[id(base)] = memory
        self.trace.memory.append(memory)
        return memory

    def read_outputs(self, places: dict[int, Buffer], found: list[np.ndarray[Any, Any]]) -> None:
        """Which memory each result is in, or what it is a copy of."""
        made = self.trace
        copied: list[tuple[int, Buffer]] = []
        for i, leaf in enumerate(self.recording.result):
            number = leaf.number if isinstance(leaf, InputTemplate) else None
            if isinstance(leaf, Template):
                if not leaf.params:
                    made.numbers[i] = found[i].tobytes()
                    continue
                if leaf.whole is None:
                    raise InternalError(f"export: result {i} is {leaf.uop!r}, no whole memory")
                number = leaf.whole[0]
            if number is None:
                copied.append((i, buffers_of(leaf.uop)[0]))
            elif id(places[number].base) in self.of_base:
                copied.append((i, places[number]))
            else:
                self.add(places[number], "output", i)
        self.copied = copied

    def find_weights(self) -> None:
        """Finds weights: memory of before that is read and never written."""
        spans: dict[int, list[tuple[int, int]]] = {}
        bases: dict[int, Buffer] = {}
        buffers = [b for _, row, _ in self.rows for b in row] + [b for _, b in self.copied]
        for b in buffers:
            if id(b.base) not in self.of_base and id(b.base) not in self.written and b.nbytes:
                bases[id(b.base)] = b.base
                spans.setdefault(id(b.base), []).append((b.offset, b.offset + b.nbytes))
        for number, base in bases.items():
            rows: list[tuple[int, int, Memory]] = []
            if not base.is_allocated():
                continue
            for begin, end in joined(spans[number]):
                part = base.view(end - begin, dtypes.uint8, begin)
                data = bytes(part.as_memoryview(copy=True))
                memory = Memory("weight", end - begin, base.dtype, data=data)
                known = self.names.get((id(base), begin, end))
                if known is not None:
                    memory.name, memory.shape = known
                self.trace.memory.append(memory)
                rows.append((begin, end, memory))
            self.read_of[number] = rows
        for i, buffer in self.copied:
            value = self.trace.outputs[i]
            memory = Memory("output", value.nbytes, value.dtype, i)
            self.trace.memory.append(memory)
            self.trace.moved.append((Part(memory, 0, value.nbytes), self.part_of(buffer)))

    def part_of(self, b: Buffer) -> Part:
        """Role of a buffer."""
        base = b.base
        for begin, end, memory in self.read_of.get(id(base), ()):
            if begin <= b.offset and b.offset + b.nbytes <= end:
                return Part(memory, b.offset - begin, b.nbytes)
        known = self.of_base.get(id(base))
        if known is None:
            is_state = id(base) in self.recording.written_ids
            known = self.add(base, "state" if is_state else "temporary")
            if is_state:
                found = self.before.get(id(base))
                known.data = bytes(base.as_memoryview(copy=True)) if found is None else found
        return Part(known, b.offset, b.nbytes)


def joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, those that overlap made one."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if result and begin < result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((begin, end))
    return result
