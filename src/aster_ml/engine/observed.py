"""Observes what a thread runs: each schedule, the memory of its arguments, and what was there.

Receives what `engine.launch` tells observers; keeps rows in the order in which schedules ran. What
a row means (a count, a test, a program to write) is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aster_ml.device import Buffer
from aster_ml.engine.launch import Bound, observe
from aster_ml.schedule.steps import Schedule
from aster_ml.thread_state import STATE
from aster_ml.uop.node import UOp


class Ran(NamedTuple):
    """A schedule that ran: the memory of its arguments by slot, and its variables by name."""

    schedule: Schedule
    buffers: list[Buffer]
    values: dict[str, int]


class Observed:
    """Notes, within a `with` block, the schedules that this thread runs, before each runs.

    `rows` has them in order. `before` has, by the id of a base buffer, that buffer and its bytes
    before a schedule first wrote over them. Blocks may be nested, and each notes all.
    """

    records = False

    def __init__(self) -> None:
        self.outside: set[UOp] = set()
        self.arenas: dict[int, dict[int, Buffer]] = {}
        self.rows: list[Ran] = []
        self.before: dict[int, tuple[Buffer, bytes]] = {}

    def note(
        self,
        bound: Bound,
        table: dict[int, Buffer],
        nodes: Sequence[UOp],
        filled: Sequence[bool],
        values: dict[str, int],
    ) -> None:
        """One schedule, before it runs."""
        schedule = bound.schedule
        self.rows.append(Ran(schedule, [table[i] for i in range(schedule.n_args)], dict(values)))
        for i in schedule.overwritten:
            base = table[i].base
            if filled[i] and id(base) not in self.before:
                self.before[id(base)] = base, bytes(base.as_memoryview(copy=True))

    def note_outside(self, memory: Iterable[UOp]) -> None:
        """Does nothing: memory of before needs no note."""

    def __enter__(self) -> Observed:
        self.others = STATE.observers
        observe([*self.others, self])
        return self

    def __exit__(self, *error: object) -> None:
        observe(self.others)
