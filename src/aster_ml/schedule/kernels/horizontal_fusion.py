"""Fuses kernels over the same loops horizontally: one kernel with several results.

Receives drafts in execution order; returns equivalent drafts in execution order. A load of both
kernels is then done once, and a value that one kernel computes for the other stays in a register; a
temporary without other readers is not stored at all.

A kernel may move up to an earlier one, or the earlier one down to it, past steps that share no
memory with the one that moves. Memory that one of the two writes and the other accesses must be
accessed at the element that is written, so that the fused loops carry no dependence.
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

# Number of candidate kernels over the same loops: those that share memory with the next kernel, and
# the latest.
NEAR = 8
# Buffers of one kernel, unless its device allows fewer.
MAX_SLOTS = 24
# Kernels with less work than this are fused even if they share nothing.
TINY_WORK = 16
# A reduction with more work is tiled for a single result.
LARGE_WORK = 1 << 22
# A large reduction with an epilogue of at most so many operations is tiled as without the epilogue.
LONG_BODY = 16


@dataclass(eq=False)
class Group:
    """A draft, or several fused drafts, at a position of the order."""

    draft: Draft
    at: int
    # Slots that it reads and writes.
    reads: set[int]
    writes: set[int]
    # Whether a later step shares memory with it, so that it must not move down.
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
        # Device -> largest number of buffers of a kernel.
        self.most = {d: min(work.workers(d).buffers or MAX_SLOTS, MAX_SLOTS) for d in devices}
        # How many steps read a slot.
        self.uses = Counter([slot for draft in drafts for slot in draft.read_slots])
        self.groups: list[Group] = []
        self.alike: dict[tuple[object, ...] | None, list[Group]] = {}
        self.writer: dict[int, Group] = {}
        # Slot -> groups that have read it since its last write.
        self.readers: dict[int, dict[Group, None]] = {}

    def add(self, at: int, draft: Draft) -> None:
        """Adds the next draft: to an earlier kernel where that pays, else by itself."""
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
        """The latest group that shares memory with `new`, with `new` fused; except those tried.

        `new` may read a result of many steps ago, such as one step for each parameter of an
        optimizer. Large reductions fuse only with kernels directly after them that read their
        results.
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
        """The last groups that a new group must stay after."""
        found: dict[Group, None] = {}
        for slot in new.reads | new.writes:
            if slot in self.writer:
                found[self.writer[slot]] = None
        for slot in new.writes:
            found.update(self.readers.get(slot, {}))
        return list(found)

    def note(self, group: Group, new: Group) -> None:
        """Records the accesses of a draft that was added to this group.

        Other slots of the group may have been written since by later steps.
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
        """Whether loading a slot once instead of twice saves noticeable time."""
        return not has_much_work(group) or 2 * self.size(slot) >= iterations(group.draft.ranges)

    def stays_one_result(self, group: Group, new: Group) -> bool:
        """Whether the fused kernel has one result: only `new` reads the result of `group`."""
        slots = list(group.writes)
        return (
            len(slots) == len(new.writes) == 1
            and slots[0] >= self.splitter.n_args
            and self.uses[slots[0]] == 1
        )

    def try_merge(self, group: Group, new: Group, last: int) -> Group | None:
        """The group fused with `new`; None where that is not legal, or does not pay.

        `last` is the position of the last step that `new` must stay after.
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
        """The parts of `new` over the loops of `group`, and the leaves of both.

        None where memory between the two prevents fusion.
        """
        if group.draft.kept and group.writes & new.reads:
            return None
        if new.reads.isdisjoint(group.reads) and new.reads.isdisjoint(group.writes):
            # They share neither values nor loads.
            if max(group.work, new.work) > TINY_WORK:
                return None
        ranges: dict[UOp, UOp] = dict(zip(new.draft.ranges, group.draft.ranges, strict=True))
        for r in sorted(new.ranges, key=lambda r: r.arg.id):
            if r in group.ranges and r not in ranges:
                # Two different reductions with the same range number.
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
            # A large reduction is tiled for its operands; others of that size would disturb it.
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
    """Adds leaves to those of another draft; returns the leaves that are renumbered there."""
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
    """Collects from its expressions what fusion needs to know of a group."""
    draft = group.draft
    walk = splitter.walk(draft.exprs)
    ranges = {*draft.ranges, *(walk.sums or ())}
    group.loads, group.nodes, group.has_reduce = walk.loads, walk.nodes, walk.sums is not None
    if len(ranges) > len(group.ranges):
        group.ranges = ranges
        group.work = iterations(ranges)


def has_much_work(group: Group) -> bool:
    """Whether the work takes longer than a launch."""
    return group.work > ASSUMED.small_work


def is_large_reduction(group: Group) -> bool:
    """Whether the group is a reduction that is tiled for its operands."""
    return group.has_reduce and has_much_work(group)


def is_worth_fusing(group: Group, new: Group) -> bool:
    """Whether one kernel is no slower than the two.

    A large reduction is tiled for its operands: it fuses with a short epilogue and nothing else.
    """
    nodes = group.nodes + new.nodes
    if (group.has_reduce or new.has_reduce) and (has_much_work(group) or has_much_work(new)):
        if new.has_reduce or nodes > LONG_BODY or group.writes.isdisjoint(new.reads):
            return False
    return nodes <= int(MAX_KERNEL_NODES.value)


def merge_drafts(drafts: list[Draft], splitter: Splitter, work: Work) -> list[Draft]:
    """Fuses kernels over the same loops, and removes temporaries that no step reads."""
    if not FUSE:
        return drafts
    merger = Merger(splitter, drafts, work)
    for at, draft in enumerate(drafts):
        merger.add(at, draft)
    groups = sorted(merger.groups, key=lambda g: g.at)
    return drop_unread([g.draft for g in groups], splitter)


def drop_unread(drafts: list[Draft], splitter: Splitter) -> list[Draft]:
    """The drafts without parts that store to a temporary that no step reads."""
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
