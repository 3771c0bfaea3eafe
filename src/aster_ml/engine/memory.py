"""Hop 4: temporaries packed into arenas.

Receives a Schedule; returns, for each temporary, its arena (one a device) and the offset in it.
Two temporaries that are alive at the same step never overlap; `check_plan` says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from aster_ml.errors import InternalError
from aster_ml.helpers import round_up
from aster_ml.schedule.split import Schedule

ALIGNMENT = 128


@dataclass
class MemoryPlan:
    """`place[slot]` is (device, byte offset); `arena_nbytes[device]` the size of each arena."""

    place: dict[int, tuple[str, int]]
    arena_nbytes: dict[str, int]
    lifetimes: dict[int, tuple[int, int]]


def lifetimes_of(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """First and last step of each temporary; a view keeps what it shows alive."""
    shows: dict[int, int] = {}
    result: dict[int, tuple[int, int]] = {}
    for i, step in enumerate(schedule.steps):
        if step.kind == "view":
            shows[step.slots[0]] = step.slots[1]
        for slot in step.slots:
            while slot >= schedule.n_args:
                if slot not in shows:
                    result[slot] = (result.get(slot, (i, i))[0], i)
                if slot not in shows:
                    break
                slot = shows[slot]
    return result


def plan_memory(schedule: Schedule) -> MemoryPlan:
    """Places temporaries, largest first, each at the lowest offset that is free while it lives."""
    lifetimes = lifetimes_of(schedule)
    place: dict[int, tuple[str, int]] = {}
    arena_nbytes: dict[str, int] = {}
    by_device: dict[str, list[int]] = {}

    def nbytes(slot: int) -> int:
        s = schedule.slots[slot]
        return int(round_up(max(s.size * s.dtype.itemsize, 1), ALIGNMENT))

    for slot in sorted(lifetimes, key=lambda s: (-nbytes(s), s)):
        device = schedule.slots[slot].device
        start, stop = lifetimes[slot]
        taken = sorted((place[o][1], place[o][1] + nbytes(o)) for o in by_device.get(device, ())
                       if lifetimes[o][0] <= stop and start <= lifetimes[o][1])
        offset = 0
        for low, high in taken:
            if offset + nbytes(slot) <= low:
                break
            offset = max(offset, high)
        place[slot] = (device, offset)
        by_device.setdefault(device, []).append(slot)
        arena_nbytes[device] = max(arena_nbytes.get(device, 0), offset + nbytes(slot))
    return MemoryPlan(place, arena_nbytes, lifetimes)


def check_plan(schedule: Schedule, plan: MemoryPlan) -> None:
    """Raises InternalError when two temporaries that live together overlap."""
    slots = list(plan.place)
    for i, a in enumerate(slots):
        for b in slots[i + 1:]:
            (dev_a, at_a), (dev_b, at_b) = plan.place[a], plan.place[b]
            la, lb = plan.lifetimes[a], plan.lifetimes[b]
            if dev_a != dev_b or la[1] < lb[0] or lb[1] < la[0]:
                continue
            size_a = schedule.slots[a].size * schedule.slots[a].dtype.itemsize
            size_b = schedule.slots[b].size * schedule.slots[b].dtype.itemsize
            if at_a < at_b + size_b and at_b < at_a + size_a:
                raise InternalError(f"memory: slots {a} and {b} overlap while both live")
