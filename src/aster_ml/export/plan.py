"""Plans an exported function: kernels for a target, launches in order, and all memory.

Receives a `Trace` and a Target; returns a `Plan`, plain data that a language is written from. The
schedules are planned anew for the target, since how many share a kernel is part of them; sizes are
numbers. What is read or written is one of the regions "input", "output", "weight", "state" (each
with a number) and "arena".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError, UnsupportedError
from aster_ml.export.trace import Memory, Ran, Trace, Value
from aster_ml.extend import Schedule, Slot, Step, lower, plan_for, plan_memory, size_now
from aster_ml.helpers import round_up
from aster_ml.target import Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import RunArg


class Place(NamedTuple):
    """Bytes of a region from `offset` on."""

    region: str
    number: int
    offset: int
    nbytes: int


class Copy(NamedTuple):
    """As many bytes as the source has, from one place to another."""

    target: Place
    source: Place


class Launch(NamedTuple):
    """A kernel by its number on places by slot, values of its variables, and counts of blocks."""

    kernel: int
    places: tuple[Place, ...]
    variables: tuple[int, ...]
    blocks: tuple[int, ...]


class Blob(NamedTuple):
    """A weight, or a state as it is before the first call."""

    name: str
    dtype: DType
    data: bytes
    shape: tuple[int, ...] | None = None


@dataclass
class Plan:
    """Everything that a program in another language needs.

    `kernels` are linear programs with names of their own. Offsets in the arena are multiples of the
    alignment that was asked for; those in weights and states are multiples of an element's size.
    """

    name: str
    target: Target
    inputs: list[Value]
    outputs: list[Value]
    kernels: list[Linear] = field(default_factory=list)
    steps: list[Launch | Copy] = field(default_factory=list)
    weights: list[Blob] = field(default_factory=list)
    states: list[Blob] = field(default_factory=list)
    arena_nbytes: int = 0

    @property
    def weight_nbytes(self) -> int:
        """Bytes of all weights."""
        return sum([len(w.data) for w in self.weights])


def make_plan(trace: Trace, target: Target, alignment: int = 128) -> Plan:
    """The plan of a trace for a target.

    Raises: UnsupportedError for a kernel that runs part by part; DTypeError for a dtype without a
    form in the target's language.
    """
    return Builder(trace, target, alignment).build()


class Builder:
    """Makes one list of steps out of the schedules of a trace, and then a plan."""

    def __init__(self, trace: Trace, target: Target, alignment: int) -> None:
        self.trace = trace
        self.alignment = alignment
        self.plan = Plan(trace.name, target, trace.inputs, trace.outputs)
        # Memory with a region of its own first, temporaries behind, as a Schedule has them.
        self.slots: list[Slot] = []
        self.regions: list[tuple[str, int]] = []
        self.slot_of: dict[int, int] = {}
        self.launches: list[tuple[UOp | None, list[Place], dict[str, int]]] = []
        self.kernel_of: dict[UOp, int] = {}

    def build(self) -> Plan:
        """All of it."""
        trace, plan = self.trace, self.plan
        for memory in trace.memory:
            if memory.role != "temporary":
                self.add_region(memory)
        numbers = {
            i: self.add_weight(f"number{i}", trace.outputs[i].dtype, data)
            for i, data in trace.numbers.items()
        }
        renewed = [m for m in trace.memory if m.renewed]
        content = [self.add_weight(f"content{i}", m.dtype, m.data) for i, m in enumerate(renewed)]
        outputs = {m.number: m for m in trace.memory if m.role == "output"}
        for i in trace.numbers:
            outputs[i] = Memory("output", trace.outputs[i].nbytes, trace.outputs[i].dtype, i)
            self.add_region(outputs[i])
        self.n_args = len(self.slots)
        for memory, slot in zip(renewed, content, strict=True):
            self.copy((self.slot(memory), 0), (slot, 0), memory.nbytes)
        for ran in trace.ran:
            self.add_schedule(ran)
        for i, slot in numbers.items():
            self.copy((self.slot(outputs[i]), 0), (slot, 0), trace.outputs[i].nbytes)
        for to, source in trace.moved:
            self.copy(
                (self.slot(to.memory), to.offset),
                (self.slot(source.memory), source.offset),
                to.nbytes,
            )
        self.finish()
        return plan

    def add_region(self, memory: Memory) -> int:
        """A slot of the merged schedule for memory that is not planned."""
        number = memory.number
        if memory.role in ("weight", "state"):
            assert memory.data is not None
            blobs = self.plan.weights if memory.role == "weight" else self.plan.states
            number = len(blobs)
            taken = {blob.name for blob in blobs}
            name = memory.name if memory.name not in taken else ""
            name = name or f"{memory.role}{number}"
            blobs.append(Blob(name, memory.dtype, memory.data, memory.shape))
        self.slot_of[id(memory)] = len(self.slots)
        self.slots.append(Slot(memory.nbytes, dtypes.uint8, ""))
        self.regions.append((memory.role, number))
        return len(self.slots) - 1

    def add_weight(self, name: str, dtype: DType, data: bytes | None) -> int:
        """A weight that is no memory of the function: a number, what a temporary begins with."""
        assert data is not None
        self.plan.weights.append(Blob(name, dtype, data))
        self.slots.append(Slot(len(data), dtypes.uint8, ""))
        self.regions.append(("weight", len(self.plan.weights) - 1))
        return len(self.slots) - 1

    def slot(self, memory: Memory) -> int:
        """The slot of a piece of memory; a temporary gets one when it is first used."""
        found = self.slot_of.get(id(memory))
        if found is None:
            found = self.slot_of[id(memory)] = self.temporary(memory.nbytes)
        return found

    def temporary(self, nbytes: int) -> int:
        """A slot for a temporary, whose size is a multiple of the alignment."""
        self.slots.append(Slot(int(round_up(max(nbytes, 1), self.alignment)), dtypes.uint8, ""))
        return len(self.slots) - 1

    def copy(self, target: tuple[int, int], source: tuple[int, int], nbytes: int) -> None:
        """A step that copies bytes; both are (slot, offset)."""
        places = [Place("", slot, offset, nbytes) for slot, offset in (target, source)]
        if nbytes:
            self.launches.append((None, places, {}))

    def add_schedule(self, ran: Ran) -> None:
        """The steps of one schedule, on slots of the merged one."""
        schedule = plan_for(ran.schedule, self.plan.target)
        if schedule.n_args != len(ran.arguments):
            raise InternalError(
                f"export: a schedule of {len(ran.arguments)} arguments has {schedule.n_args} now"
            )
        table = {i: (self.slot(p.memory), p.offset) for i, p in enumerate(ran.arguments)}

        def find(number: int) -> tuple[int, int]:
            if number not in table:
                s = schedule.slots[number]
                table[number] = self.temporary(s.size * s.dtype.itemsize), 0
            return table[number]

        for step in schedule.steps:
            if step.kind == "view":
                slot, offset = find(step.slots[1])
                table[step.slots[0]] = slot, offset + step.offset
        for step in schedule.steps:
            if step.kind == "copy":
                slot, offset = find(step.slots[1])
                self.copy(find(step.slots[0]), (slot, offset + step.offset), step.nbytes)
            elif step.ast is not None:
                if isinstance(step.ast.arg, RunArg):
                    raise UnsupportedError(
                        "export: kernels that run part by part are not exported; DEPTH_FIRST=0 "
                        "schedules none"
                    )
                sizes = [schedule.slots[i] for i in step.slots]
                places = [
                    Place("", *find(i), s.size * s.dtype.itemsize)
                    for i, s in zip(step.slots, sizes, strict=True)
                ]
                self.launches.append((step.ast, places, dict(ran.values)))

    def finish(self) -> None:
        """Plans the arena, lowers the kernels, and puts places into regions."""
        steps = [
            Step("kernel", tuple([place.number for place in places]), ast)
            for ast, places, _ in self.launches
        ]
        memory = plan_memory(Schedule(steps, self.slots, self.n_args))
        self.plan.arena_nbytes = sum(memory.arena_nbytes.values())

        def final(place: Place) -> Place:
            if place.number < self.n_args:
                region, number = self.regions[place.number]
                return Place(region, number, place.offset, place.nbytes)
            start = memory.place[place.number][1]
            return Place("arena", 0, start + place.offset, place.nbytes)

        for ast, before, values in self.launches:
            places = tuple([final(place) for place in before])
            if ast is None:
                self.plan.steps.append(Copy(places[0], places[1]))
                continue
            number = self.kernel(ast)
            linear = self.plan.kernels[number]
            variables = tuple([values[v.arg.name] for v in linear.variables])
            blocks = tuple([size_now(size, values) for size in linear.global_size])
            self.plan.steps.append(Launch(number, places, variables, blocks))

    def kernel(self, ast: UOp) -> int:
        """The number of a kernel, lowered once."""
        found = self.kernel_of.get(ast)
        if found is None:
            linear, _ = lower(ast, self.plan.target)
            if [p.arg.slot for p in linear.params] != list(range(len(linear.params))):
                raise InternalError(f"export: the slots of kernel {linear.name} have gaps")
            taken = {k.name for k in self.plan.kernels}
            name, count = linear.name, 2
            while name in taken:
                name, count = f"{linear.name}_n{count}", count + 1
            found = self.kernel_of[ast] = len(self.plan.kernels)
            self.plan.kernels.append(replace(linear, name=name))
        return found


def offsets_of(blobs: Sequence[Blob], alignment: int) -> tuple[list[int], int]:
    """Where each blob begins in one block, at multiples of the alignment, and the block's size."""
    offsets, end = [], 0
    for blob in blobs:
        end = int(round_up(end, alignment))
        offsets.append(end)
        end += len(blob.data)
    return offsets, int(round_up(end, alignment))
