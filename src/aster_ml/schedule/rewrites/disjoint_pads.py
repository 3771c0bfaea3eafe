"""Rewrites sums of disjoint PADs (concatenations) to selections of one part.

Receives the nodes of a body; returns for each such ADD the source to select and the boxes in which
it is selected. `cat` and gradients of slices are built as such sums, which gradients and constant
folding understand.

why: a + 0 is a but for -0.0, and 0 * inf of one part must not reach the next
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from aster_ml.dtype import dtypes
from aster_ml.helpers import all_int
from aster_ml.ops.sizes import same_size, size_between, size_sum
from aster_ml.uop.movement import Indices, both
from aster_ml.uop.node import UOp, index_alu, to_uop
from aster_ml.uop.ops import Ops

# (start, stop) for each axis.
Box = tuple[tuple[Any, Any], ...]
TRUE = UOp.const(dtypes.bool, True)


class Join(NamedTuple):
    """Source `chosen` of an ADD is the value inside of `boxes`, the other source outside."""

    chosen: int
    boxes: tuple[Box, ...]


def find_joins(order: Iterable[UOp]) -> dict[UOp, Join]:
    """The ADDs both of whose sources are padding wherever the other is not."""
    joins: dict[UOp, Join] = {}
    inside: dict[UOp, tuple[Box, ...]] = {}
    for u in order:
        if u.op is Ops.PAD:
            inside[u] = (box_of(u),)
        elif u.op is Ops.ADD and u.src[0] in inside and u.src[1] in inside:
            first, second = inside[u.src[0]], inside[u.src[1]]
            if all(are_apart(a, b) for a in first for b in second):
                chosen = 0 if len(first) <= len(second) else 1
                joins[u] = Join(chosen, (first, second)[chosen])
                inside[u] = merged([*first, *second])
    return joins


def box_of(pad: UOp) -> Box:
    """The box in which a PAD has elements of its source."""
    sizes = zip(pad.marg, pad.src[0].shape, strict=True)
    if len(pad.src) == 1 and all_int(pad.src[0].shape):
        return tuple([(before, before + size) for (before, _), size in sizes])
    return tuple([(before, size_sum(before, size)) for (before, _), size in sizes])


def are_apart(a: Box, b: Box) -> bool:
    """Whether two boxes are disjoint on some axis for all values of variables."""
    for p, q in zip(a, b, strict=True):
        if ends_before(p, q) or ends_before(q, p):
            return True
    return False


def ends_before(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Whether an interval ends at or before the start of another."""
    stop, start = one[1], other[0]
    if stop.__class__ is start.__class__ is int:
        return bool(stop <= start)
    gap = size_between(stop, start)
    return bool((gap if isinstance(gap, int) else gap.vmin) >= 0)


def merged(boxes: list[Box]) -> tuple[Box, ...]:
    """The boxes, with adjacent ones merged."""
    result = boxes[:1]
    for box in boxes[1:]:
        behind = continued(result[-1], box)
        if behind is not None:
            result[-1] = behind
            continue
        ahead = continued(box, result[0])
        if ahead is not None:
            result[0] = ahead
        else:
            result.append(box)
    return tuple(result)


def continued(box: Box, other: Box) -> Box | None:
    """The union of two boxes that are adjacent along one axis; else None."""
    differ = [i for i, (p, q) in enumerate(zip(box, other, strict=True)) if p != q]
    if len(differ) != 1 or not same_size(box[differ[0]][1], other[differ[0]][0]):
        return None
    i = differ[0]
    return (*box[:i], (box[i][0], other[i][1]), *box[i + 1 :])


def chosen_by(join: Join, inside: UOp) -> int | None:
    """The source of an ADD that is selected everywhere; None where that depends on the element.

    `inside` is the simplified condition of the boxes.
    """
    if inside.op is not Ops.CONST:
        return None
    return join.chosen if inside.arg else 1 - join.chosen


def is_inside(boxes: tuple[Box, ...], idxs: Indices, shape: tuple[Any, ...]) -> UOp:
    """The condition that an element is in one of the boxes."""
    found: UOp | None = None
    for box in boxes:
        valid: UOp | None = None
        for (start, stop), i, size in zip(box, idxs, shape, strict=True):
            if not (isinstance(start, int) and start == 0):
                above = index_alu(Ops.CMPLT, to_uop(size_sum(start, -1)), i)
                valid = both(valid, above)
            if stop is not size and not stop == size:
                valid = both(valid, index_alu(Ops.CMPLT, i, to_uop(stop)))
        valid = TRUE if valid is None else valid
        found = valid if found is None else found.alu(Ops.OR, valid)
    return TRUE if found is None else found
