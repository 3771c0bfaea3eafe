"""Cuts the graph of stored values into kernels.

Hop 3, second half. Receives a `StagePlanner` with every stored value expressed; returns drafts of
steps, sources first, which `schedule/kernels/order.py` orders. Each kernel is closed: its buffers
are PARAMs numbered by first use (the output is 0), its ranges are numbered in order, so that equal
kernels are the same object wherever they come from.
"""

from __future__ import annotations

from typing import Any

from aster_ml.config import SPEC
from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.helpers import prod
from aster_ml.schedule.fusion.materialize import StagePlanner
from aster_ml.schedule.fusion.uses import Materialized, kept_in
from aster_ml.schedule.hazards import NOTHING, Effects, Happened, base_param
from aster_ml.schedule.steps import Draft, HazardError, Leaf, Part, Read, Slot, Step
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.graph import holds, substitute, substitute_ordered, toposort
from aster_ml.uop.infer import max_shape
from aster_ml.uop.movement import flat_index, slice_of_base, source_index
from aster_ml.uop.node import METADATA, UOp, need
from aster_ml.uop.ops import (
    ELEMENTWISE,
    MOVEMENT,
    AxisType,
    KernelArg,
    Ops,
    ParamArg,
    RangeArg,
    ReduceArg,
)
from aster_ml.uop.print.infix import render_expr
from aster_ml.uop.ranges import size_of


