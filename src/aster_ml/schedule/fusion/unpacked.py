"""Values that are unpacked from fewer bytes than they have: quantised weights.

Receives a value of a body and what is stored of it; says how many bytes of memory an element is
made of, and by which nodes. Whether such a value is stored is asked in `schedule/fusion/policy.py`.
"""

from __future__ import annotations

from collections.abc import Container

from aster_ml.dtype import dtypes
from aster_ml.helpers import all_int, prod
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, Ops

# What a value is followed through, down to memory.
FOLLOWED = ELEMENTWISE | MOVEMENT | {Ops.INDEX, Ops.DETACH, Ops.CONTIGUOUS_BACKWARD}
MARKS = frozenset({Ops.DETACH, Ops.CONTIGUOUS_BACKWARD})
# Bytes of a value for each byte that it is made of, at least, for memory to be what it costs.
MIN_GROWTH = 2
# Elements for each byte, at most: one a bit. What has more repeats what it is made of.
MAX_ELEMENTS = dtypes.uint8.bits
# Nodes beyond which a value takes longer to make than to load, whatever it is made of.
MAX_NODES = 600


def nodes_of_unpacked(u: UOp, stored: Container[UOp]) -> list[UOp] | None:
    """The nodes that make a value of fields of bytes, at most half of its own; else None.

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
            seen = views_of(x)
            if x.dtype is not dtypes.void:
                # Bytes that a view repeats count once.
                known = [prod(v.shape) for v in seen if all_int(v.shape)]
                packed += min(known, default=1 << 62) * x.dtype.itemsize
            if x.dtype.itemsize == 1:
                fields.append(x.base)
            views += seen[:-1]
        else:
            found.append(x)
    if len(found) > MAX_NODES or all([fields.count(base) < 2 for base in fields]):
        return None
    numel = prod(u.shape)
    grows = packed * MIN_GROWTH <= numel * u.dtype.itemsize
    return found + views if grows and numel <= packed * MAX_ELEMENTS else None


def views_of(u: UOp) -> list[UOp]:
    """The nodes by which a value is shown, and the value, which is last."""
    views = [u]
    while views[-1].op in MOVEMENT or views[-1].op in MARKS:
        views.append(views[-1].src[0])
    return views


def is_view(u: UOp) -> bool:
    """Whether a node shows memory: what is below it is not computed here."""
    return views_of(u)[-1].op in (Ops.PARAM, Ops.BUFFER, Ops.COPY, Ops.AFTER, Ops.CONTIGUOUS)
