"""Which tensors are alive, and which of them may still want something computed.

Receives tensors when they are made and when they name another node; returns those that are alive. A
realize asks those whose node is no memory who wants what it overwrites, so it costs what is pending
and not what is alive: one that is found to be memory rests until it is given another node. What a
tensor's node is, and when it is memory, stands in `mixin.handle`.
"""

from __future__ import annotations

import weakref
from typing import Any


class TensorRef(weakref.ref[Any]):
    """A weak reference that is equal to itself alone.

    why: others are hashed and compared as what they refer to. Tensors compare elementwise, and the
    thousands of those that are gone, one after the other at one address, would have one hash
    """

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


# Every tensor that is alive, oldest first.
LIVE: dict[TensorRef, None] = {}
forget = LIVE.__delitem__

# Those that do not rest, and some that are gone. The keys are those of `LIVE`.
ACTIVE: dict[TensorRef, None] = {}


class Sweep:
    """How many are active when those that are gone are looked for, and the least of that."""

    least = 1 << 12
    at = least


def live_handles() -> list[Any]:
    """Every handle that is alive now, oldest first."""
    return [handle for ref in list(LIVE) if (handle := ref()) is not None]


def sweep() -> None:
    """Forgets active tensors that are gone, at a constant cost for each that was made."""
    for ref in list(ACTIVE):
        if ref() is None:
            ACTIVE.pop(ref, None)
    Sweep.at = max(Sweep.least, 2 * len(ACTIVE))


def wake(handle: Any) -> None:
    """A tensor was given a node that may be no memory, or its node was taken away."""
    ACTIVE[handle.ref] = None
