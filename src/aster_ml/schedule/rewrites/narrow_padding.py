"""Moves PAD before a widening cast where tensor cores multiply the narrow dtype.

rewrite: PAD(CAST(x)) -> CAST(PAD(x))
when: tensor cores of the device multiply numbers of the dtype that x has, and the cast is to a
    wider dtype
why: a padded operand that overlapping windows read is stored; stored in the wider dtype, no tensor
    core could multiply it
"""

from __future__ import annotations

from aster_ml.schedule.work import Work
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def has_narrow_products(work: Work) -> bool:
    """Whether tensor cores of a device of the body multiply numbers of 16 bits."""
    return any([w.chained for w in work.devices.values()])


def pad_before_widening(body: UOp, order: list[UOp], work: Work) -> UOp:
    """Pads operands of tensor cores before their widening cast."""

    def swap(old: UOp, u: UOp) -> UOp:
        cast = u.src[0]
        if cast.op is not Ops.CAST:
            return u
        x = cast.src[0]
        device = work.devices.get(str(u.device))
        if device is None or x.dtype.name not in device.chained:
            return u
        if x.dtype.itemsize >= cast.dtype.itemsize:
            return u
        return UOp(Ops.PAD, x.dtype, (x, *u.src[1:]), u.arg).cast(cast.dtype)

    return rebuilt(body, (Ops.PAD,), swap, order)
