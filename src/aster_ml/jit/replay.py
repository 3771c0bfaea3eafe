"""A recorded run: steps on fixed memory, some of it exchangeable, replayed as native calls.

Receives what `launch.run_schedule` reports while a function is recorded. Knows nothing of tensors
or functions.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aster_ml.backend import Graph
from aster_ml.config import DEBUG, JIT_BATCH_SIZE, SPEC, debug_shown
from aster_ml.device import Buffer
from aster_ml.engine import storage
from aster_ml.engine.compile import Compiled
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.fallback import may_fall_back
from aster_ml.engine.launch import Bound, call_of, graph_of, launch_now, run_step
from aster_ml.errors import InternalError
from aster_ml.helpers import pluralize
from aster_ml.jit.repack import move_together
from aster_ml.schedule.steps import Step
from aster_ml.uop.node import BUFFER_IDS, UOp
from aster_ml.uop.ops import Ops
from aster_ml.watch import WATCHERS

USES = itertools.count()


@dataclass
class Recorded:
    """One step, its kernel (None for a copy) and the buffers that it ran on."""

    step: Step
    compiled: Compiled | None
    buffers: list[Any]
    values: dict[str, int]


@dataclass
class Segment:
    """Consecutive kernels of one device in one native graph."""

    graph: Graph
    items: list[Recorded]
    # (call, slot of the kernel's variables, name) of each variable, and what sizes depend on them.
    variables: list[tuple[int, int, str]] = field(default_factory=list)
    sizes: list[tuple[int, Compiled]] = field(default_factory=list)


class Place:
    """A part of an input, whatever buffer that is."""

    def __init__(self, number: int, recorded: Buffer) -> None:
        self.number = number
        self.device = recorded.device
        self.size, self.dtype, self.start = recorded.size, recorded.dtype, recorded.offset

    def show(self, b: Buffer) -> Buffer:
        """The same part of this buffer."""
        if not self.start and self.size == b.size and self.dtype is b.dtype:
            return b
        return b.view(self.size, self.dtype, self.start)


class Alias(Buffer):
    """The memory of another buffer under an identity of its own; keeps the other alive."""

    __slots__ = ("original",)

    def __init__(self, original: Buffer) -> None:
        super().__init__(original.device, original.size, original.dtype)
        self.original = original
        self._handle = original.ensure_allocated().handle
        self.allocator = original.base.allocator


class Recorder:
    """Notes every schedule that runs while `launch.observe` has it observe a thread.

    `log` says what ran in terms that are equal for two runs that do the same: schedules, and for
    each argument whether it is an input, memory from before (and which), made in the run, or data
    brought in from outside (and which).
    """

    def __init__(
        self,
        inputs: Sequence[UOp],
        outside: set[UOp],
        records: bool,
        reached: frozenset[UOp] = frozenset(),
    ) -> None:
        # Memory that is exchanged, and such of inputs that is used in other ways, too, and stays.
        self.inputs = {u: i for i, u in enumerate(inputs) if u not in reached}
        self.staying = {u: i for i, u in enumerate(inputs) if u in reached}
        self.outside = outside
        self.records = records
        self.first_id = next(BUFFER_IDS)
        self.items: list[Recorded] = []
        # Small arenas, by the schedule (bound) that has them.
        self.arenas: dict[int, dict[int, Buffer]] = {}
        self.log: list[tuple[Any, ...]] = []
        # Memory from before the run that it touches, and what of it (and of inputs) it writes.
        self.states: dict[UOp, Buffer] = {}
        self.written: dict[UOp, None] = {}
        self.made: dict[UOp, int] = {}
        # Buffers that come with content: that content, and which of them the run writes later.
        self.content: dict[UOp, bytes] = {}
        self.drawn: dict[UOp, int] = {}
        # Why there is no recording, where Aster has failed at it.
        self.error: Exception | None = None

    def note_outside(self, memory: Iterable[UOp]) -> None:
        """Memory with values of tensors from before the run."""
        for u in memory:
            if u.base.op is Ops.BUFFER:
                self.states[u.base] = storage.buffer_of(u)

    def note(
        self,
        bound: Bound,
        table: dict[int, Buffer],
        nodes: Sequence[UOp],
        filled: Sequence[bool],
        values: dict[str, int],
    ) -> None:
        """One schedule, before it runs."""
        try:
            self.note_step(bound, table, nodes, filled, values)
        except Exception as error:
            if not may_fall_back(error):
                raise
            self.error = error

    def note_step(
        self,
        bound: Bound,
        table: dict[int, Buffer],
        nodes: Sequence[UOp],
        filled: Sequence[bool],
        values: dict[str, int],
    ) -> None:
        """`note`, which may fail inside."""
        names = [
            self.name(u, table[i], filled[i], i in bound.schedule.written)
            for i, u in enumerate(nodes)
        ]
        self.log.append((bound.schedule, *names, *values))
        if not self.records:
            return
        for step, compiled in zip(bound.schedule.steps, bound.compiled, strict=True):
            if step.kind != "view":
                buffers = [table[s] for s in step.slots]
                self.items.append(Recorded(step, compiled, buffers, dict(values)))

    def name(self, u: UOp, buffer: Buffer, filled: bool, written: bool) -> tuple[str, Any]:
        """Kind and value of an argument in this run."""
        if u in self.inputs or u in self.states or u.arg.id < self.first_id:
            if written:
                self.written[u] = None
            if u in self.inputs:
                return "input", self.inputs[u]
            self.states[u] = buffer
            return ("input", self.staying[u]) if u in self.staying else ("state", u.arg.id)
        if u in self.made:
            return "made", self.made[u]
        if u in self.drawn:
            return "drawn", self.drawn[u]
        if not filled:
            self.made[u] = len(self.made)
            return "made", self.made[u]
        if u not in self.content:
            self.content[u] = bytes(buffer.as_memoryview(copy=True))
        if written:
            self.written[u] = None
        return "content", hashlib.blake2b(self.content[u]).digest()

    def note_result(self, u: UOp) -> None:
        """Memory of a result: data from outside, where no schedule has touched it."""
        if u.arg.id >= self.first_id and u not in {*self.inputs, *self.states, *self.made}:
            if u not in self.content:
                buffer = storage.buffer_of(u).ensure_allocated()
                self.content[u] = bytes(buffer.as_memoryview(copy=True))
            self.log.append((None, hashlib.blake2b(self.content[u]).digest()))

    def equals(self, other: list[tuple[Any, ...]]) -> bool:
        """Whether another run did the same."""
        return len(self.log) == len(other) and all(
            a[1:] == b[1:] and (a[0] is b[0] or (a[0] and b[0] and a[0].equals(b[0])))
            for a, b in zip(self.log, other)
        )


def move_to_host(b: Buffer) -> None:
    """Lets a buffer be memory of the host that is no device's, where the device can use that."""
    if not b.nbytes or b.opaque is not None:
        return
    data = np.frombuffer(bytes(b.as_memoryview()), dtype=np.uint8).copy()
    if b.allocator is not None and b.allocator.can_wrap(data, b.dtype.itemsize):
        b.deallocate()
        b.opaque = data
        b.allocate()


