"""Records what watchers are told, as it comes, until somebody makes data of it.

Receives the calls of `watch.Watcher`, from any thread; keeps nodes, texts and times. Nothing is
written out or worked out here that can wait (`viz/model` does that). No node that has memory of a
program is kept, so that its memory goes when it would have gone.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aster_ml.allocator import MEMORY
from aster_ml.config import STRICT, stage_key
from aster_ml.device import Buffer, Device
from aster_ml.extend import (
    PassRun,
    arranged_lines,
    estimate,
    kernel_passes,
    plan_body,
    record_always,
    record_no_more,
    run_name,
    show_work,
    write_kernel,
)
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import METADATA, UOp
from aster_ml.viz.callers import Frame, call_stack
from aster_ml.viz.origins import body_origins, expressed_by, source_lines, values_by_slot
from aster_ml.watch import WATCHERS, Watcher

# What is kept at most; what is more is counted.
MOST_EVENTS, MOST_REALIZES, MOST_FIRINGS = 50_000, 5_000, 200_000
FIRST_PASS = kernel_passes()[0].name


class Firing(NamedTuple):
    """A rewrite: which rule, and what it has made of what."""

    rule: Any
    before: UOp
    after: UOp


@dataclass
class PassEntry:
    """Result of a pass or an Opt: a graph or a Linear, None where it is neither."""

    name: str
    made: UOp | Linear | None
    seconds: float
    fired: list[Firing]
    opt: str = ""
    kernel: Any = None


@dataclass
class KernelPart:
    """One kernel on its way: its entries, and why its axes are as they are."""

    ast: UOp | None = None
    entries: list[PassEntry] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    decisions: list[Any] = field(default_factory=list)
    opts: list[str] = field(default_factory=list)
    linear: Linear | None = None


@dataclass
class KernelRecord:
    """A kernel, or a run of several, as it was written."""

    ast: UOp
    target: Any
    parts: list[KernelPart] = field(default_factory=list)
    source: str = ""
    # Of each Linear that became text: its list, for each line of the text a place in it, the text.
    rendered: list[tuple[Any, list[int], str]] = field(default_factory=list)
    seconds: float = 0.0
    names: list[str] = field(default_factory=list)
    name: str = ""


@dataclass
class ScheduleRecord:
    """A schedule with the passes that led to it."""

    schedule: Any
    body: UOp | None = None
    entries: list[PassEntry] = field(default_factory=list)
    # For each step and kernel of it: a node of the kernel -> those of the body that it computes.
    origins: list[list[dict[UOp, list[UOp]]]] = field(default_factory=list)
    # Why values are stored: node of the body -> reason.
    why: dict[UOp, str] = field(default_factory=dict)
    # Whether its passes were seen.
    is_closed: bool = False


@dataclass
class RealizeRecord:
    """A request, where in the program it stands, and how often it came."""

    stack: tuple[Frame, ...]
    schedule: ScheduleRecord
    start: float
    seconds: float
    hit: bool
    values: dict[str, int]
    # A node of the body -> the call that it comes from.
    calls: dict[UOp, Any]
    times: int = 1


class Event(NamedTuple):
    """Something that took time in a thread; `what` is the graph of a kernel."""

    kind: str
    name: str
    device: str
    thread: str
    start: float
    seconds: float
    what: Any = None
    buffers: tuple[int, ...] = ()
    step: int = 0


class ThreadState(threading.local):
    """Position of the thread that asks."""

    def __init__(self) -> None:
        self.kernel: KernelRecord | None = None
        self.part = KernelPart()
        self.plan: list[PassEntry] = []
        self.fired: list[Firing] = []
        self.last = time.perf_counter()


def harmless(method: Callable[..., None]) -> Callable[..., None]:
    """The method of a Recorder; where it fails the run goes on, and the record says that it failed.

    With STRICT it raises.
    """

    @functools.wraps(method)
    def call(self: Recorder, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception as error:
            if STRICT:
                raise
            self.dropped["failures"] += 1
            self.failures.append(f"{method.__name__}: {type(error).__name__}: {error}")

    return call


class PassLog(list[PassRun]):
    """Takes each pass as it ends, in place of a list that keeps all of them."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def append(self, step: PassRun) -> None:
        """A pass of this thread has ended."""
        self.recorder.note_pass(step)


