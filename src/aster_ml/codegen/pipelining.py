"""Software pipelining: results of row i are stored in the loop that computes row i + 1.

Receives a Linear and the id of its loop over rows; returns the Linear in which the last loop of a
row, which stores, runs within the next row's loop that fills scratch. Which kernels are worth it is
chosen in `cpu/elementwise`; that both loops walk scratch alike is seen to in `staging/row`.

rewrite, for each row i: A(i); fill scratch[j] for all j; B(i); store f(scratch[j]) for all j
-> A(i); for all j: store f(scratch[j]) of row i - 1, then fill scratch[j] for row i; B(i)
and the last row is stored after the loop over rows
when: the last loop reads and the filling loop writes the same elements of scratch at each step, and
nothing that the kernel reads is stored by it
why: stores past the caches are bound by memory, powers by arithmetic; one after the other, each
waits while the other works

What a row hands on to its stores (a sum, say) lies in scratch of two elements meanwhile: one is
read in the loop over rows and one after it. Another such number is 0 until a first row is filled,
and then the steps of a row: the size of the loop that stores, where there is something to store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.staging.stage import new_stage
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, substitute_all
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops, RangeArg

# What has no place in a loop that is run elsewhere.
FOLDS = frozenset({Ops.DEFINE_REG, Ops.ACCUMULATE, Ops.REDUCE, Ops.RANGE, Ops.END, Ops.BARRIER})


class Row:
    """The parts of one turn of a loop over rows: places in the list, and the loops in question."""

    def __init__(self, uops: tuple[UOp, ...], axis_id: int) -> None:
        ranges = [i for i, u in enumerate(uops) if u.op is Ops.RANGE and u.arg.id == axis_id]
        self.fits = False
        if not ranges:
            return
        self.start = ranges[0]
        self.loop = uops[self.start]
        self.stop = end_of(uops, self.loop)
        if uops[self.stop - 1].op is not Ops.END:
            return
        self.last = uops[self.stop - 1].src[0]
        self.last_start = uops.index(self.last)
        self.tail = uops[self.last_start + 1 : self.stop - 1]
        read = [u for u in self.tail if u.op is Ops.LOAD]
        scratch = {memory_of(u) for u in read if memory_of(u).op is Ops.DEFINE_LOCAL}
        if len(scratch) != 1 or self.last.src[0].op is not Ops.CONST:
            return
        (memory,) = scratch
        within = range(self.start, self.last_start)
        stores = [i for i in within if uops[i].op is Ops.STORE and memory_of(uops[i]) is memory]
        if len(stores) != 1:
            return
        store = uops[stores[0]]
        self.fill_start = max(i for i in range(stores[0]) if uops[i].op is Ops.RANGE)
        self.fill = uops[self.fill_start]
        self.fill_stop = end_of(uops, self.fill)
        self.body = uops[self.fill_start + 1 : self.fill_stop]
        simple = not any(u.op in FOLDS for u in (*self.tail, *self.body))
        before = uops[self.start + 1 : self.fill_start]
        if not simple or self.fill.src != self.last.src or store not in self.body:
            return
        if any(u.op is Ops.LOAD and memory_of(u) is memory for u in (*before, *self.body)):
            return
        # The same elements at each step.
        places = {
            (
                substitute(u.src[0].src[1], {self.last: self.fill}),
                steps_of_lanes(u.src[0].src[2]),
            )
            for u in read
            if memory_of(u) is memory
        }
        self.fits = places == {(store.src[0].src[1], steps_of_lanes(store.src[0].src[2]))}


def steps_of_lanes(offset: UOp) -> frozenset[tuple[AxisType | UOp, int, int]]:
    """What a sum of lanes times constants adds up: the kind of each lane, its size, its step.

    Lanes of two loops that are alike are not the same nodes; all else has to be.
    """
    found: set[tuple[AxisType | UOp, int, int]] = set()
    stack = [(offset, 1)]
    while stack:
        u, step = stack.pop()
        if u.op is Ops.ADD:
            stack += [(s, step) for s in u.src]
        elif u.op is Ops.MUL and u.src[1].op is Ops.CONST:
            stack.append((u.src[0], step * u.src[1].arg))
        elif u.op is Ops.RANGE:
            found.add((u.arg.kind, u.src[0].arg, step))
        elif u.op is not Ops.CONST or u.arg:
            found.add((u, 1, step))
    return frozenset(found)


def end_of(uops: tuple[UOp, ...], loop: UOp) -> int:
    """Where a loop ends."""
    return next(i for i, u in enumerate(uops) if u.op is Ops.END and u.src[0] is loop)


class Handed:
    """What the stores of a row need of the row: made again from its number, or kept in scratch."""

    def __init__(self, uops: tuple[UOp, ...], row: Row) -> None:
        inner = depths(uops, row)
        listed = {u: i for i, u in enumerate(uops[row.start + 1 : row.last_start])}
        wanted = {s for u in row.tail for s in sources(u) if s in listed}
        self.fits = all(inner[u] == 0 for u in wanted)
        self.kept: list[UOp] = []
        again: dict[UOp, None] = {}
        stack = list(wanted)
        while stack:
            u = stack.pop()
            if u.op in ELEMENTWISE and u.dtype is row.loop.dtype:
                again[u] = None
                stack.extend([s for s in sources(u) if s in listed])
            elif u not in self.kept:
                self.kept.append(u)
        self.again = sorted(again, key=listed.__getitem__)
        self.kept.sort(key=listed.__getitem__)
        has_lanes = any(r.arg.kind.is_lane for u in self.kept for r in u.ranges)
        self.fits &= not has_lanes and all(inner[u] == 0 for u in self.kept)


def depths(uops: tuple[UOp, ...], row: Row) -> dict[UOp, int]:
    """For what stands in a turn, in how many loops it stands there."""
    found, depth = {}, 0
    for u in uops[row.start + 1 : row.last_start]:
        depth -= u.op is Ops.END
        found[u] = depth
        depth += u.op is Ops.RANGE
    return found


def sources(u: UOp) -> list[UOp]:
    """The sources of a node, through the INDEX that it may read."""
    return [x for s in u.src for x in (s.src if s.op is Ops.INDEX else (s,))]


def store_rows_later(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Results of row i are stored in the loop that computes row i + 1 (PIPELINE stores)."""
    assert kernel.roles.stored_later is not None
    return skew(linear, kernel.roles.stored_later)


