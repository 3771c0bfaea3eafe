"""Materializes: decides which values of a body are stored, each as one STAGE.

Hop 3, first half. Receives the captured body (SINK of STOREs over tensor-stage nodes); returns for
every value that gets memory of its own a `Materialized`: its expression over ranges, in which other
stored values are read through INDEX.

Two walks. The downward walk, here, starts at the outputs and records how each node is read: by
which stored value, at which indices, inside which loops; a cost decides whether the node is stored
(`schedule/fusion/policy.py`). The upward walk writes each reading as an expression
(`schedule/fusion/inline.py`). Devices are known by name only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from aster_ml.schedule.fusion.inline import Expressions
from aster_ml.schedule.fusion.policy import DECIDED, Decisions
from aster_ml.schedule.fusion.uses import (
    DATA_DEPENDENT,
    LEAVES,
    AccessPath,
    Materialized,
    Reading,
    Use,
    changes_width,
)
from aster_ml.schedule.rewrites.disjoint_pads import chosen_by, is_inside
from aster_ml.schedule.rewrites.layout import order_of_axes
from aster_ml.schedule.rewrites.stacks import stacked_size
from aster_ml.uop.movement import both
from aster_ml.uop.node import UOp, need
from aster_ml.uop.ops import MOVEMENT, AxisType, Ops

# Globals are faster to look up than members of an Enum, and every node is tested for its op.
ADD, AFTER, CONST, INDEX, PAD, RANGE, REDUCE, STORE = (
    Ops.ADD, Ops.AFTER, Ops.CONST, Ops.INDEX, Ops.PAD, Ops.RANGE, Ops.REDUCE, Ops.STORE,
)  # fmt: skip


class Follower(Protocol):
    """Observes the downward walk, and finishes kernels early."""

    @property
    def waiting(self) -> Mapping[UOp, object]:
        """The nodes after which `look` is called."""

    def meet(self, u: UOp, root: UOp) -> None:
        """Called for a reduction that is, or is inlined into, the stored value `root`."""

    def look(self, passed: UOp) -> None:
        """The walk has passed a node that it waits for."""


class StagePlanner(Decisions, Expressions):
    """Plans one body: the downward walk with its decisions, and the upward walk."""

    def __init__(self, body: UOp, order: list[UOp]) -> None:
        super().__init__(body, order)
        self.follower: Follower | None = None

    def run(self) -> None:
        """Decides which values are stored, and inlines the others: one `Materialized` each."""
        self.go_down()
        # They hold each other, and Python's search for circles rests.
        self.follower = None
        self.go_up(self.order)

    def go_down(self) -> None:
        """Consumers first: how is each node read, and is it stored?"""
        forced, readings, follower = self.forced, self.readings, self.follower
        passed: UOp | None = None
        for u in reversed(self.order):
            if follower is not None and passed is not None and passed in follower.waiting:
                follower.look(passed)
            passed = u
            op = u.op
            if op is STORE:
                if not self.is_target(u):
                    self.read_by_store(u, u)
                continue
            if u in forced:
                self.read_by_store(u, self.targets.get(u))
                continue
            uses = readings.get(u)
            if not uses or op in LEAVES:
                continue
            if op in DECIDED and self.decide(u, list(uses)):
                self.read_by_store(u, None)
                if op is PAD:
                    self.lay_out(u, uses)
                continue
            if op in MOVEMENT:
                for use in uses.values():
                    self.pass_movement(u, use)
                continue
            if op is REDUCE and len(uses) > 1:
                # A value that is not stored has one expression for all readings at one index.
                made: dict[tuple[object, ...], Use] = {}
                for reading, use in uses.items():
                    way = reading.way
                    first = made.setdefault((reading.root, way.idxs, way.valid), use)
                    if first is use:
                        self.stored[reading.root].size += 1
                        self.pass_on(u, use)
                    else:
                        use.below = first.below
                continue
            for reading, use in uses.items():
                self.stored[reading.root].size += 1
                self.pass_on(u, use)

    def read_by_store(self, u: UOp, target: UOp | None) -> None:
        """Stores `u`: its sources are read over the ranges of `u`."""
        value = u.src[1] if u.op is Ops.STORE else u
        shape = value.src[0].shape if value.op is Ops.SCATTER else value.shape
        ranges = self.new_ranges(shape, AxisType.LOOP, u)
        self.stored[u] = Materialized(
            u, ranges, target, has_reduce=u.op in (Ops.REDUCE, Ops.SCATTER)
        )
        if u.op is Ops.COPY or u in self.parts or (u.op is Ops.BITCAST and changes_width(u)):
            self.readings.setdefault(u.src[0], {})
            return
        nest = tuple([r for r in ranges if r.op is Ops.RANGE])
        reading = self.reading(u, self.way(ranges, None, nest))
        use = self.stored[u].use = Use()
        use.reading = reading
        if u.op is Ops.STORE:
            use.below = (self.add(value, reading),)
        elif u.op is Ops.SCATTER:
            use.below = tuple([self.add(s, self.for_operand(s, reading)) for s in u.src])
        elif u.op in MOVEMENT:
            self.pass_movement(u, use)
        else:
            self.pass_on(u, use)

    def lay_out(self, u: UOp, readings: Iterable[Reading]) -> None:
        """Chooses the layout of a stored value by how it is read."""
        layout = self.stored[u].layout = order_of_axes(u, [r.way for r in readings])
        if layout is not None:
            self.why[u] += f"; its axes lie in the order {layout}"

    def add(self, source: UOp, reading: Reading) -> Use:
        """Adds a reading of `source`."""
        uses = self.readings.get(source)
        if uses is None:
            uses = self.readings[source] = {}
        use = uses.get(reading)
        if use is None:
            use = uses[reading] = Use()
            use.reading, use.below = reading, ()
        return use

    def pass_movement(self, u: UOp, use: Use) -> None:
        """Derives the reading of a view's source from the reading of the view."""
        reading, source, op = use.reading, u.src[0], u.op
        if op is PAD:
            # The result depends on nodes below the view, too.
            below = self.below_view(u, reading.way)
            if below.valid is not None and below.valid.op is CONST and not below.valid.arg:
                # Only padding is read.
                use.below = ()
                return
        else:
            key = (op, u.arg, u.src[1:], source.shape, reading.way)
            found = self.below_views.get(key)
            if found is None:
                found = self.below_views[key] = self.below_view(u, reading.way)
            below = found
        use.below = (self.add(source, self.reading(reading.root, below, reading.after)),)

    def below_view(self, u: UOp, way: AccessPath) -> AccessPath:
        """The access path of a view's source, given that of the view."""
        share = way.share
        if u.op is PAD:
            idxs, valid, _ = self.below_pad(u, way.idxs)
            share *= stacked_size(u, self.stacked[u])
        else:
            idxs, valid = self.source_of(u, way.idxs)
        if valid is not None:
            valid = self.simple(both(way.valid, valid))  # type: ignore[arg-type]
            if valid.op is Ops.CONST and valid.arg:
                valid = None
        else:
            valid = way.valid
        return self.way(idxs, valid, way.nest, way.summed, share)

    def pass_on(self, u: UOp, use: Use) -> None:
        """Derives the readings of the sources of `u`, which is not a view, from that of `u`."""
        op, reading = u.op, use.reading
        if op is REDUCE:
            whole = u.src[0].shape
            shape = tuple([whole[a] for a in u.arg.axes])
            axes = self.new_ranges(shape, AxisType.REDUCE, reading.root)
            place = dict(zip(u.arg.axes, axes, strict=True))
            way = reading.way
            idxs = tuple([place.get(i, idx) for i, idx in enumerate(way.idxs)])
            nest = (*self.nest_of(reading), *[a for a in axes if a.op is RANGE])
            way = self.way(idxs, way.valid, nest, u.arg.op is Ops.ADD, way.share)
            use.below = (self.add(u.src[0], self.reading(reading.root, way, reading.after)),)
            if self.follower is not None:
                self.follower.meet(u, reading.root)
        elif op is INDEX:
            # Indices are read as values; their source is read from memory.
            parts = [self.add(s, self.for_operand(s, reading)) for s in u.src[1:]]
            if not self.in_memory(u.src[0]):
                self.forced.add(u.src[0])
            way = self.at(reading.way, DATA_DEPENDENT)
            memory = self.add(u.src[0], self.reading(reading.root, way, reading.after))
            use.below = (memory, *parts)
        elif op is AFTER:
            use.below = (self.add(*self.read_place(u, reading)),)
        else:
            # As `add` does: most nodes come here.
            readings, plain = self.readings, not reading.way.summed
            sources = u.src
            if op is ADD and u in self.joins:
                join = self.joins[u]
                inside = self.simple(is_inside(join.boxes, reading.way.idxs, u.shape))
                chosen = chosen_by(join, inside)
                sources = u.src if chosen is None else (u.src[chosen],)
            parts = []
            for s in sources:
                of = reading if plain and s.shape else self.for_operand(s, reading)
                uses = readings.get(s)
                if uses is None:
                    uses = readings[s] = {}
                part = uses.get(of)
                if part is None:
                    part = uses[of] = Use()
                    part.reading, part.below = of, ()
                parts.append(part)
            use.below = tuple(parts)

    def read_place(self, u: UOp, reading: Reading) -> tuple[UOp, Reading]:
        """The memory below an AFTER, and how it is read.

        Goes down to the memory at once, since a view in between may have been stored before the
        effects, with another value.
        """
        after = list(reading.after)
        idxs = reading.way.idxs
        topmost = True
        while u.op is not Ops.PARAM:
            if u.op is Ops.AFTER:
                if topmost:
                    # Effects further down have happened before.
                    seen = self.effects.of(tuple(after))
                    after.extend([s for s in u.src[1:] if s not in seen])
                    topmost = False
            elif u.op in MOVEMENT and idxs is not DATA_DEPENDENT:
                idxs, valid = self.source_of(u, idxs)
                need(valid is None, f"stages: {u!r} is no place to write to")
            u = u.src[0]
        return u, self.reading(reading.root, self.at(reading.way, idxs), tuple(after))
