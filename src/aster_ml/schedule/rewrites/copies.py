"""Moves copies from storage devices (DISK, NPY) before views of their data.

rewrite: COPY(f(x)) -> f(COPY(x)), x a contiguous run of memory
when: the source's device runs no kernels, and the value is not a contiguous run itself
why: to materialize a view or a cast takes a kernel, which only the target device can run
"""

from __future__ import annotations

from aster_ml.dtype import dtypes
from aster_ml.schedule.work import Work
from aster_ml.uop.graph import toposort
from aster_ml.uop.movement import slice_of_base
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import DeviceArg, Ops

DATA_ONLY = ("DISK", "NPY")


def copy_before_views(body: UOp, order: list[UOp], work: Work) -> UOp:
    """Moves copies from storage devices to the sources: those devices compute nothing."""
    if not any([is_odd_copy(u) for u in order if u.op is Ops.COPY]):
        return body
    new: dict[UOp, UOp] = {}
    for u in order:
        fresh = u if not u.src else UOp(u.op, u.dtype, tuple([new[s] for s in u.src]), u.arg)
        new[u] = made_at(fresh.src[0], fresh.arg) if is_odd_copy(fresh) else fresh
    return new[body]


def is_odd_copy(u: UOp) -> bool:
    """Whether `u` copies a value that a storage device would have to compute."""
    if u.op is not Ops.COPY or not str(u.src[0].device).startswith(DATA_ONLY):
        return False
    return u.src[0].op is not Ops.COPY and slice_of_base(u.src[0]) is None


def made_at(value: UOp, place: DeviceArg) -> UOp:
    """The value computed on the device `place` from copies of its memory."""
    new: dict[UOp, UOp] = {}
    for u in toposort(value, enter=lambda u: not is_held(u)):
        if is_held(u):
            new[u] = UOp(Ops.COPY, u.dtype, (u,), place)
        elif u.op is Ops.DEVICE:
            new[u] = UOp(Ops.DEVICE, dtypes.void, (), place)
        else:
            new[u] = UOp(u.op, u.dtype, tuple([new[s] for s in u.src]), u.arg) if u.src else u
    return new[value]


def is_held(u: UOp) -> bool:
    """Whether a copy can read the value directly from memory."""
    return u.device is not None and (u.op is Ops.COPY or slice_of_base(u) is not None)
