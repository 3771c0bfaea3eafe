"""Sizes the parts of a tiled run of kernels, and rewrites each kernel for one part.

Receives kernels with common outer axes (`schedule/kernels/kernel_tiling.py` chooses them); returns
one draft whose step is all of them, and drafts that finish sums over parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from aster_ml.config import DEPTH_FIRST
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, divisors, prod, round_up
from aster_ml.schedule.fusion.uses import next_leaf
from aster_ml.schedule.hazards import NOTHING
from aster_ml.schedule.kernels.kernelize import Splitter
from aster_ml.schedule.steps import Draft, Leaf, Part, Read, Slot, Step
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import Ops, RunArg, VarArg
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.conditions import conditions_of
from aster_ml.uop.rules.linear_form import Form, form_of

# With fewer rows a matrix product degenerates to vector products, and columns use few elements of
# each cache line, so scratch may exceed its limit to have as many.
MIN_ROWS = 64
# With a smaller share of busy threads, separate kernels on all threads are faster.
MIN_SHARE = 0.5


# Globals are faster to look up than members of an Enum, and every node is tested for its op.
IDIV, MOD, RANGE = Ops.IDIV, Ops.MOD, Ops.RANGE


class Limit(NamedTuple):
    """Bounds of a sum of ranges, given as range -> coefficient."""

    terms: dict[UOp, int]
    least: int
    most: int

    @property
    def first(self) -> UOp:
        """One of the ranges."""
        return next(iter(self.terms))


@dataclass(eq=False)
class Run:
    """Kernels with their range for each axis, the temporaries that only they use, other drafts."""

    axes: list[dict[Draft, UOp]]
    inside: list[Draft]
    hidden: set[int]
    before: list[Draft]
    after: list[Draft]
    # Threads among which it is divided.
    workers: int
    # Temporaries that are rematerialized after the run.
    again: set[int] = field(default_factory=set)
    # Whether ranges of its kernels were split for the run.
    split: bool = False
    # Rows of the innermost axis in a part; slots that are scratch, with the bytes of a part.
    rows: int = 0
    scratch: dict[int, int] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Sizes of the axes."""
        return [int(next(iter(ranges.values())).src[0].arg) for ranges in self.axes]

    def summed(self, draft: Draft) -> list[int]:
        """The axes that a kernel sums over."""
        return [i for i, ranges in enumerate(self.axes) if ranges[draft] not in draft.ranges]

    @property
    def shared(self) -> int:
        """Number of outer axes that can be divided among threads, as no kernel sums over them."""
        return min([i for d in self.inside for i in self.summed(d)], default=len(self.axes))


def is_small(nbytes: int) -> bool:
    """Whether a part of so many bytes is small enough."""
    return 4 * nbytes <= 3 * ASSUMED.part_nbytes


