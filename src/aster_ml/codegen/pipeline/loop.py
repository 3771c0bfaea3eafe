"""Pipelines the loop over strips of a reduction, as PIPELINE copies and PIPELINE producer ask for.

Receives a Linear with a loop that fills local memory and reads it, and the plan of the kernel;
returns the Linear with room for several strips, its stages, and with the parts of an iteration
(`stages`) iterations apart, or on different warps. Prologue, body and epilogue are made of the
parts alone; waits, barriers and phases follow from which part fills and which part reads a stage.
Loops over rows, which threads share out, have a prologue in the loop (`rows`).

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
-> WARP_ROLE of more work-items: for k: ACQUIRE stage k % n; fill(k), COMMIT
and WARP_ROLE of those that multiply: for k: WAIT until fill(k) is there; use; RELEASE of the stage
when: PIPELINE producer. One work-item of the producer warp begins all copies as soon as stages are
free, also those of the tiles that its block computes next (Opt BLOCKS loop); strips are counted on.

Parts that add to accumulators never run past the last iteration: the loop ends early, and parts
that are behind run once more after it (`overlap`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.pipeline.async_mma import settle_where_read, settled
from aster_ml.codegen.pipeline.lists import (
    Kept,
    Numbers,
    base_of,
    ended,
    is_private,
    loads_of,
    loop_at,
    needed_by,
)
from aster_ml.codegen.pipeline.overlap import overlapped
from aster_ml.codegen.pipeline.row_folds import fold_early
from aster_ml.codegen.pipeline.row_stores import store_later
from aster_ml.codegen.pipeline.stages import Part, Stages, meetings
from aster_ml.codegen.plans import (
    CopyPipeline,
    OverlappedExp,
    PipelinedFolds,
    PipelinedStores,
    ProducerWarp,
)
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.target.copies import AT_ONCE, BOXES, GROUPS, Copies
from aster_ml.target.tensor_cores import WARP_GROUP
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.linear import NUMBERS_OF_ITEMS, Linear
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import AxisType, Ops, StoreArg, WarpRoleArg
from aster_ml.uop.ranges import size_of

# Nodes that do something each time that they stand in a list.
REPEATED = frozenset({Ops.BARRIER, Ops.COMMIT, Ops.WAIT, Ops.MMA_WAIT, Ops.WARP_ROLE, Ops.END})
TRUE = UOp.const(dtypes.bool, True)
# Registers that a work-item of the producer keeps. Source: CUTLASS 3, kernels of sm90 with warp
# specialization (LoadRegisterRequirement); PTX ISA 8.7, "setmaxnreg" (24 to 256, by eights).
OWN = 40


def pipeline_loops(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Runs parts of an iteration ahead of the others, in loops of another one, or on other warps.

    Raises: KernelOptError where a loop is not there or has no such parts, stages are more than
        there is room for, or a producer has no copies that end at barriers.
    """
    folds, stores = kernel.plan(PipelinedFolds), kernel.plan(PipelinedStores)
    copies = kernel.plan(CopyPipeline)
    if folds is not None:
        linear = fold_early(linear, folds.axis).run()
    if stores is not None:
        # After folds, which it may not move.
        linear = store_later(linear, stores.axis).run()
    return linear if copies is None else PipelinedLoop(linear, copies, target).run()


