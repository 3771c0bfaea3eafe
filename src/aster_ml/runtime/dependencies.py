"""Derives which calls of a list may run concurrently from the bytes that each reads and writes.

Receives for each call the addresses that it accesses, and its number of parts; returns groups of
calls, between which all threads synchronize, and verifies given groups. Kernels, threads and
allocation do not belong here.

Within a group the parts of divided calls run in any order and on any thread. Calls of one part run
on the calling thread, in the order of the list. So two conflicting calls of a group, which access
the same bytes and of which one writes, are in order only if neither is divided.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aster_ml.errors import InternalError

# (start, stop) of addresses, without the last.
Span = tuple[int, int]


class Access(NamedTuple):
    """Memory that a call accesses, memory that it writes, and its number of parts."""

    touches: tuple[Span, ...]
    writes: tuple[Span, ...]
    parts: int


class Bytes:
    """A set of bytes: disjoint spans in ascending order."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def add(self, spans: Iterable[Span]) -> None:
        """Adds spans; overlapping ones are merged."""
        for begin, end in spans:
            if begin >= end:
                continue
            first = bisect.bisect_left(self.ends, begin)
            last = bisect.bisect_right(self.begins, end)
            if first < last:
                begin, end = min(begin, self.begins[first]), max(end, self.ends[last - 1])
            self.begins[first:last] = [begin]
            self.ends[first:last] = [end]

    def meets(self, spans: Iterable[Span]) -> bool:
        """Whether one of the spans has a byte of the set."""
        for begin, end in spans:
            at = bisect.bisect_right(self.ends, begin)
            if at < len(self.begins) and self.begins[at] < end and begin < end:
                return True
        return False


class Group:
    """The bytes that the calls of a group access and write.

    Kept for divided calls and for all calls, since undivided calls are in order.
    """

    def __init__(self) -> None:
        self.touched, self.written = Bytes(), Bytes()
        self.divided_touched, self.divided_written = Bytes(), Bytes()

    def add(self, call: Access) -> None:
        """Adds a call."""
        self.touched.add(call.touches)
        self.written.add(call.writes)
        if call.parts > 1:
            self.divided_touched.add(call.touches)
            self.divided_written.add(call.writes)

    def conflicts(self, call: Access) -> bool:
        """Whether a call must wait until the group is done."""
        if call.parts > 1:
            return self.written.meets(call.touches) or self.touched.meets(call.writes)
        return self.divided_written.meets(call.touches) or self.divided_touched.meets(call.writes)


def groups_of(calls: Sequence[Access]) -> list[tuple[int, int]]:
    """(begin, end) of each group. A group ends before a call that conflicts with it."""
    groups: list[tuple[int, int]] = []
    begin, group = 0, Group()
    for index, call in enumerate(calls):
        if group.conflicts(call):
            groups.append((begin, index))
            begin, group = index, Group()
        group.add(call)
    if calls:
        groups.append((begin, len(calls)))
    return groups


def check_groups(calls: Sequence[Access], groups: Sequence[tuple[int, int]]) -> None:
    """Verifies that groups contain all calls in order, and no conflicts.

    The check is independent of `groups_of`: a sweep over all spans of a group by address compares
    each with the open ones.

    Raises: InternalError with the two calls of a conflict.
    """
    bounds = [0, *[end for _, end in groups]]
    if [begin for begin, _ in groups] != bounds[:-1] or bounds[-1] != len(calls):
        raise InternalError(f"groups {list(groups)} are not {len(calls)} calls in order")
    for begin, end in groups:
        spans = [
            (*span, index, written)
            for index in range(begin, end)
            for written, found in ((False, calls[index].touches), (True, calls[index].writes))
            for span in found
            if span[0] < span[1]
        ]
        still_open: list[tuple[int, int, int, bool]] = []
        for span in sorted(spans):
            still_open = [other for other in still_open if other[1] > span[0]]
            for other in still_open:
                first, second = sorted((other[2], span[2]))
                divided = calls[first].parts > 1 or calls[second].parts > 1
                if first != second and (other[3] or span[3]) and divided:
                    raise InternalError(
                        f"calls {first} and {second} run side by side, in "
                        f"{calls[first].parts} and {calls[second].parts} parts, and both touch "
                        f"bytes from {span[0]:#x} on, which one of them writes"
                    )
            still_open.append(span)