class Recorder(Watcher):
    """Record of events since `start`, until `stop`."""

    def __init__(self) -> None:
        self.here = ThreadState()
        self.began = time.perf_counter()
        self.began_at = time.time()
        # By graph, target and settings.
        self.kernels: dict[tuple[UOp, Any, Any], KernelRecord] = {}
        self.schedules: dict[int, ScheduleRecord] = {}
        self.realizes: list[RealizeRecord] = []
        self.known: dict[tuple[Any, ...], RealizeRecord] = {}
        self.events: list[Event] = []
        self.memory: list[tuple[float, str, int, int]] = []
        self.buffers: dict[int, int] = {}
        self.numbers = itertools.count()
        self.held_before: dict[str, int] = {}
        self.dropped = {"events": 0, "realizes": 0, "rewrites": 0, "failures": 0}
        self.failures: list[str] = []
        self.firings = 0
        self.devices: dict[str, None] = {}
        self.error = ""
        self.log = PassLog(self)
        self.originals: tuple[Any, Any] | None = None

    # begin and end

    def start(self) -> None:
        """Watches from now on."""
        WATCHERS.append(self)
        record_always(self.log)
        # Asking takes in what was posted.
        MEMORY.in_use()
        self.held_before = dict(MEMORY.held)
        self.follow_buffers()

    def complete(self) -> None:
        """Plans and lowers what was planned and compiled before it began, as it would be now."""
        for record in [r for r in self.schedules.values() if not r.is_closed]:
            if record.body is not None:
                again = plan_body(record.body)
                found = self.schedules.pop(id(again))
                if len(again.steps) == len(record.schedule.steps):
                    record.entries, record.origins = found.entries, found.origins
                    record.why = found.why
        known = {ast for ast, _, _ in self.kernels}
        for record in list(self.schedules.values()):
            for step in record.schedule.steps if record.body is not None else ():
                if step.ast is not None and step.ast not in known:
                    known.add(step.ast)
                    backend = Device[step.device]
                    write_kernel(step.ast, backend, backend.target)

    def stop(self) -> None:
        """Watches no more."""
        if self not in WATCHERS:
            return
        self.complete()
        WATCHERS.remove(self)
        record_no_more(self.log)
        if self.originals is not None:
            setattr(Buffer, "allocate", self.originals[0])  # noqa: B010
            setattr(Buffer, "_release", self.originals[1])  # noqa: B010

    def follow_buffers(self) -> None:
        """Wraps the two methods of Buffer by which memory comes and goes."""
        allocate, release = Buffer.allocate, Buffer._release
        self.originals = allocate, release

        def allocate_noted(b: Buffer) -> Buffer:
            result = allocate(b)
            if b._base is None and b._owns:
                self.note_memory(b, b.nbytes)
            return result

        def release_noted(b: Buffer) -> None:
            if b._owns:
                self.note_memory(b, -b.nbytes)
            release(b)

        setattr(Buffer, "allocate", allocate_noted)  # noqa: B010
        setattr(Buffer, "_release", release_noted)  # noqa: B010

    def note_memory(self, b: Buffer, nbytes: int) -> None:
        """Memory of a buffer has come, or goes (then its number is free for another)."""
        number = self.number_of(b)
        if len(self.memory) < MOST_EVENTS:
            self.memory.append((time.perf_counter(), b.device, number, nbytes))
        if nbytes < 0:
            self.buffers.pop(id(b), None)

    def number_of(self, b: Buffer) -> int:
        """The number of the memory of a buffer."""
        base = b.base
        found = self.buffers.get(id(base))
        if found is None:
            found = self.buffers[id(base)] = next(self.numbers)
        return found

    # what it is told

    @harmless
    def rewritten(self, rule: Any, before: UOp, after: UOp) -> None:
        """Kept until the pass ends."""
        self.firings += 1
        if self.firings > MOST_FIRINGS:
            self.dropped["rewrites"] += 1
        else:
            self.here.fired.append(Firing(rule, before, after))

    def taken(self) -> tuple[list[Firing], float]:
        """The rewrites, and the seconds, since this was last asked in this thread."""
        here, now = self.here, time.perf_counter()
        fired, seconds = here.fired, now - here.last
        here.fired, here.last = [], now
        return fired, seconds

    @harmless
    def note_pass(self, step: PassRun) -> None:
        """A pass belongs to the kernel that is being written, else to a plan."""
        here = self.here
        fired, _ = self.taken()
        made = step.made if isinstance(step.made, UOp | Linear) else None
        entry = PassEntry(step.name, made, step.time_s, fired)
        if here.kernel is None:
            here.plan.append(entry)
            return
        if step.name == FIRST_PASS:
            # The kernel is tried in another way: what was before is not how it came to be.
            here.part = KernelPart()
        here.part.entries.append(entry)

    @harmless
    def applied(self, kernel: Any, opt: Any) -> None:
        """An Opt counts as a step of its own."""
        if self.here.kernel is not None:
            fired, seconds = self.taken()
            entry = PassEntry("opt", kernel.sink, seconds, fired, repr(opt), kernel)
            self.here.part.entries.append(entry)
            # Until `arranged` says all of them.
            self.here.part.opts.append(repr(opt))

    @harmless
    def arranged(self, kernel: Any, target: Any) -> None:
        """Why the axes are as they are; Opts that were tried on others are forgotten."""
        here = self.here
        if here.kernel is None:
            return
        part = here.part
        part.entries = [e for e in part.entries if e.kernel is None or e.kernel is kernel]
        for e in part.entries:
            e.kernel = None
        part.opts = [repr(opt) for opt in kernel.applied]
        part.decisions = list(kernel.notes)
        work = estimate(kernel.sink)
        part.lines = [
            f"work: {show_work(work)}", *arranged_lines(kernel, target)
        ]  # fmt: skip
        self.taken()

    @contextmanager
    def writing(self, ast: UOp, target: Any) -> Iterator[None]:
        """A kernel is on its way; one may be written while a body is planned."""
        here = self.here
        before = here.kernel, here.part, here.fired
        record = KernelRecord(ast, target)
        here.kernel, here.part, here.fired = record, KernelPart(), []
        start = here.last = time.perf_counter()
        try:
            yield
        finally:
            here.kernel, here.part, here.fired = before
            here.last = time.perf_counter()
        record.seconds = here.last - start
        self.kernels[ast, target.key, stage_key("codegen")] = record
        self.note_event("lower", record.name, "", start, record.seconds, ast)

    @harmless
    def written(self, ast: UOp, linear: Linear | None, source: str) -> None:
        """A kernel is complete but for its machine code."""
        here = self.here
        if here.kernel is None:
            return
        here.kernel.source = source
        if linear is None:
            here.kernel.name = run_name(ast)
            return
        part, here.part = here.part, KernelPart()
        part.ast, part.linear = ast, linear
        here.kernel.parts.append(part)
        here.kernel.names.append(linear.name)
        here.kernel.name = here.kernel.name or linear.name

    @harmless
    def rendered(self, writer: Any, marks: list[int], text: str) -> None:
        """Which lines came of which node."""
        if self.here.kernel is not None:
            lines = source_lines(writer, marks, text)
            self.here.kernel.rendered.append((writer.linear.uops, lines, text))

    @harmless
    def closed(self, planner: Any, made: Sequence[Any], drafts: Sequence[Any], plan: Any) -> None:
        """A plan is complete."""
        here = self.here
        entries, here.plan = here.plan, []
        record = ScheduleRecord(plan, entries=entries, is_closed=True)
        origin, values = expressed_by(planner), values_by_slot(made)
        record.origins = [body_origins(origin, values, step) for step in plan.steps]
        record.why = {u: str(text) for u, text in planner.why.items()}
        self.schedules[id(plan)] = record

    @harmless
    def planned(self, captured: Any, schedule: Any, hit: bool, seconds: float) -> None:
        """A request has its schedule; one that came before from the same line is counted."""
        now = time.perf_counter()
        self.here.plan, self.here.fired = [], []
        record = self.schedules.get(id(schedule))
        if record is None:
            record = self.schedules[id(schedule)] = ScheduleRecord(schedule)
        if record.body is None:
            record.body = captured.body
            steps = [s for s in schedule.steps if s.ast is not None]
            self.devices.update(dict.fromkeys([s.device for s in steps]))
        if not hit:
            self.note_event("schedule", "schedule", "", now - seconds, seconds)
        stack = call_stack()
        key = (id(schedule), stack)
        known = self.known.get(key)
        if known is not None:
            known.times += 1
            return
        if len(self.realizes) >= MOST_REALIZES:
            self.dropped["realizes"] += 1
            return
        calls = {}
        for user, closed in captured.closed.items():
            made_by = METADATA.get(user)
            if made_by is not None:
                calls[closed] = made_by[0]
        values = dict(captured.values)
        made = RealizeRecord(stack, record, now - seconds, seconds, hit, values, calls)
        self.known[key] = made
        self.realizes.append(made)

    @harmless
    def compiled(self, names: Sequence[str], start: float) -> None:
        """Machine code."""
        self.note_event("compile", ", ".join(names), "", start, time.perf_counter() - start)

    @harmless
    def waited(self, start: float) -> None:
        """For other threads' machine code, mostly."""
        self.note_event("wait", "wait for compilers", "", start, time.perf_counter() - start)

    @harmless
    def launched(
        self, step: Any, compiled: Any, buffers: Sequence[Any], start: float, seconds: float
    ) -> None:
        """A kernel or a copy."""
        if step.kind == "view":
            return
        numbers = tuple([self.number_of(b) for b in buffers])
        kind = "copy" if compiled is None else "kernel"
        name = f"copy {step.nbytes:,} bytes" if compiled is None else compiled.name
        self.note_event(kind, name, step.device, start, seconds, step.ast, numbers, id(step))

    def note_event(
        self, kind: str, name: str, device: str, start: float, seconds: float,
        what: Any = None, buffers: tuple[int, ...] = (), step: int = 0,
    ) -> None:  # fmt: skip
        """Keeps an event, or counts it where there are too many."""
        if len(self.events) >= MOST_EVENTS:
            self.dropped["events"] += 1
            return
        thread = threading.current_thread().name
        self.events.append(Event(kind, name, device, thread, start, seconds, what, buffers, step))