class PipelinedLoop:
    """State of one rewriting: the loop, parts of an iteration, and the stages that they fill."""

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
        once = [u for u in uops[:start] if u.op is Ops.TMA_LOAD]
        # Without these and the barriers behind them.
        brought = {*once}
        self.before = [u for u in uops[:start] if u not in brought and brought.isdisjoint(u.src)]
        self.behind = uops[stop + 1 :]
        self.body = [u for u in uops[start + 1 : stop] if u.op is not Ops.BARRIER]
        own = [u for u in self.body if is_private(u)]
        stores = [u for u in self.body if u.op in (Ops.STORE, Ops.TMA_LOAD) and u not in own]
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
        # What use of a stage leaves under way, where no iteration reads sums of its products.
        self.settles = any([u.op is Ops.MMA_WAIT for u in settle_where_read(self.use)])
        self.inside, self.kept = set(self.body), list[Kept]()
        self.numbers = Numbers(uops)
        # All that fills a stage, in the order of the body.
        self.filled = self.stages.part(self.fill, self.stages.count - 1)
        self.parts = self.parts_of(plan, stores)
        # A stage is there for all its readers once the first of them has waited.
        self.foremost = max([p.ahead for p in self.parts if p.reads], default=0)
        # An iteration too many would show: the loop ends early.
        self.is_short = any([p.ahead and p.sums for p in self.parts])
        # The loop over tiles, and what is computed in it before the one over strips.
        self.tiles: UOp | None = None
        self.inner: list[UOp] = []

    def parts_of(self, plan: CopyPipeline, stores: list[UOp]) -> list[Part]:
        """The parts of an iteration, in order. Raises: KernelOptError where a plan has none."""
        ahead, part, name = self.filled.ahead, self.stages.part, self.linear.name
        if isinstance(plan, ProducerWarp):
            if not self.stages.have_barriers:
                raise KernelOptError(f"{name}: PIPELINE producer wants boxes of tensors")
            used = [part(self.use)]
            if isinstance(plan, OverlappedExp):
                used, self.kept = overlapped(name, self.use, self.stages, self.numbers)
            return [part(self.fill, producer=True), *used]
        if self.stages.have_barriers:
            return [part(self.use), self.filled]
        if self.stages.copies.go_on:
            return [self.filled, part(self.use)]
        loads = [u for u in self.fill if u.op is not Ops.STORE]
        return [part(loads, ahead), part(self.use), part(stores, ahead)]

    # the list

    def run(self) -> Linear:
        """The new list."""
        consumers, size = [p for p in self.parts if not p.producer], self.linear.local_size
        if len(consumers) < len(self.parts):
            self.enter_tiles()
            own, others = registers_of(size[0] // WARP_GROUP.items)
            listed = [role(WARP_GROUP.items, own), *self.produced(), role(0, others)]
            listed += self.consumed(consumers)
            size = (size[0] + WARP_GROUP.items, *size[1:])
        else:
            # All are done with the last iteration before its stages are filled once more.
            again = [UOp(Ops.BARRIER, dtypes.void, ())] if self.is_repeated() else []
            listed = [*self.stages.brought_once(), *again, *self.along(consumers, self.loop)]
        listed = [*[self.stages.memories.get(u, u) for u in self.before], *listed, *self.behind]
        uops = once([*self.numbers.memories, *listed])
        return replace(self.linear, uops=uops, local_size=size)

    def enter_tiles(self) -> None:
        """Sets the loop over tiles apart. Raises: KernelOptError where there are several."""
        loops = [(i, u) for i, u in enumerate(self.before) if u.op is Ops.RANGE]
        outer = [i for i, u in loops if u.arg.kind is AxisType.LOOP]
        if len(outer) > (0 if self.kept else 1):
            raise KernelOptError(f"{self.linear.name}: PIPELINE producer wants one loop over tiles")
        for at in outer:
            self.tiles, inner = self.before[at], self.before[at + 1 :]
            self.inner = [u for u in inner if u.op is not Ops.BARRIER]
            self.before = self.before[:at]

    def is_repeated(self) -> bool:
        """Whether the loop runs once for each iteration of another one.

        Raises: KernelOptError where barriers count iterations, which they do from the first one on.
        """
        left = {u.src[0] for u in self.before if u.op is Ops.END}
        loops = [u for u in self.before if u.op is Ops.RANGE and u not in left]
        is_inside = any([u.arg.kind not in NUMBERS_OF_ITEMS for u in loops])
        if is_inside and self.stages.have_barriers:
            raise KernelOptError(f"{self.linear.name}: boxes are copied ahead of one loop alone")
        return is_inside

    def produced(self) -> list[UOp]:
        """Begins the copies of all strips, of one tile after the other."""
        parts = [p for p in self.parts if p.producer]
        strip, brought = self.numbers.loop(self.loop), self.stages.brought_once()
        if self.tiles is None:
            return [*brought, *self.along(parts, strip)]
        tile, nodes = self.numbers.loop(self.tiles), needed_by(self.fill, self.inner)
        outer = substitute_all(nodes, {self.tiles: tile})
        new = {self.tiles: tile, **dict(zip(nodes, outer, strict=True))}
        return [tile, *outer, *brought, *self.along(parts, strip, tile, new), ended(tile)]

    def consumed(self, parts: list[Part]) -> list[UOp]:
        """Multiplies strips as they come, of one tile after the other."""
        listed = self.along(parts, self.loop, self.tiles)
        if self.tiles is None:
            return listed
        if not self.settles:
            strips = self.loop.src[0]
            after = self.tiles.alu(Ops.MUL, strips).alu(Ops.ADD, strips)
            listed += [after, *self.stages.released(plus(after, -1), TRUE)]
        return [self.tiles, *self.inner, *listed]

    # one group of warps

    def along(
        self, parts: list[Part], loop: UOp, tile: UOp | None = None,
        new: dict[UOp, UOp] | None = None,
    ) -> list[UOp]:  # fmt: skip
        """Prologue, loop and epilogue of these parts, in a tile with changes of its own.

        Iteration j of the loop runs iteration j + ahead of a part: in the prologue j is below 0,
        and in the epilogue not below the size of the loop.
        """
        new, size, most = new or {}, loop.src[0], max([p.ahead for p in parts])
        if most and self.is_short:
            size = plus(size, -most)
            loop = self.numbers.loop(loop, size)
        counted = [] if tile is None else [tile.alu(Ops.MUL, size)]
        count = loop if tile is None else counted[0].alu(Ops.ADD, loop)
        prologue, epilogue = list[UOp](), list[UOp]()
        first = parts if self.is_short else [self.filled]
        for k in range(most):
            early = UOp.const(loop.dtype, k - most)
            for p in [p for p in first if p.ahead + k >= most]:
                prologue += self.at(p, early, early, new)
        for k in range(most if self.is_short else 0):
            late, kept = plus(size, k), loads_of(self.kept, 2)
            epilogue += kept.values()
            for p in [p for p in parts if p.ahead + k < most]:
                epilogue += self.at(p, late, late, {**new, **kept})
        if self.is_short:
            prologue, epilogue = map(self.numbers.renumbered, (prologue, epilogue))
        reads = any([p.reads for p in parts])
        there = self.stages.there_once() if reads else []
        if any([p.reads for p in parts if p.ahead]):
            prologue, there = [*there, *prologue], []
        listed = [*counted, *prologue, *there, size, loop]
        listed += self.iteration(parts, count, loop, new)
        if reads and len(parts) < len(self.parts):
            listed += self.freed(count, loop)
        listed += [ended(loop), *self.stages.landed(0)]
        if reads and self.stages.have_barriers and not self.settles:
            listed.append(settled(0))
        return [u for u in settle_where_read([*listed, *epilogue]) if u.op is not Ops.CONST]

    def iteration(self, parts: list[Part], count: UOp, loop: UOp, new: dict[UOp, UOp]) -> list[UOp]:
        """The body of the loop, with waits between its parts."""
        meet, kept = meetings(parts, self.stages.have_barriers), loads_of(self.kept, 1)
        most, last = max([p.ahead for p in parts]), [p for p in parts if p.reads][-1:]
        listed: list[UOp] = []
        for i, part in enumerate(parts):
            if i in meet:
                listed += [*self.stages.landed(meet[i]), UOp(Ops.BARRIER, dtypes.void, ())]
            if part.fenced:
                listed += self.stages.wait_of(Ops.WAIT, plus(count, most), 0)
            handed = kept if part.ahead < most else {}
            listed += [plus(count, part.ahead), *handed.values()]
            listed += self.at(part, count, loop, {**new, **handed})
            if [part] == last and self.stages.have_barriers and not self.settles:
                listed.append(settled(1))
        return listed

    def freed(self, count: UOp, loop: UOp) -> list[UOp]:
        """Releases the stage that no product reads any more: this one, or the one before."""
        if self.settles:
            return self.stages.released(count, TRUE)
        there = UOp.const(loop.dtype, 0).alu(Ops.CMPLT, loop)
        return [there, *self.stages.released(plus(count, -1), there)]

    def gate(self, part: Part, iteration: UOp) -> UOp | None:
        """Tests whether there is such an iteration, where that is not known."""
        size = self.loop.src[0]
        known = iteration.op is Ops.CONST and size.op is Ops.CONST and iteration.arg < size.arg
        return None if known or self.is_short or not part.ahead else iteration.alu(Ops.CMPLT, size)

    def at(self, part: Part, count: UOp, loop: UOp, new: dict[UOp, UOp]) -> list[UOp]:
        """Lists a part in iteration `loop`, number `count` of all: waits, nodes, commit."""
        iteration = plus(count, part.ahead)
        gate = self.gate(part, iteration)
        nodes = self.moved(part.nodes, iteration, {self.loop: plus(loop, part.ahead), **new}, gate)
        if part.producer:
            nodes = [*self.stages.wait_of(Ops.ACQUIRE, iteration), *nodes]
        elif part.reads and part.ahead == self.foremost and self.stages.have_barriers:
            nodes = [*self.stages.wait_of(Ops.WAIT, iteration, 0), *nodes]
        return [*nodes, *self.stages.committed(iteration, gate)] if part.fills else nodes

    def moved(
        self, nodes: Sequence[UOp], iteration: UOp, new: dict[UOp, UOp], gate: UOp | None
    ) -> list[UOp]:
        """Nodes of the loop for another iteration, in the stage that it has."""
        stage, own = self.stages.of(iteration), set(nodes)
        listed = [stage] if gate is None else [stage, gate]
        order: dict[UOp, None] = {}
        for root in nodes:
            toposort(root, done=order)
        memories = self.stages.memories
        new = {**memories, **new}
        for u in order:
            if u in new:
                continue
            src = tuple([new.get(s, s) for s in u.src])
            if u.op is Ops.INDEX and (old := base_of(u.src[0])) in memories:
                size = UOp.const(iteration.dtype, memories[old].arg.size // self.stages.count)
                start = stage.alu(Ops.MUL, size)
                base = start.alu(Ops.ADD, src[1])
                listed += [start, base]
                src = (src[0], base, src[2])
            elif u.op is Ops.LOAD and gate is not None and u in self.inside:
                both = gate if len(src) == 1 else src[1].alu(Ops.AND, gate)
                listed.append(both)
                src = (src[0], both)
            elif u.op is Ops.TMA_LOAD and gate is not None:
                src = (*src, gate)
            new[u] = u if src == u.src else new_node(u.op, u.dtype, src, u.arg)
            if u in own:
                listed.append(new[u])
        return listed


def once(uops: Iterable[UOp]) -> tuple[UOp, ...]:
    """A list in which values stand once."""
    done: set[UOp] = set()
    listed = []
    for u in uops:
        # A value that two iterations have in common stands where it is needed first.
        if u in done and u.op not in REPEATED:
            continue
        done.add(u)
        listed.append(u)
    return tuple(listed)


def copies_of(stores: Sequence[UOp], copies: Copies) -> Copies:
    """Finds how the stores of a loop copy; what is computed, or too narrow, waits in registers."""
    if any([u.op is Ops.TMA_LOAD for u in stores]):
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


def role(items: int, registers: int) -> UOp:
    """Begins the statements of a warp role."""
    return UOp(Ops.WARP_ROLE, dtypes.void, (), WarpRoleArg(items, registers))
