"""Which values are stored: from a body of tensors to one graph of STAGEs.

Hop 3, first half. Receives the captured body (SINK of STOREs over tensor-stage nodes); returns for
every value that gets memory of its own a `Stored`: its expression over ranges, in which other
stored values are read through INDEX.

Two passes. Downwards from the outputs, here, each node learns how it is read: by which stored
value, at which indices, inside which loops; and a cost decides whether it is stored
(`schedule/decide.py`). Upwards, each reading becomes an expression (`schedule/express.py`). Nothing
here knows of devices beyond their names.
"""

from __future__ import annotations

from aster_ml.schedule.decide import Decisions
from aster_ml.schedule.express import Expressions
from aster_ml.schedule.readings import (
    DATA_DEPENDENT,
    LEAVES,
    Reading,
    Stored,
    changes_width,
    scalar_aware,
)
from aster_ml.schedule.stacks import stacked_size
from aster_ml.uop.movement import both
from aster_ml.uop.node import UOp, need
from aster_ml.uop.ops import MOVEMENT, AxisType, Ops


class StagePlanner(Decisions, Expressions):
    """One body: the walk down, with what is asked on the way, and the walk up."""

    def go_down(self) -> None:
        """Consumers first: how is each node read, and is it stored?"""
        for u in reversed(self.order):
            op = u.op
            if op is Ops.STORE:
                if not self.is_target(u):
                    self.read_by_store(u, u)
                continue
            if u in self.forced:
                self.read_by_store(u, self.targets.get(u))
                continue
            readings = self.readings.get(u)
            if not readings or op in LEAVES:
                continue
            if self.decide(u, list(readings)):
                self.read_by_store(u, None)
                continue
            # A reduction that is not stored is computed once for all its readings at one place.
            made: dict[tuple[object, ...], Reading] = {}
            for reading in readings:
                if op is Ops.REDUCE:
                    first = made.setdefault((reading.root, reading.idxs, reading.valid), reading)
                    if first is not reading:
                        self.derived[u, reading] = self.derived[u, first]
                        continue
                self.stored[reading.root].size += op not in MOVEMENT
                self.pass_on(u, reading)

    def read_by_store(self, u: UOp, target: UOp | None) -> None:
        """`u` is stored: its own sources are read over its own ranges."""
        value = u.src[1] if u.op is Ops.STORE else u
        shape = value.src[0].shape if value.op is Ops.SCATTER else value.shape
        ranges = self.new_ranges(shape, AxisType.LOOP, u)
        self.stored[u] = Stored(u, ranges, target, has_reduce=u.op in (Ops.REDUCE, Ops.SCATTER))
        if u.op is Ops.COPY or (u.op is Ops.BITCAST and changes_width(u)):
            self.readings.setdefault(u.src[0], {})
            return
        reading = Reading(u, ranges, None, tuple([r for r in ranges if r.op is Ops.RANGE]))
        if u.op is Ops.STORE:
            self.derived[u, reading] = (self.add(value, reading),)
        elif u.op is Ops.SCATTER:
            self.derived[u, reading] = tuple([self.add(s, scalar_aware(s, reading)) for s in u.src])
        else:
            self.pass_on(u, reading)

    def add(self, source: UOp, reading: Reading) -> Reading:
        """Notes that `source` is read so."""
        self.readings.setdefault(source, {})[reading] = None
        return reading

    def pass_on(self, u: UOp, reading: Reading) -> None:
        """How the sources of `u` are read when `u` is read so."""
        op = u.op
        if op in MOVEMENT:
            share = reading.share
            if op is Ops.PAD:
                idxs, valid, _ = self.below_pad(u, reading.idxs)
                share *= stacked_size(u, self.stacked[u])
            else:
                idxs, valid = self.source_of(u, reading.idxs)
            if valid is not None:
                valid = self.simple(both(reading.valid, valid))  # type: ignore[arg-type]
                if valid.op is Ops.CONST and valid.arg:
                    valid = None
            else:
                valid = reading.valid
            root, _, _, nest, after, summed, _ = reading
            below = Reading(root, idxs, valid, nest, after, summed, share)
            result: tuple[Reading, ...] = (self.add(u.src[0], below),)
        elif op is Ops.REDUCE:
            shape = tuple([u.src[0].shape[a] for a in u.arg.axes])
            axes = self.new_ranges(shape, AxisType.REDUCE, reading.root)
            place = dict(zip(u.arg.axes, axes, strict=True))
            idxs = tuple([place.get(i, idx) for i, idx in enumerate(reading.idxs)])
            nest = (*self.nest_of(reading), *[a for a in axes if a.op is Ops.RANGE])
            below = reading._replace(idxs=idxs, nest=nest, summed=u.arg.op is Ops.ADD)
            result = (self.add(u.src[0], below),)
        elif op is Ops.INDEX:
            # The indices are values read here; what they select from is read from memory.
            parts = [self.add(s, scalar_aware(s, reading)) for s in u.src[1:]]
            if not self.in_memory(u.src[0]):
                self.forced.add(u.src[0])
            self.add(u.src[0], reading._replace(idxs=DATA_DEPENDENT))
            result = (reading, *parts)
        elif op is Ops.AFTER:
            memory, below = self.read_place(u, reading)
            self.place_of[u, reading] = memory
            result = (self.add(memory, below),)
        else:
            readings = self.readings
            plain = reading
            if reading.summed:
                root, idxs, valid, nest, after, _, share = reading
                plain = Reading(root, idxs, valid, nest, after, False, share)
            parts = []
            for s in u.src:
                below = plain if s.shape else scalar_aware(s, reading)
                found = readings.get(s)
                if found is None:
                    readings[s] = {below: None}
                else:
                    found[below] = None
                parts.append(below)
            result = tuple(parts)
        self.derived[u, reading] = result

    def read_place(self, u: UOp, reading: Reading) -> tuple[UOp, Reading]:
        """The memory that an AFTER stands for, and how it is read.

        Goes down to the memory at once: what a view in between had been stored as before the
        effects is another value.
        """
        after = list(reading.after)
        idxs = reading.idxs
        while u.op is not Ops.PARAM:
            if u.op is Ops.AFTER:
                seen = self.effects.of(tuple(after))
                after.extend([s for s in u.src[1:] if s not in seen])
            elif u.op in MOVEMENT and idxs is not DATA_DEPENDENT:
                idxs, valid = self.source_of(u, idxs)
                need(valid is None, f"stages: {u!r} is no place to write to")
            u = u.src[0]
        return u, reading._replace(idxs=idxs, after=tuple(after))


def plan_stages(body: UOp, order: list[UOp]) -> StagePlanner:
    """Decides and expresses; the result holds one `Stored` for each value with memory."""
    planner = StagePlanner(body, order)
    planner.go_down()
    planner.go_up()
    return planner
