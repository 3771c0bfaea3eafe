"""Recognises stacks: values of one element each along a short axis, as a sum of PADs.

Receives PADs and how they are read; says how what is below them is read. A kernel writes such an
axis out (`policy/cpu/heuristic.py`), so that what stands at a place is chosen while it is made:
below a PAD the value is computed for all places alike, and of all turns of the axis one counts.
"""

from __future__ import annotations

from aster_ml.helpers import prod
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.movement import NO_MARGINS, Indices, below_padding, both
from aster_ml.uop.node import UOp, index_alu, to_uop
from aster_ml.uop.ops import Ops

ZERO = UOp.index_const(0)


def stacked_axes(u: UOp) -> list[int]:
    """The axes along which a PAD puts its one element into a row that is short enough.

    Memory is read where an element is and nowhere else: it may be about to be written.
    """
    if u.src[0].base.op in (Ops.PARAM, Ops.BUFFER, Ops.AFTER):
        return []
    return [
        axis
        for axis, ((before, after), size) in enumerate(zip(u.marg, u.src[0].shape, strict=True))
        if isinstance(size, int)
        and size == 1
        and isinstance(before, int)
        and isinstance(after, int)
        and 1 < before + after + 1 <= ASSUMED.written_out
    ]


def stacked_size(u: UOp, axes: list[int]) -> int:
    """Counts the elements of the rows of a PAD along these axes, which are stacks."""
    return int(prod([u.shape[axis] for axis in axes]))


def read_stack(u: UOp, axes: list[int], idxs: Indices) -> tuple[Indices, UOp | None, UOp | None]:
    """Where an element of a PAD comes from; when there is one; and when it is the one of a stack.

    The last does not concern what is below: there an element is, whether it is wanted or not.
    """
    inner: list[UOp] = []
    valid: UOp | None = None
    chosen: UOp | None = None
    for axis, (margins, size, i) in enumerate(zip(u.marg, u.src[0].shape, idxs, strict=True)):
        if axis in axes:
            inner.append(ZERO)
            chosen = both(chosen, index_alu(Ops.CMPEQ, i, to_uop(margins[0])))
        elif margins == NO_MARGINS:
            inner.append(i)
        else:
            place, there = below_padding(margins, size, i)
            inner.append(place)
            valid = both(valid, there)
    return tuple(inner), valid, chosen
