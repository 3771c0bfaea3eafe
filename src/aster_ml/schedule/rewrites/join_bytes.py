"""Rewrites numbers bitcast from bytes to shifts of those bytes.

Receives and returns a body. A BITCAST of a contiguous run of memory stays a view, which is free.

rewrite: BITCAST(b, float16), b uint8 [.., 2n] -> BITCAST(b[.., 0::2] | b[.., 1::2] << 8, float16)
when: the bytes come from memory with gaps, at most four a number
why: a BITCAST to another width needs memory of its own, which costs a kernel that copies a few
bytes; the elementwise form is inlined, and processors load the bytes at once
"""

from __future__ import annotations

from aster_ml.dtype import dtypes
from aster_ml.helpers import all_int, prod
from aster_ml.schedule.work import Work
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.movement import slice_of_base
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops

# Number of bytes -> unsigned integer.
WHOLE = {2: dtypes.uint16, 4: dtypes.uint32}
# Ops that the bytes may come from: memory, or rows that a gather reads.
PICKED_FROM = frozenset({Ops.PARAM, Ops.COPY, Ops.AFTER, Ops.INDEX, Ops.CONTIGUOUS})


def join_bytes(body: UOp, order: list[UOp], work: Work) -> UOp:
    """Assembles numbers from their bytes, a bitcast of a slice of bytes, where they are read."""
    return rebuilt(body, (Ops.BITCAST,), joined, order)


def joined(old: UOp, u: UOp) -> UOp:
    """A BITCAST written with shifts, or the unchanged node."""
    source = old.src[0]
    if u.dtype.itemsize not in WHOLE or source.dtype.itemsize != 1 or not all_int(source.shape):
        return u
    views = views_of(source)
    below = views[-1].src[0] if views else source
    if below.op not in PICKED_FROM or (below.op is not Ops.INDEX and is_run(views, below)):
        return u
    return of_bytes(u.src[0], u.dtype.itemsize).bitcast(u.dtype)


def views_of(source: UOp) -> list[UOp]:
    """The chain of movement nodes at the top of a value, the topmost first."""
    views: list[UOp] = []
    while source.op in MOVEMENT and source.op is not Ops.PAD:
        views.append(source)
        source = source.src[0]
    return views


def is_run(views: list[UOp], below: UOp) -> bool:
    """Whether views of present or future memory show a contiguous run of it."""
    if not all_int(below.shape):
        return True
    shown = UOp.param(0, prod(below.shape), below.dtype)._mop(Ops.RESHAPE, below.shape)
    for view in reversed(views):
        shown = view.replace(src=(shown, *view.src[1:]))
    return slice_of_base(shown) is not None


def of_bytes(source: UOp, count: int) -> UOp:
    """Unsigned integers of `count` bytes each, side by side on the last axis, lowest first.

    Shapes: source [*b, count * n] -> [*b, n].
    """
    whole = WHOLE[count]
    shape = (*source.shape[:-1], source.shape[-1] // count)
    apart = source.bitcast(dtypes.uint8)._mop(Ops.RESHAPE, (*shape, count))
    total: UOp | None = None
    for i in range(count):
        box = (*[(0, size) for size in shape], (i, i + 1))
        byte = apart._mop(Ops.SHRINK, box)._mop(Ops.RESHAPE, shape).cast(whole)
        if i:
            # A shift, and no product, which would not be recognised as packing.
            byte = byte.alu(Ops.SHL, UOp.const(whole, 8 * i))
        total = byte if total is None else total.alu(Ops.OR, byte)
    assert total is not None
    return total
