"""Derives which calls of a list may run concurrently from the bytes that each reads and writes.

Receives for each call the memory that it touches, by address, and in how many parts it runs;
returns the groups of calls between which all threads wait for one another, and shows of given
groups that they are enough. Knows nothing of kernels, threads or where memory comes from.

Within a group the parts of divided calls run in any order and on any thread. Calls of one part run
on the calling thread, in the order of the list. So two calls of a group that touch the same bytes,
which one of them writes, are in order only if neither is divided.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aster_ml.errors import InternalError

# Addresses from the first up to, and without, the second.
Span = tuple[int, int]


class Access(NamedTuple):
    """Memory that a call touches, memory that it writes, and its number of parts."""

    touches: tuple[Span, ...]
    writes: tuple[Span, ...]
    parts: int


class Bytes:
    """A set of bytes: spans in ascending order, of which no two meet."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.ends: list[int] = []

    def add(self, spans: Iterable[Span]) -> None:
        """Takes spans in; those that meet become one."""
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
    """The bytes that the calls of a group have touched and written so far.

    Apart for divided calls and for all: the others are in order among themselves.
    """

    def __init__(self) -> None:
        self.touched, self.written = Bytes(), Bytes()
        self.divided_touched, self.divided_written = Bytes(), Bytes()

    def add(self, call: Access) -> None:
        """Takes in one more call."""
        self.touched.add(call.touches)
        self.written.add(call.writes)
        if call.parts > 1:
            self.divided_touched.add(call.touches)
            self.divided_written.add(call.writes)

    def conflicts(self, call: Access) -> bool:
        """Whether a call has to wait until all of the group has run."""
        if call.parts > 1:
            return self.written.meets(call.touches) or self.touched.meets(call.writes)
        return self.divided_written.meets(call.touches) or self.divided_touched.meets(call.writes)


def groups_of(calls: Sequence[Access]) -> list[tuple[int, int]]:
    """Begin and end of each group. A group ends where the next call has to wait for one of it."""
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
    """Shows that the groups have all calls in order and that none of a group conflict.

    It goes by the accesses alone, not by how groups are made: over all spans of a group by address,
    it holds each against those that are still open.

    Raises: InternalError with the two calls otherwise.
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
