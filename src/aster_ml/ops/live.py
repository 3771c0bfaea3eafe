"""Knows which tensors are alive, and which were given a node since the engine last asked.

Receives tensors when they are made and when they name another node; returns those that are alive.
What a tensor's node is stands in `ops.handle`, who reads which memory in `engine.readers`.
"""

from __future__ import annotations

import weakref
from typing import Any

from aster_ml.engine.readers import Tensors, enter_new


class TensorRef(weakref.ref[Any]):
    """A weak reference that is equal to itself alone.

    why: others are hashed and compared as what they refer to. Tensors compare elementwise, and the
    thousands of those that are gone, one after the other at one address, would have one hash
    """

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class LeafRef(TensorRef):
    """A reference to a tensor that was set to require a gradient; its nodes have it for good."""

    __slots__ = ()


# Every tensor that is alive, oldest first.
LIVE: dict[TensorRef, None] = {}
forget = LIVE.__delitem__

# Those with a node that the engine has not seen, and some that are gone.
NEW: dict[TensorRef, None] = {}
Tensors.new = NEW
# So many wait at most for a write that asks: a program that never writes must not gather them.
MAX_NEW = 1 << 10


def live_handles() -> list[Any]:
    """Every handle that is alive now, oldest first."""
    return [handle for ref in list(LIVE) if (handle := ref()) is not None]


def wake(handle: Any) -> None:
    """A tensor was given a node that may be no memory, or its node was taken away."""
    if len(NEW) > MAX_NEW:
        enter_new()
    NEW[handle._ref] = None
