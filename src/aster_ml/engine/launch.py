"""Hop 6: a schedule, its buffers and the values of its variables are run.

Everything that can be worked out once for a schedule is kept beside it in a `Bound`: compiled
kernels and the places of temporaries. What is left for a run is addresses.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aster_ml.allocator import MEMORY
from aster_ml.backend import Call, Graph, Launch, ThreadParts
from aster_ml.config import CAPTURING, DEBUG, debug_shown, stage_key
from aster_ml.device import Buffer, Device
from aster_ml.dtype import dtypes
from aster_ml.engine.caches import CACHES
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.fallback import take_plainer_way
from aster_ml.engine.memory import MemoryPlan, plan_apart, plan_memory
from aster_ml.errors import ArgumentError, DeviceError
from aster_ml.helpers import colored
from aster_ml.late import late
from aster_ml.schedule.steps import Schedule, Step
from aster_ml.thread_state import STATE, mark
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.watch import WATCHERS

if TYPE_CHECKING:
    from aster_ml.engine import compile as compiling
    from aster_ml.engine.compile import Compilation, Compiled
else:
    compiling = late("engine.compile")

# Arenas up to this size stay with their schedule between runs.
KEEP_ARENA_NBYTES = 1 << 18


@dataclass
class Bound:
    """A schedule with compiled kernels (None for copies and views) and planned memory."""

    schedule: Schedule
    compiled: list[Compiled | None]
    memory: MemoryPlan
    kept: dict[int, Buffer] = field(default_factory=dict)
    temporaries: list[int] = field(default_factory=list)


def bind(schedule: Schedule, begun: Compilation | None = None) -> Bound:
    """The schedule with everything compiled, under the settings of now.

    Some kernels may have been `begun`.
    """
    key = stage_key("codegen")
    bound: Bound | None = schedule.bound.get(key)
    if bound is None:
        if DEBUG >= 1:
            show_devices(schedule)
        kernels = [(s.ast, Device[s.device]) for s in schedule.steps if s.ast is not None]
        made = iter(compiling.compile_kernels(kernels, begun=begun))
        compiled = [None if step.ast is None else next(made) for step in schedule.steps]
        memory = planned_memory(schedule)
        bound = schedule.bound[key] = Bound(schedule, compiled, memory)
        bound.temporaries = sorted(
            {s for step in schedule.steps for s in step.slots if s >= schedule.n_args}
        )
        CACHES.make_room()
    return bound


def planned_memory(schedule: Schedule) -> MemoryPlan:
    """The places of temporaries; each has its own where planning fails inside."""
    try:
        return plan_memory(schedule)
    except Exception as error:
        asts = [step.ast for step in schedule.steps if step.ast is not None]
        apart = ("memory of its own for each temporary", lambda: plan_apart(schedule))
        return take_plainer_way("memory", asts[0] if asts else UOp(Ops.SINK), None, error, [apart])


def show_devices(schedule: Schedule) -> None:
    """Names each device when it is first used."""
    for name in dict.fromkeys([step.device for step in schedule.steps]):
        if name not in SHOWN and debug_shown("engine"):
            SHOWN.add(name)
            target = Device[name].target
            print(
                f"device {name}: {target.language}, {target.arch}, "
                f"{target.vector_bits}-bit vectors, threads {target.threads}"
            )


SHOWN: set[str] = set()


def allocate_temporaries(
    bound: Bound, own: dict[int, dict[int, Buffer]] | None
) -> dict[int, Buffer]:
    """A Buffer for each temporary, out of one arena a device.

    Small arenas stay for the next run: with the schedule, or in the `own` ones of a recording,
    which may give them back while others go on using theirs.
    """
    kept = bound.kept if own is None else own.get(id(bound))
    if kept or not bound.memory.arena_nbytes:
        return dict(kept or {})
    arenas = {
        device: Buffer(device, nbytes, dtypes.uint8).allocate()
        for device, nbytes in bound.memory.arena_nbytes.items()
    }
    result = {}
    for slot, (device, offset) in bound.memory.place.items():
        s = bound.schedule.slots[slot]
        result[slot] = arenas[device].view(s.size, s.dtype, offset)
    if sum(bound.memory.arena_nbytes.values()) <= KEEP_ARENA_NBYTES:
        if own is None:
            bound.kept = dict(result)
        else:
            own[id(bound)] = dict(result)
    return result


def size_now(size: UOp | int, values: dict[str, int]) -> int:
    """A launch size, with the variables' values."""
    if isinstance(size, int):
        return size
    known = {u: values[u.arg.name] for u in toposort(size) if u.op is Ops.DEFINE_VAR}
    return int(evaluate_expr(size, known))


