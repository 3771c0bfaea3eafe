"""Makes the stages of a pipelined loop: local memory for several turns, and waits for each.

Receives the loop, the stores that fill local memory in it, and how copies end (`target/copies`);
gives local memory with room for so many turns, the stage that a turn has, and the nodes that begin,
await, and free it. Where in a turn these nodes stand is derived in `pipeline/loop`.

A stage is filled and read by all warps, which meet at a BARRIER in between; or it has a barrier of
its own in memory, which counts the bytes that TMA brings (COMMIT, WAIT), and with a producer warp
one more that counts who has read them (RELEASE, ACQUIRE). A wait names the stage and its phase: how
often the stage was filled before.
"""

from __future__ import annotations

from collections.abc import Sequence

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.target.copies import BARRIERS, BARRIERS_NBYTES, GROUPS, Copies
from aster_ml.uop.linear import Linear, shared_nbytes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Stages begin where any copy may.
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

    def landed(self, left: int) -> list[UOp]:
        """A wait for all groups of copies but the last ones, where copies come in groups."""
        return [UOp(Ops.WAIT, dtypes.void, (), left)] if self.copies.ends == GROUPS else []

    def released(self, turn: UOp, gate: UOp) -> list[UOp]:
        """The stage of a turn may be filled again."""
        stage = self.of(turn)
        return [turn, stage, UOp(Ops.RELEASE, dtypes.void, (stage, gate))]

    def brought_once(self) -> list[UOp]:
        """TMA loads of what is there for all turns."""
        if not self.once:
            return []
        stage = UOp.const(self.loop.dtype, self.count)
        return [*self.once, UOp(Ops.COMMIT, dtypes.void, (stage,), self.barriers)]

    def there_once(self) -> list[UOp]:
        """A wait for them."""
        if not self.once:
            return []
        stage, phase = (UOp.const(self.loop.dtype, n) for n in (self.count, 0))
        return [UOp(Ops.WAIT, dtypes.void, (stage, phase), 0)]


def larger(memory: UOp, stages: int) -> UOp:
    """Local memory with room for so many stages, each of which begins at a whole place."""
    whole = STAGE_NBYTES // memory.dtype.itemsize
    arg = memory.arg
    size = -(-arg.size // whole) * whole
    return UOp(memory.op, memory.dtype, (), arg._replace(size=size * stages))
