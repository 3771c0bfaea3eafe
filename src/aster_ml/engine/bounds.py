"""Bounds by bytes the schedules and kernels that are kept for programs to come.

Receives nothing; looks at the two caches after something was added. Past the setting KEPT_BYTES
what was not used for longest goes until a quarter of it is free, so it is not gone through again at
once. A kernel is used when a schedule of it is. What somebody holds (a recording, items of a
schedule) lives on with them; it only is not found any more.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from aster_ml.config import KEPT_BYTES
from aster_ml.late import late
from aster_ml.schedule.cache import CACHE
from aster_ml.schedule.steps import Schedule

if TYPE_CHECKING:
    from aster_ml.engine import compile as compiling
    from aster_ml.engine.compile import Compiled
else:
    compiling = late("engine.compile")


def kernels_of(schedule: Schedule) -> Iterator[Compiled]:
    """The kernels of a schedule, under all settings that it was run with."""
    for bound in schedule.bound.values():
        yield from [c for c in bound.compiled if c is not None]


def kept_nbytes() -> int:
    """About how many bytes schedules and kernels take."""
    return CACHE.nbytes + sum([c.nbytes for c in compiling.MEMORY_CACHE.values()])


def make_room() -> None:
    """Lets go of what was not used for longest, if all together is more than KEPT_BYTES."""
    limit: int = KEPT_BYTES.value
    held = kept_nbytes()
    if held <= limit:
        return
    number = count()
    uses = Counter([id(c) for s, _ in CACHE.entries.values() for c in kernels_of(s)])
    kernels = {id(c): key for key, c in compiling.MEMORY_CACHE.items()}
    # The latest schedule is in use.
    entries = sorted(CACHE.entries.items(), key=lambda entry: entry[1][0].used)[:-1]
    waiting: list[tuple[int, int, Any]] = [(s.used, next(number), key) for key, (s, _) in entries]
    waiting += [
        (c.used, next(number), c) for c in compiling.MEMORY_CACHE.values() if id(c) not in uses
    ]
    heapq.heapify(waiting)
    while waiting and held > limit - limit // 4:
        used, _, item = heapq.heappop(waiting)
        if isinstance(item, compiling.Compiled):
            del compiling.MEMORY_CACHE[kernels[id(item)]]
            held -= item.nbytes
            continue
        schedule, nodes = CACHE.entries[item]
        held -= CACHE.nbytes_of(nodes)
        CACHE.drop(item)
        for c in kernels_of(schedule):
            uses[id(c)] -= 1
            c.used = max(c.used, used)
            if not uses[id(c)] and id(c) in kernels:
                heapq.heappush(waiting, (c.used, next(number), c))
