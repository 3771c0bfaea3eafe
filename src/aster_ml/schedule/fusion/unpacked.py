"""Recognises values that are unpacked from fewer bytes than they have: quantised weights.

Receives a value of a body and the stored values; returns the nodes that unpack it, and the bytes
that are read. `schedule/fusion/policy.py` decides whether the value is stored.
"""

from __future__ import annotations

from collections.abc import Container

from aster_ml.dtype import dtypes
from aster_ml.helpers import all_int, prod
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, Ops

# Ops between a value and the memory that it is unpacked from.
FOLLOWED = ELEMENTWISE | MOVEMENT | {Ops.INDEX, Ops.DETACH, Ops.CONTIGUOUS_BACKWARD}
MARKS = frozenset({Ops.DETACH, Ops.CONTIGUOUS_BACKWARD})
# Bytes of a value for each byte read, at least, so that memory traffic dominates.
MIN_GROWTH = 2
# Elements for each byte, at most: one a bit. More elements repeat the same bytes.
MAX_ELEMENTS = dtypes.uint8.bits
# With more nodes a value takes longer to compute than to load.
MAX_NODES = 600


def nodes_of_unpacked(u: UOp, stored: Container[UOp]) -> list[UOp] | None:
    """The nodes that unpack a value from bit fields of at most half as many bytes; else None.

    Fields are several views of the same bytes.
    """
    if u.dtype.kind != "float" or not all_int(u.shape):
        return None
    found: list[UOp] = []
    packed = 0
    fields: list[UOp] = []
    views: list[UOp] = []

    def enter(x: UOp) -> bool:
        return len(found) <= MAX_NODES and x.op in FOLLOWED and x not in stored and not is_view(x)

    for x in toposort(u, enter=enter):
        if is_view(x) or x in stored or (x.src and x.op not in FOLLOWED):
            if x.dtype is not dtypes.void:
                packed += nbytes_read(x)
            if x.dtype.itemsize == 1:
                fields.append(x.base)
            views += views_of(x)
        else:
            found.append(x)
    if len(found) > MAX_NODES or all([fields.count(base) < 2 for base in fields]):
        return None
    numel = prod(u.shape)
    grows = packed * MIN_GROWTH <= numel * u.dtype.itemsize
    return found + views if grows and numel <= packed * MAX_ELEMENTS else None


def views_of(u: UOp) -> list[UOp]:
    """The movement nodes between a value and its memory."""
    views = []
    while u.op in MOVEMENT:
        views.append(u)
        u = u.src[0]
    return views


def is_view(u: UOp) -> bool:
    """Whether a node is a view of memory, below which nothing is computed."""
    while u.op in MOVEMENT or u.op in MARKS:
        u = u.src[0]
    return u.op in (Ops.PARAM, Ops.BUFFER, Ops.COPY, Ops.AFTER, Ops.CONTIGUOUS)


def nbytes_read(u: UOp) -> int:
    """Counts the distinct bytes of memory that a view shows."""
    least = None
    while True:
        if all_int(u.shape):
            numel = prod(u.shape)
            least = numel if least is None else min(least, numel)
        if u.op not in MOVEMENT and u.op not in MARKS:
            break
        u = u.src[0]
    return (1 << 62) if least is None else least * u.dtype.itemsize
