"""Software pipelining of a reduction: local memory is filled for later steps of it meanwhile.

Receives a kernel whose Opt STAGE local has an axis staged, and the axis over its strips that an Opt
PIPELINE copies names; once the kernel is a list, receives the Linear and returns it with room for
several strips in local memory, its stages. What fills one runs some turns ahead of what reads it.
How copies go on and what waits for them is a row of `target/copies`.

rewrite, for n stages: for k: barrier; fill(k); barrier; use
-> fill(0) to fill(n - 2), a COMMIT behind each
and for k: wait until fill(k) is done; barrier; fill(k + n - 1), COMMIT; use of stage k % n
when: copies go on by themselves, so that n - 1 of them are under way while one is used
The barrier says two things: all work-items have their part of fill(k), and none uses the stage any
more that is filled next. Behind the last strip there is nothing to copy: zeros fill stages then
that nobody reads.

rewrite, of two stages: for k: barrier; fill(k); barrier; use
-> fill(0), and for k: load what fills k + 1; barrier; use of stage k % 2; store it
when: they do not: what is loaded waits in registers
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.plans import ChainedProducts, CopiesAhead, CopyPipeline, SharedTile
from aster_ml.codegen.products_in_place import settle_where_read, settled
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.target.copies import BARRIERS, BARRIERS_NBYTES, BOXES, Copies
from aster_ml.uop.graph import toposort
from aster_ml.uop.linear import NUMBERS_OF_ITEMS, Linear, shared_nbytes
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import AxisType, Ops, StoreArg
from aster_ml.uop.ranges import size_of

# Stages begin where any copy may. Source: PTX ISA 8.7, "cp.async.bulk.tensor" (128 bytes).
STAGE_NBYTES = 128
# Nodes that do something each time that they stand in a list.
REPEATED = frozenset({Ops.BARRIER, Ops.COMMIT, Ops.WAIT, Ops.SETTLE, Ops.ROLE, Ops.END})


def pipeline_copies(
    kernel: Kernel, axis: UOp, stages: int, kind: type[CopyPipeline] = CopiesAhead
) -> None:
    """The strips along an axis of a reduction are copied to local memory ahead of their use."""
    staged = kernel.plan(SharedTile) or kernel.plan(ChainedProducts)
    if axis.arg.kind is not AxisType.REDUCE or staged is None:
        raise KernelOptError("a reduction is wanted whose loads STAGE local takes through memory")
    if stages < 2:
        raise KernelOptError("2 stages are the fewest: one is filled while another is used")
    if axis.src[0].op is Ops.CONST and axis.src[0].arg < stages:
        raise KernelOptError(f"{stages} stages are more than the {axis.src[0].arg} strips")
    if not is_innermost(kernel, axis):
        raise KernelOptError(
            f"r{axis.arg.id} has another loop of its sum inside, which fills local memory at each "
            "turn; the innermost axis that is summed is wanted"
        )
    kernel.add(kind(axis=axis.arg.id, count=stages))


def is_innermost(kernel: Kernel, axis: UOp) -> bool:
    """Whether no other axis of a sum is gone along inside of each turn of this one."""
    for u in kernel.facts.reduces:
        loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
        if axis in loops[:-1]:
            return False
    return True


def pipeline_loop(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Local memory is filled for later turns of a loop, as PIPELINE copies says.

    Raises: KernelOptError where the loop is not there, or stages are more than there is room for.
    """
    return PipelinedCopies(*loop_of(linear, kernel, target)).run()


def loop_of(linear: Linear, kernel: Kernel, target: Target) -> tuple[Linear, int, int, int, Target]:
    """Where the loop over strips begins and ends, and for how many stages there is to be room.

    Raises: KernelOptError where the loop is not there.
    """
    plan = kernel.plan(CopyPipeline)
    assert plan is not None
    axis_id, stages = plan.axis, plan.count
    uops = linear.uops
    start = next((i for i, u in enumerate(uops) if u.op is Ops.RANGE and u.arg.id == axis_id), None)
    if start is None:
        raise KernelOptError(f"{linear.name}: PIPELINE copies wants a loop over strips")
    stop = next(i for i, u in enumerate(uops) if u.op is Ops.END and u.src[0] is uops[start])
    if not target.copies.go_on and stages != 2:
        raise KernelOptError(
            f"{linear.name}: PIPELINE copies wants 2 stages where what is loaded waits in "
            f"registers, and {stages} are given"
        )
    return linear, start, stop, stages, target


