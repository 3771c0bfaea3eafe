"""Defines the parts of a schedule: steps and the memory they need, ordered or not yet.

`Schedule`, `Step` and `Slot` go to the engine; `Draft` and `Part` pass between the modules that
cut, fuse and order kernels. Records only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aster_ml.dtype import DType
from aster_ml.schedule.hazards import NOTHING, Happened, Version
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import KernelArg


class Slot(NamedTuple):
    """Memory that a schedule needs: an argument (below the number of arguments) or a temporary."""

    size: int
    dtype: DType
    device: str
    # Why a temporary is stored.
    why: str = ""


@dataclass
class Step:
    """A step of a schedule.

    `kind` is "kernel" (run `ast` on the slots), "copy" (slots[1] into slots[0]) or "view" (slots[0]
    shows slots[1] from byte `offset`). `offset` of a copy is that of its source, in bytes.
    """

    kind: str
    slots: tuple[int, ...]
    ast: UOp | None = None
    device: str = ""
    offset: int = 0
    nbytes: int = 0
    # Calls of Tensor methods that it computes, if TRACEMETA is set.
    metadata: tuple[Any, ...] = ()


@dataclass(eq=False)
class Schedule:
    """Steps in order; `slots` lists the arguments first, then temporaries.

    `bound` is for the engine: results derived from the steps under some settings.
    """

    steps: list[Step]
    slots: list[Slot]
    n_args: int
    written: frozenset[int] = frozenset()
    # Written arguments that had a value before.
    overwritten: frozenset[int] = frozenset()
    # Arguments that are one number everywhere, which no step fills.
    numbers: dict[int, Any] = field(default_factory=dict)
    bound: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)
    # For whoever keeps it: when it was last asked for, and about how many bytes it takes.
    used: int = 0
    nbytes: int = 0

    def equals(self, other: Schedule) -> bool:
        """Whether another schedule has the same steps on memory of the same form."""
        if self is other:
            return True
        mine, others = [
            (
                [(s.kind, s.slots, s.ast, s.device, s.offset, s.nbytes) for s in schedule.steps],
                schedule.slots,
                schedule.n_args,
                schedule.written,
                schedule.overwritten,
                # Floats as text: NaN equals itself, and zeros have signs.
                {slot: repr(number) for slot, number in schedule.numbers.items()},
            )
            for schedule in (self, other)
        ]
        return mine == others


class FinalKernel(NamedTuple):
    """A kernel that is final before the rest of its body is planned, and its device."""

    ast: UOp
    device: str


# A slot, and the STOREs that must happen before.
Read = tuple[int, Happened]


class Part(NamedTuple):
    """One value that a kernel stores: at element `place` of a slot."""

    slot: int
    place: UOp
    value: UOp


class Leaf(NamedTuple):
    """Leaf of an expression: a slot, and the STOREs before its read."""

    slot: int
    memory: Any


@dataclass(eq=False)
class Draft:
    """A step before it is ordered: its reads, and the STOREs that they come after.

    A kernel is a draft of its parts over `ranges` until it is closed. An `alone` kernel stores at
    indices that depend on data, or was scheduled by hand (`info`), so no other fuses with it. The
    memory of a `kept` one was requested: its readers read that memory. Each draft maps the leaves
    of its expressions to slots, so that equal drafts have identical expressions.
    """

    step: Step
    reads: list[Read] = field(default_factory=list)
    writes: int = -1
    store: UOp | None = None
    target_after: Happened = NOTHING
    parts: list[Part] = field(default_factory=list)
    ranges: tuple[UOp, ...] = ()
    alone: bool = False
    kept: bool = False
    info: KernelArg | None = None
    metadata: tuple[Any, ...] = ()
    leaves: dict[UOp, Leaf] = field(default_factory=dict)

    @property
    def read_slots(self) -> set[int]:
        """The slots that it reads."""
        return {slot for slot, _ in self.reads}

    @property
    def exprs(self) -> tuple[UOp, ...]:
        """Places and values of its parts."""
        return tuple([x for p in self.parts for x in (p.place, p.value)])

    @property
    def written_slots(self) -> set[int]:
        """The slots that it writes."""
        return {p.slot for p in self.parts} if self.parts else {self.writes}


class HazardError(Exception):
    """A kernel would read memory that it or an earlier one has overwritten.

    `value` is the node to store beforehand, or `version` the content to copy beforehand.
    """

    def __init__(self, value: UOp | None = None, version: Version | None = None) -> None:
        super().__init__("hazard")
        self.value = value
        self.version = version
