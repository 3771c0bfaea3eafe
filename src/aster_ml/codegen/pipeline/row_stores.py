"""Stores rows late: results of row i are stored in the loop that computes row i + 1.

Receives a Linear and the id of its loop over rows; returns the Linear with the loop that stores a
row joined to the one that fills scratch for the next, and the last row stored behind all.

rewrite, for each row i: A(i); fill scratch[j] for all j; B(i); store f(scratch[j]) for all j
-> A(i); for all j: store f(scratch[j]) of row i - 1, then fill scratch[j] for row i; B(i)
and the last row is stored after the loop over rows
when: the last loop reads and the filling loop writes the same elements of scratch at each step
(`staging/row` sees to it), and nothing that the kernel reads is stored by it
why: stores past the caches are bound by memory, powers by arithmetic; one after the other, each
waits while the other works
What a row hands on to its stores (a sum, say) is read in the loop over rows and once after it. One
such number is 0 until a first row is filled, and then the steps of a row: the size of the loop that
stores, where there is something to store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.pipeline.lists import Numbers, end_of, ended, loop_at, sources
from aster_ml.errors import KernelOptError
from aster_ml.uop.graph import substitute, substitute_all
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops

# What has no place in a loop that is run elsewhere.
FOLDS = frozenset({Ops.DEFINE_REG, Ops.ACCUMULATE, Ops.REDUCE, Ops.RANGE, Ops.END, Ops.BARRIER})


def store_later(linear: Linear, axis_id: int) -> Linear:
    """The list in which rows are stored one turn later.

    Raises: KernelOptError where the loops do not fit.
    """
    row = Row(linear.uops, axis_id)
    handed = handed_on(linear.uops, row) if row.fits else None
    reads = {memory_of(u) for u in linear.uops if u.op is Ops.LOAD}
    if handed and not any([memory_of(u) in reads for u in row.rest if u.op is Ops.STORE]):
        return StoresLater(linear, row, *handed).run()
    raise KernelOptError(
        f"{linear.name}: PIPELINE stores wants one loop that fills a row of scratch and one that "
        "stores it at the same steps; other Opts have left none"
    )


class Row:
    """The parts of one turn of a loop over rows: places in the list, and the loops in question."""

    def __init__(self, uops: tuple[UOp, ...], axis_id: int) -> None:
        self.fits = False
        turn = loop_at(uops, axis_id)
        if turn is None:
            return
        self.start, self.stop = turn
        self.loop = uops[self.start]
        if uops[self.stop - 1].op is not Ops.END:
            return
        self.last = uops[self.stop - 1].src[0]
        self.last_start = uops.index(self.last)
        self.rest = uops[self.last_start + 1 : self.stop - 1]
        read = [u for u in self.rest if u.op is Ops.LOAD]
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
        simple = not any(u.op in FOLDS for u in (*self.rest, *self.body))
        before = uops[self.start + 1 : self.fill_start]
        if not simple or self.fill.src != self.last.src or store not in self.body:
            return
        if any(u.op is Ops.LOAD and memory_of(u) is memory for u in (*before, *self.body)):
            return
        # The same elements at each step.
        same = {self.last: self.fill}
        ends = [u.src[0].src for u in (store, *read) if memory_of(u) is memory]
        places = {(substitute(base, same), steps_of_lanes(offset)) for _, base, offset in ends}
        self.fits = len(places) == 1


def steps_of_lanes(offset: UOp) -> frozenset[tuple[AxisType | UOp, int, int]]:
    """Summands of a sum of lanes times constants: the kind of each lane, its size

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


def handed_on(uops: tuple[UOp, ...], row: Row) -> tuple[list[UOp], list[UOp]] | None:
    """Values of a row that its stores need: made again from its number, and kept in scratch.

    None where one of them has lanes, or stands in a loop within the row.
    """
    wanted = {s for u in row.rest for s in sources(u)}
    again, kept, depth = list[UOp](), list[UOp](), 0
    for u in reversed(uops[row.start + 1 : row.last_start]):
        depth -= u.op is Ops.RANGE
        if u in wanted:
            is_again = u.op in ELEMENTWISE and u.dtype is row.loop.dtype
            if depth or (not is_again and any([r.arg.kind.is_lane for r in u.ranges])):
                return None
            (again if is_again else kept).append(u)
            wanted.update(sources(u) if is_again else ())
        depth += u.op is Ops.END
    return again[::-1], kept[::-1]


class StoresLater:
    """Rows are stored in the loop that fills the next one.

    A number that is handed on lies in two cells: one is read in the loop over rows, and the other
    once more after it.
    """

    def __init__(self, linear: Linear, row: Row, again: list[UOp], kept: list[UOp]) -> None:
        self.linear, self.numbers, self.row, self.again = linear, Numbers(linear.uops), row, again
        kind = row.loop.dtype
        self.step, self.number = [self.numbers.cells(kind, kind, 2) for _ in range(2)]
        self.kept = {u: self.numbers.cells(u.dtype, kind, 2) for u in kept}
        self.new: list[UOp] = []

    def add(self, u: UOp) -> UOp:
        """Lists a node."""
        self.new.append(u)
        return u

    def keep(self, cells: list[UOp], value: UOp) -> None:
        """Stores a number in both cells."""
        self.new += [at.store(value) for at in cells]

    def loop(self, size: UOp, parts: Iterable[tuple[tuple[UOp, ...], dict[UOp, UOp]]]) -> None:
        """A loop of its own over copies of bodies, each with changes of its own."""
        r = self.numbers.loop(self.row.fill, size)
        # What both bodies have in common is listed once.
        listed: dict[UOp, None] = {}
        for body, changes in parts:
            changes = {**changes, self.row.fill: r, self.row.last: r}
            listed.update(dict.fromkeys(substitute_all(body, changes)))
        self.new += [r, *listed, ended(r)]

    def changes(self, number: UOp, cell: int) -> dict[UOp, UOp]:
        """Replaces the values of a row in its stores; `number` is that of the row."""
        changes = {self.row.loop: number}
        changes |= {u: self.add(cells[cell].load()) for u, cells in self.kept.items()}
        again = substitute_all(self.again, changes)
        self.new += again
        return changes | dict(zip(self.again, again, strict=True))

    def run(self) -> Linear:
        """The new list."""
        row, uops = self.row, self.linear.uops
        kind, steps = row.loop.dtype, row.fill.src[0]
        fill: tuple[tuple[UOp, ...], dict[UOp, UOp]] = row.body, {}
        self.new += uops[: row.start]
        self.keep(self.step, UOp.const(kind, 0))
        self.new += uops[row.start : row.fill_start]
        stored = self.add(self.step[0].load())
        # The first row has none before it.
        self.loop(self.add(steps.alu(Ops.SUB, stored)), [fill])
        before = self.add(row.loop.alu(Ops.SUB, UOp.const(kind, 1)))
        self.loop(stored, [(row.rest, self.changes(before, 0)), fill])
        self.new += uops[row.fill_stop + 1 : row.last_start]
        values = [*[(cells, u) for u, cells in self.kept.items()], (self.number, row.loop)]
        for cells, value in [*values, (self.step, steps)]:
            self.keep(cells, value)
        self.add(uops[row.stop])
        stored = self.add(self.step[1].load())
        self.loop(stored, [(row.rest, self.changes(self.add(self.number[1].load()), 1))])
        self.new += uops[row.stop + 1 :]
        return replace(self.linear, uops=(*self.numbers.memories, *self.new))
