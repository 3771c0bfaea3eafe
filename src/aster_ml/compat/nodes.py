"""The memory of a node, as programs of tinygrad's ask a node for it; nodes know no memory here.

A node asks `names.find_attribute` for these as `buffer`, `realized` and `is_realized`.
"""

from __future__ import annotations

from typing import Any

from aster_ml.engine import storage
from aster_ml.engine.realize import realize_uops
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops


def is_realized(u: UOp) -> bool:
    """Whether a node is memory that has been filled."""
    if u.base.op is Ops.MULTI:
        parts = [storage.realized_view(s) for s in u.base.src]
        return all([is_realized(s if p is None else p) for s, p in zip(u.base.src, parts)])
    return u.base.op is Ops.BUFFER and storage.buffer_of(u.base).is_allocated()


def realized(u: UOp) -> Any:
    """The buffer of a node that is memory and has been filled; None for others."""
    return storage.BUFFERS.get(u) if u.op is Ops.BUFFER and is_realized(u) else None


def buffer_of(u: UOp) -> Any:
    """The buffer of a node; what is stored as it stands, but is no memory yet, is computed.

    Raises: AssertionError for views that show it in another order, and for what is computed.
    """
    base = u
    while base.op in (Ops.RESHAPE, Ops.AFTER, Ops.NAME):
        base = base.src[0]
    if base.op is Ops.CONTIGUOUS:
        base = realize_uops([base])[0].base
    if base.op in MOVEMENT and u.base.op is Ops.BUFFER:
        raise AssertionError(f"a view with a buffer can only be RESHAPE, this is {base.op}")
    if base.op is not Ops.BUFFER:
        raise AssertionError(f"must be BUFFER, this is {base.op}")
    return storage.buffer_of(base)
