"""Which tensors are alive, and which of them may still want something computed.

Receives tensors when they are made and when they name another node; returns those that are alive. A
realize asks those whose node is no memory who wants what it overwrites, so it costs what is pending
and not what is alive: one that is found to be memory rests until it is given another node. What a
tensor's node is, and when it is memory, stands in `mixin.handle`.
"""

from __future__ import annotations

import weakref
from typing import Any

# Every tensor that is alive, oldest first.
LIVE: dict[weakref.ref[Any], None] = {}
forget = LIVE.__delitem__

# Those that do not rest, and some that are gone. The keys are those of `LIVE`, which are the same
# objects: two references are compared by what they refer to, and tensors compare elementwise.
ACTIVE: dict[weakref.ref[Any], None] = {}


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
