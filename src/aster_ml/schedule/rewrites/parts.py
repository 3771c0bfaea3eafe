"""Gives kernels parts of a file's bytes as memory of their own, from an address on.

Receives a body; returns the views that are such parts. How a step shows them is in `kernelize`.

when: a part is an unbroken run of at most half of a million bytes and more, which nothing in the
body writes to; memory of other elements is one tensor's
why: the weights of a model that lie in one file's bytes are read by as many kernels as there are
shapes, and not by one kernel a weight
"""

from __future__ import annotations

from aster_ml.helpers import prod
from aster_ml.schedule.rewrites.copies import DATA_ONLY
from aster_ml.uop.movement import slice_of_base
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Memory that is taken for a model's, and not for one tensor's.
LARGE_NBYTES = 1 << 20


def parts_of_memory(body: UOp, order: list[UOp]) -> set[UOp]:
    """The runs of large memory that nothing in the body writes to."""
    cut = [u for u in order if u.op is Ops.SHRINK and is_part(u)]
    if not cut:
        return set()
    written = {place_of(u) for u in order if u.op is Ops.STORE}
    found = {u for u in cut if place_of(u) not in written}
    # Of a part of a part the smaller one is shown.
    return {u for u in found if not any([s in found for s in below(u)])}


def is_part(u: UOp) -> bool:
    """Whether a SHRINK shows an unbroken run of at most half of many bytes."""
    base = place_of(u)
    if base.op is not Ops.PARAM or base.dtype.itemsize > 1 or base.arg.size < LARGE_NBYTES:
        return False
    if len(u.src) > 1 or str(base.arg.device).startswith(DATA_ONLY):
        return False
    return slice_of_base(u) is not None and 0 < 2 * prod(u.shape) <= base.arg.size


def place_of(u: UOp) -> UOp:
    """The memory below views and effects."""
    while u.op in (Ops.STORE, Ops.AFTER, Ops.SHRINK, Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP):
        u = u.src[0]
    return u


def below(u: UOp) -> list[UOp]:
    """The views that a view is one of."""
    found = []
    while u.op is not Ops.PARAM:
        u = u.src[0]
        found.append(u)
    return found
