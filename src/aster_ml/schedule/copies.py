"""Copies from devices that hold data and compute nothing.

rewrite: COPY(view of x) -> view of COPY(x), x an unbroken run of memory
when: the source's device runs no kernels, and the view is no run itself
why: laying the view out would take a kernel there; here it costs nothing
"""

from __future__ import annotations

from aster_ml.uop.graph import toposort
from aster_ml.uop.movement import slice_of_base
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops

DATA_ONLY = ("DISK", "NPY")
LAID_OUT = MOVEMENT | {Ops.BITCAST}


def copy_before_views(body: UOp) -> UOp:
    """The body with every such copy moved below its views."""
    order = toposort(body)
    if not any(is_odd_copy(u) for u in order):
        return body
    new: dict[UOp, UOp] = {}
    for u in order:
        fresh = u if not u.src else UOp(u.op, u.dtype, tuple([new[s] for s in u.src]), u.arg)
        if is_odd_copy(fresh):
            views, x = [], fresh.src[0]
            while x.op in LAID_OUT and slice_of_base(x) is None:
                views.append(x)
                x = x.src[0]
            copied = UOp(Ops.COPY, x.dtype, (x,), fresh.arg)
            for v in reversed(views):
                copied = UOp(v.op, v.dtype, (copied, *v.src[1:]), v.arg)
            fresh = copied
        new[u] = fresh
    return new[body]


def is_odd_copy(u: UOp) -> bool:
    """Whether `u` copies a broken-up view from a device that cannot lay it out."""
    return (
        u.op is Ops.COPY
        and u.src[0].op in LAID_OUT
        and str(u.src[0].device).startswith(DATA_ONLY)
        and slice_of_base(u.src[0]) is None
    )
