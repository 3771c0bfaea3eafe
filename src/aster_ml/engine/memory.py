"""Hop 4: temporaries packed into arenas.

Receives a Schedule; returns, for each temporary, its arena (one a device) and the offset in it.
Two temporaries that are alive at the same step never overlap; `check_plan` says so.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from aster_ml.errors import InternalError
from aster_ml.helpers import round_up
from aster_ml.plugins import open_module
from aster_ml.schedule.steps import Schedule

ALIGNMENT = 128
# So many temporaries are also placed by their sizes, which takes the square of their number.
MOST_BY_SIZE = 128


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


class Arena:
    """Memory handed out and taken back in the order of the steps; neighbours that are free join.

    Who hands it out takes multiples of `alignment` bytes.
    """

    alignment = ALIGNMENT

    def __init__(self) -> None:
        self.nbytes = 0
        # Free parts as (offset, size), by offset and by size.
        self.by_offset: list[tuple[int, int]] = []
        self.by_size: list[tuple[int, int]] = []

    def take(self, nbytes: int) -> int:
        """The offset of a part: the smallest free one that fits, else more memory at the end."""
        i = bisect.bisect_left(self.by_size, (nbytes, -1))
        if i < len(self.by_size):
            size, offset = self.by_size[i]
            self.forget(offset, size)
            if size > nbytes:
                self.note(offset + nbytes, size - nbytes)
            return offset
        offset = self.nbytes
        if self.by_offset and sum(self.by_offset[-1]) == self.nbytes:
            offset, size = self.by_offset[-1]
            self.forget(offset, size)
        self.nbytes = offset + nbytes
        return offset

    def give(self, offset: int, nbytes: int) -> None:
        """A part is free again."""
        i = bisect.bisect_left(self.by_offset, (offset, 0))
        if i < len(self.by_offset) and self.by_offset[i][0] == offset + nbytes:
            size = self.by_offset[i][1]
            self.forget(offset + nbytes, size)
            nbytes += size
        if i > 0 and sum(self.by_offset[i - 1]) == offset:
            before, size = self.by_offset[i - 1]
            self.forget(before, size)
            offset, nbytes = before, nbytes + size
        self.note(offset, nbytes)

    def note(self, offset: int, size: int) -> None:
        """Adds a free part."""
        bisect.insort(self.by_offset, (offset, size))
        bisect.insort(self.by_size, (size, offset))

    def forget(self, offset: int, size: int) -> None:
        """Removes a free part."""
        del self.by_offset[bisect.bisect_left(self.by_offset, (offset, size))]
        del self.by_size[bisect.bisect_left(self.by_size, (size, offset))]


def nbytes_of(schedule: Schedule, slot: int) -> int:
    """Bytes of the part that a temporary takes."""
    s = schedule.slots[slot]
    return int(round_up(max(s.size * s.dtype.itemsize, 1), ALIGNMENT))


def plan_memory(schedule: Schedule) -> MemoryPlan:
    """A place for each temporary, in arenas as small as two ways make them."""
    lifetimes = lifetimes_of(schedule)
    plan = planned_in_order(schedule, lifetimes)
    if len(lifetimes) > MOST_BY_SIZE:
        return plan
    other = planned_by_size(schedule, lifetimes)
    smaller = sum(other.arena_nbytes.values()) < sum(plan.arena_nbytes.values())
    return other if smaller else plan


def planned_in_order(schedule: Schedule, lifetimes: dict[int, tuple[int, int]]) -> MemoryPlan:
    """Goes through the steps: a temporary takes a free part when it begins, and gives it back
    after its last step.
    """
    place: dict[int, tuple[str, int]] = {}
    arenas: dict[str, Arena] = {}
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for slot, (start, stop) in lifetimes.items():
        begins.setdefault(start, []).append(slot)
        ends.setdefault(stop, []).append(slot)
    sizes = {slot: nbytes_of(schedule, slot) for slot in lifetimes}
    for i in range(len(schedule.steps)):
        # The largest first: small ones fit into what is left.
        for slot in sorted(begins.get(i, ()), key=lambda s: (-sizes[s], s)):
            device = schedule.slots[slot].device
            arena = arenas.setdefault(device, Arena())
            place[slot] = (device, arena.take(sizes[slot]))
        for slot in ends.get(i, ()):
            device, offset = place[slot]
            arenas[device].give(offset, sizes[slot])
    return MemoryPlan(place, {d: arena.nbytes for d, arena in arenas.items()}, lifetimes)


def planned_by_size(schedule: Schedule, lifetimes: dict[int, tuple[int, int]]) -> MemoryPlan:
    """The largest temporaries first, each at the lowest place that is free for all of its life.

    why: small ones that live long do not come to lie in the middle of what a large one leaves. All
    pairs are looked at.
    """
    sizes = {slot: nbytes_of(schedule, slot) for slot in lifetimes}
    place: dict[int, tuple[str, int]] = {}
    nbytes: dict[str, int] = {}
    for slot in sorted(lifetimes, key=lambda s: (-sizes[s], lifetimes[s], s)):
        start, stop = lifetimes[slot]
        device = schedule.slots[slot].device
        offset = 0
        taken = [
            (at, at + sizes[other])
            for other, (there, at) in place.items()
            if there == device and lifetimes[other][0] <= stop and start <= lifetimes[other][1]
        ]
        for low, high in sorted(taken):
            if offset + sizes[slot] <= low:
                break
            offset = max(offset, high)
        place[slot] = device, offset
        nbytes[device] = max(nbytes.get(device, 0), offset + sizes[slot])
    return MemoryPlan(place, nbytes, lifetimes)


def plan_apart(schedule: Schedule) -> MemoryPlan:
    """A place for each temporary that it shares with no other, where `plan_memory` has failed."""
    shown = {step.slots[0] for step in schedule.steps if step.kind == "view"}
    used = {slot for step in schedule.steps for slot in step.slots if slot >= schedule.n_args}
    place: dict[int, tuple[str, int]] = {}
    ends: dict[str, int] = {}
    for slot in sorted(used - shown):
        s = schedule.slots[slot]
        offset = ends.get(s.device, 0)
        place[slot] = s.device, offset
        ends[s.device] = offset + round_up(max(s.size * s.dtype.itemsize, 1), ALIGNMENT)
    always = (0, len(schedule.steps) - 1)
    return MemoryPlan(place, ends, dict.fromkeys(place, always))


def check_plan(schedule: Schedule, plan: MemoryPlan) -> None:
    """Raises InternalError when two temporaries that live together overlap."""
    slots = list(plan.place)
    for i, a in enumerate(slots):
        for b in slots[i + 1 :]:
            (dev_a, at_a), (dev_b, at_b) = plan.place[a], plan.place[b]
            la, lb = plan.lifetimes[a], plan.lifetimes[b]
            if dev_a != dev_b or la[1] < lb[0] or lb[1] < la[0]:
                continue
            size_a = schedule.slots[a].size * schedule.slots[a].dtype.itemsize
            size_b = schedule.slots[b].size * schedule.slots[b].dtype.itemsize
            if at_a < at_b + size_b and at_b < at_a + size_a:
                raise InternalError(f"memory: slots {a} and {b} overlap while both live")


open_module(__name__)
