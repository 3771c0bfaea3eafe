"""Moves SHRINK below REDUCE, so that only the wanted sums are computed.

rewrite: SHRINK(REDUCE(x, axes), part) -> REDUCE(SHRINK(x, part), axes), also through a CAST, or a
RESHAPE that drops axes of one element
when: nothing else reads the result of the reduction
why: a reduction with several readers is stored, with elements that all readers cut off, such as the
padding of a convolution in its gradient
"""

from __future__ import annotations

from collections import Counter

from aster_ml.helpers import all_int
from aster_ml.schedule.work import Work
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

Part = tuple[tuple[int, int], ...]
BETWEEN = frozenset({Ops.CAST, Ops.RESHAPE})


def crop_before_reducing(body: UOp, order: list[UOp], work: Work) -> UOp:
    """Replaces a slice of a reduction by a reduction of a slice."""
    sums = {u: below for u in order if u.op is Ops.SHRINK and (below := way_to_sum(u))}
    if not sums:
        return body
    reads = Counter([s for u in order for s in u.src])

    def move(old: UOp, u: UOp) -> UOp:
        alone = old in sums and all([reads[x] == 1 for x in sums[old]])
        return cropped(u.src[0], u.marg) if alone else u

    return rebuilt(body, (Ops.SHRINK,), move, order)


def way_to_sum(u: UOp) -> list[UOp]:
    """The nodes between a SHRINK and the REDUCE below it; empty if there is no REDUCE."""
    found = []
    while True:
        u = u.src[0]
        found.append(u)
        if not all_int((*u.shape, *(u.src[0].shape if u.src else ()))):
            return []
        if u.op is Ops.REDUCE:
            return found
        if u.op not in BETWEEN or (u.op is Ops.RESHAPE and not drops_unit_axes(u)):
            return []


def drops_unit_axes(u: UOp) -> bool:
    """Whether a RESHAPE only drops axes of one element."""
    return [s for s in u.shape if s != 1] == [s for s in u.src[0].shape if s != 1]


def cropped(u: UOp, part: Part) -> UOp:
    """This part of a node, sliced below its sum."""
    # Nodes above the sum, the outermost first, with the wanted part of each.
    above: list[tuple[UOp, Part]] = []
    while u.op is not Ops.REDUCE:
        above.append((u, part))
        if u.op is Ops.RESHAPE:
            longer = iter([p for p, s in zip(part, u.shape) if s != 1])
            part = tuple([(0, 1) if s == 1 else next(longer) for s in u.src[0].shape])
        u = u.src[0]
    x, axes = u.src[0], u.arg.axes
    whole = tuple([(0, n) if i in axes else part[i] for i, n in enumerate(x.shape)])
    found = UOp(Ops.REDUCE, u.dtype, (x._mop(Ops.SHRINK, whole),), u.arg)
    for u, part in reversed(above):
        if u.op is Ops.CAST:
            found = UOp(Ops.CAST, u.dtype, (found,), u.arg)
        else:
            found = found._mop(Ops.RESHAPE, tuple([stop - start for start, stop in part]))
    return found
