"""Keeps schedules by body and settings, for as long as `engine.bounds` lets it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from aster_ml.config import stage_key
from aster_ml.schedule.capture import Captured
from aster_ml.schedule.steps import Schedule
from aster_ml.uop.node import UOp

# About how many bytes a schedule takes, and more for each node of its body: that, what its kernels
# have of it, keys of tables.
SCHEDULE_NBYTES, NODE_NBYTES = 4096, 1200
# Large bodies that are remembered.
MAX_SEEN = 25
# A body with more nodes is kept from the second time on that it is planned: most graphs of such a
# size are built once, and then nothing of them should stay.
LARGE_BODY = 20_000
OP_OF = attrgetter("op")


class ScheduleCache:
    """Schedules by body and settings. How many are kept, `engine.bounds` decides."""

    def __init__(self) -> None:
        self.entries: dict[tuple[object, ...], tuple[Schedule, int]] = {}
        self.nodes = 0
        # How many were put here.
        self.turn = 0
        # What large bodies that were planned once are made of.
        self.seen: dict[tuple[object, ...], None] = {}
        # For whoever runs schedules: what follows from them for graphs of users, by settings.
        self.forms: dict[tuple[object, ...], dict[Any, Any]] = {}

    def get(self, key: tuple[object, ...]) -> Schedule | None:
        """Returns the schedule kept under a key."""
        found = self.entries.get(key)
        if found is None:
            return None
        found[0].used = self.turn
        return found[0]

    def put(
        self,
        body: UOp,
        settings: tuple[object, ...],
        schedule: Schedule,
        order: list[UOp],
        again: bool = False,
    ) -> None:
        """Keeps a schedule, unless its body, whose nodes these are, is large and new.

        With `again` it is kept in any case: it will be asked for.
        """
        count = len(order)
        if count > LARGE_BODY and not again:
            # Their ops in order tell bodies apart well enough: to take two for one keeps a schedule
            # that may not be asked for again. Digests of all nodes take a tenth of the planning.
            mark = (count, hash(tuple(map(id, map(OP_OF, order)))), *settings)
            if mark not in self.seen:
                if len(self.seen) >= MAX_SEEN:
                    del self.seen[next(iter(self.seen))]
                self.seen[mark] = None
                return
        self.turn += 1
        schedule.used = self.turn
        self.entries[body, *settings] = schedule, count
        self.nodes += count

    def drop(self, key: tuple[object, ...]) -> None:
        """Forgets one schedule."""
        self.nodes -= self.entries.pop(key)[1]
        self.forget_forms()

    def nbytes_of(self, count: int) -> int:
        """About how many bytes a schedule takes whose body has so many nodes."""
        return SCHEDULE_NBYTES + NODE_NBYTES * count

    @property
    def nbytes(self) -> int:
        """About how many bytes all of them take."""
        return SCHEDULE_NBYTES * len(self.entries) + NODE_NBYTES * self.nodes

    def clear(self) -> None:
        """Forgets all schedules."""
        self.entries.clear()
        self.seen.clear()
        self.nodes = 0
        self.forget_forms()

    def forget_forms(self) -> None:
        """Empties the tables of `forms`; who has one goes on with it."""
        for table in self.forms.values():
            table.clear()


CACHE = ScheduleCache()


def known_schedule(captured: Captured) -> Schedule | None:
    """The schedule of what was captured, if that of its body is in the cache."""
    return CACHE.get((captured.body, *stage_key("schedule")))
