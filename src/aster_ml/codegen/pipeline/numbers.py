"""Gives nodes of a second copy of a list numbers of their own: loops, accumulators, loads.

Receives the nodes of a list; a copy of a turn stands in the same list, beside the loop or before
it, and none of its accumulators and loops may be one of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable

from aster_ml.dtype import dtypes
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import Ops


class Numbers:
    """The numbers that are not taken in a list."""

    def __init__(self, uops: Iterable[UOp]) -> None:
        uops = tuple(uops)
        self.loops = 1 + max([u.arg.id for u in uops if u.op is Ops.RANGE])
        self.regs = 1 + max([u.arg.id for u in uops if u.op is Ops.DEFINE_REG], default=-1)
        # Of two loads from kept values, which are 1 and 2 (`pipeline/overlap`), and all others.
        self.versions = 2 + max([version_of(u) for u in uops], default=0)

    def loop(self, like: UOp, size: UOp | None = None) -> UOp:
        """A loop of its own over the same steps, or over so many."""
        self.loops += 1
        src = like.src if size is None else (size,)
        return new_node(Ops.RANGE, like.dtype, src, like.arg._replace(id=self.loops - 1))

    def renumbered(self, nodes: list[UOp]) -> list[UOp]:
        """A second copy of a list: its accumulators and loops are others, and so are its loads."""
        own = set(nodes)
        new: dict[UOp, UOp] = {}
        versions: dict[UOp, UOp] = {}
        for root in nodes:
            for u in toposort(root, enter=lambda u: u in own or u.op in (Ops.INDEX, Ops.AFTER)):
                if u in new:
                    continue
                src, arg = tuple([new.get(s, s) for s in u.src]), u.arg
                if u.op is Ops.AFTER:
                    self.versions += 1
                    number = UOp.const(dtypes.int32, self.versions)
                    src = (src[0], versions.setdefault(u, number))
                elif u not in own and u.op is not Ops.INDEX:
                    src = u.src
                elif u.op is Ops.RANGE:
                    new[u] = self.loop(u)
                    continue
                elif u.op is Ops.DEFINE_REG:
                    arg = arg._replace(id=self.regs)
                    self.regs += 1
                new[u] = u if (src, arg) == (u.src, u.arg) else new_node(u.op, u.dtype, src, arg)
        return [new[u] for u in nodes]


def version_of(u: UOp) -> int:
    """The number of the AFTER that a LOAD reads through, or 0."""
    memory = u.src[0].src[0] if u.op is Ops.LOAD else u
    return int(memory.src[1].arg) if memory.op is Ops.AFTER else 0
