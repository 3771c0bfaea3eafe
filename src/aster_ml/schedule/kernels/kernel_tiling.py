"""Tiles across kernels: runs producers and consumers of large temporaries part by part.

Receives drafts in execution order; returns drafts in execution order. A temporary may be much
larger than its inputs and its results (the rows of a softmax). If its kernels have common outer
axes along which each reads only what the others write at the same index, they become a *run*: one
step that loops over parts of these axes and executes all kernels for a part before the next. So
scratch holds one part of the temporary at a time.

A kernel that sums over such an axis adds the sum of each part to its result, which is complete
after the run. A temporary that is read after the run is rematerialized there, where that saves
enough memory. `schedule/kernels/tile_parts.py` sizes the parts, `renderer/runs.py` writes the code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aster_ml.config import DEPTH_FIRST
from aster_ml.schedule.kernels.kernelize import Splitter
from aster_ml.schedule.kernels.tile_parts import (
    Limit,
    Run,
    build_run,
    coefficients,
    fits,
    is_outermost,
    is_small,
    limits_of,
    split_divided,
    split_ranges,
)
from aster_ml.schedule.steps import Draft, Part
from aster_ml.schedule.work import Work, WorkersOf
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.linear_form import Form, form_of

# Steps after the first kernel of a run that are considered.
NEAR = 64

# The slots that a kernel reads, and those that it writes.
Touched = tuple[set[int], set[int]]


@dataclass(eq=False)
class Facts:
    """Accesses of a kernel: the linear form of each index, by slot; and the gates of loads."""

    ranges: frozenset[UOp]
    places: dict[int, Form]
    loads: dict[int, list[Form]]
    limits: dict[int, list[list[Limit]]]
    plain: bool


# Ranges and parts of a kernel, and their accesses.
Loops = tuple[tuple[UOp, ...], list[Part], Facts]


@dataclass(eq=False)
class Member:
    """A kernel of a run, and its range for each of the run's axes."""

    draft: Draft
    axes: dict[int, UOp] = field(default_factory=dict)


def digits(form: Form) -> list[tuple[int, int]] | None:
    """Steps and sizes of a form that is a sum of ranges; else None."""
    if form.const or any([t.op is not Ops.RANGE for t in form.terms]):
        return None
    return sorted([(a, size_of(t)) for t, a in form.terms.items()])


def conflict(first: Touched, second: Touched) -> bool:
    """Whether two kernels share a slot that one of them writes."""
    (reads, writes), (late_reads, late_writes) = first, second
    return not (
        writes.isdisjoint(late_reads)
        and writes.isdisjoint(late_writes)
        and reads.isdisjoint(late_writes)
    )


