"""Cuts a turn of a loop into parts, and derives where warps meet between them.

Receives nodes of the body of a loop; gives a `Part` for those that run as many turns ahead as one
another. All warps run the parts of a turn in order; a producer warp runs its own in a loop of its
own. `pipeline/loop` makes prologue, body and epilogue of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class Part(NamedTuple):
    """Nodes of a turn that run `ahead` turns early, on a producer warp or on all others.

    `fenced` says that no compiler moves what stands before the part behind its beginning.
    """

    nodes: list[UOp]
    ahead: int = 0
    producer: bool = False
    fenced: bool = False

    @property
    def sums(self) -> bool:
        """Whether a turn too many would show: it adds to an accumulator."""
        return any([u.op is Ops.ACCUMULATE for u in self.nodes])

    def fills(self, memories: Iterable[UOp]) -> bool:
        """Whether the part writes one of these memories."""
        there = set(memories)
        return any([u.op in (Ops.STORE, Ops.BOX) and memory_of(u) in there for u in self.nodes])

    def reads(self, memories: Iterable[UOp]) -> bool:
        """Whether the part reads one of these memories and fills none."""
        there, own = set(memories), set(self.nodes)
        found: dict[UOp, None] = {}
        for u in self.nodes:
            toposort(u, enter=lambda u: u in own or u.op in (Ops.INDEX, Ops.AFTER), done=found)
        places = [u for u in found if u.op is Ops.INDEX]
        return not self.fills(there) and any([base_of(u.src[0]) in there for u in places])


def base_of(memory: UOp) -> UOp:
    """Memory before something was stored there."""
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    return memory


def needed_by(roots: Iterable[UOp], body: Sequence[UOp]) -> list[UOp]:
    """These nodes of a body and what they are made of in it, in its order."""
    own = set(body)
    found: dict[UOp, None] = {}
    for root in roots:
        toposort(root, done=found)
    return [u for u in body if u in found and u in own]


class Meetings(NamedTuple):
    """Parts before which all warps meet, by number; and how many groups of copies are under way
    where one of them waits for copies first.
    """

    before: frozenset[int]
    left: dict[int, int]


def meetings(parts: Sequence[Part], memories: Iterable[UOp], counts_bytes: bool) -> Meetings:
    """Where all warps meet in a turn, so that none reads too early, and none fills too early.

    A stage is read a turn or more after it was filled, and filled a turn or more after it was read:
    on the way from one part round the loop to the other, warps meet once. Barriers that count bytes
    say by themselves what may be read.
    """
    found: set[int] = set()
    left: dict[int, int] = {}
    fills, reads = [p.fills(memories) for p in parts], [p.reads(memories) for p in parts]
    for after in range(len(parts)):
        for i in range(len(parts)):
            refilled = fills[after] and reads[i]
            if not refilled and (counts_bytes or not (reads[after] and fills[i])):
                continue
            way = [*range(i + 1, len(parts)), *range(after + 1)]
            if found.isdisjoint(way):
                found.add(after)
            if not refilled:
                at = next(n for n in reversed(way) if n in found)
                left[at] = parts[i].ahead - (at <= i)
    return Meetings(frozenset(found), left)


def is_private(u: UOp) -> bool:
    """Whether something stores in memory of a work-item's own."""
    memory = memory_of(u) if u.op is Ops.STORE else u
    return u.op is Ops.STORE and memory.op is Ops.DEFINE_LOCAL and memory.arg.private


def loop_at(uops: Sequence[UOp], axis_id: int) -> tuple[int, int] | None:
    """Where the loop over an axis begins and ends; None where there is none."""
    for start, u in enumerate(uops):
        if u.op is Ops.RANGE and u.arg.id == axis_id:
            return start, end_of(uops, u)
    return None


def end_of(uops: Sequence[UOp], loop: UOp) -> int:
    """Where a loop ends."""
    return next(i for i, u in enumerate(uops) if u.op is Ops.END and u.src[0] is loop)
