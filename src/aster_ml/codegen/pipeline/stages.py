"""Makes the stages of a pipelined loop: local memory for several turns, and waits for each.

Receives the loop, the stores that fill local memory in it, and how copies end (`target/copies`);
gives local memory with room for so many turns, the stage that a turn has, and the nodes that begin,
await, and free it. A turn is cut into parts that run as many turns ahead as one another; where in
a turn warps meet follows from which part fills and which part reads a stage.

A stage is filled and read by all warps, which meet at a BARRIER in between; or it has a barrier of
its own in memory, which counts the bytes that TMA brings (COMMIT, WAIT), and with a producer warp
one more that counts who has read them (RELEASE, ACQUIRE). A wait names the stage and its phase: how
often the stage was filled before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.pipeline.lists import base_of
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.target.copies import BARRIERS, BARRIERS_NBYTES, GROUPS, Copies
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import Linear, shared_nbytes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# What writes local memory.
FILLS = frozenset({Ops.STORE, Ops.TMA_LOAD})
# Stages begin where any copy may. Source: PTX ISA 8.7, "cp.async.bulk.tensor" (128 bytes).
STAGE_NBYTES = 128


class Stages:
    """Local memory for `count` turns of a loop; `memories` has what each memory has become.

    `once` are TMA loads before the loop: they have a barrier of their own, behind those of stages.

    Raises: KernelOptError where a block has no room for them.
    """

    def __init__(
        self, linear: Linear, loop: UOp, stores: Sequence[UOp], count: int, copies: Copies,
        once: list[UOp], target: Target,
    ) -> None:  # fmt: skip
        self.loop, self.count, self.copies, self.once = loop, count, copies, once
        self.memories = {memory_of(u): larger(memory_of(u), count) for u in stores}
        taken = shared_nbytes([self.memories.get(u, u) for u in linear.uops])
        taken += BARRIERS_NBYTES if self.have_barriers else 0
        if taken > target.local_bytes:
            raise KernelOptError(
                f"{linear.name}: PIPELINE copies of {count} stages wants {taken:,} bytes of local "
                f"memory, and a block has {target.local_bytes:,}; fewer stages would do"
            )

    def part(
        self, nodes: list[UOp], ahead: int = 0, producer: bool = False, fenced: bool = False
    ) -> Part:
        """A part of these nodes, which either fill stages or read them, or do neither."""
        own, found = set(nodes), dict[UOp, None]()
        for u in nodes:
            toposort(u, enter=lambda u: u in own or u.op in (Ops.INDEX, Ops.AFTER), done=found)
        fills = any([u.op in FILLS and memory_of(u) in self.memories for u in nodes])
        there = any([u.op is Ops.INDEX and base_of(u.src[0]) in self.memories for u in found])
        return Part(nodes, ahead, fills, there and not fills, producer, fenced)

    @property
    def have_barriers(self) -> bool:
        """Whether each stage has a barrier that counts its bytes."""
        return self.copies.ends == BARRIERS

    @property
    def barriers(self) -> int:
        """The number of barriers: of each stage, and of what is brought once."""
        return self.count + bool(self.once)

    def of(self, turn: UOp) -> UOp:
        """The stage that a turn fills and reads."""
        if turn.op is Ops.CONST:
            return UOp.const(turn.dtype, turn.arg % self.count)
        return turn.alu(Ops.MOD, UOp.const(turn.dtype, self.count))

    def of_turn(self, op: Ops, turn: UOp, arg: int | None = None) -> list[UOp]:
        """A wait of the stage of a turn in the phase that it has then."""
        phase = turn.alu(Ops.IDIV, UOp.const(self.loop.dtype, self.count))
        stage = self.of(turn)
        return [stage, phase, UOp(op, dtypes.void, (stage, phase), arg)]

    def committed(self, turn: UOp, gate: UOp | None) -> list[UOp]:
        """The end of the copies of a turn, where they go on beside other work."""
        if self.have_barriers:
            marks = (self.of(turn),) if gate is None else (self.of(turn), gate)
            return [UOp(Ops.COMMIT, dtypes.void, marks, self.barriers)]
        return [UOp(Ops.COMMIT, dtypes.void, ())] if self.copies.ends == GROUPS else []

    def landed(self, left: int | None) -> list[UOp]:
        """A wait for all groups of copies but the last ones, where copies come in groups."""
        none = left is None or self.copies.ends != GROUPS
        return [] if none else [UOp(Ops.WAIT, dtypes.void, (), left)]

    def released(self, turn: UOp, gate: UOp) -> list[UOp]:
        """The stage of a turn may be filled again."""
        stage = self.of(turn)
        return [turn, stage, UOp(Ops.RELEASE, dtypes.void, (stage, gate))]

    def brought_once(self) -> list[UOp]:
        """TMA loads of what is there for all turns."""
        stage = UOp.const(self.loop.dtype, self.count)
        done = UOp(Ops.COMMIT, dtypes.void, (stage,), self.barriers)
        return [*self.once, done] if self.once else []

    def there_once(self) -> list[UOp]:
        """A wait for them."""
        stage, phase = (UOp.const(self.loop.dtype, n) for n in (self.count, 0))
        return [UOp(Ops.WAIT, dtypes.void, (stage, phase), 0)] if self.once else []


class Part(NamedTuple):
    """Nodes of a turn that run `ahead` turns early, on a producer warp or on all others.

    `fills` and `reads` are of stages; `fenced` says that no compiler moves what stands before the
    part behind its beginning.
    """

    nodes: list[UOp]
    ahead: int
    fills: bool
    reads: bool
    producer: bool
    fenced: bool

    @property
    def sums(self) -> bool:
        """Whether a turn too many would show: it adds to an accumulator."""
        return any([u.op is Ops.ACCUMULATE for u in self.nodes])


def meetings(parts: Sequence[Part], counts_bytes: bool) -> dict[int, int | None]:
    """The parts before which all warps meet, by number, so that none reads or fills too early.

    With each, how many groups of copies are under way where warps wait for the others first; None
    where nobody reads what copies bring. A stage is read a turn or more after it was filled, and
    filled a turn or more after it was read: on the way from one part round the loop to the other,
    warps meet once. Barriers that count bytes say by themselves what may be read.
    """
    found: dict[int, int | None] = {}
    for after, part in enumerate(parts):
        for i, other in enumerate(parts):
            refilled = part.fills and other.reads
            if not refilled and (counts_bytes or not (part.reads and other.fills)):
                continue
            way = [*range(i + 1, len(parts)), *range(after + 1)]
            if found.keys().isdisjoint(way):
                found[after] = None
            if not refilled:
                at = next(n for n in reversed(way) if n in found)
                found[at] = other.ahead - (at <= i)
    return found


def larger(memory: UOp, stages: int) -> UOp:
    """Local memory with room for so many stages, each of which begins at a whole place."""
    whole = STAGE_NBYTES // memory.dtype.itemsize
    size = ceildiv(memory.arg.size, whole) * whole
    return memory.replace(arg=memory.arg._replace(size=size * stages))