class PipelinedCopies:
    """State of one rewriting: the loop, what fills local memory in it, and the room for stages."""

    def __init__(self, linear: Linear, start: int, stop: int, stages: int, target: Target) -> None:
        self.linear = linear
        self.copies = target.copies
        self.stages = stages
        self.loop = linear.uops[start]
        self.before, self.behind = list(linear.uops[:start]), linear.uops[stop + 1 :]
        # Boxes that are there for all turns have a barrier of their own, behind those of stages.
        self.once_boxes = [u for u in self.before if u.op is Ops.BOX]
        self.before = [u for u in self.before if not ends_boxes(u) and u.op is not Ops.BOX]
        body = [u for u in linear.uops[start + 1 : stop] if u.op is not Ops.BARRIER]
        own = [u for u in body if is_private(u)]
        stores = [u for u in body if u.op in (Ops.STORE, Ops.BOX) and u not in own]
        if any([u.op is Ops.BOX for u in stores]):
            self.copies = BOXES
        if not stores or any([memory_of(u).op is not Ops.DEFINE_LOCAL for u in stores]):
            raise KernelOptError(f"{linear.name}: PIPELINE copies wants a loop that fills stages")
        self.fill = needed_by(stores, body)
        ends = [u for u in body if u.op in (Ops.ACCUMULATE, Ops.RANGE, Ops.END)]
        self.use = needed_by([*ends, *own], body)
        # What is computed, or too narrow to be copied, waits in registers.
        self.go_on = self.copies.ends == BARRIERS or (
            self.copies.go_on and all([is_copy(u, self.copies) for u in stores])
        )
        self.stages = stages = self.stages if self.go_on else 2
        self.memories = {memory_of(u): larger(memory_of(u), stages) for u in stores}
        taken = shared_nbytes([self.memories.get(u, u) for u in linear.uops])
        if self.copies.ends == BARRIERS:
            taken += BARRIERS_NBYTES
        if taken > target.local_bytes:
            raise KernelOptError(
                f"{linear.name}: PIPELINE copies of {stages} stages wants {taken:,} bytes of local "
                f"memory, and a block has {target.local_bytes:,}; fewer stages would do"
            )

    def run(self) -> Linear:
        """The new list."""
        parts = self.beside() if self.go_on else self.by_registers()
        first = [*self.first(), *self.brought_once()]
        # All are done with the last turn of the loop before its stages are filled once more.
        again = [UOp(Ops.BARRIER, dtypes.void, ())] if self.is_repeated() else []
        return replace(self.linear, uops=self.once([*first, *again, *parts, *self.behind]))

    def is_repeated(self) -> bool:
        """Whether the loop runs once for each turn of another one.

        Raises: KernelOptError where barriers count turns, which they do from the first one on.
        """
        left = {u.src[0] for u in self.before if u.op is Ops.END}
        loops = [u for u in self.before if u.op is Ops.RANGE and u.arg.kind not in NUMBERS_OF_ITEMS]
        is_inside = any([u not in left for u in loops])
        if is_inside and self.copies.ends == BARRIERS:
            raise KernelOptError(f"{self.linear.name}: boxes are copied ahead of one loop alone")
        return is_inside

    def first(self) -> list[UOp]:
        """Prologue: the statements before the loop."""
        return [self.memories.get(u, u) for u in self.before]

    @property
    def barriers(self) -> int:
        """The number of barriers: of each stage, and of what is brought once."""
        return self.stages + bool(self.once_boxes)

    def brought_once(self) -> list[UOp]:
        """Boxes that are brought once."""
        if not self.once_boxes:
            return []
        stage = UOp.const(self.loop.dtype, self.stages)
        return [*self.once_boxes, UOp(Ops.COMMIT, dtypes.void, (stage,), self.barriers)]

    def there_once(self) -> list[UOp]:
        """A wait for them."""
        if not self.once_boxes:
            return []
        stage, before = (UOp.const(self.loop.dtype, n) for n in (self.stages, 0))
        return [UOp(Ops.WAIT, dtypes.void, (stage, before), 0)]

    @staticmethod
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

    def beside(self) -> list[UOp]:
        """Copies that go on by themselves."""
        ahead = self.stages - 1
        new: list[UOp] = []
        for k in range(ahead):
            turn = UOp.const(self.loop.dtype, k)
            new += [*self.filled(turn, later=True), *self.committed(turn)]
        later, sums = self.turn_later(ahead)
        fills = [*sums, *self.filled(later, later=True), *self.committed(later)]
        end = UOp(Ops.END, dtypes.void, (self.loop,))
        if self.copies.ends == BARRIERS:
            # A product goes on until the next one is begun: then its stage is free.
            new += [*self.there_once(), self.loop, *self.waited(ahead - 1), *self.used()]
            new += self.left_over(1)
            return [*new, UOp(Ops.BARRIER, dtypes.void, ()), *fills, end, *self.left_over(0)]
        new += [self.loop, *self.waited(ahead - 1), UOp(Ops.BARRIER, dtypes.void, ())]
        new += [*fills, *self.used(), end]
        return [*new, *self.waited(0, last=True)]

    def by_registers(self) -> list[UOp]:
        """Stages through registers: loads of later iterations wait there."""
        first = self.filled(UOp.const(self.loop.dtype, 0), later=False)
        later, sums = self.turn_later(1)
        fills = self.filled(later, later=False)
        loads = [u for u in fills if u.op is not Ops.STORE]
        stores = [u for u in fills if u.op is Ops.STORE]
        barrier = UOp(Ops.BARRIER, dtypes.void, ())
        end = UOp(Ops.END, dtypes.void, (self.loop,))
        return [*first, self.loop, *sums, *loads, barrier, *self.used(), *stores, end]

    def turn_later(self, ahead: int) -> tuple[UOp, list[UOp]]:
        """The number of a turn so many ahead, and the nodes of it."""
        later = self.loop.alu(Ops.ADD, UOp.const(self.loop.dtype, ahead))
        return later, [later]

    def stage_of(self, turn: UOp) -> UOp:
        """The stage that a turn fills and reads."""
        if turn.op is Ops.CONST:
            return UOp.const(turn.dtype, turn.arg % self.stages)
        return turn.alu(Ops.MOD, UOp.const(turn.dtype, self.stages))

    def filled(self, turn: UOp, later: bool) -> list[UOp]:
        """Fills the stage of an iteration, with zeros where there is no such iteration."""
        gate = self.is_there(turn)
        listed = self.moved(self.fill, turn, {self.loop: turn}, gate)
        if not later:
            return listed
        marked = {
            u: UOp(Ops.STORE, u.dtype, u.src, StoreArg(later=True))
            for u in listed
            if u.op is Ops.STORE and u.src[1].op is Ops.LOAD and len(u.src) == 2
        }
        return [marked.get(u, u) for u in listed]

    def is_there(self, turn: UOp) -> UOp | None:
        """Tests whether there is such an iteration, where that is not known."""
        size = self.loop.src[0]
        if turn.op is Ops.RANGE:
            return None
        known = turn.op is Ops.CONST and size.op is Ops.CONST and turn.arg < size.arg
        return None if known else turn.alu(Ops.CMPLT, size)

    def used(self, turn: UOp | None = None) -> list[UOp]:
        """Reads the stage of this iteration, the one with this number of all."""
        turn = self.loop if turn is None else turn
        return settle_where_read(self.moved(self.use, turn, {}, None))

    @property
    def settles(self) -> bool:
        """Whether a turn reads sums of its products, so that none is left over."""
        return any([u.op is Ops.SETTLE for u in self.used()])

    def left_over(self, left: int) -> list[UOp]:
        """A wait for products, where a turn has none itself."""
        return [] if self.settles else [settled(left)]

    def moved(
        self, nodes: Sequence[UOp], turn: UOp, new: dict[UOp, UOp], gate: UOp | None
    ) -> list[UOp]:
        """Nodes of the loop for another turn, in the stage that it has."""
        stage, own = self.stage_of(turn), set(nodes)
        listed: list[UOp] = [stage] if gate is None else [stage, gate]
        order: dict[UOp, None] = {}
        for root in nodes:
            toposort(root, done=order)
        new = {**self.memories, **new}
        for u in order:
            if u in new:
                continue
            src = tuple([new.get(s, s) for s in u.src])
            if u.op is Ops.INDEX and (old := base_of(u.src[0])) in self.memories:
                memory = self.memories[old]
                size = UOp.const(turn.dtype, memory.arg.size // self.stages)
                start = stage.alu(Ops.MUL, size)
                base = start.alu(Ops.ADD, src[1])
                listed += [start, base]
                src = (src[0], base, src[2])
            elif u.op is Ops.LOAD and gate is not None and u in own:
                both = gate if len(src) == 1 else src[1].alu(Ops.AND, gate)
                listed.append(both)
                src = (src[0], both)
            elif u.op is Ops.BOX and gate is not None:
                src = (*src, gate)
            new[u] = u if src == u.src else new_node(u.op, u.dtype, src, u.arg)
            if u in own:
                listed.append(new[u])
        return [u for u in listed if u.op is not Ops.CONST]

    def committed(self, turn: UOp) -> list[UOp]:
        """The end of a group."""
        if self.copies.ends != BARRIERS:
            return [UOp(Ops.COMMIT, dtypes.void, ())]
        gate = self.is_there(turn)
        marks = (self.stage_of(turn),) if gate is None else (self.stage_of(turn), gate)
        return [UOp(Ops.COMMIT, dtypes.void, marks, self.barriers)]

    def waited(self, left: int, last: bool = False) -> list[UOp]:
        """A wait for the stage of this turn; the last one is for all that is under way."""
        if self.copies.ends != BARRIERS:
            return [UOp(Ops.WAIT, dtypes.void, (), left)]
        if last:
            return []
        return self.turn_of(Ops.WAIT, self.loop, left)

    def turn_of(self, op: Ops, loop: UOp, arg: int | None = None) -> list[UOp]:
        """Something of the stage of a turn, and of how often that was filled before."""
        before = loop.alu(Ops.IDIV, UOp.const(loop.dtype, self.stages))
        stage = self.stage_of(loop)
        return [stage, before, UOp(op, dtypes.void, (stage, before), arg)]


def ends_boxes(u: UOp) -> bool:
    """Whether a BARRIER is one behind boxes."""
    return u.op is Ops.BARRIER and any([s.op is Ops.BOX for s in u.src])


def base_of(memory: UOp) -> UOp:
    """Memory before something was stored there."""
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    return memory


def is_private(u: UOp) -> bool:
    """Whether something stores in memory of a work-item's own."""
    memory = memory_of(u) if u.op is Ops.STORE else u
    return u.op is Ops.STORE and memory.op is Ops.DEFINE_LOCAL and memory.arg.private


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


def needed_by(roots: Iterable[UOp], body: Sequence[UOp]) -> list[UOp]:
    """These nodes of a body and what they are made of in it, in its order."""
    own = set(body)
    found: dict[UOp, None] = {}
    for root in roots:
        toposort(root, done=found)
    return [u for u in body if u in found and u in own]


def larger(memory: UOp, stages: int) -> UOp:
    """Local memory with room for so many stages, each of which begins at a whole place."""
    whole = STAGE_NBYTES // memory.dtype.itemsize
    size = -(-memory.arg.size // whole) * whole
    arg = memory.arg
    return UOp(memory.op, memory.dtype, (), arg._replace(size=size * stages))
