"""Fuses kernels over the same loops horizontally: one kernel with several results.

Receives drafts in running order; returns drafts in running order that do the same. What two kernels
both load is then loaded once, and what one makes for the other is handed on in a register; a
temporary that nobody else reads is not stored at all.

A kernel may come up to an earlier one, or the earlier down to it, past steps that share no memory
with the one that moves. Between the two, memory that one writes and the other touches has to be
touched at the element that is written: the loops then carry nothing from turn to turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from aster_ml.config import FUSE, MAX_KERNEL_NODES
from aster_ml.schedule.fusion.uses import next_leaf
from aster_ml.schedule.kernels.kernelize import Splitter
from aster_ml.schedule.steps import Draft, Leaf, Part, Read
from aster_ml.schedule.work import Work
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.graph import substitute_all
from aster_ml.uop.node import UOp
from aster_ml.uop.ranges import iterations

# How many of the kernels over the same loops are looked at: those that share memory with the next
# one, and the latest.
NEAR = 8
# Buffers of one kernel, where its device does not allow fewer.
MAX_SLOTS = 24
# With less work than this two kernels are one even when they share nothing.
TINY_WORK = 16
# A reduction with more work runs in strips and tiles that are made for a single result.
LARGE_WORK = 1 << 22
# Operations of a large reduction, with what is done to its results, that leave its loops as they
# would be without the latter.
LONG_BODY = 16


@dataclass(eq=False)
class Group:
    """A draft, or several that became one, at its place in the order."""

    draft: Draft
    at: int
    # Slots that it touches.
    reads: set[int]
    writes: set[int]
    # Whether a later step shares memory with it, so that it cannot move down.
    pinned: bool = False
    key: tuple[object, ...] | None = None
    work: int = 1
    has_reduce: bool = False
    nodes: int = 0
    # Loads of its expressions by the element that they read; all loops.
    loads: dict[UOp, UOp] = field(default_factory=dict)
    ranges: set[UOp] = field(default_factory=set)


class Merger:
    """State of merging the drafts of one schedule."""

    def __init__(self, splitter: Splitter, drafts: list[Draft], work: Work) -> None:
        self.splitter = splitter
        devices = {draft.step.device for draft in drafts}
        # The most buffers of a kernel of each device.
        self.most = {d: min(work.workers(d).buffers or MAX_SLOTS, MAX_SLOTS) for d in devices}
        # How many steps read a slot.
        self.uses = Counter([slot for draft in drafts for slot in draft.read_slots])
        self.groups: list[Group] = []
        self.alike: dict[tuple[object, ...] | None, list[Group]] = {}
        self.writer: dict[int, Group] = {}
        # Who has read a slot since it was last written.
        self.readers: dict[int, dict[Group, None]] = {}

    def add(self, at: int, draft: Draft) -> None:
        """The next draft: into an earlier kernel where that pays, or as it is."""
        new = Group(draft, at, draft.read_slots, draft.written_slots)
        behind = self.conflicts(new)
        key = None
        if draft.parts and not draft.alone:
            describe(new, self.splitter)
            key = new.key = (draft.step.device, *[r.src[0] for r in draft.ranges])
            last = max([g.at for g in behind], default=-1)
            merged = None
            latest = self.alike.get(key, [])[: -NEAR - 1 : -1]
            for group in latest:
                merged = self.try_merge(group, new, last)
                if merged is not None:
                    break
            else:
                if len(latest) == NEAR:
                    merged = self.merge_related(new, last, latest)
            if merged is not None:
                for other in behind:
                    other.pinned = other.pinned or other is not merged
                self.note(merged, new)
                return
        for other in behind:
            other.pinned = True
        self.groups.append(new)
        if key is not None:
            self.alike.setdefault(key, []).append(new)
        self.note(new, new)

    def merge_related(self, new: Group, last: int, tried: list[Group]) -> Group | None:
        """The latest group that shares memory with `new`, with `new` in it, but for those tried.

        What `new` reads may have been made long ago: as many steps may lie between as there are
        parameters to update. Large reductions take on what is done to their results right behind
        them, and nothing else.
        """
        if is_large_reduction(new):
            return None
        found: dict[Group, None] = {}
        for slot in new.reads | new.writes:
            if slot in self.writer:
                found[self.writer[slot]] = None
            readers = self.readers.get(slot, {})
            if len(readers) <= NEAR:
                found.update(readers)
        alike = [g for g in found if g.key == new.key and g not in tried]
        for group in sorted(alike, key=lambda g: -g.at)[:NEAR]:
            if not is_large_reduction(group):
                merged = self.try_merge(group, new, last)
                if merged is not None:
                    return merged
        return None

    def conflicts(self, new: Group) -> list[Group]:
        """The last steps that a new one has to stay behind."""
        found: dict[Group, None] = {}
        for slot in new.reads | new.writes:
            if slot in self.writer:
                found[self.writer[slot]] = None
        for slot in new.writes:
            found.update(self.readers.get(slot, {}))
        return list(found)

    def note(self, group: Group, new: Group) -> None:
        """Who has touched what, now that a draft has come into this group.

        What else the group touches may have been written again since, by a step behind it.
        """
        for slot in new.reads:
            self.readers.setdefault(slot, {})[group] = None
        for slot in new.writes:
            self.writer[slot] = group
            self.readers[slot] = {}

    def size(self, slot: int) -> int:
        """Elements of a slot."""
        return self.splitter.slots[slot].size

    def counts(self, group: Group, slot: int) -> bool:
        """Whether loading an element once instead of twice saves anything to speak of."""
        return not has_much_work(group) or 2 * self.size(slot) >= iterations(group.draft.ranges)

    def stays_one_result(self, group: Group, new: Group) -> bool:
        """Whether what the two make is one result: nobody else reads what the first makes."""
        slots = list(group.writes)
        return (
            len(slots) == len(new.writes) == 1
            and slots[0] >= self.splitter.n_args
            and self.uses[slots[0]] == 1
        )

    def try_merge(self, group: Group, new: Group, last: int) -> Group | None:
        """The group with `new` in it; None where that cannot be, or does not pay.

        `last` is where the last step stands that `new` has to stay behind.
        """
        comes_up = last <= group.at
        if not comes_up and group.pinned:
            return None
        if not group.writes.isdisjoint(new.writes) or not is_worth_fusing(group, new):
            return None
        slots = group.reads | group.writes | new.reads | new.writes
        if len(slots) > self.most[new.draft.step.device]:
            return None
        joined = self.joined(group, new)
        if joined is None:
            return None
        parts, leaves = joined
        draft = group.draft
        draft.parts.extend(parts)
        draft.leaves = leaves
        if new.draft.metadata:
            draft.metadata = tuple(dict.fromkeys([*draft.metadata, *new.draft.metadata]))
        reads: dict[Read, None] = dict.fromkeys([*draft.reads, *new.draft.reads])
        draft.reads = list(reads)
        draft.kept = draft.kept or new.draft.kept
        group.reads |= new.reads
        group.writes |= new.writes
        if not comes_up:
            group.at = new.at
        describe(group, self.splitter)
        return group

    def joined(self, group: Group, new: Group) -> tuple[list[Part], dict[UOp, Leaf]] | None:
        """The parts of the second over the loops of the first, where no memory stands between.

        With them what the leaves of both stand for.
        """
        if group.draft.kept and group.writes & new.reads:
            return None
        if new.reads.isdisjoint(group.reads) and new.reads.isdisjoint(group.writes):
            # Nothing is handed on, nor loaded by both.
            if max(group.work, new.work) > TINY_WORK:
                return None
        ranges: dict[UOp, UOp] = dict(zip(new.draft.ranges, group.draft.ranges, strict=True))
        for r in sorted(new.ranges, key=lambda r: r.arg.id):
            if r in group.ranges and r not in ranges:
                # Two reductions, although of the same number.
                ranges[r] = UOp.range(r.src[0], next(self.splitter.planner.ids), r.arg.kind)
        leaves = dict(group.draft.leaves)
        renamed = join_leaves(leaves, new.draft.leaves)
        exprs = new.draft.exprs
        flat = substitute_all([*exprs, *new.loads.values()], {**ranges, **renamed})
        made = [Part(p.slot, flat[2 * i], flat[2 * i + 1]) for i, p in enumerate(new.draft.parts)]
        written = {p.slot: p for p in group.draft.parts}
        handed: dict[UOp, UOp] = {}
        shared = False
        for u in flat[len(exprs) :]:
            slot = leaves[u.src[0].src[0]].slot
            part = written.get(slot)
            if part is not None:
                if u.src[0].src[1] is not part.place or len(u.src) > 1:
                    return None
                handed[u] = part.value
            shared = shared or (u.src[0] in group.loads and self.counts(group, slot))
        places = {p.slot: p.place for p in made}
        for at in group.loads:
            slot = leaves[at.src[0]].slot
            if slot in places and at.src[1] is not places[slot]:
                return None
        if not handed and not shared and max(group.work, new.work) > TINY_WORK:
            return None
        if is_large_reduction(group):
            # Its loops are arranged for its operands, and others of that size would be in the way.
            slots = [leaf.slot for leaf in new.draft.leaves.values()]
            sizes = [self.size(s) for s in slots if s not in written]
            if any(
                [n * 8 > iterations(group.draft.ranges) and n > ASSUMED.small_work for n in sizes]
            ):
                return None
            if group.work > LARGE_WORK and not self.stays_one_result(group, new):
                return None
        if handed:
            values = substitute_all([p.value for p in made], handed)
            made = [p._replace(value=v) for p, v in zip(made, values, strict=True)]
        return made, leaves


def join_leaves(leaves: dict[UOp, Leaf], more: dict[UOp, Leaf]) -> dict[UOp, UOp]:
    """Adds leaves to those of another draft; returns those that are other nodes there."""
    known = {leaf.memory: token for token, leaf in leaves.items()}
    renamed: dict[UOp, UOp] = {}
    for token, leaf in more.items():
        mine = known.get(leaf.memory)
        if mine is None:
            mine = next_leaf(leaves, token.arg.size, token.dtype)
            leaves[mine] = leaf
        renamed[token] = mine
    return renamed


def describe(group: Group, splitter: Splitter) -> None:
    """Reads off the expressions of its parts what merging asks of a kernel."""
    draft = group.draft
    walk = splitter.walk(draft.exprs)
    ranges = {*draft.ranges, *(walk.sums or ())}
    group.loads, group.nodes, group.has_reduce = walk.loads, walk.nodes, walk.sums is not None
    if len(ranges) > len(group.ranges):
        group.ranges = ranges
        group.work = iterations(ranges)


def has_much_work(group: Group) -> bool:
    """Whether the work counts for more than a launch."""
    return group.work > ASSUMED.small_work


def is_large_reduction(group: Group) -> bool:
    """Whether its loops are arranged for the operands of a sum."""
    return group.has_reduce and has_much_work(group)


def is_worth_fusing(group: Group, new: Group) -> bool:
    """Whether one kernel is no slower than the two.

    A reduction that is large in itself has its loops arranged for its operands: it takes on what
    little is done to its results, and nothing else.
    """
    nodes = group.nodes + new.nodes
    if (group.has_reduce or new.has_reduce) and (has_much_work(group) or has_much_work(new)):
        if new.has_reduce or nodes > LONG_BODY or group.writes.isdisjoint(new.reads):
            return False
    return nodes <= int(MAX_KERNEL_NODES.value)


def merge_drafts(drafts: list[Draft], splitter: Splitter, work: Work) -> list[Draft]:
    """Kernels over the same loops become one; temporaries that nobody reads go."""
    if not FUSE:
        return drafts
    merger = Merger(splitter, drafts, work)
    for at, draft in enumerate(drafts):
        merger.add(at, draft)
    groups = sorted(merger.groups, key=lambda g: g.at)
    return drop_unread([g.draft for g in groups], splitter)


def drop_unread(drafts: list[Draft], splitter: Splitter) -> list[Draft]:
    """Without the parts of kernels whose memory is a temporary that no step reads."""
    read: set[int] = set()
    result: list[Draft] = []
    for draft in reversed(drafts):
        if draft.parts and not draft.alone:
            draft.parts = [p for p in draft.parts if p.slot < splitter.n_args or p.slot in read]
            if not draft.parts:
                continue
            for p in draft.parts:
                for u in splitter.walk((p.place, p.value)).reads:
                    slot = draft.leaves[u.src[0]].slot
                    read.add(slot)
                    read.update([s for s, _ in splitter.shown.get(slot, ())])
        else:
            read |= draft.read_slots
        result.append(draft)
    return result[::-1]