class Runs:
    """State of finding the runs of one schedule."""

    def __init__(self, drafts: list[Draft], splitter: Splitter, workers: WorkersOf) -> None:
        self.drafts = drafts
        self.splitter = splitter
        self.workers = workers
        self.known: dict[Draft, Facts] = {}
        # The slots that drafts read and write.
        self.touched: dict[Draft, Touched] = {}
        # Smaller temporaries start no run.
        self.least = ASSUMED.large_nbytes
        # Slots that were rematerialized; they are not again.
        self.anew: set[int] = set()
        # Kernels with ranges that made no run, with the minimum size of a temporary at that time.
        self.in_vain: set[tuple[int, frozenset[Any]]] = set()
        # Drafts whose ranges are split for a candidate run -> their original loops.
        self.whole: dict[Draft, Loops] = {}
        # (draft, range, size of the inner part) -> the split loops.
        self.finer: dict[tuple[Draft, UOp, int], Loops] = {}

    def nbytes(self, slot: int) -> int:
        """Bytes of a slot."""
        s = self.splitter.slots[slot]
        return int(s.size * s.dtype.itemsize)

    def is_large_temporary(self, slot: int) -> bool:
        """Whether a slot is a temporary of at least the present minimum size."""
        return slot >= self.splitter.n_args and self.nbytes(slot) >= self.least

    def touches(self, draft: Draft) -> Touched:
        """The slots that a draft reads, and those that it writes."""
        found = self.touched.get(draft)
        if found is None:
            found = self.touched[draft] = draft.read_slots, draft.written_slots
        return found

    def facts(self, draft: Draft) -> Facts:
        """Collects the accesses of a draft; not `plain` where it cannot be part of a run."""
        found = self.known.get(draft)
        if found is not None:
            return found
        plain = bool(draft.parts) and not draft.alone and draft.info is None
        plain &= draft.step.device.partition(":")[0] == "CPU"
        if plain:
            split_divided(draft, self.splitter)
        order = self.splitter.walk(draft.exprs).order
        ranges = {u for u in order if u.op is Ops.RANGE}
        plain &= not any([u.op is Ops.DEFINE_VAR for u in order])
        plain &= all([r.src[0].op is Ops.CONST for r in ranges])
        loads: dict[int, list[Form]] = {}
        limits: dict[int, list[list[Limit]]] = {}
        if plain:
            gates: dict[UOp, set[UOp | None]] = {}
            for u in order:
                if u.op is Ops.LOAD:
                    gates.setdefault(u.src[0], set()).add(u.src[1] if len(u.src) > 1 else None)
            for u in order:
                if u.op is Ops.INDEX:
                    slot = draft.leaves[u.src[0]].slot
                    loads.setdefault(slot, []).append(form_of(u.src[1]))
                    gate, *others = gates.get(u, {None})
                    one = [] if gate is None or others else limits_of(gate)
                    limits.setdefault(slot, []).append(one)
            # Fused kernels do not load values that stay in registers.
            read = {s for slot in loads for s, _ in self.splitter.shown.get(slot, ())} | set(loads)
            draft.reads = [r for r in draft.reads if r[0] in read]
            self.touched.pop(draft, None)
        places = {p.slot: form_of(p.place) for p in draft.parts} if plain else {}
        found = self.known[draft] = Facts(frozenset(ranges), places, loads, limits, plain)
        return found

    # which kernels, along which axes

    def find(self) -> list[Draft]:
        """The drafts with runs in place of their kernels; the largest temporary comes first."""
        tried: set[int] = set()
        while True:
            least = ASSUMED.large_nbytes if DEPTH_FIRST < 2 else 1
            left = [
                (-nbytes, at, slot)
                for at, d in enumerate(self.drafts)
                if d.parts
                for slot in self.touches(d)[1]
                if slot >= self.splitter.n_args
                and slot not in tried
                and (nbytes := self.nbytes(slot)) >= least
            ]
            if not left:
                return self.drafts
            size, at, slot = min(left)
            tried.add(slot)
            self.least = max(least, -size // 8)
            self.try_at(at, slot)

    def try_at(self, at: int, slot: int) -> None:
        """Replaces kernels by the run that starts with the writer of this slot, if there is one."""
        draft = self.drafts[at]
        facts = self.facts(draft)
        if not facts.plain:
            return
        writers: dict[int, list[Draft]] = {}
        readers: dict[int, list[Draft]] = {}
        for d in self.drafts[max(at - NEAR, 0) : at + NEAR]:
            reads, writes = self.touches(d)
            for s in writes:
                writers.setdefault(s, []).append(d)
            for s in reads:
                readers.setdefault(s, []).append(d)
        plain_loops = draft.ranges, draft.parts, facts
        self.split_as_read(draft, slot, readers.get(slot, []))
        outer = self.outer(draft, slot)
        best: Run | None = None
        best_axes: dict[int, UOp] = {}
        for count in range(self.deepest(slot, outer), 0, -1):
            axes = dict(enumerate(outer[:count]))
            run = self.shape_of(self.spread(Member(draft, axes), writers, readers))
            if run is not None and (best is None or self.spared(run) > self.spared(best)):
                best, best_axes = run, axes
            self.join_ranges()
        if best is not None and best.split:
            best = self.shape_of(self.spread(Member(draft, best_axes), writers, readers))
            assert best is not None
            for d in best.inside:
                self.whole.pop(d, None)
            self.join_ranges()
        if best is None or draft not in best.inside:
            self.loop_so(draft, plain_loops)
        if best is None:
            return
        if best.again:
            best.after = self.recomputed(best.inside, best.after, best.again)
        made, completed = build_run(best, self.splitter)
        self.drafts = [*best.before, made, *completed, *best.after]

    def split_as_read(self, draft: Draft, slot: int, readers: list[Draft]) -> None:
        """Splits outer ranges of a kernel where readers of its result have two ranges for one."""
        form, outer = self.facts(draft).places[slot], self.outer(draft, slot)
        # A reader of a view of the slot has no loads of the slot.
        forms = [f for d in readers for f in self.facts(d).loads.get(slot, ())]
        for r in outer[: self.deepest(slot, outer)]:
            step = form.terms.get(r, 0)
            inner = {
                a // step
                for f in forms
                for a in f.terms.values()
                if 0 < step < a < step * size_of(r) and a % step == 0
            }
            if inner and size_of(r) % max(inner) == 0:
                self.split_at(draft, r, max(inner))

    def outer(self, draft: Draft, slot: int) -> list[UOp]:
        """The ranges of a kernel, by their stride in a slot that it writes, largest first."""
        form = self.facts(draft).places[slot]
        return sorted(draft.ranges, key=lambda r: -form.terms.get(r, 0))

    def deepest(self, slot: int, outer: list[UOp]) -> int:
        """Counts the outer ranges that a run may loop over, until parts are small."""
        nbytes, count = self.nbytes(slot), 0
        while count < len(outer) - 1 and (count == 0 or not is_small(nbytes)):
            nbytes //= size_of(outer[count])
            count += 1
        return count

    def join_ranges(self) -> None:
        """Restores split ranges of kernels that are in no run."""
        for draft, whole in self.whole.items():
            self.loop_so(draft, whole)
        self.whole.clear()

    def loop_so(self, draft: Draft, loops: Loops) -> None:
        """Replaces the loops of a kernel by equivalent ones."""
        draft.ranges, draft.parts, self.known[draft] = loops

    def spread(
        self, first: Member, writers: dict[int, list[Draft]], readers: dict[int, list[Draft]]
    ) -> dict[Draft, Member]:
        """All nearby kernels that access the same memory along the same axes."""
        members = {first.draft: first}
        waiting = [first]
        while waiting:
            member = waiting.pop()
            facts = self.facts(member.draft)
            for slot, form in facts.places.items():
                steps = coefficients(form, member.axes)
                if all(steps.values()) and is_outermost(form, member.axes):
                    for other in readers.get(slot, ()):
                        self.join(other, slot, member, steps, members, waiting)
            for slot, forms in facts.loads.items():
                if self.is_large_temporary(slot) and len(writers.get(slot, ())) == 1:
                    steps = coefficients(forms[0], member.axes)
                    if all(steps.values()):
                        self.join(writers[slot][0], slot, member, steps, members, waiting)
        return members

    def join(
        self,
        other: Draft,
        slot: int,
        member: Member,
        steps: dict[int, int],
        members: dict[Draft, Member],
        waiting: list[Member],
    ) -> None:
        """Adds another kernel as a member if its accesses of a slot have the axes."""
        if other in members or not self.facts(other).plain:
            return
        axes: dict[int, UOp] = {}
        # Each split gives one axis its range.
        for _ in range(len(steps) + 1):
            axes, lacking = self.axes_in(other, slot, member, steps)
            if lacking is None or not self.split_for(other, slot, *lacking):
                break
        if len(set(axes.values())) < len(steps):
            return
        if self.may_part(other, set(axes.values())):
            members[other] = found = Member(other, axes)
            waiting.append(found)

    def axes_in(
        self, draft: Draft, slot: int, member: Member, steps: dict[int, int]
    ) -> tuple[dict[int, UOp], tuple[int, int] | None]:
        """A kernel's ranges for the axes of a member, up to the first axis with none or several.

        For an axis without a range, the wanted step and size are returned too.
        """
        axes: dict[int, UOp] = {}
        forms = self.forms_of(draft, slot)
        for axis, step in steps.items():
            size = size_of(member.axes[axis])
            fitting = {
                t
                for form in forms
                for t, a in form.terms.items()
                if a == step and t.op is Ops.RANGE and size_of(t) == size
            }
            if len(fitting) != 1:
                return axes, None if fitting else (step, size)
            axes[axis] = fitting.pop()
        return axes, None

    def forms_of(self, draft: Draft, slot: int) -> list[Form]:
        """The forms of all indices at which a kernel reads or writes a slot."""
        facts = self.facts(draft)
        place = facts.places.get(slot)
        return [*facts.loads.get(slot, ()), *(() if place is None else (place,))]

    def split_for(self, draft: Draft, slot: int, step: int, size: int) -> bool:
        """Splits a range so that one part has this step in the slot and this size, if possible.

        Returns whether a range was split.
        """
        for form in self.forms_of(draft, slot):
            for t, a in form.terms.items():
                if t.op is not Ops.RANGE or not 0 < a < step or step % a:
                    continue
                if a * size_of(t) == step * size:
                    self.whole.setdefault(draft, (draft.ranges, draft.parts, self.facts(draft)))
                    self.split_at(draft, t, step // a)
                    return True
        return False

    def split_at(self, draft: Draft, r: UOp, inner: int) -> None:
        """Splits a range in two, the inner one of size `inner`."""
        found = self.finer.get((draft, r, inner))
        if found is not None:
            self.loop_so(draft, found)
            return
        split_ranges(draft, self.splitter, {r: [1, inner, size_of(r)]})
        del self.known[draft]
        self.finer[draft, r, inner] = draft.ranges, draft.parts, self.facts(draft)

    def may_part(self, draft: Draft, ranges: set[UOp]) -> bool:
        """Whether a kernel may run in parts of these ranges: of outputs, or its only plain sum."""
        summed = ranges - set(draft.ranges)
        if not summed:
            return True
        if len(draft.parts) != 1:
            return False
        order = self.splitter.walk(draft.exprs).order
        found = [u for u in order if u.op is Ops.REDUCE and not summed.isdisjoint(u.src[1:])]
        if len(found) != 1 or found[0].arg.op is not Ops.ADD:
            return False
        return summed <= set(found[0].src[1:]) and set(found[0].ranges) <= set(draft.ranges)

    def spared(self, run: Run) -> float:
        """The bytes of temporaries that a run keeps out of memory, weighted by how small the part
        of them is that exists at a time.
        """
        part = sum(run.scratch.values())
        return sum([self.nbytes(s) for s in run.scratch]) / (1 + part / ASSUMED.large_nbytes)

    # whether they may run so, and whether that pays

    def agrees(self, reader: Member, writer: Member, slot: int) -> bool:
        """Whether the reader reads only elements that the writer writes in the same part."""
        place = self.facts(writer.draft).places[slot]
        steps = coefficients(place, writer.axes)
        if not all(steps.values()):
            return False
        facts = self.facts(reader.draft)
        if slot not in facts.loads:
            return False  # it reads a view of the slot
        outermost = is_outermost(place, writer.axes)
        for form, limits in zip(facts.loads[slot], facts.limits[slot], strict=True):
            if coefficients(form, reader.axes) != steps:
                return False
            if not (outermost and is_outermost(form, reader.axes, limits)):
                if digits(form) is None or digits(form) != digits(place):
                    return False
        return True

    def order(self, members: dict[Draft, Member]) -> tuple[list[Draft], list[Draft], list[Draft]]:
        """The drafts before, in and after the run, in an order that keeps all dependences."""
        before: list[Draft] = []
        inside: list[Draft] = []
        after: list[Draft] = []
        # Slots that kernels of the run read and write, and those of drafts after the run.
        near_reads: set[int] = set()
        near_writes: set[int] = set()
        late_reads: set[int] = set()
        late_writes: set[int] = set()
        near_touched, late_touched = (near_reads, near_writes), (late_reads, late_writes)
        for d in self.drafts:
            if not inside and not after and d not in members:
                before.append(d)
                continue
            reads, writes = touched = self.touched.get(d) or self.touches(d)
            waits = bool(after) and conflict(late_touched, touched)
            near = not waits and bool(inside) and conflict(near_touched, touched)
            if d in members and not waits and not reads & writes:
                behind = [e for e in inside if conflict(self.touches(e), touched)] if near else []
                if all([self.may_follow(members[e], members[d]) for e in behind]):
                    inside.append(d)
                    near_reads |= reads
                    near_writes |= writes
                    continue
            if waits or near:
                after.append(d)
                late_reads |= reads
                late_writes |= writes
            else:
                before.append(d)
        return before, inside, after

    def may_follow(self, first: Member, second: Member) -> bool:
        """Whether two kernels that share memory may alternate, part by part."""
        (reads, writes), (early_reads, made) = self.touches(second.draft), self.touches(first.draft)
        if writes & early_reads or writes & made:
            return False
        return all([self.agrees(second, first, s) for s in made & reads])

    def shape_of(self, members: dict[Draft, Member]) -> Run | None:
        """The run of these kernels, without those that gain nothing; None if none is left.

        First tries to rematerialize large temporaries that are read later.
        """
        kernels = frozenset([(d, *member.axes.items()) for d, member in members.items()])
        key = self.least, kernels
        if key in self.in_vain:
            return None
        self.part_with_fewer(members)
        written = {s for d in members for s in self.touches(d)[1] if self.is_large_temporary(s)}
        for remake in (True, False) if self.spares_much_memory(written) else (False,):
            if remake or self.has_private_temporary(members):
                run = self.shape_so(dict(members), remake)
                if run is not None:
                    return run
        self.in_vain.add(key)
        return None

    def has_private_temporary(self, members: dict[Draft, Member]) -> bool:
        """Whether only these kernels read some temporary that one of them writes."""
        made = {s for d in members for s in self.touches(d)[1] if s >= self.splitter.n_args}
        for d in self.drafts:
            if d not in members:
                reads = (self.touched.get(d) or self.touches(d))[0]
                if not made.isdisjoint(reads):
                    made -= reads
                    if not made:
                        return False
        return bool(made)

    def spares_much_memory(self, slots: Iterable[int]) -> bool:
        """Whether these slots save enough memory for rematerialization to pay."""
        return sum([self.nbytes(s) for s in slots]) >= (
            ASSUMED.again_nbytes if DEPTH_FIRST < 2 else 1
        )

    def shape_so(self, members: dict[Draft, Member], remake: bool) -> Run | None:
        """The run, with or without rematerialization."""
        while len(members) > 1:
            before, inside, after = self.order(members)
            again = self.slots_to_rematerialize(inside, members, after) if remake else set()
            if remake and not again:
                return None
            hidden = self.hidden(inside, [*before, *after], again)
            if again and all([self.touches(d)[1] <= hidden for d in inside]):
                return None  # all its results would be rematerialized
            needless = self.needless(inside, hidden)
            gone = [d for d in members if d not in inside or d in needless]
            if not gone:
                axes = chosen_axes([members[d] for d in inside])
                workers = self.workers(inside[0].step.device).number
                run = Run(axes, inside, hidden, before, after, workers)
                run.again, run.split = again, not self.whole.keys().isdisjoint(inside)
                return run if fits(run, self.splitter, self.facts) else None
            for d in gone:
                del members[d]
        return None

    def part_with_fewer(self, members: dict[Draft, Member]) -> None:
        """Removes one of two kernels that cannot share a run, by bytes of large temporaries."""
        drafts = [d for d in self.drafts if d in members]
        for i, late in enumerate(drafts):
            for early in drafts[:i]:
                if early not in members or late not in members:
                    continue
                if conflict(self.touches(early), self.touches(late)) and not self.may_follow(
                    members[early], members[late]
                ):
                    del members[min(early, late, key=self.large_nbytes)]

    def large_nbytes(self, draft: Draft) -> int:
        """The bytes of all large temporaries that a kernel reads or writes."""
        reads, writes = self.touches(draft)
        return sum([self.nbytes(s) for s in reads | writes if self.is_large_temporary(s)])

    def hidden(self, inside: list[Draft], others: list[Draft], again: set[int]) -> set[int]:
        """Temporaries that only the run writes and reads, without rematerialized ones (`again`)."""
        n_args, touches = self.splitter.n_args, self.touches
        made = {s for d in inside for s in touches(d)[1] if s >= n_args}
        read = set[int]().union(*[touches(d)[0] for d in others])
        read |= {s for d in inside if again & touches(d)[1] for s in touches(d)[0]}
        return made - (read - again)

    # what is wanted after the run

    def slots_to_rematerialize(
        self, inside: list[Draft], members: dict[Draft, Member], after: list[Draft]
    ) -> set[int]:
        """The temporaries that are rematerialized after the run; none if that saves too little."""
        touches = self.touches
        writer = {s: d for d in inside for s in touches(d)[1] if self.is_large_temporary(s)}
        wanted = {s for d in after for s in touches(d)[0] if s in writer and s not in self.anew}
        if not self.spares_much_memory(wanted):
            return set()
        found: set[int] = set()
        while wanted:
            slot = wanted.pop()
            d = writer[slot]
            if not set(members[d].axes.values()) <= set(d.ranges):
                continue  # a sum over parts exists after the run
            found.add(slot)
            wanted |= {s for s in touches(d)[0] if s in writer and s not in found}
        # The inputs of these must still exist, unchanged.
        kept = {s for slot in found for s in touches(writer[slot])[0]} - found
        for d in self.drafts:
            reads, writes = touches(d)
            overwrites = any([s < self.splitter.n_args for s in kept & writes])
            if overwrites or (d in after and not d.parts and found & reads):
                return set()
        return found

    def recomputed(self, inside: list[Draft], after: list[Draft], again: set[int]) -> list[Draft]:
        """The drafts after the run, with rematerializing kernels before their readers."""
        splitter = self.splitter
        new: dict[int, int] = {}
        for slot in sorted(again):
            splitter.slots.append(splitter.slots[slot])
            new[slot] = len(splitter.slots) - 1
        self.anew.update(new.values())
        result = []
        for d in inside:
            parts = [p._replace(slot=new[p.slot]) for p in d.parts if p.slot in again]
            if parts:
                made = Draft(d.step, d.reads, parts[0].slot, parts=parts, ranges=d.ranges)
                made.metadata, made.leaves = d.metadata, d.leaves
                result.append(made)
        for d in [*result, *after]:
            if again & self.touches(d)[0]:
                self.read_instead(d, new)
        return [*result, *after]

    def read_instead(self, draft: Draft, new: dict[int, int]) -> None:
        """Lets a kernel read other slots."""
        draft.leaves = {
            token: leaf._replace(slot=new.get(leaf.slot, leaf.slot))
            for token, leaf in draft.leaves.items()
        }
        draft.reads = [(new.get(slot, slot), stores) for slot, stores in draft.reads]
        self.known.pop(draft, None)
        self.touched.pop(draft, None)

    def needless(self, inside: list[Draft], hidden: set[int]) -> set[Draft]:
        """Kernels that access no large hidden temporary and whose results no other member reads."""
        large = {s for s in hidden if self.is_large_temporary(s)}
        found: set[Draft] = set()
        for d in inside:
            reads, writes = self.touches(d)
            if large & reads or large & writes:
                continue
            if not any([writes & self.touches(e)[0] for e in inside if e is not d]):
                found.add(d)
        return found


def chosen_axes(members: list[Member]) -> list[dict[Draft, UOp]]:
    """For each axis of the run the range of each kernel."""
    return [{m.draft: m.axes[axis] for m in members} for axis in sorted(members[0].axes)]


def join_runs(drafts: list[Draft], splitter: Splitter, work: Work) -> list[Draft]:
    """Tiles producers and consumers of large temporaries together, part by part."""
    if not DEPTH_FIRST:
        return drafts
    return Runs(drafts, splitter, work.workers).find()
