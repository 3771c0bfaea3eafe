"""Pipelines the loop over strips of a reduction, as PIPELINE copies and PIPELINE producer ask for.

Receives a Linear with a loop that fills local memory and reads it, and the plan of the kernel;
returns the Linear with room for several strips, its stages, and the parts of a turn (`parts`) run
turns apart, or on different warps. Prologue, body and epilogue are made of the parts alone; waits,
barriers and phases follow from which part fills and which part reads a stage.

rewrite, for n stages: for k: barrier; fill(k); barrier; use
-> fill(0) to fill(n - 2), a COMMIT behind each
and for k: wait until fill(k) is done; barrier; fill(k + n - 1), COMMIT; use of stage k % n
when: copies go on by themselves, so that n - 1 of them are under way while one is used
The barrier says two things: all work-items have their part of fill(k), and none uses the stage any
more that is filled next. Behind the last strip there is nothing to copy: zeros fill stages then
that nobody reads. Where a barrier of each stage counts bytes, use comes first: a product goes on
until the next one has begun, and then its stage is free.

rewrite, of two stages: for k: barrier; fill(k); barrier; use
-> fill(0), and for k: load what fills k + 1; barrier; use of stage k % 2; store it
when: they do not: what is loaded waits in registers

rewrite: for k: barrier; fill(k); barrier; use
-> ROLE of more work-items: for k: ACQUIRE stage k % n; fill(k), COMMIT
and ROLE of those that multiply: for k: WAIT until fill(k) is there; use; RELEASE of the stage
when: PIPELINE producer. One work-item of the producer warp begins all copies as soon as stages are
free, also those of the tiles that its block computes next (Opt BLOCKS loop); strips are counted on.

Parts that add to accumulators never run past the last turn: the loop ends early, and parts that are
behind run once more after it (`overlap`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.pipeline.numbers import Numbers
from aster_ml.codegen.pipeline.overlap import Kept, overlapped
from aster_ml.codegen.pipeline.parts import (
    Part,
    base_of,
    is_private,
    loop_at,
    meetings,
    needed_by,
)
from aster_ml.codegen.pipeline.stages import Stages
from aster_ml.codegen.plans import CopyPipeline, OverlappedExp, ProducerWarp
from aster_ml.codegen.products_in_place import settle_where_read, settled
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.target.copies import AT_ONCE, BOXES, GROUPS, Copies
from aster_ml.target.tensor_cores import WARP_GROUP
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.linear import NUMBERS_OF_ITEMS, Linear
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import AxisType, Ops, RoleArg, StoreArg
from aster_ml.uop.ranges import size_of

# Nodes that do something each time that they stand in a list.
REPEATED = frozenset({Ops.BARRIER, Ops.COMMIT, Ops.WAIT, Ops.SETTLE, Ops.ROLE, Ops.END})
# Registers that a work-item of the producer keeps.
OWN = 40


def pipeline_loop(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Stages of local memory are filled ahead of use, or by a producer warp, as PIPELINE says.

    Raises: KernelOptError where the loop is not there, stages are more than there is room for, or
        a producer has no copies that end at barriers.
    """
    plan = kernel.plan(CopyPipeline)
    assert plan is not None
    return PipelinedLoop(linear, plan, target).run()


