"""Tracks the live users of a node, from the first request on.

Receives nodes; answers from a source up to what is made of it. A node knows its sources only, and
most nodes are never asked for their users, so nothing is noted when a node is made.
"""

from __future__ import annotations

import weakref
from typing import Any

from aster_ml.thread_state import new_lock
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

CONST = Ops.CONST

# The length of a list of users at which those that are gone are dropped, unless many are alive.
SWEEP_AT = 32


# Held by who notes users and owners. why: of two threads that are first at once, one would put its
# list, or itself, in the place of the other, whose reads no write would find
NOTING = new_lock()


def link(root: UOp, owner: Any = None) -> bool:
    """Tells the sources of a node, and of all below it that is not computed yet, who uses them.

    With an `owner`, the node becomes that tensor's, unless it has one: False is returned then, and
    nothing is done. The users of a node are a list: the length at which it is swept, then weak
    references, without callbacks (see `mixin.views.Cell`).
    """
    with NOTING:
        if owner is not None:
            if root._owner is not UNSET:
                return False
            root._owner = owner
        found = [] if root._is_linked else [root]
        seen = {root}
        for u in found:
            ref = weakref.ref(u)
            for s in u.src:
                if s.op is CONST:
                    # What is made of a number reads no memory for it.
                    continue
                users = s._users
                if users is UNSET:
                    s._users = [SWEEP_AT, ref]
                else:
                    users.append(ref)
                    if len(users) > users[0]:
                        sweep(users)
                # Who reads a node that was computed reads the memory that stands for the node.
                if s.src and not s._is_linked and s._at is UNSET and s not in seen:
                    seen.add(s)
                    found.append(s)
        # Last: who sees that a node is linked counts on the whole way to its memory.
        for u in found:
            u._is_linked = True
    return True


def sweep(users: list[Any]) -> None:
    """Drops users that are gone, at a constant cost for each that was added."""
    users[1:] = [ref for ref in users[1:] if ref() is not None]
    users[0] = max(SWEEP_AT, 2 * len(users))


def users_of(u: UOp) -> list[UOp]:
    """The live nodes, among those that were linked, that have a node as a source."""
    users = u._users
    return [] if users is UNSET else [v for ref in users[1:] if (v := ref()) is not None]
