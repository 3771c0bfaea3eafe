"""Gives kernels parts of a file's bytes as memory of their own, from an address on.

Receives a body; returns the views that are such parts. `kernelize` makes their steps.

when: the part is a contiguous run of at most half of LARGE_NBYTES or more bytes (uint8), which no
step of the body writes to
why: weights of one shape in a model's file then share a kernel, since its index has no offset
"""

from __future__ import annotations

from aster_ml.helpers import prod
from aster_ml.schedule.rewrites.copies import DATA_ONLY
from aster_ml.uop.movement import slice_of_base
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Memory of at least so many bytes is taken for a model's file.
LARGE_NBYTES = 1 << 20


def parts_of_memory(body: UOp, order: list[UOp]) -> set[UOp]:
    """The runs of large memory that nothing in the body writes to."""
    cut = [u for u in order if u.op is Ops.SHRINK and is_part(u)]
    if not cut:
        return set()
    written = {place_of(u) for u in order if u.op is Ops.STORE}
    found = {u for u in cut if place_of(u) not in written}
    # Of nested parts the innermost counts.
    return {u for u in found if not any([s in found for s in below(u)])}


def is_part(u: UOp) -> bool:
    """Whether a SHRINK shows a contiguous run of at most half of a file's bytes."""
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
    """The views below a view."""
    found = []
    while u.op is not Ops.PARAM:
        u = u.src[0]
        found.append(u)
    return found
