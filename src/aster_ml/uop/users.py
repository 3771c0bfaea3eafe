"""Tracks the live users of a node, from the first request on.

Receives nodes; returns the nodes that use them. A node refers to its sources only, and users of
most nodes are never requested, so nothing is recorded when a node is built.
"""

from __future__ import annotations

import weakref
from typing import Any

from aster_ml.thread_state import new_lock
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

CONST = Ops.CONST

# Length of a list of users at which dead references are dropped, unless most are alive.
SWEEP_AT = 32


# Held while users and owners are recorded. why: of two threads that are first at the same time, one
# would replace the list of the other, whose reads no write would find
NOTING = new_lock()


def link(root: UOp, owner: Any = None) -> bool:
    """Records a node as a user of its sources, and so on for all unrealized nodes below.

    With an `owner`, the node becomes that tensor's; if it has an owner, nothing is done and False
    is returned. The users of a node are a list: the length at which it is swept, then weak
    references without callbacks (see `ops.views.Cell`).
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
                    # A constant is no memory.
                    continue
                users = s._users
                if users is UNSET:
                    s._users = [SWEEP_AT, ref]
                else:
                    users.append(ref)
                    if len(users) > users[0]:
                        sweep(users)
                # A user of a realized node reads its memory.
                if s.src and not s._is_linked and s._at is UNSET and s not in seen:
                    seen.add(s)
                    found.append(s)
        # Last, since a linked node promises links down to its memory.
        for u in found:
            u._is_linked = True
    return True


def sweep(users: list[Any]) -> None:
    """Drops dead users, at amortized constant cost for each added user."""
    users[1:] = [ref for ref in users[1:] if ref() is not None]
    users[0] = max(SWEEP_AT, 2 * len(users))


def users_of(u: UOp) -> list[UOp]:
    """The live, linked nodes that have a node as a source."""
    users = u._users
    return [] if users is UNSET else [v for ref in users[1:] if (v := ref()) is not None]
