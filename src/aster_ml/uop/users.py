"""Notes which live nodes use a node, once that is asked for.

Receives nodes; answers from a source up to what is made of it. A node knows its sources only, and
most nodes are never asked for their users, so nothing is noted when a node is made.
"""

from __future__ import annotations

import weakref
from typing import Any

from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

CONST = Ops.CONST

# The length of a list of users at which those that are gone are dropped, unless many are alive.
SWEEP_AT = 32


def link(root: UOp) -> None:
    """Tells the sources of a node, and of all below it that is not computed yet, who uses them.

    The users of a node are a list: the length at which it is swept, then weak references, without
    callbacks (see `mixin.views.Cell`).
    """
    stack = []
    u = root
    while True:
        # Who reads a node that was computed reads the memory that stands for the node.
        if not u._is_linked and (u._at is UNSET or u is root):
            u._is_linked = True
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
                if s.src and not s._is_linked:
                    stack.append(s)
        if not stack:
            return
        u = stack.pop()


def sweep(users: list[Any]) -> None:
    """Drops users that are gone, at a constant cost for each that was added."""
    users[1:] = [ref for ref in users[1:] if ref() is not None]
    users[0] = max(SWEEP_AT, 2 * len(users))


def users_of(u: UOp) -> list[UOp]:
    """The live nodes, among those that were linked, that have a node as a source."""
    users = u._users
    return [] if users is UNSET else [v for ref in users[1:] if (v := ref()) is not None]
