"""A group of work-items of its own that copies strips of a reduction ahead, for all others.

Receives a kernel and the axis over its strips that an Opt PIPELINE producer names; once the kernel
is a list, receives the Linear and returns it with two roles. One work-item of the producer begins
the copies of all strips, as soon as their stages are free, also those of the tiles that its block
computes next (Opt BLOCKS loop). All others wait for bytes alone, and never for one another.

rewrite: for k: barrier; fill(k); barrier; use
-> ROLE of more work-items: for k: ACQUIRE stage k % n; fill(k), COMMIT
and ROLE of those that multiply: for k: WAIT until fill(k) is there; use; RELEASE of the stage
In a loop over tiles strips are counted on: stage and turn are those of the number of all strips.
"""

from __future__ import annotations

from dataclasses import replace

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.pipelined_copies import (
    PipelinedCopies,
    loop_of,
    needed_by,
    pipeline_copies,
)
from aster_ml.codegen.plans import ProducerWarp
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.target.copies import BARRIERS
from aster_ml.target.tensor_cores import WARP_GROUP
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import AxisType, Ops, RoleArg

# Registers that a work-item of the producer keeps. Source: CUTLASS 3, kernels of sm90 with warp
# specialization (LoadRegisterRequirement); PTX ISA 8.7, "setmaxnreg" (24 to 256, by eights).
OWN = 40


def with_producer(kernel: Kernel, axis: UOp, stages: int) -> None:
    """Strips along an axis of a reduction are copied ahead by work-items of their own."""
    pipeline_copies(kernel, axis, stages, ProducerWarp)


def copy_apart(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Local memory is filled by a producer, as PIPELINE producer says.

    Raises: KernelOptError where copies do not end at barriers that it could begin them for.
    """
    return CopiesApart(*loop_of(linear, kernel, target)).run()


def registers_of(groups: int) -> tuple[int, int]:
    """Those of a producer and of each of so many groups that multiply; 0 where all stay as are.

    why: two groups and a producer have 168 each at first, and a product of 128 x 256 takes more
    """
    if groups < 2:
        return 0, 0
    left = (WARP_GROUP.registers // WARP_GROUP.items - OWN) // groups
    return OWN, min(WARP_GROUP.most, left // WARP_GROUP.step * WARP_GROUP.step)


class CopiesApart(PipelinedCopies):
    """State of one rewriting with a producer."""

    def __init__(self, linear: Linear, start: int, stop: int, stages: int, target: Target) -> None:
        super().__init__(linear, start, stop, stages, target)
        if self.copies.ends != BARRIERS:
            raise KernelOptError(f"{linear.name}: PIPELINE producer wants boxes of tensors")
        outer = [i for i, u in enumerate(self.before) if u.op is Ops.RANGE and is_loop(u)]
        if len(outer) > 1:
            raise KernelOptError(f"{linear.name}: PIPELINE producer wants one loop over tiles")
        # The loop over tiles, and what is computed in it before the one over strips.
        self.tiles = self.before[outer[0]] if outer else None
        split = outer[0] if outer else len(self.before)
        inner = [u for u in self.before[split + 1 :] if u.op is not Ops.BARRIER]
        self.before, self.inner = self.before[:split], inner
        self.ids = 1 + max([u.arg.id for u in linear.uops if u.op is Ops.RANGE])

    def run(self) -> Linear:
        """The new list."""
        items, *more = self.linear.local_size
        own, others = registers_of(items // WARP_GROUP.items)
        first = self.first()
        parts = [role(WARP_GROUP.items, own), *self.producer(), role(0, others), *self.consumers()]
        return replace(
            self.linear,
            uops=self.once([*first, *parts]),
            local_size=(items + WARP_GROUP.items, *more),
        )

    def is_there(self, turn: UOp) -> UOp | None:
        """All strips that are copied are there."""
        return None

    def again(self, loop: UOp) -> UOp:
        """A loop of its own over the same steps."""
        self.ids += 1
        return new_node(Ops.RANGE, loop.dtype, loop.src, loop.arg._replace(id=self.ids - 1))

    def count(self, strip: UOp, tile: UOp | None) -> list[UOp]:
        """The number of a strip, the last one, among those of all tiles so far."""
        if tile is None:
            return [strip]
        before = tile.alu(Ops.MUL, self.loop.src[0])
        return [before, before.alu(Ops.ADD, strip)]

    def producer(self) -> list[UOp]:
        """Begins the copies of all strips, of one tile after the other."""
        strip = self.again(self.loop)
        tile = None if self.tiles is None else self.again(self.tiles)
        new: dict[UOp, UOp] = {} if tile is None else {self.tiles: tile}  # type: ignore[dict-item]
        outer = self.copied(needed_by(self.fill, self.inner), new)
        new[self.loop] = strip
        count = self.count(strip, tile)
        fills = self.moved(self.fill, count[-1], new, None)
        commit = self.committed(count[-1])
        listed = [
            *count[:-1],
            strip,
            count[-1],
            *self.turn_of(Ops.ACQUIRE, count[-1]),
            *fills,
            *commit,
            ended(strip),
        ]
        listed = [*self.brought_once(), *listed]
        return listed if tile is None else [tile, *outer, *listed, ended(tile)]

    def copied(self, nodes: list[UOp], new: dict[UOp, UOp]) -> list[UOp]:
        """Nodes over what their sources have become."""
        for u in nodes:
            src = tuple([new.get(s, s) for s in u.src])
            new[u] = u if src == u.src else new_node(u.op, u.dtype, src, u.arg)
        return [new[u] for u in nodes]

    def consumers(self) -> list[UOp]:
        """Multiply strips as they come, and finish each tile."""
        count = self.count(self.loop, self.tiles)
        turn = count[-1]
        body = [*self.turn_of(Ops.WAIT, turn, self.stages - 1)]
        body += [*self.used(turn), *self.left_over(1)]
        if self.settles:
            body += self.released(turn, UOp.const(dtypes.bool, True))
        else:
            # A product goes on until the next one has begun: then its stage is free.
            there = UOp.const(self.loop.dtype, 0).alu(Ops.CMPLT, self.loop)
            body += [there, *self.released(turn.alu(Ops.ADD, UOp.const(turn.dtype, -1)), there)]
        listed = [*count[:-1], *self.there_once(), self.loop, turn, *body, ended(self.loop)]
        listed += self.left_over(0)
        if self.tiles is None:
            return [*listed, *self.behind]
        strips = self.loop.src[0]
        after = count[0].alu(Ops.ADD, strips)
        last = after.alu(Ops.ADD, UOp.const(strips.dtype, -1))
        listed += [after, *self.released(last, UOp.const(dtypes.bool, True))]
        return [self.tiles, *self.inner, *listed, *self.behind]

    def released(self, turn: UOp, gate: UOp) -> list[UOp]:
        """The stage of a strip may be filled again."""
        stage = self.stage_of(turn)
        return [turn, stage, UOp(Ops.RELEASE, dtypes.void, (stage, gate))]


def role(items: int, registers: int) -> UOp:
    """Begins the statements of a warp role."""
    return UOp(Ops.ROLE, dtypes.void, (), RoleArg(items, registers))


def ended(loop: UOp) -> UOp:
    """The end of a loop."""
    return UOp(Ops.END, dtypes.void, (loop,))


def is_loop(r: UOp) -> bool:
    """Whether a range is a loop of outputs."""
    return r.arg.kind is AxisType.LOOP