def launch_now(launch: Launch, values: dict[str, int]) -> Launch:
    """A launch, with the variables' values in its sizes."""
    if isinstance(launch, ThreadParts):
        return launch._replace(n=size_now(launch.n, values))
    return launch._replace(blocks=tuple([size_now(size, values) for size in launch.blocks]))


def variables_now(compiled: Compiled, values: dict[str, int]) -> tuple[int, ...]:
    """The values of a kernel's variables, in its order.

    Raises: ArgumentError for a variable without a value.
    """
    if not compiled.var_names:
        return ()
    missing = [name for name in compiled.var_names if name not in values]
    if missing:
        raise ArgumentError(
            f"variable {missing[0]} has no value; bind one: {missing[0]}.bind(number)"
        )
    return tuple([values[name] for name in compiled.var_names])


def call_of(c: Compiled, values: dict[str, int], buffers: Sequence[Buffer]) -> Call:
    """A kernel on this memory as a call of a recorded graph."""
    launch = c.launch if c.static else launch_now(c.launch, values)
    if isinstance(launch, ThreadParts):
        launch = launch._replace(parts=min(launch.parts, max(int(launch.n), 1)))
    handles = tuple([b.handle for b in buffers])
    return Call(c.program, handles, variables_now(c, values), launch, c.written)


def graph_of(step: Step, calls: Sequence[Call]) -> Graph | None:
    """The graph of these calls, the first of a step; None where its device has none, or fails."""
    try:
        return Device[step.device].make_graph(calls)
    except Exception as error:
        if step.ast is None:
            raise
        none = ("replays kernel by kernel", lambda: None)
        return take_plainer_way("graph", step.ast, None, error, [none])


def run_step(
    step: Step,
    compiled: Compiled | None,
    buffers: list[Buffer],
    values: dict[str, int],
    wait: bool = False,
) -> float | None:
    """Runs one step on its buffers, in slot order; with `wait` returns the seconds of a kernel."""
    if compiled is None:
        run_copy(step, buffers)
        return None
    handles = tuple([b.handle for b in buffers])
    args = variables_now(compiled, values)
    launch = compiled.launch if compiled.static else launch_now(compiled.launch, values)
    TOTALS.kernel_count += 1
    TOTALS.global_ops += compiled.estimates.ops
    TOTALS.global_mem += compiled.estimates.mem
    if DEBUG.value < 2 and not wait and not WATCHERS:
        compiled.program(handles, args, launch)
        return None
    queue = Device[step.device].queue
    start = time.perf_counter()
    before = queue.signal()
    compiled.program(handles, args, launch)
    seconds = queue.signal().seconds_since(before)
    for w in WATCHERS:
        w.launched(step, compiled, buffers, start, seconds)
    if WATCHERS or DEBUG >= 2:
        TOTALS.time_sum_s += seconds
    if DEBUG >= 2:
        report(compiled, step, seconds)
    return seconds


def shown(text: str, color: str) -> str:
    """Text in a colour, where what is printed goes to a terminal and nobody asks for none."""
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return colored(text, color) if wanted else text