class PipelinedLoop:
    """State of one rewriting: the loop, the parts of a turn, and the stages that they fill."""

    def __init__(self, linear: Linear, plan: CopyPipeline, target: Target) -> None:
        self.linear = linear
        uops, name = linear.uops, linear.name
        found = loop_at(uops, plan.axis)
        if found is None:
            raise KernelOptError(f"{name}: PIPELINE copies wants a loop over strips")
        start, stop = found
        if not target.copies.go_on and plan.count != 2:
            raise KernelOptError(
                f"{name}: PIPELINE copies wants 2 stages where what is loaded waits in registers, "
                f"and {plan.count} are given"
            )
        self.loop = uops[start]
        self.before, self.behind = list(uops[:start]), uops[stop + 1 :]
        once = [u for u in self.before if u.op is Ops.BOX]
        self.before = [u for u in self.before if not ends_boxes(u) and u.op is not Ops.BOX]
        self.body = [u for u in uops[start + 1 : stop] if u.op is not Ops.BARRIER]
        own = [u for u in self.body if is_private(u)]
        stores = [u for u in self.body if u.op in (Ops.STORE, Ops.BOX) and u not in own]
        if not stores or any([memory_of(u).op is not Ops.DEFINE_LOCAL for u in stores]):
            raise KernelOptError(f"{name}: PIPELINE copies wants a loop that fills stages")
        copies = copies_of(stores, target.copies)
        if copies.ends == GROUPS:
            later = {u: UOp(u.op, u.dtype, u.src, StoreArg(later=True)) for u in stores}
            self.body, stores = [later.get(u, u) for u in self.body], list(later.values())
        self.stages = Stages(
            linear, self.loop, stores, plan.count if copies.go_on else 2, copies, once, target
        )
        ends = [u for u in self.body if u.op in (Ops.ACCUMULATE, Ops.RANGE, Ops.END)]
        self.fill, self.use = needed_by(stores, self.body), needed_by([*ends, *own], self.body)
        # What use of a stage leaves under way, where nothing in a turn reads sums of its products.
        self.settles = any([u.op is Ops.SETTLE for u in settle_where_read(self.use)])
        self.kept: list[Kept] = []
        self.parts = self.parts_of(plan)
        self.numbers = Numbers(uops)
        # The loop over tiles, and what is computed in it before the one over strips.
        self.tiles: UOp | None = None
        self.inner: list[UOp] = []

    def parts_of(self, plan: CopyPipeline) -> list[Part]:
        """The parts of a turn, in order. Raises: KernelOptError where a plan has none."""
        ahead, copies, name = self.stages.count - 1, self.stages.copies, self.linear.name
        if isinstance(plan, ProducerWarp):
            if not self.stages.have_barriers:
                raise KernelOptError(f"{name}: PIPELINE producer wants boxes of tensors")
            used = [Part(self.use)]
            if isinstance(plan, OverlappedExp):
                used, self.kept = overlapped(self.linear, self.use)
            return [Part(self.fill, producer=True), *used]
        if self.stages.have_barriers:
            return [Part(self.use), Part(self.fill, ahead)]
        if copies.go_on:
            return [Part(self.fill, ahead), Part(self.use)]
        loads = [u for u in self.fill if u.op is not Ops.STORE]
        stores = [u for u in self.fill if u.op is Ops.STORE]
        return [Part(loads, ahead), Part(self.use), Part(stores, ahead)]

    # the list

    def run(self) -> Linear:
        """The new list."""
        consumers = [p for p in self.parts if not p.producer]
        if len(consumers) < len(self.parts):
            return self.run_apart(consumers)
        # All are done with the last turn of the loop before its stages are filled once more.
        again = [UOp(Ops.BARRIER, dtypes.void, ())] if self.is_repeated() else []
        parts = [*again, *self.along(consumers, self.loop)]
        listed = [*self.first(), *self.stages.brought_once(), *parts, *self.behind]
        return replace(self.linear, uops=once(listed))

    def run_apart(self, consumers: list[Part]) -> Linear:
        """The new list, with work-items more that are the producer."""
        outer = [i for i, u in enumerate(self.before) if is_output_loop(u)]
        if len(outer) > (0 if self.kept else 1):
            raise KernelOptError(f"{self.linear.name}: PIPELINE producer wants one loop over tiles")
        if outer:
            self.tiles, inner = self.before[outer[0]], self.before[outer[0] + 1 :]
            self.inner = [u for u in inner if u.op is not Ops.BARRIER]
            self.before = self.before[: outer[0]]
        items, *more = self.linear.local_size
        own, others = registers_of(items // WARP_GROUP.items)
        listed = [*self.first(), role(WARP_GROUP.items, own), *self.produced(), role(0, others)]
        listed += self.consumed(consumers)
        size = (items + WARP_GROUP.items, *more)
        return replace(self.linear, uops=once(listed), local_size=size)

    def first(self) -> list[UOp]:
        """The statements before the loop."""
        memories = self.stages.memories
        return [*[k.memory for k in self.kept], *[memories.get(u, u) for u in self.before]]

    def is_repeated(self) -> bool:
        """Whether the loop runs once for each turn of another one.

        Raises: KernelOptError where barriers count turns, which they do from the first one on.
        """
        left = {u.src[0] for u in self.before if u.op is Ops.END}
        loops = [u for u in self.before if u.op is Ops.RANGE and u.arg.kind not in NUMBERS_OF_ITEMS]
        is_inside = any([u not in left for u in loops])
        if is_inside and self.stages.have_barriers:
            raise KernelOptError(f"{self.linear.name}: boxes are copied ahead of one loop alone")
        return is_inside

    def produced(self) -> list[UOp]:
        """Begins the copies of all strips, of one tile after the other."""
        parts = [p for p in self.parts if p.producer]
        strip, tiles = self.numbers.loop(self.loop), self.tiles
        brought = self.stages.brought_once()
        if tiles is None:
            return [*brought, *self.along(parts, strip)]
        tile, nodes = self.numbers.loop(tiles), needed_by(self.fill, self.inner)
        outer = substitute_all(nodes, {tiles: tile})
        new = {tiles: tile, **dict(zip(nodes, outer, strict=True))}
        return [tile, *outer, *brought, *self.along(parts, strip, tile, new), ended(tile)]

    def consumed(self, parts: list[Part]) -> list[UOp]:
        """Multiplies strips as they come, and finishes each tile."""
        listed = self.along(parts, self.loop, self.tiles)
        if self.tiles is None:
            return [*listed, *self.behind]
        if not self.settles:
            strips = self.loop.src[0]
            after = before_tile(self.tiles, strips).alu(Ops.ADD, strips)
            last = after.alu(Ops.ADD, UOp.const(strips.dtype, -1))
            listed += [after, *self.stages.released(last, UOp.const(dtypes.bool, True))]
        return [self.tiles, *self.inner, *listed, *self.behind]

    # one group of warps

    def along(
        self, parts: list[Part], loop: UOp, tile: UOp | None = None,
        new: dict[UOp, UOp] | None = None,
    ) -> list[UOp]:  # fmt: skip
        """Prologue, loop and epilogue of these parts, in a tile with changes of its own."""
        most, size = max([p.ahead for p in parts]), loop.src[0]
        is_short = any([p.ahead and p.sums for p in parts])
        if is_short:
            size = plus(size, -most)
            loop = self.numbers.loop(loop, size)
        counted = [] if tile is None else [before_tile(tile, size)]
        count = loop if tile is None else counted[0].alu(Ops.ADD, loop)
        reads = [p for p in parts if self.reads(p)]
        prologue = []
        for k in range(most):
            turn = UOp.const(loop.dtype, k)
            ahead = Part(self.joined([p for p in parts if p.ahead > k]), most)
            [nodes] = self.at([ahead], turn, turn, self.gate(turn, is_short))
            prologue += self.numbers.renumbered(nodes) if ahead.sums else nodes
        there = self.stages.there_once() if reads else []
        early = any([self.reads(p) for p in parts if p.ahead])
        listed = [*counted, *there, *prologue] if early else [*counted, *prologue, *there]
        listed += [size, loop] if is_short else [loop]
        listed += self.turn(parts, loop, count, is_short, new or {})
        if reads and any([p.producer for p in self.parts]):
            listed += self.freed(loop, count)
        listed += [ended(loop), *self.stages.landed(0)]
        if reads and self.stages.have_barriers and not self.settles:
            listed.append(settled(0))
        for k in range(most if is_short else 0):
            for n in sorted({p.ahead for p in parts if p.ahead + k < most}, reverse=True):
                turn, loads = plus(size, n + k), self.loads(2)
                late = Part(self.joined([p for p in parts if p.ahead == n]), n)
                [nodes] = self.at([late], turn, turn, None, loads)
                listed += self.numbers.renumbered([*loads.values(), *nodes])
        return [u for u in settle_where_read(listed) if u.op is not Ops.CONST]

    def turn(
        self, parts: list[Part], loop: UOp, count: UOp, is_short: bool, new: dict[UOp, UOp]
    ) -> list[UOp]:
        """The body of the loop: each part for the turn that it has then, and waits in between."""
        meet = meetings(parts, self.stages.memories, self.stages.have_barriers)
        turns = {p.ahead: plus(count, p.ahead) for p in parts}
        loads = self.loads(1) if is_short else {}
        nodes: dict[int, list[UOp]] = {}
        listed: list[UOp] = []
        last = max([i for i, p in enumerate(parts) if self.reads(p)], default=-1)
        for i, part in enumerate(parts):
            turn, ahead = turns[part.ahead], part.ahead
            if i in meet.before:
                listed += self.stages.landed(meet.left[i]) if i in meet.left else []
                listed.append(UOp(Ops.BARRIER, dtypes.void, ()))
            alike = [n for n, p in enumerate(parts) if p.ahead == ahead]
            if i == alike[0]:
                gate = self.gate(turn, is_short) if ahead else None
                kept = loads if not ahead else {}
                step = plus(loop, ahead)
                made = self.at([parts[n] for n in alike], turn, step, gate, {**new, **kept})
                nodes |= dict(zip(alike, made, strict=True))
                listed += [turn, *kept.values()]
            if part.fenced:
                listed += self.stages.of_turn(Ops.WAIT, turns[max(turns)], 0)
            listed += nodes[i]
            if i == last and self.stages.have_barriers and not self.settles:
                listed.append(settled(1))
        return listed

    def freed(self, loop: UOp, count: UOp) -> list[UOp]:
        """Releases the stage that no product reads any more: of a turn, or of the one before."""
        if self.settles:
            return self.stages.released(count, UOp.const(dtypes.bool, True))
        there = UOp.const(loop.dtype, 0).alu(Ops.CMPLT, loop)
        return [there, *self.stages.released(plus(count, -1), there)]

    def reads(self, part: Part) -> bool:
        """Whether a part reads stages."""
        return part.reads(self.stages.memories)

    def fills(self, part: Part) -> bool:
        """Whether a part fills stages."""
        return part.fills(self.stages.memories)

    def joined(self, parts: Sequence[Part]) -> list[UOp]:
        """The nodes of several parts: what was cut for a wait in between stands as in the body."""
        at = {u: i for i, u in enumerate(self.body)}
        nodes = [u for p in parts for u in p.nodes]
        return nodes if any([p.sums for p in parts]) else sorted(nodes, key=at.__getitem__)

    def gate(self, turn: UOp, is_short: bool) -> UOp | None:
        """Tests whether there is such a turn, where that is not known."""
        size = self.loop.src[0]
        known = turn.op is Ops.CONST and size.op is Ops.CONST and turn.arg < size.arg
        return None if known or is_short else turn.alu(Ops.CMPLT, size)

    def loads(self, version: int) -> dict[UOp, UOp]:
        """Loads the values that have been kept."""
        return {k.value: k.place(version).load() for k in self.kept}

    def at(
        self, parts: Sequence[Part], turn: UOp, step: UOp, gate: UOp | None,
        new: dict[UOp, UOp] | None = None,
    ) -> list[list[UOp]]:  # fmt: skip
        """The nodes of parts for another turn, with the waits and the ends of its stage."""
        made = self.moved(parts, turn, {self.loop: step, **(new or {})}, gate)
        # A stage is there for all its readers once the first of them has waited.
        foremost = max([p.ahead for p in self.parts if self.reads(p)])
        waits = self.stages.have_barriers
        for part, nodes in zip(parts, made, strict=True):
            if part.producer:
                nodes[:0] = self.stages.of_turn(Ops.ACQUIRE, turn)
            if self.reads(part) and part.ahead == foremost and waits:
                nodes[:0], waits = self.stages.of_turn(Ops.WAIT, turn, 0), False
            if self.fills(part):
                nodes += self.stages.committed(turn, gate)
        return made

    def moved(
        self, parts: Sequence[Part], turn: UOp, new: dict[UOp, UOp], gate: UOp | None
    ) -> list[list[UOp]]:
        """The nodes of parts for another turn, in its stage; places are computed in the first."""
        stage = self.stages.of(turn)
        place = {u: i for i, part in enumerate(parts) for u in part.nodes}
        listed: list[list[UOp]] = [[] for _ in parts]
        listed[0] += [stage] if gate is None else [stage, gate]
        order: dict[UOp, None] = {}
        for root in self.joined(parts):
            toposort(root, done=order)
        memories = self.stages.memories
        new = {**memories, **new}
        for u in order:
            if u in new:
                continue
            src = tuple([new.get(s, s) for s in u.src])
            if u.op is Ops.INDEX and (old := base_of(u.src[0])) in memories:
                size = UOp.const(turn.dtype, memories[old].arg.size // self.stages.count)
                start = stage.alu(Ops.MUL, size)
                base = start.alu(Ops.ADD, src[1])
                listed[0] += [start, base]
                src = (src[0], base, src[2])
            elif u.op is Ops.LOAD and gate is not None and u in place:
                both = gate if len(src) == 1 else src[1].alu(Ops.AND, gate)
                listed[0].append(both)
                src = (src[0], both)
            elif u.op is Ops.BOX and gate is not None:
                src = (*src, gate)
            new[u] = u if src == u.src else new_node(u.op, u.dtype, src, u.arg)
            if u in place:
                listed[place[u]].append(new[u])
        return [[u for u in nodes if u.op is not Ops.CONST] for nodes in listed]


def once(uops: Iterable[UOp]) -> tuple[UOp, ...]:
    """A list in which values stand once."""
    done: set[UOp] = set()
    listed = []
    for u in uops:
        # A value that two turns have in common stands where it is needed first.
        if u in done and u.op not in REPEATED:
            continue
        done.add(u)
        listed.append(u)
    return tuple(listed)


def copies_of(stores: Sequence[UOp], copies: Copies) -> Copies:
    """How the stores of a turn copy; what is computed, or too narrow, waits in registers."""
    if any([u.op is Ops.BOX for u in stores]):
        return BOXES
    return copies if all([is_copy(u, copies) for u in stores]) else AT_ONCE


def is_copy(store: UOp, copies: Copies) -> bool:
    """Whether what a STORE does is a copy of neighbours, of a size that there is."""
    load = store.src[1]
    if load.op is not Ops.LOAD or len(store.src) > 2:
        return False
    lanes = [r for r in store.ranges if r.arg.kind is AxisType.VECTOR]
    # A gate of each element is none of a copy.
    if any([lane in g.ranges for lane in lanes for g in load.src[1:]]):
        return False
    width = prod([size_of(r) for r in lanes])
    return width * load.dtype.itemsize in copies.nbytes


def registers_of(groups: int) -> tuple[int, int]:
    """Those of a producer and of each of so many groups that multiply; 0 where all stay as are.

    why: two groups and a producer have 168 each at first, and a product of 128 x 256 takes more
    """
    if groups < 2:
        return 0, 0
    left = (WARP_GROUP.registers // WARP_GROUP.items - OWN) // groups
    return OWN, min(WARP_GROUP.most, left // WARP_GROUP.step * WARP_GROUP.step)


def plus(a: UOp, n: int) -> UOp:
    """A number and so many more."""
    if n and a.op is Ops.CONST:
        return UOp.const(a.dtype, a.arg + n)
    return a.alu(Ops.ADD, UOp.const(a.dtype, n)) if n else a


def before_tile(tile: UOp, strips: UOp) -> UOp:
    """The number of strips of all tiles before one."""
    return tile.alu(Ops.MUL, strips)


def ends_boxes(u: UOp) -> bool:
    """Whether a BARRIER is one behind boxes."""
    return u.op is Ops.BARRIER and any([s.op is Ops.BOX for s in u.src])


def is_output_loop(u: UOp) -> bool:
    """Whether a node begins a loop of outputs."""
    return u.op is Ops.RANGE and u.arg.kind is AxisType.LOOP


def role(items: int, registers: int) -> UOp:
    """Begins the statements of a warp role."""
    return UOp(Ops.ROLE, dtypes.void, (), RoleArg(items, registers))


def ended(loop: UOp) -> UOp:
    """The end of a loop."""
    return UOp(Ops.END, dtypes.void, (loop,))