class Replay:
    """A recording, ready to run again with other memory in some places.

    `inputs` are the buffers that may be exchanged; everything else stays as recorded. The first
    `borrowed` of them belong to callers: they are held no longer than a run takes. Of the rest,
    what is not `kept` (ids of memory) has no content between runs that anything needs.
    """

    def __init__(
        self,
        items: list[Recorded],
        inputs: Sequence[Buffer],
        borrowed: int = 0,
        kept: Iterable[int] = (),
    ) -> None:
        self.items = items
        self.sizes = [(b.device, b.size, b.dtype) for b in inputs]
        self.borrowed = borrowed
        self.handles: list[Any] = [None] * len(inputs)
        kept = {*kept, *[id(b.base) for b in inputs]}
        bases = {id(b.base): b.base for item in items for b in item.buffers}
        self.scratch = [base for number, base in bases.items() if number not in kept]
        self.is_free = False
        # When it last ran, as far as that went by `run`.
        self.used = next(USES)
        # Told when memory has moved, and before memory is given back.
        self.on_move: list[Callable[[], None]] = []
        self.on_free: list[Callable[[], None]] = []
        self.arrange(inputs)
        if DEBUG >= 1 and debug_shown("jit"):
            graphs = sum(isinstance(p, Segment) for p in self.parts)
            print(
                f"jit: recorded {pluralize('step', len(items))}, {self.kernels} of them in "
                f"{pluralize('native graph', graphs)}"
            )

    def arrange(self, inputs: Sequence[Buffer]) -> None:
        """Makes native graphs of the steps, with these inputs for now."""
        self.parts: list[Segment | Recorded] = []
        # For each input: where it stands, as (graph, call, slot, byte offset in it, bytes).
        self.uses: list[list[tuple[Graph, int, int, int, int]]] = [[] for _ in inputs]
        self.number = {id(b.base): i for i, b in enumerate(inputs)}
        self.current: list[Buffer | weakref.ref[Buffer]] = [
            weakref.ref(b) if i < self.borrowed else b for i, b in enumerate(inputs)
        ]
        self.build()
        native = [
            c
            for p in self.parts
            if isinstance(p, Segment)
            for i in p.items
            if (c := i.compiled) is not None
        ]
        self.ops = sum(c.estimates.ops for c in native)
        self.mem = sum(c.estimates.mem for c in native)
        self.kernels = len(native)
        for item in self.items:
            # What was recorded on a caller's memory is a place for others' from now on.
            item.buffers = [
                Place(i, b) if (i := self.number.get(id(b.base))) is not None else b
                for b in item.buffers
            ]
        # Other memory may have these addresses later.
        self.number = {}
        # The graph, where that is all there is to run, and the same for all variables.
        self.single: Graph | None = None
        if len(self.parts) == 1 and isinstance(part := self.parts[0], Segment) and not SPEC:
            self.single = None if part.variables or part.sizes else part.graph

    def rearrange(self) -> None:
        """Makes the native graphs again, after memory has moved."""
        before = list(self.current)
        inputs = []
        for current, (device, size, dtype) in zip(before, self.sizes, strict=True):
            # A caller's memory may be a view, or gone: other memory stands for it for a moment.
            found = current if isinstance(current, Buffer) else Buffer(device, size, dtype)
            inputs.append(found.ensure_allocated())
        for item in self.items:
            item.buffers = [
                b if isinstance(b, Buffer) else b.show(inputs[b.number]) for b in item.buffers
            ]
        self.arrange(inputs)
        for number, current in enumerate(before[: self.borrowed]):
            given = current() if isinstance(current, weakref.ref) else current
            if given is not None and given.is_allocated():
                self.set_input(number, given)

    def free_intermediates(self) -> None:
        """Gives back the memory that nothing needs between two runs; the next takes it again."""
        for listener in self.on_free:
            listener()
        named = {id(b.base) for b in storage.BUFFERS.data.copy().values()}
        self.free_scratch(named)
        for result in self.current[self.borrowed :]:
            if isinstance(result, Buffer) and result is result.base and result.is_allocated():
                if id(result) in named:
                    move_to_host(result)
                else:
                    result.deallocate()

    def free_scratch(self, named: Container[int]) -> None:
        """The same but for results. `named` are ids of memory that nodes have."""
        for base in self.scratch:
            if base.is_allocated() and id(base) not in named:
                base.deallocate()
        self.is_free, self.single = True, None

    @property
    def scratch_nbytes(self) -> int:
        """Bytes that it holds and that nothing needs between two runs."""
        return 0 if self.is_free else sum([base.nbytes for base in self.scratch])

    def replan(self) -> None:
        """Puts the memory of all steps in one block a device."""
        move_together(self.items, self.scratch)
        self.scratch = []
        self.rearrange()
        for listener in self.on_move:
            listener()

    def build(self) -> None:
        """Groups kernels into native graphs where the device has them."""
        run: list[Recorded] = []
        limit = JIT_BATCH_SIZE.value or len(self.items) + 1
        for item in self.items:
            if (
                item.compiled is None
                or (run and run[0].step.device != item.step.device)
                or len(run) == limit
            ):
                limit = 2 * limit if len(run) == limit else limit
                self.close(run)
                run = []
            if item.compiled is None:
                self.parts.append(item)
            else:
                run.append(item)
        self.close(run)

    def close(self, run: list[Recorded]) -> None:
        """One graph out of consecutive kernels, or the kernels one by one."""
        if not run:
            return
        calls = [
            call_of(c, item.values, item.buffers)
            for item in run
            if (c := item.compiled) is not None
        ]
        graph = graph_of(run[0].step, calls) if DEBUG < 2 and not WATCHERS else None
        if graph is None:
            self.parts.extend(run)
            return
        segment = Segment(graph, run)
        for i, item in enumerate(run):
            c = item.compiled
            assert c is not None
            segment.variables.extend([(i, k, name) for k, name in enumerate(c.var_names)])
            if not c.static:
                segment.sizes.append((i, c))
            for slot, b in enumerate(item.buffers):
                number = self.number.get(id(b.base))
                if number is not None:
                    self.uses[number].append((graph, i, slot, b.offset, b.nbytes))
        self.parts.append(segment)

    def set_input(self, number: int, buffer: Buffer) -> None:
        """Exchanges one input."""
        current: Any = self.current[number]
        borrowed = number < self.borrowed
        # A buffer may have been given other memory since.
        same = (current() if borrowed else current) is buffer
        if same and self.handles[number] is buffer.handle:
            return
        self.current[number] = weakref.ref(buffer) if borrowed else buffer
        self.handles[number] = buffer.handle
        for graph, call, slot, start, nbytes in self.uses[number]:
            handle = self.handles[number]
            if start or nbytes != buffer.nbytes:
                base = buffer.base
                assert base.allocator is not None
                handle = base.allocator.offset(base.handle, buffer.offset + start, nbytes)
            graph.set_handle(call, slot, handle)

    def input(self, number: int) -> Buffer:
        """Buffer in the place of an input now."""
        current = self.current[number]
        found = current() if isinstance(current, weakref.ref) else current
        if found is None:
            raise InternalError(f"replay: input {number} is gone")
        return found

    def now(self, b: Buffer | Place) -> Buffer:
        """Buffer in the place of a recorded buffer now."""
        return b if isinstance(b, Buffer) else b.show(self.input(b.number))

    def check(self, segment: Segment) -> None:
        """Raises InternalError where calls that may run side by side conflict on memory of now."""
        segment.graph.check(
            [
                call_of(c, item.values, [self.now(b) for b in item.buffers])
                for item in segment.items
                if (c := item.compiled) is not None
            ]
        )

    def prepare(self) -> None:
        """Takes memory again that was given back."""
        if self.is_free:
            for base in self.scratch:
                base.ensure_allocated()
            self.rearrange()
            self.is_free = False

    def run(self, values: dict[str, int]) -> None:
        """Runs everything, with these values of the variables."""
        self.used = next(USES)
        self.prepare()
        for part in self.parts:
            if isinstance(part, Segment):
                for call, slot, name in part.variables:
                    part.graph.set_var(call, slot, values[name])
                for call, compiled in part.sizes:
                    part.graph.set_launch(call, launch_now(compiled.launch, values))
                if SPEC:
                    self.check(part)
                part.graph.run()
            else:
                run_step(
                    part.step,
                    part.compiled,
                    [self.now(b) for b in part.buffers],
                    {**part.values, **values},
                )
        # Kernels outside of native graphs have counted themselves.
        TOTALS.kernel_count += self.kernels
        TOTALS.global_ops += self.ops
        TOTALS.global_mem += self.mem