def report(compiled: Compiled, step: Step, seconds: float) -> None:
    """The line that DEBUG=2 prints for a kernel."""
    if not debug_shown("engine"):
        return
    e = compiled.estimates
    rate = max(seconds, 1e-9)
    print(
        f"*** {step.device:8s} {TOTALS.kernel_count:5d} "
        f"{shown(f'{compiled.name:34s}', 'cyan')} arg {len(step.slots):2d} "
        f"mem {MEMORY.in_use() / 1e9:6.2f} GB tm {seconds * 1e6:10.2f} us "
        f"({e.ops / rate / 1e9:8.1f} GFLOP/s {e.mem / rate / 1e9:7.1f} GB/s)"
        + "".join([f" {m.name}" for m in step.metadata])
    )


def run_copy(step: Step, buffers: list[Buffer]) -> None:
    """A copy between buffers, of the same device or not; a view needs nothing."""
    if step.kind == "view":
        return
    target, source = buffers
    start = time.perf_counter()
    if step.nbytes:
        part = source.view(step.nbytes, dtypes.uint8, step.offset)
        target.ensure_allocated().view(step.nbytes, dtypes.uint8).copy_from(part)
    for w in WATCHERS:
        w.launched(step, None, buffers, start, time.perf_counter() - start)
    if DEBUG >= 2 and debug_shown("engine"):
        seconds = time.perf_counter() - start
        name = f"copy {step.nbytes} bytes, {source.device} to {target.device}"
        print(
            f"*** {step.device:8s}       {shown(f'{name:34s}', 'yellow')} "
            f"tm {seconds * 1e6:10.2f} us"
        )


class Observer(Protocol):
    """Is told of every schedule that runs while `observe` has it observe a thread."""

    # Whether what runs is recorded, so that no value may be looked at.
    records: bool
    # Nodes of tensors from before it started; what they need is computed apart from the rest.
    outside: set[UOp]
    # Small arenas of what is recorded, by the schedule (bound) that has them.
    arenas: dict[int, dict[int, Buffer]]

    def note(
        self,
        bound: Bound,
        table: dict[int, Buffer],
        nodes: Sequence[UOp],
        filled: Sequence[bool],
        values: dict[str, int],
    ) -> None:
        """A schedule before it runs, its BUFFER nodes and which of them had content before."""

    def note_outside(self, memory: Iterable[UOp]) -> None:
        """Memory with values of tensors from before."""


def observe(observers: list[Observer]) -> None:
    """Who observes what this thread runs, from now on."""
    STATE.observers = observers
    mark("observers", len(observers))


def is_recording() -> bool:
    """Whether a jitted function is being recorded, in this thread."""
    observers = STATE.observers
    return bool(observers) and observers[-1].records and bool(CAPTURING)


def run_schedule(
    schedule: Schedule,
    arguments: list[Buffer],
    values: dict[str, int],
    nodes: Sequence[UOp] = (),
) -> None:
    """Runs every step in order. `nodes` are those of the arguments, for recordings."""
    bound = bind(schedule)
    observers = STATE.observers
    own = observers[-1].arenas if observers and observers[-1].records else None
    table = allocate_temporaries(bound, own)
    filled = [b.is_allocated() for b in arguments] if observers else ()
    for i, b in enumerate(arguments):
        if i not in schedule.numbers:
            b.ensure_allocated()
        if i in schedule.written and b.is_readonly():
            raise DeviceError(
                f"cannot write to {b!r}: its memory is read-only; "
                "make a copy of the tensor first (clone)"
            )
        table[i] = b
    for step in schedule.steps:
        if step.kind == "view":
            slot = schedule.slots[step.slots[0]]
            table[step.slots[0]] = table[step.slots[1]].view(slot.size, slot.dtype, step.offset)
    for observer in observers if observers and CAPTURING else ():
        observer.note(bound, table, nodes, filled, values)
    for step, compiled in zip(schedule.steps, bound.compiled, strict=True):
        run_step(step, compiled, [table[s] for s in step.slots], values)
