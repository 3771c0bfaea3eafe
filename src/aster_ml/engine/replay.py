"""A recorded run: steps on fixed memory, some of it exchangeable, replayed as native calls.

Receives what `launch.run_schedule` reports while a function is recorded. Knows nothing of tensors
or functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aster_ml.config import DEBUG
from aster_ml.device import Buffer, Call, Device, Graph
from aster_ml.engine.compile import Compiled
from aster_ml.engine.counters import GlobalCounters
from aster_ml.engine.launch import Bound, run_step, size_now, variables_now
from aster_ml.schedule.split import Step


@dataclass
class Recorded:
    """One step, its kernel (None for a copy) and the buffers that it ran on."""

    step: Step
    compiled: Compiled | None
    buffers: list[Buffer]
    values: dict[str, int]


@dataclass
class Segment:
    """Consecutive kernels of one device in one native graph."""

    graph: Graph
    items: list[Recorded]
    # (call, slot of the kernel's variables, name) of each variable, and what sizes depend on them.
    variables: list[tuple[int, int, str]] = field(default_factory=list)
    sizes: list[tuple[int, Compiled]] = field(default_factory=list)


class Recorder:
    """Collects the steps of every schedule that runs while it is active."""

    def __init__(self) -> None:
        self.items: list[Recorded] = []
        # Memory that had a value before the recording and was overwritten in it.
        self.overwritten: list[Buffer] = []

    def __call__(self, bound: Bound, table: dict[int, Buffer], values: dict[str, int]) -> None:
        """Notes one schedule."""
        self.overwritten.extend([table[i] for i in bound.schedule.overwritten])
        for step, compiled in zip(bound.schedule.steps, bound.compiled, strict=True):
            if step.kind != "view":
                buffers = [table[s] for s in step.slots]
                self.items.append(Recorded(step, compiled, buffers, dict(values)))


def span(b: Buffer) -> tuple[int, int, int]:
    """Which memory, and which bytes of it."""
    return id(b.base), b.offset, b.offset + b.nbytes


def overlap(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """Whether two spans share a byte."""
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]


def barriers(items: Sequence[Recorded]) -> list[bool]:
    """For each kernel, whether what comes after has to wait for it.

    A wait is needed where a kernel touches what one since the last wait wrote, or writes what one
    has touched.
    """
    result = [False] * len(items)
    written: list[tuple[int, int, int]] = []
    touched: list[tuple[int, int, int]] = []
    for i, item in enumerate(items):
        assert item.compiled is not None
        spans = [span(b) for b in item.buffers]
        writes = [spans[s] for s in item.compiled.written]
        if any(overlap(s, w) for s in spans for w in written) or any(
                overlap(s, t) for s in writes for t in touched):
            result[i - 1] = True
            written, touched = [], []
        written += writes
        touched += spans
    return result


class Replay:
    """A recording, ready to run again with other memory in some places.

    `inputs` are the buffers that may be exchanged; everything else stays as recorded.
    """

    def __init__(self, items: list[Recorded], inputs: Sequence[Buffer]) -> None:
        self.items = items
        self.inputs = list(inputs)
        self.parts: list[Segment | Recorded] = []
        # For each input: where it stands, as (graph, call, slot, byte offset in it, bytes).
        self.uses: list[list[tuple[Graph, int, int, int, int]]] = [[] for _ in inputs]
        self.number = {id(b.base): i for i, b in enumerate(self.inputs)}
        self.current = list(inputs)
        self.build()
        native = [c for p in self.parts if isinstance(p, Segment)
                  for i in p.items if (c := i.compiled) is not None]
        self.ops = sum(c.estimates.ops for c in native)
        self.mem = sum(c.estimates.mem for c in native)
        self.kernels = len(native)

    def build(self) -> None:
        """Groups kernels into native graphs where the device has them."""
        run: list[Recorded] = []
        for item in self.items:
            if item.compiled is None or (run and run[0].step.device != item.step.device):
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
        waits = barriers(run)
        calls = []
        for item, wait in zip(run, waits, strict=True):
            c = item.compiled
            assert c is not None
            n = size_now(c.n, item.values)
            calls.append(Call(c.program, tuple([b.handle for b in item.buffers]),
                              variables_now(c, item.values), n, min(c.parts, max(n, 1)), wait))
        graph = Device[run[0].step.device].make_graph(calls) if DEBUG < 2 else None
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
                    start = b.offset - self.inputs[number].offset
                    self.uses[number].append((graph, i, slot, start, b.nbytes))
        self.parts.append(segment)

    def set_input(self, number: int, buffer: Buffer) -> None:
        """Exchanges one input."""
        if self.current[number] is buffer:
            return
        self.current[number] = buffer
        for graph, call, slot, start, nbytes in self.uses[number]:
            handle = buffer.handle
            if start or nbytes != buffer.nbytes:
                base = buffer.base
                assert base.allocator is not None
                handle = base.allocator.offset(base.handle, buffer.offset + start, nbytes)
            graph.set_handle(call, slot, handle)

    def memory_now(self, b: Buffer) -> Buffer:
        """The buffer whose memory stands in the place of that of a recorded one."""
        number = self.number.get(id(b.base))
        return b if number is None else self.current[number]

    def run(self, values: dict[str, int]) -> None:
        """Runs everything, with these values of the variables."""
        for part in self.parts:
            if isinstance(part, Segment):
                for call, slot, name in part.variables:
                    part.graph.set_var(call, slot, values[name])
                for call, compiled in part.sizes:
                    part.graph.set_size(call, size_now(compiled.n, values))
                part.graph.run()
            else:
                run_step(part.step, part.compiled, [self.now(b) for b in part.buffers],
                         {**part.values, **values})
        # Kernels outside of native graphs have counted themselves.
        GlobalCounters.kernel_count += self.kernels
        GlobalCounters.global_ops += self.ops
        GlobalCounters.global_mem += self.mem

    def now(self, b: Buffer) -> Buffer:
        """What stands in the place of a recorded buffer now."""
        number = self.number.get(id(b.base))
        if number is None or self.current[number] is self.inputs[number]:
            return b
        current = self.current[number]
        start = b.offset - self.inputs[number].offset
        return current.view(b.size, b.dtype, start) if (
            start or b.nbytes != current.nbytes or b.dtype is not current.dtype) else current
