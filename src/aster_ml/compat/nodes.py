"""Gives nodes the memory that programs of tinygrad's ask them for.

A node asks `names.find_attribute` for these as `buffer`, `realized` and `is_realized`.
"""

from __future__ import annotations

from typing import Any

from aster_ml import extend
from aster_ml.tensor import Tensor
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops


def is_realized(u: UOp) -> bool:
    """Whether a node is memory that has been filled."""
    found = extend.buffers_of(u.base) if u.base.op in (Ops.BUFFER, Ops.MULTI) else []
    return bool(found) and all([b.is_allocated() for b in found])


def realized(u: UOp) -> Any:
    """The buffer of a node that is memory and has been filled; None for others."""
    return extend.buffer_of(u) if u.op is Ops.BUFFER and is_realized(u) else None


def buffer_of(u: UOp) -> Any:
    """The buffer of a node; what is stored as it stands, but is no memory yet, is computed.

    Raises: AssertionError for views that show it in another order, and for what is computed.
    """
    base = u
    while base.op in (Ops.RESHAPE, Ops.AFTER, Ops.NAME):
        base = base.src[0]
    if base.op is Ops.CONTIGUOUS:
        base = Tensor(base).realize().uop.base
    if base.op in MOVEMENT and u.base.op is Ops.BUFFER:
        raise AssertionError(f"a view with a buffer can only be RESHAPE, this is {base.op}")
    if base.op is not Ops.BUFFER:
        raise AssertionError(f"must be BUFFER, this is {base.op}")
    return extend.buffer_of(base)