def choose_rows(size: int, row_nbytes: int, exact: bool, least: int) -> int:
    """Rows of a part, at least `least`; with `exact` they divide the size. 0 where nothing fits."""
    wanted = max(ASSUMED.part_nbytes // row_nbytes, least)
    if wanted >= size:
        return size
    fitting = [d for d in divisors(size) if d <= wanted]
    if 2 * fitting[-1] < wanted:
        # The last part may overlap the one before, except in sums, which would add rows twice.
        if not exact:
            return int(min(round_up(-(-size // -(-size // wanted)), 8), size))
        larger = [d for d in divisors(size) if d > wanted]
        if fitting[-1] < least // 4:
            return larger[0] if larger[0] * row_nbytes <= ASSUMED.most_part_nbytes else 0
    return fitting[-1]


def coefficients(form: Form, axes: dict[int, UOp]) -> dict[int, int]:
    """The coefficient of each axis in an index."""
    return {axis: form.terms.get(r, 0) for axis, r in axes.items()}


def is_outermost(form: Form, axes: dict[int, UOp], limits: Sequence[Limit] = ()) -> bool:
    """Whether indices that differ in these axes are always different elements.

    `limits` bound the indices that count.
    """
    chosen = set(axes.values())
    inner = {t: a for t, a in form.terms.items() if t not in chosen}
    low = high = form.const
    for limit in limits:
        times = inner.get(limit.first, 0) // limit.terms[limit.first]
        if times > 0 and all([inner.get(t) == times * a for t, a in limit.terms.items()]):
            for t in limit.terms:
                del inner[t]
            low, high = low + times * limit.least, high + times * limit.most
    for t, a in inner.items():
        below, above = sorted((a * t.bounds[0], a * t.bounds[1]))
        low, high = low + below, high + above
    if low < 0:
        return False
    for r in sorted(chosen, key=lambda r: form.terms.get(r, 0)):
        step = form.terms.get(r, 0)
        if high >= step:
            return False
        high += step * (size_of(r) - 1)
    return True


def limits_of(gate: UOp) -> list[Limit]:
    """The bounds of sums of ranges that a gate implies."""
    found: dict[tuple[tuple[UOp, int], ...], tuple[int, int]] = {}
    for u in conditions_of(gate):
        if u.op is not Ops.CMPLT or u.src[0].dtype is not dtypes.index:
            continue
        # low < high, as 0 < high - low.
        form = form_of(index_alu(Ops.SUB, u.src[1], u.src[0]))
        positive = next(iter(form.terms.values()), 0) > 0
        sign = 1 if positive else -1
        terms = tuple([(t, sign * a) for t, a in form.terms.items()])
        if not terms or any([t.op is not RANGE for t, _ in terms]):
            continue
        if terms not in found:
            ends = [sorted((a * t.bounds[0], a * t.bounds[1])) for t, a in terms]
            found[terms] = sum([e[0] for e in ends]), sum([e[1] for e in ends])
        least, most = found[terms]
        if positive:
            found[terms] = max(least, 1 - form.const), most
        else:
            found[terms] = least, min(most, form.const - 1)
    return [Limit(dict(terms), *ends) for terms, ends in found.items()]


def fits(run: Run, splitter: Splitter, facts: Callable[[Draft], Any]) -> bool:
    """Chooses the rows and scratch of the run; returns whether it is legal and pays."""
    last = len(run.axes) - 1
    for d in run.inside:
        axes = {axis: ranges[d] for axis, ranges in enumerate(run.axes)}
        for slot, form in facts(d).places.items():
            steps = [*coefficients(form, axes).values()]
            # The axes are outermost in memory, in order: a part is contiguous.
            descending = all([a > b for a, b in pairwise([*steps, 0])])
            if slot in run.hidden and descending and is_outermost(form, axes):
                run.scratch[slot] = steps[last] * splitter.slots[slot].dtype.itemsize
    row_nbytes = sum(run.scratch.values())
    if not run.scratch:
        return False
    sums = run.shared < len(run.axes)
    run.rows = choose_rows(run.sizes[last], row_nbytes, sums, least_rows(run, facts))
    if not run.rows or run.rows * row_nbytes > ASSUMED.most_part_nbytes:
        return False
    if run.rows == run.sizes[last] and prod(run.sizes[:last]) == 1:
        return False
    run.scratch = {s: run.rows * n for s, n in run.scratch.items()}
    return DEPTH_FIRST >= 2 or (share(run) > MIN_SHARE and is_worth_tiling(run, splitter, facts))


def share(run: Run) -> float:
    """Share of the threads that are busy; an axis that a kernel sums over has one thread."""
    counts = [*run.sizes[:-1], ceildiv(run.sizes[-1], run.rows)]
    parts: int = prod(counts[: run.shared])
    return parts / int(round_up(parts, run.workers))


def least_rows(run: Run, facts: Callable[[Draft], Any]) -> int:
    """Minimum rows of a part, even if they need more scratch; 1 for most runs."""
    loads = [(d, form) for d in run.inside for forms in facts(d).loads.values() for form in forms]
    if any([form.terms.get(run.axes[-1][d]) == 1 for d, form in loads]):
        return MIN_ROWS
    return max([-(-MIN_ROWS // other_rows(run, d, facts)) for d in run.inside])


def other_rows(run: Run, draft: Draft, facts: Callable[[Draft], Any]) -> int:
    """Rows of a product within one step of the run's axes, or terms if it sums over these axes.

    Rows are the axes of the kernel that one of its loads depends on and not all loads do.
    """
    sums = [u for p in draft.parts for u in toposort(p.value) if u.op is Ops.REDUCE]
    if not sums:
        return MIN_ROWS
    axes = {ranges[draft] for ranges in run.axes}
    if run.axes[-1][draft] not in draft.ranges:
        terms: int = max([prod([size_of(r) for r in u.src[1:] if r not in axes]) for u in sums])
        return terms
    forms = [form for forms in facts(draft).loads.values() for form in forms]
    loaded = [{r for r in draft.ranges if r in form.terms} for form in forms]
    shared = set[UOp].intersection(*loaded) if loaded else set[UOp]()
    mine = [found - shared - axes for found in loaded if run.axes[-1][draft] in found]
    rows: int = max([prod([size_of(r) for r in found]) for found in mine], default=1)
    return rows


def is_worth_tiling(run: Run, splitter: Splitter, facts: Callable[[Draft], Any]) -> bool:
    """Whether most of the accessed memory becomes scratch, and little is read repeatedly."""

    def nbytes(slot: int) -> int:
        s = splitter.slots[slot]
        return int(s.size * s.dtype.itemsize)

    touched = {s for d in run.inside for s in d.read_slots | d.written_slots}
    spared = sum([nbytes(s) for s in run.scratch])
    if 2 * spared < 3 * sum([nbytes(s) for s in touched if s not in run.scratch]):
        return False
    # Loads that do not depend on the innermost axis are repeated for each part of it.
    last = len(run.axes) - 1
    again = 0
    for d in run.inside:
        for slot, forms in facts(d).loads.items():
            if slot not in run.scratch and not any([run.axes[last][d] in f.terms for f in forms]):
                outer = [r[d] for r in run.axes[:last] if any([r[d] in f.terms for f in forms])]
                again += nbytes(slot) // prod([int(r.src[0].arg) for r in outer])
    return again <= 2 * sum(run.scratch.values()) or run.rows == run.sizes[last]


def share_scratch(
    kernels: Sequence[Sequence[int]], scratch: dict[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """Allocates scratch slots: slot -> the slot whose memory it shares, and the bytes of those.

    `kernels` has the slots of each kernel, in execution order; `scratch` the bytes of a part. Slots
    share memory if their lifetimes do not overlap.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, slots in enumerate(kernels):
        for s in slots:
            first.setdefault(s, i)
            last[s] = i
    place: dict[int, int] = {}
    nbytes: dict[int, int] = {}
    # Slot in use -> the last kernel that accesses it.
    busy: dict[int, int] = {}
    for s in sorted(scratch, key=lambda s: (first[s], -scratch[s])):
        wanted = int(round_up(scratch[s], 64))
        free = [t for t, stop in busy.items() if stop < first[s]]
        # The smallest free slot that is large enough, else the largest, which grows.
        found = min(free, key=lambda t: (nbytes[t] < wanted, abs(nbytes[t] - wanted)), default=s)
        place[s] = found
        nbytes[found] = max(nbytes.get(found, 0), wanted)
        busy[found] = last[s]
    return place, nbytes


class Builder:
    """Builds the draft of one run."""

    def __init__(self, run: Run, splitter: Splitter) -> None:
        self.run = run
        self.splitter = splitter
        self.completed: list[Draft] = []
        last = len(run.axes) - 1
        self.parts = [run.rows if i == last else 1 for i in range(len(run.axes))]
        self.starts = [
            UOp(Ops.DEFINE_VAR, dtypes.index, (), VarArg(f"part{i}", 0, size - part))
            for i, (size, part) in enumerate(zip(run.sizes, self.parts))
        ]

    def build(self) -> tuple[Draft, list[Draft]]:
        """The run as one draft, and drafts that have to follow."""
        run, splitter = self.run, self.splitter
        drafts = [self.with_sums_apart(d) for d in run.inside]
        kernels = [self.part_of(d) for d in drafts]
        place, nbytes = share_scratch([k.slots for k in kernels], run.scratch)
        used = [[place.get(s, s) for s in k.slots] for k in kernels]
        slots = list(dict.fromkeys([s for k in used for s in k]))
        # Written slots come first, as in any kernel.
        written = {place.get(s, s) for d in drafts for s in d.written_slots}
        slots.sort(key=lambda s: (s not in written, s in nbytes))
        number = {s: i for i, s in enumerate(slots)}
        axes = tuple(
            [(v.arg.name, n, p) for v, n, p in zip(self.starts, run.sizes, self.parts, strict=True)]
        )
        scratch = tuple([nbytes.get(s, 0) for s in slots])
        arg = RunArg(
            axes, run.shared, 1, tuple([tuple([number[s] for s in k]) for k in used]), scratch
        )
        lanes = min(run.workers, max(ASSUMED.lanes_nbytes // sum(scratch), 1), arg.shared_parts)
        arg = arg._replace(lanes=lanes)
        for s, n in nbytes.items():
            slot = splitter.slots[s]
            splitter.slots[s] = slot._replace(size=arg.lanes * n // slot.dtype.itemsize)
        ast = UOp(Ops.SINK, dtypes.void, tuple([k.ast for k in kernels if k.ast is not None]), arg)
        metadata = dict.fromkeys([m for d in run.inside for m in d.metadata])
        step = Step(
            "kernel", tuple(slots), ast, run.inside[0].step.device, metadata=tuple(metadata)
        )
        reads: dict[Read, None] = dict.fromkeys([r for d in run.inside for r in d.reads])
        reads.update(dict.fromkeys([(s, NOTHING) for s in slots]))
        made = RunDraft(step, list(reads), alone=True, made=frozenset(written & set(slots)))
        return made, self.completed

    def with_sums_apart(self, draft: Draft) -> Draft:
        """Splits a kernel that sums over parts: it adds to memory, and its epilogue runs later."""
        summed = self.run.summed(draft)
        if not summed:
            return draft
        (part,) = draft.parts
        ranges = {self.run.axes[i][draft] for i in summed}
        (total,) = [
            u for u in toposort(part.value) if u.op is Ops.REDUCE and not ranges.isdisjoint(u.src)
        ]
        slot = part.slot
        if part.value is total:
            leaves, leaf = with_leaf(draft, self.splitter, slot)
        else:
            old = self.splitter.slots[slot]
            why = "a sum over the parts of a run"
            self.splitter.slots.append(Slot(old.size, total.dtype, old.device, why))
            slot = len(self.splitter.slots) - 1
            leaves, leaf = with_leaf(draft, self.splitter, slot)
            value = substitute_all([part.value], {total: leaf.index(part.place).load()})
            reads = [r for r in draft.reads if r[0] in slots_of(leaves, value[0])]
            after = Draft(draft.step, [*reads, (slot, NOTHING)], draft.writes, draft.store)
            after.target_after, after.ranges = draft.target_after, draft.ranges
            after.parts, after.kept = [Part(part.slot, part.place, value[0])], draft.kept
            after.leaves = leaves
            self.completed.append(after)
        before = leaf.index(part.place).load()
        first = index_alu(Ops.CMPLT, self.starts[summed[0]], UOp.index_const(1))
        for i in summed[1:]:
            other = index_alu(Ops.CMPLT, self.starts[i], UOp.index_const(1))
            first = first.alu(Ops.AND, other)
        before = first.where(total.const_like(0), before)
        changed = Draft(
            draft.step,
            draft.reads,
            slot,
            None,
            parts=[Part(slot, part.place, before.alu(Ops.ADD, total))],
        )
        changed.ranges, changed.metadata = draft.ranges, draft.metadata
        changed.leaves = leaves
        for ranges_ in self.run.axes:
            ranges_[changed] = ranges_[draft]
        return changed

    def part_of(self, draft: Draft) -> Step:
        """The kernel for one part."""
        splitter, run = self.splitter, self.run
        near: dict[UOp, UOp] = {}
        far: dict[UOp, UOp] = {}
        for ranges, start, size in zip(run.axes, self.starts, self.parts, strict=True):
            r = ranges[draft]
            part = UOp.index_const(0)
            if size > 1:
                part = UOp.range(size, next(splitter.planner.ids), r.arg.kind)
            near[r] = part
            whole = size == int(r.src[0].arg)
            far[r] = part if whole else index_alu(Ops.ADD, start, part)
        simple = splitter.planner.simple
        reads = splitter.walk(draft.exprs).reads
        scratch = [u for u in reads if draft.leaves[u.src[0]].slot in run.scratch]
        places = [p.place for p in draft.parts]
        found = iter(substitute_all([*[u.src[1] for u in scratch], *places], near))
        new = dict(far)
        new.update({u: u.replace(src=(u.src[0], simple(next(found)))) for u in scratch})
        sums = {r: near[r] for r in near if r not in draft.ranges}
        values = rebuilt([x for p in draft.parts for x in (p.value, p.place)], new, simple, sums)
        parts = []
        for i, p in enumerate(draft.parts):
            place, whole_place = simple(next(found)), simple(values[2 * i + 1])
            place = place if p.slot in run.scratch else whole_place
            parts.append(Part(p.slot, place, values[2 * i]))
        ranges_ = tuple([x for r in draft.ranges if (x := near.get(r, r)).op is Ops.RANGE])
        sizes = {s: n // splitter.slots[s].dtype.itemsize for s, n in run.scratch.items()}
        made = Draft(draft.step, parts=parts, ranges=ranges_, leaves=draft.leaves)
        return splitter.close(made, sizes)


@dataclass(eq=False)
class RunDraft(Draft):
    """The draft of a run: it writes several slots."""

    made: frozenset[int] = frozenset()

    @property
    def written_slots(self) -> set[int]:
        """The slots that it writes."""
        return set(self.made)


def rebuilt(
    roots: list[UOp], changes: dict[UOp, UOp], simple: Callable[[UOp], UOp], sums: dict[UOp, UOp]
) -> list[UOp]:
    """Expressions with nodes replaced by `changes`, and simplified indices.

    `sums` maps ranges of a reduction to their replacements, of which there may be none.
    """
    new = dict(changes)
    for u in toposort(*roots):
        if u in new:
            continue
        if u.op is Ops.REDUCE:
            over = [x for r in u.src[1:] for x in toposort(sums.get(r, r)) if x.op is Ops.RANGE]
            value = new[u.src[0]]
            new[u] = UOp(u.op, u.dtype, (value, *over), u.arg) if over else value
            continue
        src = tuple([new[s] for s in u.src])
        if u.dtype is not dtypes.index:
            src = tuple([simple(s) if s.dtype is dtypes.index else s for s in src])
        new[u] = u if src == u.src else UOp(u.op, u.dtype, src, u.arg)
    return [new[root] for root in roots]


def split_divided(draft: Draft, splitter: Splitter) -> None:
    """Splits ranges that indices divide by constants, so that the indices become sums."""
    numbers: dict[UOp, set[int]] = {}
    for u in splitter.walk(draft.exprs).order:
        op = u.op
        if (op is IDIV or op is MOD) and u.src[0].op is RANGE and u.src[1].op is Ops.CONST:
            numbers.setdefault(u.src[0], set()).add(u.src[1].arg)
    steps: dict[UOp, list[int]] = {}
    for r, divisors_ in numbers.items():
        size = r.src[0]
        if size.op is not Ops.CONST:
            continue
        chain = sorted({1, size.arg, *divisors_})
        if len(chain) > 2 and chain[0] == 1 and all([b % a == 0 for a, b in pairwise(chain)]):
            steps[r] = chain
    if steps:
        split_ranges(draft, splitter, steps)


def split_ranges(draft: Draft, splitter: Splitter, steps: dict[UOp, list[int]]) -> None:
    """Splits ranges into several.

    `steps` has the strides of the parts of a range, from 1 for the innermost up to the size of the
    range; each divides the next.
    """
    planner = splitter.planner
    whole: dict[UOp, UOp] = {}
    digits: dict[UOp, list[UOp]] = {}
    for r, chain in steps.items():
        made = [UOp.range(b // a, next(planner.ids), r.arg.kind) for a, b in pairwise(chain)]
        digits[r] = made[::-1]
        whole[r] = sum_of(made, chain)
    changes = dict(whole)
    for u in splitter.walk(draft.exprs).order:
        if (u.op is IDIV or u.op is MOD) and u.src[0] in steps and u.src[1].op is Ops.CONST:
            chain, made = steps[u.src[0]], digits[u.src[0]][::-1]
            if u.src[1].arg in chain:
                at = chain.index(u.src[1].arg)
                above = [step // chain[at] for step in chain[at:]]
                changes[u] = sum_of(made[:at], chain) if u.op is MOD else sum_of(made[at:], above)
    exprs = [
        planner.simple(u) if u.dtype is dtypes.index else u
        for u in rebuilt([*draft.exprs], changes, planner.simple, whole)
    ]
    draft.parts = [
        p._replace(place=exprs[2 * i], value=exprs[2 * i + 1]) for i, p in enumerate(draft.parts)
    ]
    # Neighbours in memory stay innermost.
    draft.ranges = tuple([x for r in draft.ranges for x in digits.get(r, (r,))])


def sum_of(digits: list[UOp], chain: list[int]) -> UOp:
    """The index with these digits, the lowest first; `chain` has the weight of each digit."""
    total = digits[0]
    for digit, step in zip(digits[1:], chain[1:]):
        total = index_alu(Ops.ADD, index_alu(Ops.MUL, digit, UOp.index_const(step)), total)
    return total


def with_leaf(draft: Draft, splitter: Splitter, slot: int) -> tuple[dict[UOp, Leaf], UOp]:
    """The leaves of a draft with a new one for a slot; and the new leaf."""
    s = splitter.slots[slot]
    leaf = next_leaf(draft.leaves, s.size, s.dtype)
    return {**draft.leaves, leaf: Leaf(slot, leaf)}, leaf


def slots_of(leaves: dict[UOp, Leaf], value: UOp) -> set[int]:
    """The slots that an expression loads from."""
    return {leaves[u.src[0]].slot for u in toposort(value) if u.op is Ops.INDEX}


def build_run(run: Run, splitter: Splitter) -> tuple[Draft, list[Draft]]:
    """The run as one draft, and drafts that finish its sums."""
    return Builder(run, splitter).build()
