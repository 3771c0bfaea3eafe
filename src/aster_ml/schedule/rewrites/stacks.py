"""Recognises stacks: values of one element each along a short axis, as a sum of PADs.

Receives PADs and their readings; returns the readings of their sources. A kernel unrolls such an
axis (`policy/cpu/heuristic.py`), which selects the element of each step at compile time: the value
below a PAD does not depend on the axis, and one iteration of the axis uses it.
"""

from __future__ import annotations

from aster_ml.helpers import prod
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.movement import NO_MARGINS, Indices, below_padding, both
from aster_ml.uop.node import UOp, index_alu, to_uop
from aster_ml.uop.ops import Ops

ZERO = UOp.index_const(0)


def stacked_axes(u: UOp) -> list[int]:
    """The axes along which a PAD puts its one element into a short row.

    PADs of memory are none: memory is read only where an element is, since a write may follow.
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
    """Counts the elements of a PAD along these axes, which are stacks."""
    return int(prod([u.shape[axis] for axis in axes]))


def read_stack(u: UOp, axes: list[int], idxs: Indices) -> tuple[Indices, UOp | None, UOp | None]:
    """The source index of an element of a PAD, its gate, and the condition of a stack.

    The source need not check the condition of a stack, since its element always exists.
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