class Splitter:
    """State of cutting one planned body; reuses the walks that `before` has cached."""

    def __init__(
        self, planner: StagePlanner, params: list[UOp], before: Splitter | None = None
    ) -> None:
        self.planner = planner
        self.slots = [Slot(p.arg.size, p.dtype, p.arg.device) for p in params]
        self.n_args = len(params)
        self.slot_of: dict[UOp, int] = {p: i for i, p in enumerate(params)}
        self.drafts: list[Draft] = []
        self.effects = Effects()
        # Node -> the node below its chain of effects.
        self.under: dict[UOp, UOp] = {}
        # Slot of a view -> the memory that it shows, at some version.
        self.shown: dict[int, list[Read]] = {}
        # Caches of walked expressions and of closed kernels.
        self.walks: dict[tuple[UOp, ...], Walk] = before.walks if before else {}
        self.closed: dict[tuple[object, ...], UOp] = before.closed if before else {}
        self.calls = self.find_calls() if METADATA.data else {}

    def memory(self, u: UOp) -> int:
        """The slot of a parameter or stored value; temporaries get a slot at the first call."""
        found = self.slot_of.get(u)
        if found is None:
            stored = self.planner.stored[u]
            if stored.target is not None:
                found = self.memory(base_param(stored.target.src[0]))
            else:
                value = u.src[1] if u.op is Ops.STORE else u
                size = max(prod(max_shape(value.shape)), 1)
                if value.device is None:
                    raise InternalError(f"split: {value!r} lives on no device")
                why = self.planner.why.get(u) or f"asked for by {u.op.name}"
                self.slots.append(Slot(size, value.dtype, str(value.device), why))
                found = len(self.slots) - 1
            self.slot_of[u] = found
        return found

    def split(self) -> list[Draft]:
        """Makes a draft of a kernel for each stored value, sources first."""
        parts = self.planner.parts
        for u in parts and [u for u in self.planner.order if u in parts]:
            self.draft_part(u)
        for u in self.planner.order:
            stored = self.planner.stored.get(u)
            if stored is not None and u not in parts:
                if u.op is Ops.COPY:
                    self.draft_copy(stored)
                elif stored.value is None:
                    self.draft_view(stored)
                else:
                    self.draft_kernel(stored)
        return self.drafts

    def source_memory(self, u: UOp) -> tuple[int, int, Happened]:
        """Slot, byte offset and effects of a contiguous run of memory."""
        offset, after = 0, NOTHING
        while u.op is not Ops.PARAM and (after or u not in self.planner.stored):
            if u.op is Ops.SHRINK:
                run = slice_of_base(
                    UOp(
                        Ops.SHRINK,
                        u.dtype,
                        (
                            UOp(
                                Ops.RESHAPE,
                                u.dtype,
                                (UOp.param(0, prod(u.src[0].shape), u.dtype),),
                                tuple(u.src[0].shape),
                            ),
                        ),
                        u.arg,
                    )
                )
                need(run is not None, f"split: {u!r} is no run of its source")
                offset += run[1] * u.dtype.itemsize  # type: ignore[index]
            elif u.op is Ops.AFTER:
                after |= self.effects.of(u.src[1:])
            u = u.src[0]
        return self.memory(u), offset, after

    def draft_copy(self, stored: Materialized) -> None:
        """A COPY between devices."""
        u = stored.node
        slot, offset, after = self.source_memory(u.src[0])
        out = self.memory(u)
        nbytes = prod(max_shape(u.shape)) * u.dtype.itemsize
        self.drafts.append(
            Draft(
                Step("copy", (out, slot), None, str(u.device), offset, nbytes),
                self.reads_of(slot, after),
                out,
                stored.target,
            )
        )

    def reads_of(self, slot: int, after: Happened) -> list[Read]:
        """Lists the reads of a slot: the slot itself, and the memory that it is a view of."""
        return [(slot, after), *self.shown.get(slot, ())]

    def draft_view(self, stored: Materialized) -> None:
        """Drafts a view for a BITCAST to another width: the same bytes."""
        u = stored.node
        slot, offset, after = self.source_memory(u.src[0])
        if stored.target is not None:
            out = self.memory(u)
            nbytes = prod(max_shape(u.shape)) * u.dtype.itemsize
            step = Step("copy", (out, slot), None, str(u.device), offset, nbytes)
        else:
            out = self.memory(u)
            step = Step("view", (out, slot), None, str(u.device), offset)
            self.shown[out] = self.reads_of(slot, after)
        self.drafts.append(Draft(step, self.reads_of(slot, after), out, stored.target))

    def draft_part(self, u: UOp) -> None:
        """Drafts a view for a run of memory that no step writes to."""
        run = slice_of_base(u)
        need(run is not None, f"split: {u!r} is no run of its memory")
        base, start = run  # type: ignore[misc]
        slot, out = self.memory(base), self.memory(u)
        step = Step("view", (out, slot), None, str(u.device), start * u.dtype.itemsize)
        self.shown[out] = self.reads_of(slot, NOTHING)
        self.drafts.append(Draft(step, self.reads_of(slot, NOTHING), out))

    def draft_kernel(self, stored: Materialized) -> None:
        """Drafts a kernel that stores one value."""
        u, value = stored.node, stored.value
        assert value is not None
        target = u if u.op is Ops.STORE else stored.target
        after = NOTHING
        ranges = stored.ranges
        if u.op is Ops.SCATTER:
            self.draft_scatter(stored, target)
            return
        if u.op is Ops.STORE:
            at, idxs = u.src[0], ranges
            while at.op is not Ops.PARAM:
                if at.op in MOVEMENT:
                    idxs, valid = source_index(at, idxs)
                    need(valid is None, "split: a STORE into a padded view")
                elif at.op is Ops.AFTER:
                    # With all earlier effects.
                    after |= self.effects.below(at)
                    at = self.below_effects(at)
                    continue
                at = at.src[0]
            flat, out = self.planner.simple(flat_index(idxs, at.shape)), self.memory(at)
            self.slot_of[u] = out
        else:
            flat = self.planner.place_in(u, ranges, u.shape)
            out = self.memory(u)
            if stored.layout is not None:
                ranges = tuple([ranges[a] for a in stored.layout])
        self.emit(u, out, flat, value, ranges, target, after)
        if u in self.planner.fresh:
            self.copy_instead(self.drafts[-1])

    def below_effects(self, u: UOp) -> UOp:
        """The node below a chain of effects."""
        found = self.under.get(u.src[0], u.src[0])
        while found.op is Ops.AFTER:
            found = found.src[0]
        self.under[u] = found
        return found

    def copy_instead(self, draft: Draft) -> None:
        """Replaces a small kernel that only copies memory by a copy step."""
        part, numel = draft.parts[0], prod([size_of(r) for r in draft.ranges])
        if part.value.op is not Ops.LOAD or len(part.value.src) > 1 or numel > ASSUMED.small_work:
            return
        token, at = part.value.src[0].src
        slot = draft.leaves[token].slot
        if at is part.place and self.slots[slot].device == draft.step.device:
            draft.parts = []
            slots, nbytes = (part.slot, slot), numel * token.dtype.itemsize
            draft.step = Step("copy", slots, None, draft.step.device, 0, nbytes)

    def draft_scatter(self, stored: Materialized, target: UOp | None) -> None:
        """Drafts two kernels: one fills the result with zeros, one adds each element at its index.

        A maximum starts from the least value of the dtype instead of zeros.
        """
        u, value = stored.node, stored.value
        assert value is not None
        out = self.memory(u)
        sizes = u.arg.shape
        ranges = tuple([UOp.range(s, i) for i, s in enumerate(sizes)])
        start = UOp.const(u.dtype, 0 if u.arg.op is Ops.ADD else dtypes.min(u.dtype))
        self.emit(u, out, flat_index(ranges, sizes), start, ranges, None, NOTHING)
        flat = self.planner.simple(flat_index(value.src[1:], sizes))
        ranges, part = stored.ranges, value.src[0]
        # Elements that a range adds to the same index are summed in a register first.
        closed = [r for r in ranges if r.op is Ops.RANGE and r not in flat.ranges]
        if closed:
            sizes = tuple([r.src[0] for r in closed])
            sums = self.planner.new_ranges(sizes, AxisType.REDUCE, u)
            part = substitute(part, dict(zip(closed, sums, strict=True)))
            part = UOp(Ops.REDUCE, u.dtype, (part, *sums), ReduceArg(u.arg.op))
            ranges = tuple([r for r in ranges if r not in closed])
        added = self.planner.token(u, u).index(flat).load().alu(u.arg.op, part)
        self.emit(u, out, flat, added, ranges, target, NOTHING)
        # No reader may come between the two kernels.
        second, first = self.drafts.pop(), self.drafts.pop()
        first.alone = second.alone = True
        second.reads = [r for r in second.reads if r[0] != out]
        self.drafts.extend([first, second])

    def walk(self, exprs: tuple[UOp, ...]) -> Walk:
        """Walks expressions and caches the result, which equal layers share."""
        found = self.walks.get(exprs)
        if found is None:
            found = self.walks[exprs] = Walk(exprs)
        return found

    def emit(
        self,
        u: UOp,
        out: int,
        flat: UOp,
        value: UOp,
        ranges: tuple[UOp, ...],
        target: UOp | None,
        target_after: Happened,
    ) -> None:
        """Drafts a kernel with one part, and records its reads."""
        reads: dict[Read, None] = {}
        leaves: dict[UOp, Leaf] = {}
        behind = self.planner.memory_behind.get(u, {})
        for node in self.walk((flat, value)).reads:
            token = node.src[0]
            memory = source, stores = behind[token]
            after = self.effects.of(stores) if stores else NOTHING
            slot = self.slot_of.get(source, -1)
            slot = self.memory(source) if slot < 0 else slot
            if slot == out and target is not None:
                self.check_in_place(u, node, flat, after, target_after)
            if token not in leaves:
                leaves[token] = Leaf(slot, memory)
                reads.update(dict.fromkeys(self.reads_of(slot, after)))
        step = Step("kernel", (), None, self.slots[out].device)
        order = tuple([r for r in ranges if r.op is Ops.RANGE])
        parts = [Part(out, flat, value)]
        draft = Draft(step, list(reads), out, target, target_after, parts, order)
        asked = u.src[1] if u.op is Ops.STORE else u
        if asked.op is Ops.CONTIGUOUS and asked.arg is not None:
            draft.alone, draft.info = True, KernelArg(opts=asked.arg)
        if self.calls:
            draft.metadata = tuple(self.calls[u])
        draft.kept = asked.op is Ops.CONTIGUOUS
        draft.leaves = leaves
        self.drafts.append(draft)

    def find_calls(self) -> dict[UOp, dict[Any, None]]:
        """For each stored node, the traced calls that its kernel computes, its own call first."""
        stored = self.planner.stored
        found = {root: dict.fromkeys(METADATA.get(root) or ()) for root in stored}
        for u, readings in self.planner.readings.items():
            made = METADATA.get(u)
            if made and u not in stored:
                for reading in readings:
                    found[reading.root].update(dict.fromkeys(made))
        return found

    def close(self, draft: Draft, sizes: dict[int, int] | None = None) -> Step:
        """The step of a draft; of a kernel, its graph with buffers and ranges numbered.

        `sizes` overrides the sizes of slots of which the kernel sees a part.
        """
        if not draft.parts:
            return draft.step
        exprs = draft.exprs
        walk = self.walk(exprs)
        number: dict[int, int] = {}
        for part in draft.parts:
            number[part.slot] = len(number)
        leaves = draft.leaves
        for u in walk.reads:
            slot = leaves[u.src[0]].slot
            if slot not in number:
                number[slot] = len(number)
        room = [s.size for s in map(self.slots.__getitem__, number)]
        if sizes:
            room = [sizes.get(slot, n) for slot, n in zip(number, room, strict=True)]
        places = tuple([number[leaves[u.src[0]].slot] for u in walk.reads])
        # Kernels that differ only in their memory are built once.
        key = (exprs, draft.ranges, draft.info, places, tuple(room))
        ast = self.closed.get(key)
        if ast is None:
            ast = self.closed[key] = close_kernel(draft, walk, places, room)
        kept = draft.metadata
        return Step("kernel", tuple(number), ast, draft.step.device, metadata=kept)

    def check_in_place(
        self, u: UOp, read: UOp, flat: UOp, after: Happened, target_after: Happened
    ) -> None:
        """Raises HazardError where an assign reads its target at another element than it writes."""
        if read.src[1] is not flat and after == target_after:
            raise HazardError(value=u.src[1] if u.op is Ops.STORE else u)


