"""Joins kernels with several results that compute the same inner values.

Receives drafts in execution order; returns equivalent drafts in execution order. A row of
`kernel_library` (`Kept.together`) says which stored values are computed together. A part with fewer
loops is stored in each iteration of the other loops; codegen, which knows the layout of a warp,
stores it once.
"""

from __future__ import annotations

from aster_ml.schedule.kernels.horizontal_fusion import join_leaves
from aster_ml.schedule.kernels.kernelize import Splitter
from aster_ml.schedule.steps import Draft, Part
from aster_ml.schedule.work import Work
from aster_ml.uop.graph import substitute_all
from aster_ml.uop.node import UOp


def join_results(drafts: list[Draft], splitter: Splitter, work: Work) -> list[Draft]:
    """Makes one kernel of stored values that are computed together."""
    for node, other in splitter.planner.together:
        slots = splitter.slot_of.get(node), splitter.slot_of.get(other)
        at = [
            next((i for i, d in enumerate(drafts) if slot in {p.slot for p in d.parts}), None)
            for slot in slots
        ]
        if None not in at and at[0] != at[1]:
            drafts = joined(drafts, at[0], at[1], splitter)  # type: ignore[arg-type]
    return drafts


def joined(drafts: list[Draft], more: int, main: int, splitter: Splitter) -> list[Draft]:
    """The drafts with the parts of one added to another; unchanged if a step between conflicts."""
    first, last = sorted((more, main))
    a, b = drafts[first], drafts[last]
    between = drafts[first + 1 : last]
    written = {s for d in between for s in d.written_slots}
    read = {s for d in between for s in d.read_slots}
    # The later one may move up, or the earlier one down.
    up = not b.read_slots & (written | a.written_slots) and not b.written_slots & (written | read)
    down = not a.written_slots & (written | read | b.read_slots) and not a.read_slots & written
    if not (up or down) or not add_parts(drafts[main], drafts[more], splitter):
        return drafts
    rest = [*drafts]
    rest[first if up else last] = drafts[main]
    del rest[last if up else first]
    return rest


def add_parts(draft: Draft, more: Draft, splitter: Splitter) -> bool:
    """Adds the parts of a draft over the first loops of another, or over all of them."""
    sizes = [r.src[0] for r in draft.ranges]
    if [r.src[0] for r in more.ranges] != sizes[: len(more.ranges)]:
        return False
    ranges: dict[UOp, UOp] = dict(zip(more.ranges, draft.ranges, strict=False))
    mine = {*draft.ranges, *(splitter.walk(draft.exprs).sums or ())}
    for r in splitter.walk(more.exprs).sums or ():
        if r in mine:
            ranges[r] = UOp.range(r.src[0], next(splitter.planner.ids), r.arg.kind)
    renamed = join_leaves(draft.leaves, more.leaves)
    exprs = substitute_all(more.exprs, {**ranges, **renamed})
    parts = more.parts
    draft.parts = [
        *draft.parts,
        *[Part(p.slot, exprs[2 * i], exprs[2 * i + 1]) for i, p in enumerate(parts)],
    ]
    draft.reads = list(dict.fromkeys([*draft.reads, *more.reads]))
    return True
