"""Finds and numbers nodes of a list that becomes a pipeline: loops, what they need, what is new.

Receives nodes of a Linear in running order. A copy of an iteration stands in the same list, beside
the loop or before it, and none of its accumulators, loops and loads may be one of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.staging.stage import new_stage
from aster_ml.dtype import DType, dtypes
from aster_ml.helpers import prod
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of


def loop_at(uops: Sequence[UOp], axis_id: int) -> tuple[int, int] | None:
    """Where the loop over an axis begins and ends; None where there is none."""
    starts = [i for i, u in enumerate(uops) if u.op is Ops.RANGE and u.arg.id == axis_id]
    return (starts[0], end_of(uops, uops[starts[0]])) if starts else None


def end_of(uops: Sequence[UOp], loop: UOp) -> int:
    """Where a loop ends."""
    return next(i for i, u in enumerate(uops) if u.op is Ops.END and u.src[0] is loop)


def ended(loop: UOp) -> UOp:
    """The end of a loop."""
    return UOp(Ops.END, dtypes.void, (loop,))


def sources(u: UOp) -> list[UOp]:
    """The sources of a node, through the INDEX that it may read."""
    return [x for s in u.src for x in (s.src if s.op is Ops.INDEX else (s,))]


def base_of(memory: UOp) -> UOp:
    """Memory before something was stored there."""
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    return memory


def is_private(u: UOp) -> bool:
    """Whether something stores in memory of a work-item's own."""
    return u.op is Ops.STORE and (m := memory_of(u)).op is Ops.DEFINE_LOCAL and m.arg.private


def needed_by(roots: Iterable[UOp], body: Sequence[UOp]) -> list[UOp]:
    """These nodes of a body and what they are made of in it, in its order."""
    own = set(body)
    found: dict[UOp, None] = {}
    for root in roots:
        toposort(root, done=found)
    return [u for u in body if u in found and u in own]


class Numbers:
    """The numbers that are not taken in a list, and the scratch that is made for it."""

    def __init__(self, uops: Iterable[UOp]) -> None:
        self.uops = tuple(uops)
        # Scratch that has been made so far.
        self.memories: list[UOp] = []
        self.loops = 1 + max([r.arg.id for u in self.uops for r in u.ranges])
        self.regs = 1 + max([u.arg.id for u in self.uops if u.op is Ops.DEFINE_REG], default=-1)
        # Of two loads of a `Kept`, which are 1 and 2, and all others.
        self.versions = 2 + max([version_of(u) for u in self.uops], default=0)

    def loop(self, like: UOp, size: UOp | None = None) -> UOp:
        """A loop of its own over the same steps, or over so many."""
        self.loops += 1
        src = like.src if size is None else (size,)
        return new_node(Ops.RANGE, like.dtype, src, like.arg._replace(id=self.loops - 1))

    def register(self, like: UOp) -> UOp:
        """An accumulator of its own."""
        self.regs += 1
        return like.replace(arg=like.arg._replace(id=self.regs - 1))

    def scratch(self, dtype: DType, size: int, private: bool = False) -> UOp:
        """Scratch of its own for so many elements."""
        there = [*self.uops, *self.memories]
        self.memories.append(new_stage(there, dtype, size=size, private=private).memory)
        return self.memories[-1]

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
                    arg = self.register(u).arg
                new[u] = u if (src, arg) == (u.src, u.arg) else new_node(u.op, u.dtype, src, arg)
        return [new[u] for u in nodes]


def version_of(u: UOp) -> int:
    """The number of the AFTER that a LOAD reads through, or 0."""
    memory = u.src[0].src[0] if u.op is Ops.LOAD else u
    return int(memory.src[1].arg) if memory.op is Ops.AFTER else 0


class Kept:
    """A value, or one of its dtype, that waits for another iteration in scratch.

    Its lanes have places in scratch, which may be `private` to each work-item. Of loads before and
    behind a store in the same list, one is of another version than the other.
    """

    def __init__(self, value: UOp, numbers: Numbers, kind: DType, private: bool = False) -> None:
        self.value, self.kind = value, kind
        self.lanes = sorted([r for r in value.ranges if r.arg.kind.is_lane], key=lambda r: r.arg.id)
        room = prod([size_of(r) for r in self.lanes])
        self.memory = numbers.scratch(value.dtype, room, private)

    def place(self, version: int = 0) -> UOp:
        """Where it lies, by an index of dtype `kind`."""
        zero = offset = UOp.const(self.kind, 0)
        step = 1
        for r in self.lanes:
            offset = offset.alu(Ops.ADD, r.alu(Ops.MUL, UOp.const(self.kind, step)))
            step *= size_of(r)
        number = UOp.const(dtypes.int32, version)
        memory = UOp(Ops.AFTER, self.value.dtype, (self.memory, number)) if version else self.memory
        return UOp(Ops.INDEX, self.value.dtype, (memory, zero, offset))


def stores_of(kept: Iterable[Kept], new: dict[UOp, UOp] | None = None) -> list[UOp]:
    """Stores values, in place of some of them new ones."""
    return [k.place().store((new or {}).get(k.value, k.value)) for k in kept]


def loads_of(kept: Iterable[Kept], version: int = 0) -> dict[UOp, UOp]:
    """Loads values."""
    return {k.value: k.place(version).load() for k in kept}