def skew(linear: Linear, axis_id: int) -> Linear:
    """The list in which rows are stored one turn later.

    Raises: KernelOptError where the loops do not fit.
    """
    uops = linear.uops
    row = Row(uops, axis_id)
    if row.fits:
        handed = Handed(uops, row)
        reads = {memory_of(u) for u in uops if u.op is Ops.LOAD}
        if handed.fits and not any(memory_of(u) in reads for u in row.tail if u.op is Ops.STORE):
            return Skewer(linear, row, handed).run()
    raise KernelOptError(
        f"{linear.name}: PIPELINE stores wants one loop that fills a row of scratch and one that "
        "stores it at the same steps; other Opts have left none"
    )


class Skewer:
    """State of one rewriting."""

    def __init__(self, linear: Linear, row: Row, handed: Handed) -> None:
        self.linear, self.row, self.handed = linear, row, handed
        ranges = {r for u in linear.uops for r in u.ranges}
        self.ranges = 1 + max(r.arg.id for r in ranges)
        self.new: list[UOp] = []
        self.locals: list[UOp] = []

    def add(self, u: UOp) -> UOp:
        """Lists a node."""
        self.new.append(u)
        return u

    def two_places(self, dtype: DType) -> tuple[UOp, UOp]:
        """Scratch for a number that is read in the loop over rows, and once more after it."""
        memory = new_stage([*self.linear.uops, *self.locals], dtype, size=2).memory
        self.locals.append(memory)
        kind = self.row.loop.dtype
        first, second = (memory.index(UOp.const(kind, i), UOp.const(kind, 0)) for i in range(2))
        return first, second

    def keep(self, places: tuple[UOp, UOp], value: UOp) -> None:
        """Stores a number in both places."""
        for at in places:
            self.add(at.store(value))

    def loop(self, size: UOp, parts: Iterable[tuple[tuple[UOp, ...], dict[UOp, UOp]]]) -> None:
        """A loop of its own over copies of bodies, each with changes of its own."""
        row = self.row
        r = UOp(Ops.RANGE, row.fill.dtype, (size,), RangeArg(self.ranges, AxisType.LOOP))
        self.ranges += 1
        self.add(r)
        # What both bodies have in common is listed once.
        listed: dict[UOp, None] = {}
        for body, changes in parts:
            changes = {**changes, row.fill: r, row.last: r}
            listed.update(dict.fromkeys(substitute_all(body, changes)))
        self.new += listed
        self.add(UOp(Ops.END, dtypes.void, (r,)))

    def handed_on(self, number: UOp, kept: list[tuple[UOp, UOp]], place: int) -> dict[UOp, UOp]:
        """What stands for the values of a row in its stores; `number` is that of the row."""
        changes = {self.row.loop: number}
        for u, places in zip(self.handed.kept, kept, strict=True):
            changes[u] = self.add(places[place].load())
        again = substitute_all(self.handed.again, changes)
        self.new += again
        return changes | dict(zip(self.handed.again, again, strict=True))

    def run(self) -> Linear:
        """The new list."""
        row, uops = self.row, self.linear.uops
        kind, steps = row.loop.dtype, row.fill.src[0]
        step, number = self.two_places(kind), self.two_places(kind)
        kept = [self.two_places(u.dtype) for u in self.handed.kept]
        fill: tuple[tuple[UOp, ...], dict[UOp, UOp]] = row.body, {}
        self.new += uops[: row.start]
        self.keep(step, UOp.const(kind, 0))
        self.new += uops[row.start : row.fill_start]
        stored = self.add(step[0].load())
        # The first row has none before it.
        self.loop(self.add(steps.alu(Ops.SUB, stored)), [fill])
        before = self.add(row.loop.alu(Ops.SUB, UOp.const(kind, 1)))
        self.loop(stored, [(row.tail, self.handed_on(before, kept, 0)), fill])
        self.new += uops[row.fill_stop + 1 : row.last_start]
        for u, places in zip(self.handed.kept, kept, strict=True):
            self.keep(places, u)
        self.keep(number, row.loop)
        self.keep(step, steps)
        self.add(uops[row.stop])
        stored = self.add(step[1].load())
        last = self.handed_on(self.add(number[1].load()), kept, 1)
        self.loop(stored, [(row.tail, last)])
        self.new += uops[row.stop + 1 :]
        return replace(self.linear, uops=(*self.locals, *self.new))
