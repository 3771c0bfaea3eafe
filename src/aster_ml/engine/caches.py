"""Keeps what was worked out for graphs, in levels, each of which saves all that the next one does.

    graphs     form of a graph, settings           -> recorded graph (`engine.recorded`)
    schedules  body, settings                      -> Schedule
    slices     body with any offsets of its slices -> offsets that were planned
    large      count and ops of a large body       -> that it was planned once
    kernels    kernel, Target, Opts, settings      -> Compiled
    (disk      digest of the same                  -> binary: `engine.disk_cache`)

Before the first level stand the nodes themselves: one that was realized has a view of memory
(`engine.storage`). All levels together take KEPT_BYTES. Past that what was not used for longest
goes until a quarter is free, so that the search does not begin again at once. A kernel is used when
a schedule of it is. What somebody holds (a recording, items of a schedule) lives on; it only is not
found any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from aster_ml.config import KEPT_BYTES, stage_key
from aster_ml.schedule.capture import Captured
from aster_ml.schedule.steps import Schedule
from aster_ml.uop.node import UOp

if TYPE_CHECKING:
    from aster_ml.engine.compile import Compiled

# About how many bytes a schedule takes, and more for each node of its body: that, what its kernels
# have of it, keys of tables.
SCHEDULE_NBYTES, NODE_NBYTES = 4096, 1200
# A body with more nodes is kept from the second time on that it is planned: most graphs of such a
# size are built once, and then nothing of them should stay.
LARGE_BODY = 20_000


class Kept(Protocol):
    """Entry of a level: the turn in which it was last used, and about how many bytes it takes."""

    used: int

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes, always the same."""


V = TypeVar("V", bound=Kept)


class Offsets(list[dict[str, int]]):
    """Offsets of slices of one body, each by the name of a variable."""

    used = 0
    nbytes = 0


class Mark:
    """Note that something was met before, and no more."""

    used = 0
    nbytes = SCHEDULE_NBYTES


class Level(Generic[V]):
    """Entries by key, and about how many bytes they take."""

    def __init__(self) -> None:
        self.entries: dict[Any, V] = {}
        self.nbytes = 0

    def put(self, key: Any, kept: V, turn: int = 0) -> None:
        """Keeps an entry, in place of another with the same key."""
        if key in self.entries:
            self.drop(key)
        kept.used = turn
        self.entries[key] = kept
        self.nbytes += kept.nbytes

    def drop(self, key: Any) -> int:
        """Forgets an entry; returns the bytes that it took."""
        nbytes = self.entries.pop(key).nbytes
        self.nbytes -= nbytes
        return nbytes

    def clear(self) -> None:
        """Forgets all entries."""
        self.entries.clear()
        self.nbytes = 0


class Caches:
    """All levels, and the turn, which is another one with each new schedule."""

    def __init__(self) -> None:
        self.turn = 0
        # By settings, what forms of graphs under them begin with.
        self.settings: dict[tuple[Any, ...], object] = {}
        self.graphs: Level[Any] = Level()
        self.schedules: Level[Schedule] = Level()
        self.slices: Level[Offsets] = Level()
        self.large: Level[Mark] = Level()
        self.kernels: Level[Compiled] = Level()

    @property
    def levels(self) -> tuple[Level[Any], ...]:
        """The levels in which entries go one by one; graphs go together."""
        return self.schedules, self.slices, self.large, self.kernels

    @property
    def nbytes(self) -> int:
        """About how many bytes all levels take."""
        return self.graphs.nbytes + sum([level.nbytes for level in self.levels])

    def find_schedule(self, captured: Captured) -> Schedule | None:
        """The schedule of a body under the settings of now."""
        found = self.schedules.entries.get((captured.body, *stage_key("schedule")))
        if found is not None:
            found.used = self.turn
        return found

    def put_schedule(self, captured: Captured, schedule: Schedule, again: bool = False) -> None:
        """Keeps the schedule of a body, unless that is large and new.

        With `again` it is kept in any case: it will be asked for.
        """
        order, settings = captured.order(), stage_key("schedule")
        if len(order) > LARGE_BODY and not again:
            # Their ops in order tell bodies apart well enough: to take two for one keeps a schedule
            # that may not be asked for again. Digests of all nodes take a tenth of the planning.
            key = (len(order), hash(tuple([id(u.op) for u in order])), *settings)
            if key not in self.large.entries:
                self.large.put(key, Mark(), self.turn)
                return
        self.turn += 1
        schedule.nbytes = SCHEDULE_NBYTES + NODE_NBYTES * len(order)
        self.schedules.put((captured.body, *settings), schedule, self.turn)

    def offsets_of(self, body: UOp, count: int) -> Offsets:
        """Offsets that were planned of a body of so many nodes, whose slices may begin anywhere."""
        found = self.slices.entries.get(body)
        if found is None:
            found = Offsets()
            found.nbytes = SCHEDULE_NBYTES + NODE_NBYTES * count
            self.slices.put(body, found)
        found.used = self.turn
        return found

    def make_room(self) -> None:
        """Forgets what was not used for longest, where all takes more than KEPT_BYTES."""
        limit: int = KEPT_BYTES.value
        held = self.nbytes
        if held <= limit:
            return
        held -= self.graphs.nbytes
        self.graphs.clear()
        for schedule in self.schedules.entries.values():
            for bound in schedule.bound.values():
                for c in filter(None, bound.compiled):
                    c.used = max(c.used, schedule.used)
        # Schedules come before kernels that were used in the same turn.
        waiting = [(level, key) for level in self.levels for key in level.entries]
        waiting.sort(key=lambda entry: entry[0].entries[entry[1]].used)
        for level, key in waiting:
            if held <= limit - limit // 4 or level.entries[key].used == self.turn:
                break
            held -= level.drop(key)

    def forget_schedules(self) -> None:
        """Forgets schedules and what follows from them; kernels stay."""
        for level in (self.graphs, self.schedules, self.large):
            level.clear()


CACHES = Caches()
