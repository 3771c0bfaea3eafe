"""A schedule as items that can be run one by one.

Receives nodes; returns the memory that their values will be in, and an `ExecItem` for each kernel,
copy and view. The memory is filled by running the items. Whoever reads it before, or computes
something from it, has what is left of the schedule run first.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aster_ml.config import CAPTURING
from aster_ml.device import Buffer, Device
from aster_ml.engine import storage
from aster_ml.engine.counters import TOTALS
from aster_ml.engine.estimate import Estimates
from aster_ml.engine.launch import bind, run_copy, run_step
from aster_ml.engine.realize import realize_uops
from aster_ml.errors import ArgumentError, DeviceError, InternalError
from aster_ml.late import late
from aster_ml.schedule.capture import Captured
from aster_ml.schedule.handwritten import as_kernel
from aster_ml.schedule.steps import Schedule, Step
from aster_ml.thread_state import ENGINE, STATE, take_turn
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, RunArg

if TYPE_CHECKING:
    from aster_ml.engine import compile as compiling
    from aster_ml.engine import program
    from aster_ml.engine.program import ProgramSpec
else:
    compiling, program = late("engine.compile"), late("engine.program")


class Runner:
    """Runs an item on its buffers."""

    def __init__(self, name: str, device: str, estimates: Estimates) -> None:
        self.display_name = name
        self.device = device
        self.estimates = estimates

    def __call__(
        self, buffers: Sequence[Buffer], values: dict[str, int] | None = None, wait: bool = False
    ) -> float | None:
        """Runs; with `wait` returns the seconds that it took, where they are known."""
        raise NotImplementedError

    def exec(self, buffers: Sequence[Buffer], values: dict[str, int] | None = None) -> float | None:
        """Runs on these buffers, which are allocated where they are not."""
        for b in buffers:
            b.ensure_allocated()
        return self(buffers, values)


class CompiledRunner(Runner):
    """A kernel, compiled. Of a `ProgramSpec` it is the kernel with those Opts on that device."""

    def __init__(self, p: ProgramSpec) -> None:
        self.compile(p.ast, p.device, p)

    @classmethod
    def of(cls, ast: UOp, device: str) -> CompiledRunner:
        """The kernel as the engine runs it; what there is to look at is made when asked for."""
        self = cls.__new__(cls)
        self.compile(ast, device, None)
        return self

    def compile(self, ast: UOp, device: str, p: ProgramSpec | None) -> None:
        """Compiles, or takes what is compiled already."""
        ast = as_kernel(ast)
        opts = None if p is None or p.opts is None else p.applied_opts
        self.compiled = compiling.compile_kernel(ast, Device[device], opts)
        super().__init__(self.compiled.name, device, self.compiled.estimates)
        self.ast = ast
        if isinstance(ast.arg, RunArg):
            self.arity = len(ast.arg.scratch)
        else:
            slots = [u.arg.slot for u in toposort(ast) if u.op is Ops.PARAM]
            self.arity = 1 + max(slots, default=-1)
        if p is not None:
            self.p = p

    @functools.cached_property
    def p(self) -> ProgramSpec:
        """Source, sizes, Opts, estimates."""
        return program.get_program(self.ast, self.device)

    def __reduce__(self) -> tuple[object, ...]:
        return CompiledRunner.of, (self.ast, self.device)

    def __call__(
        self, buffers: Sequence[Buffer], values: dict[str, int] | None = None, wait: bool = False
    ) -> float | None:
        if len(buffers) != self.arity:
            raise ArgumentError(
                f"{self.display_name}: {len(buffers)} buffers are given; it takes {self.arity}"
            )
        step = Step("kernel", tuple(range(len(buffers))), self.ast, self.device)
        return run_step(step, self.compiled, list(buffers), values or {}, wait)


class BufferCopy(Runner):
    """A copy from the second buffer into the first."""

    def __init__(self, step: Step) -> None:
        super().__init__(f"copy {step.nbytes}", step.device, Estimates(0, step.nbytes, step.nbytes))
        self.step = step

    def __call__(
        self, buffers: Sequence[Buffer], values: dict[str, int] | None = None, wait: bool = False
    ) -> float | None:
        run_copy(self.step, list(buffers))
        return None


class BufferView(Runner):
    """A buffer that shows part of another: there is nothing to do."""

    def __init__(self, step: Step) -> None:
        super().__init__("view", step.device, Estimates())

    def __call__(
        self, buffers: Sequence[Buffer], values: dict[str, int] | None = None, wait: bool = False
    ) -> float | None:
        return None


@dataclass(eq=False)
class ExecItem:
    """One step of a schedule on its buffers, results first.

    `ast` is the kernel, or a COPY or BITCAST for copies and views. `prg` is what runs it, there
    after `lower`. `fixedvars` are values of variables that were bound when it was scheduled.
    """

    ast: UOp
    bufs: list[Buffer | None] = field(default_factory=list)
    metadata: tuple[object, ...] = ()
    fixedvars: dict[str, int] = field(default_factory=dict)
    prg: Runner | None = None
    step: Step | None = field(default=None, repr=False)
    # Whether it has run because somebody read a result; then it is not run a second time for that.
    early: bool = field(default=False, repr=False)
    due: weakref.ref[PendingSchedule] | None = field(default=None, repr=False)

    @property
    def device(self) -> str:
        """Where it runs."""
        if self.step is not None:
            return self.step.device
        if self.prg is not None:
            return self.prg.device
        return self.bufs[0].device if self.bufs and self.bufs[0] is not None else Device.DEFAULT

    def lower(self) -> ExecItem:
        """Compiles what has to be compiled; returns itself."""
        if self.prg is None:
            self.prg = runner_of(self.step, self.ast, self.device)
        return self

    def run(
        self,
        values: dict[str, int] | None = None,
        wait: bool = False,
        jit: bool = False,
        do_update_stats: bool = True,
    ) -> float | None:
        """Runs the step; with `wait` returns the seconds of a kernel.

        Raises: DeviceError where the memory of a result is read-only.
        """
        with ENGINE:
            take_turn()
            if self.early:
                self.early = False
                return None
            self.lower()
            assert self.prg is not None
            due = None if self.due is None else self.due()
            if due is not None:
                due.begin()
            buffers = [b for b in self.bufs if b is not None]
            if len(buffers) < len(self.bufs):
                raise ArgumentError(
                    "this item reads arguments of a jitted function; call that function with them"
                )
            if buffers and buffers[0].is_readonly():
                raise DeviceError(f"cannot write to {buffers[0]!r}: its memory is read-only")
            for b in buffers:
                b.ensure_allocated()
            counted = (
                TOTALS.kernel_count,
                TOTALS.global_ops,
                TOTALS.global_mem,
            )
            seconds = self.prg(buffers, {**self.fixedvars, **(values or {})}, wait)
            if not do_update_stats:
                TOTALS.kernel_count, TOTALS.global_ops = counted[:2]
                TOTALS.global_mem = counted[2]
            for each in dict.fromkeys(storage.DUE.values()) if self.bufs else ():
                each.note_filled(self)
            return seconds

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "due": None}


def runner_of(step: Step | None, ast: UOp, device: str) -> Runner:
    """Makes the runner of a step."""
    if ast.op is Ops.SINK:
        return CompiledRunner.of(ast, device)
    if step is None:
        raise InternalError(f"an item of {ast!r} has nothing that runs it; give it a prg")
    return BufferCopy(step) if step.kind == "copy" else BufferView(step)


class PendingSchedule:
    """Rest of one schedule that is still to run.

    It knows memory, not nodes: those of its results hold it for as long as somebody wants them.
    """

    def __init__(
        self,
        schedule: Schedule,
        table: dict[int, Buffer],
        nodes: Sequence[UOp],
        values: dict[str, int],
    ) -> None:
        self.schedule = schedule
        self.table = table
        # Equal arguments make the same node again, so nothing has to be kept alive.
        self.nodes = [(u.dtype, u.arg) for u in nodes]
        self.values = values
        self.items: list[ExecItem] = []
        self.begun = False
        self.running = False

    def begin(self) -> None:
        """Tells whoever records what is going to run."""
        if self.begun:
            return
        self.begun = True
        for observer in STATE.observers if CAPTURING else ():
            nodes = [UOp(Ops.BUFFER, dtype, (), arg) for dtype, arg in self.nodes]
            filled = [self.table[i].is_allocated() for i in range(len(nodes))]
            for b in self.table.values():
                b.ensure_allocated()
            observer.note(bind(self.schedule), self.table, nodes, filled, self.values)

    def touches(self, memory: set[int]) -> bool:
        """Whether an item that is left reads or writes memory with one of these ids."""
        return any([id(b.base) in memory for item in self.items for b in item.bufs if b])

    def note_filled(self, item: ExecItem) -> None:
        """Somebody has run a step that fills a buffer: one of ours, or another in its place."""
        self.items = [x for x in self.items if x is not item and x.bufs[0] is not item.bufs[0]]
        if not self.items:
            self.end()

    def end(self) -> None:
        """Nothing is left: the memory is as good as any."""
        self.items = []
        for node in [node for node, due in storage.DUE.items() if due is self]:
            del storage.DUE[node]

    def finish(self) -> None:
        """Runs what is left, in order."""
        if self.running:
            return
        self.running = True
        try:
            for item in list(self.items):
                item.run()
                item.early = True
        finally:
            self.running = False
        self.end()


class KeptItems:
    """Items of schedules that are kept for later, and the values of variables."""

    def __init__(self) -> None:
        self.items: list[ExecItem] = []
        self.values: dict[str, int] = {}

    def keep(
        self, captured: Captured, schedule: Schedule, memories: list[Buffer]
    ) -> PendingSchedule:
        """Makes items of a schedule on this memory."""
        table: dict[int, Buffer] = dict(enumerate(memories))
        for step in schedule.steps:
            for slot in step.slots:
                if slot not in table and (step.kind != "view" or slot != step.slots[0]):
                    made = schedule.slots[slot]
                    table[slot] = Buffer(made.device, made.size, made.dtype)
            if step.kind == "view":
                made = schedule.slots[step.slots[0]]
                table[step.slots[0]] = table[step.slots[1]].view(made.size, made.dtype, step.offset)
        due = PendingSchedule(schedule, table, captured.buffers, captured.values)
        for step in schedule.steps:
            buffers = [table[s] for s in step.slots]
            due.items.append(
                ExecItem(
                    ast_of(step, buffers),
                    [*buffers],
                    step.metadata,
                    fixedvars=dict(captured.values),
                    step=step,
                    due=weakref.ref(due),
                )
            )
        self.items += due.items
        self.values.update(captured.values)
        return due


def schedule_items(nodes: list[UOp]) -> tuple[list[UOp], list[ExecItem], dict[str, int]]:
    """For each node the memory of its value; what fills that; and the values of variables."""
    kept = KeptItems()
    return realize_uops(nodes, later=kept), kept.items, kept.values


def ast_of(step: Step, buffers: list[Buffer]) -> UOp:
    """The kernel of a step; for copies and views a node that says what they do."""
    if step.ast is not None:
        return step.ast
    target, source = buffers
    shown = UOp.param(1, source.size, source.dtype, source.device)
    if step.kind == "copy":
        return shown.copy_to(target.device)
    return UOp(Ops.BITCAST, target.dtype, (shown,))


def run_schedule(
    schedule: list[ExecItem],
    var_vals: dict[str, int] | None = None,
    do_update_stats: bool = True,
) -> None:
    """Runs the items in order, and takes each out of the list: its memory is held no longer.

    Without `do_update_stats` they do not count in GlobalCounters.
    """
    while schedule:
        schedule.pop(0).run(var_vals, do_update_stats=do_update_stats)


def get_runner(device: str, ast: UOp) -> CompiledRunner:
    """The compiled kernel of an AST on a device."""
    return CompiledRunner.of(ast, Device.canonicalize(device))