class Walk:
    """The nodes of expressions, sources first, with the nodes that `close_kernel` replaces."""

    __slots__ = ("exprs", "loads", "nodes", "order", "ranges", "reads", "sums")

    def __init__(self, exprs: tuple[UOp, ...]) -> None:
        self.exprs = exprs
        self.order = toposort(*exprs)
        # INDEX nodes, RANGEs, LOADs by what they load, and the ranges that reductions close.
        self.reads: list[UOp] = []
        self.ranges: list[UOp] = []
        self.loads: dict[UOp, UOp] = {}
        self.sums: dict[UOp, None] | None = None
        # Loads, and operations on what they load.
        self.nodes = 0
        for u in self.order:
            op = u.op
            if op is Ops.INDEX:
                self.reads.append(u)
            elif op is Ops.RANGE:
                self.ranges.append(u)
            elif op is Ops.LOAD:
                self.loads[u.src[0]] = u
                self.nodes += 1
            elif op is Ops.REDUCE:
                self.sums = self.sums or {}
                self.sums.update(dict.fromkeys(u.src[1:]))
            elif op in ELEMENTWISE and u.dtype is not dtypes.index:
                self.nodes += 1


def close_kernel(draft: Draft, walk: Walk, places: tuple[int, ...], room: list[int]) -> UOp:
    """The graph of a draft's kernel, with buffers and ranges numbered; `room` has buffer sizes."""
    changes: dict[UOp, UOp] = {}
    for r in draft.ranges:
        changes[r] = UOp(Ops.RANGE, r.dtype, r.src, RangeArg(len(changes), r.arg.kind))
    outputs = tuple(changes.values())
    # Outputs are numbered first, then reductions in order of the graph.
    count = len(outputs)
    for r in walk.ranges:
        if r not in changes:
            changes[r] = UOp(Ops.RANGE, r.dtype, r.src, RangeArg(count, r.arg.kind))
            count += 1
    for u, place in zip(walk.reads, places, strict=True):
        token = u.src[0]
        changes[token] = UOp(Ops.PARAM, token.dtype, (), ParamArg(place, room[place]))
    made = substitute_ordered(walk.exprs, changes, walk.order)
    ends = []
    for i, part in enumerate(draft.parts):
        place_, value, size = made[2 * i], made[2 * i + 1], room[i]
        at = UOp(Ops.PARAM, part.value.dtype, (), ParamArg(i, size)).index(place_)
        inside = kept_in(place_, size)
        if SPEC:
            check_bounds(at, value, inside)
        ends.append(at.store(value, inside).end(*outputs))
    return UOp(Ops.SINK, dtypes.void, tuple(ends), draft.info)


# Ops that make an index depend on data.
DATA = frozenset({Ops.LOAD, Ops.REDUCE})


def check_bounds(target: UOp, value: UOp, gate: UOp | None) -> None:
    """Raises InternalError unless interval arithmetic shows every access inside its buffer.

    A gated access is safe, since a failing gate touches no memory. Intervals of indices that depend
    on data (as in a sort) are unknown: their author guarantees the bounds, and only indices that
    are always out of bounds are found.
    """
    ungated = [u.src[0] for u in toposort(value) if u.op is Ops.LOAD and len(u.src) == 1]
    for at in [target] * (gate is None) + ungated:
        low, high = at.src[1].bounds
        size = at.src[0].arg.size
        outside = low >= size or high < 0
        if outside or ((low < 0 or high >= size) and not holds(at.src[1], DATA)):
            raise InternalError(
                f"split: an index runs from {low} to {high} in a buffer of "
                f"{size} elements: {render_expr(at.src[1])}"
            )
