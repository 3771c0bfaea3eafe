"""Lists a linear program as the reference does: every lane a node, pointers, registers.

Receives a `Linear`; returns nodes of the dialect in running order. Where Aster has one LOAD for all
lanes of a tile, there is one here for each place that is loaded; SIMD lanes are a vector. An
accumulator is memory in registers that is stored to before, in and read after its loop.
"""

from __future__ import annotations

import itertools
from typing import Any

from aster_ml.dtype import AddrSpace, dtypes
from aster_ml.extend import lane_ranges, read_affine, size_of
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

WORK_ITEMS = {AxisType.GLOBAL: "gidx", AxisType.LOCAL: "lidx", AxisType.GROUP: "lidx"}
# The value of each lane range that is written out.
Lanes = dict[UOp, int]
Places = tuple[tuple[UOp, int], ...]
# A value, and at which of the lanes that it changes with.
Instance = tuple[UOp, Places]


class Listing:
    """State of writing one program out."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear
        self.uops: list[UOp] = []
        self.made: dict[Instance, UOp] = {}
        self.listed: set[UOp] = set()
        self.registers: dict[UOp, UOp] = {}

    def run(self) -> list[UOp]:
        """The nodes, the SINK of what is stored last."""
        for u in self.linear.uops:
            self.statement(u)
        self.uops.append(UOp(Ops.SINK, dtypes.void, (self.uops[-1],)))
        return self.uops

    def listing(self, u: UOp) -> UOp:
        """Lists a node once."""
        if u not in self.listed:
            self.listed.add(u)
            self.uops.append(u)
        return u

    def statement(self, u: UOp) -> None:
        """Translates one node of the program."""
        if u.op is Ops.END:
            self.listing(UOp(Ops.END, dtypes.void, (self.uops[-1], self.value(u.src[0], {}))))
        elif u.op is Ops.DEFINE_REG:
            self.define(u)
        elif u.op is Ops.ACCUMULATE:
            self.accumulate(u)
        else:
            # Lanes that only an address has are written out too.
            for lanes in self.instances(lane_ranges(u)):
                self.value(u, lanes)

    def instances(self, ranges: list[UOp]) -> list[Lanes]:
        """All combinations of the lanes that are no SIMD lanes."""
        ranges = [r for r in ranges if r.arg.kind is not AxisType.VECTOR]
        sizes = [range(size_of(r)) for r in ranges]
        return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*sizes)]

    def wide(self, u: UOp) -> int:
        """Number of elements of one instance."""
        return int(next((size_of(r) for r in lane_ranges(u) if r.arg.kind is AxisType.VECTOR), 1))

    def value(self, u: UOp, lanes: Lanes) -> UOp:
        """One instance of a value; what it reads is made before it."""
        key = instance_of(u, lanes)
        if key not in self.made:
            stack = [(key, iter(self.reads(*key)))]
            while stack:
                wanted, sources = stack[-1]
                missing = next((x for x in sources if x not in self.made), None)
                if missing is not None:
                    stack.append((missing, iter(self.reads(*missing))))
                else:
                    stack.pop()
                    self.made[wanted] = self.make(wanted[0], dict(wanted[1]))
        return self.there(u, lanes)

    def reads(self, u: UOp, places: Places) -> list[Instance]:
        """The instances of values that one instance is made of."""
        lanes = dict(places)
        if u.op is Ops.DEFINE_REG or (u.op is Ops.RANGE and u in lanes):
            return []
        if u.op is Ops.REDUCE:
            return [
                instance_of(u.src[0], {**lanes, **more}) for more in self.instances(list(u.src[1:]))
            ]
        return [instance_of(s, lanes) for s in (u.src[:2] if u.op is Ops.INDEX else u.src)]

    def there(self, u: UOp, lanes: Lanes) -> UOp:
        """An instance that is made; of an accumulator what it holds now."""
        key = instance_of(u, lanes)
        return self.load(u, dict(key[1])) if u.op is Ops.DEFINE_REG else self.made[key]

    def make(self, u: UOp, lanes: Lanes) -> UOp:
        """Writes one instance whose sources are made."""
        dtype = u.dtype if u.dtype is dtypes.void else u.dtype.vec(self.wide(u))
        if u.op is Ops.PARAM:
            pointer = u.dtype.ptr(u.arg.size)
            return self.listing(UOp(Dialect.DEFINE_GLOBAL, pointer, (), u.arg.slot))
        if u.op is Ops.DEFINE_LOCAL:
            pointer = u.dtype.ptr(u.arg.size, AddrSpace.LOCAL)
            return self.listing(UOp(Ops.DEFINE_LOCAL, pointer, (), u.arg.id))
        if u.op is Ops.RANGE and u in lanes:
            return self.listing(UOp.const(dtypes.int32, lanes[u]))
        if u.op is Ops.RANGE:
            size = self.there(u.src[0], lanes)
            name = WORK_ITEMS.get(u.arg.kind)
            if name is not None:
                return self.listing(UOp(Dialect.SPECIAL, u.dtype, (size,), f"{name}{u.arg.id}"))
            return self.listing(UOp(u.op, dtype, (size,), u.arg))
        if u.op is Ops.INDEX:
            return self.index(u, lanes)
        if u.op is Ops.DEFINE_REG:
            return self.load(u, lanes)
        if u.op is Ops.REDUCE:
            return self.fold(u, lanes)
        src = tuple([self.there(s, lanes) for s in u.src])
        return self.listing(UOp(u.op, dtype, src, u.arg))

    def load(self, register: UOp, lanes: Lanes) -> UOp:
        """Loads an instance of an accumulator."""
        place = self.place(self.registers[register], register, lanes)
        dtype = register.dtype.vec(self.wide(register))
        return self.listing(UOp(Ops.LOAD, dtype, (place,)))

    def index(self, u: UOp, lanes: Lanes) -> UOp:
        """The place of an element, or of the first of several."""
        memory, base = self.there(u.src[0], lanes), self.there(u.src[1], lanes)
        offset = 0
        if len(u.src) > 2:
            affine = read_affine(u.src[2])
            offset = affine.const + sum(w * lanes.get(r, 0) for r, w in affine.weights.items())
        if offset and base.op is Ops.CONST:
            base = self.listing(UOp.const(base.dtype, base.arg + offset))
        elif offset:
            number = self.listing(UOp.const(base.dtype, offset))
            base = self.listing(UOp(Ops.ADD, base.dtype, (base, number)))
        return self.listing(UOp(Ops.INDEX, memory.dtype, (memory, base)))

    def define(self, u: UOp) -> None:
        """An accumulator: registers, one for each instance, set to what it starts from."""
        count = len(self.instances(list(u.src[1:]))) * self.wide(u)
        pointer = u.dtype.ptr(count, AddrSpace.REG)
        self.registers[u] = self.listing(UOp(Ops.DEFINE_REG, pointer, (), u.arg.id))
        start = self.value(u.src[0], {})
        for lanes in self.instances(list(u.src[1:])):
            self.listing(
                UOp(Ops.STORE, dtypes.void, (self.place(self.registers[u], u, lanes), start))
            )

    def place(self, register: UOp, u: UOp, lanes: Lanes) -> UOp:
        """Where an instance of an accumulator is."""
        number = 0
        for r in u.src[1:]:
            if r.arg.kind is not AxisType.VECTOR:
                number = number * size_of(r) + lanes.get(r, 0)
        at = self.listing(UOp.const(dtypes.int32, number * self.wide(u)))
        return self.listing(UOp(Ops.INDEX, register.dtype, (register, at)))

    def accumulate(self, u: UOp) -> None:
        """Folds a value into each instance of an accumulator, unrolled lanes one after another."""
        register, value = u.src[0], u.src[1]
        for lanes in self.instances(list(register.src[1:])):
            place = self.place(self.registers[register], register, lanes)
            dtype = u.dtype.vec(self.wide(register))
            total = self.listing(UOp(Ops.LOAD, dtype, (place, self.uops[-1])))
            for more in self.instances(list(u.src[2:])):
                part = self.value(value, {**lanes, **more})
                total = self.listing(UOp(u.arg, dtype, (total, part)))
            self.listing(UOp(Ops.STORE, dtypes.void, (place, total)))

    def fold(self, u: UOp, lanes: Lanes) -> UOp:
        """The instances of a value over some lanes as one."""
        total: Any = None
        for more in self.instances(list(u.src[1:])):
            part = self.there(u.src[0], {**lanes, **more})
            dtype = part.dtype
            total = part if total is None else self.listing(UOp(u.arg.op, dtype, (total, part)))
        wide = self.wide(u.src[0])
        if wide > 1 and self.wide(u) == 1:
            parts = [self.listing(UOp(Dialect.GEP, u.dtype, (total,), (i,))) for i in range(wide)]
            total = parts[0]
            for part in parts[1:]:
                total = self.listing(UOp(u.arg.op, u.dtype, (total, part)))
        return total  # type: ignore[no-any-return]


def instance_of(u: UOp, lanes: Lanes) -> Instance:
    """The instance of a value where lanes that are written out have these values."""
    mine = [(r, lanes[r]) for r in lane_ranges(u) if r in lanes]
    return u, tuple(sorted(mine, key=lambda item: item[0].arg.id))


def nodes_of(linear: Linear) -> list[UOp]:
    """The program as a list of the dialect."""
    return Listing(linear).run()
