"""Finds numbers that divide indices, whatever they depend on: the alignment of an access.

Receives integer nodes of the linear stage; returns numbers. Writes no text.
"""

from __future__ import annotations

import math

from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class Divisors:
    """Integers of one kernel with their known divisors; each node is looked at once."""

    def __init__(self) -> None:
        self.known: dict[UOp, int] = {}

    def of(self, u: UOp) -> int:
        """A number that divides an integer, whatever it depends on; 0 of what is 0."""
        known = self.known
        if u not in known:
            for x in toposort(u):
                if x not in known:
                    known[x] = divisor(x, [known[s] for s in x.src])
        return known[u]


def divisor(u: UOp, sources: list[int]) -> int:
    """A number that divides an integer, from those that divide its sources."""
    op = u.op
    if op is Ops.CONST:
        return abs(int(u.arg)) if u.dtype.kind != "float" else 1
    if op is Ops.MUL:
        return sources[0] * sources[1]
    if op in (Ops.ADD, Ops.SUB, Ops.MOD, Ops.MAX):
        return math.gcd(*sources)
    if op in (Ops.XOR, Ops.OR):
        # Bits below the lowest one of both are 0.
        both = sources[0] | sources[1]
        return both & -both
    if op is Ops.AND and u.src[1].op is Ops.CONST and u.dtype.kind != "bool":
        mask = int(u.src[1].arg)
        return (
            math.gcd(sources[0] & -sources[0], 1 << 30)
            if not mask
            else max(sources[0] & -sources[0], mask & -mask)
        )
    if op is Ops.SHL and u.src[1].op is Ops.CONST:
        return sources[0] << int(u.src[1].arg)
    if op is Ops.WHERE:
        return math.gcd(*sources[1:])
    if op in (Ops.CAST, Ops.NEG, Ops.AFTER) and u.src[0].dtype.kind != "float":
        return sources[0]
    return 1
