"""Software pipelining of a loop over rows: part of the work on a row runs in the loops of another.

Receives a kernel and the axis that an Opt PIPELINE names, and says whether its rows have such parts
(`pipeline_stores`, `pipeline_folds`); once the kernel is a list, receives the Linear and returns it
with a turn of the loop cut into two stages, of which one runs a row ahead. Each stage has a loop of
as many turns, and these become one loop. What one stage hands on to the other lies in scratch of
one or two elements meanwhile. Which kernels are worth it is chosen in `cpu/elementwise`.

PIPELINE folds: the first fold of row i + 1 runs in the loops of the last fold of row i.
rewrite, for each row i: m = A(i); what reads m; s = B(i); what reads s, with folds A and B
-> once, before the first row: m = A(i)
and for each row i: what reads m; s = B(i) and m = A(i + 1) in the same loops; what reads s
when: A reads nothing but its row of memory, which the kernel does not store, and has the loops of
B, or one of as many turns
why: a fold of a row ends with one number out of a register's lanes, for which all else waits; and
memory rests while what was loaded before is folded
The last row is folded once more. Every number is made of the same ones in the same order.

PIPELINE stores: results of row i are stored in the loop that computes row i + 1.
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
from itertools import pairwise
from typing import NamedTuple

from aster_ml.codegen.analysis import Facts
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.plans import PipelinedFolds, PipelinedStores
from aster_ml.codegen.staging.stage import new_stage
from aster_ml.dtype import DType, dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import holds, substitute, substitute_all, toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops, RangeArg
from aster_ml.uop.ranges import size_of

# What has no place in a loop that is run elsewhere.
FOLDS = frozenset({Ops.DEFINE_REG, Ops.ACCUMULATE, Ops.REDUCE, Ops.RANGE, Ops.END, Ops.BARRIER})


def row_stage(facts: Facts, outputs: list[UOp], axis: UOp) -> tuple[UOp, UOp] | None:
    """The STAGE of a row that each step of an output axis has, and where its stores read it.

    They read every element of it once, lane by lane, in one loop inside of the axis.
    """
    loops = [r for r in outputs if not r.arg.kind.is_lane]
    stages = facts.by_op[Ops.STAGE]
    if facts.stores_over_reads or len(stages) != 1 or loops[-2:-1] != [axis]:
        return None
    (stage,) = stages
    reads = [a for a in facts.accesses if a.buffer is stage and loops[-1] in a.strides]
    rows = [r for r in outputs if r not in stage.ranges]
    lanes = any(r.arg.kind.is_lane for r in stage.ranges)
    if lanes or len(reads) != 1 or set(rows) != set(reads[0].strides):
        return None
    # Each axis goes on where those before it end.
    run = 1
    for r in sorted(rows, key=lambda r: reads[0].stride(r) or 0):
        if reads[0].stride(r) != run or r.src[0].op is not Ops.CONST:
            return None
        run *= r.src[0].arg
    whole = stage.src[1].src[0]
    return (stage, reads[0].node) if whole.op is Ops.CONST and run == whole.arg else None


def folds_of_next(facts: Facts, axis: UOp) -> tuple[UOp, UOp] | None:
    """The first and the last fold in a step of an output axis, if the first of the next step can
    share the loops of the last one.

    It gives one number out of SIMD lanes, reads nothing but memory that the kernel does not store,
    each element in its own loops, and these have as many turns as those of the last fold.
    """
    folds = [u for u in facts.reduces if axis in u.ranges]
    if len(folds) < 2 or axis.src[0].op is not Ops.CONST:
        return None
    first, last = folds[0], folds[-1]
    loops, others = ([r for r in u.src[1:] if not r.arg.kind.is_lane] for u in (first, last))
    if not loops or any([r.src[0].op is not Ops.CONST for r in loops + others]):
        return None
    if not any([r.arg.kind.is_lane for r in first.src[1:]]):
        return None
    # Of more than two, one comes before all others, and one after them.
    leaves = [u for u in folds if not holds(u.src[0], {Ops.REDUCE})]
    roots = [u for u in folds if not any([u in toposort(x.src[0]) for x in folds if x is not u])]
    if len(folds) > 2 and (leaves != [first] or roots != [last]):
        return None
    turns, wanted = [size_of(r) for r in loops], [size_of(r) for r in others]
    if turns not in (wanted, [prod(wanted)]) or any([r.arg.kind.is_lane for r in first.ranges]):
        return None
    stored = {u.src[0].src[0] for u in facts.stores}
    for u in toposort(first.src[0]):
        if u.op is Ops.REDUCE or u.op is Ops.STAGE:
            return None
        if u.op is Ops.LOAD and (
            u.src[0].src[0] in stored or (axis in u.ranges and u.ranges.isdisjoint(loops))
        ):
            return None
    return first, last


def pipeline_stores(kernel: Kernel, axis: UOp) -> None:
    """Rows along an output axis are stored while the next is made (`codegen/pipelining`)."""
    if row_stage(kernel.facts, kernel.outputs, axis) is None:
        raise KernelOptError(
            "an output axis is wanted each step of which keeps a row in scratch and stores one"
        )
    kernel.add(PipelinedStores(axis=axis.arg.id))


def pipeline_folds(kernel: Kernel, axis: UOp) -> None:
    """Rows along an output axis are first folded beside the row before."""
    if axis not in kernel.outputs or folds_of_next(kernel.facts, axis) is None:
        raise KernelOptError(
            "an output axis is wanted each step of which folds twice in loops of as many "
            "turns, first a row of memory into one number"
        )
    kernel.add(PipelinedFolds(axis=axis.arg.id))


def stored_row(kernel: Kernel) -> tuple[UOp, UOp] | None:
    """Of rows that are stored one step later, the STAGE and where stores read it."""
    axes = [r for r in kernel.outputs if kernel.plan_of(PipelinedStores, r) is not None]
    return row_stage(kernel.facts, kernel.outputs, axes[0]) if axes else None


# on a list of nodes


def pipeline_rows(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """A part of the work on a row runs in the loops of another row, as PIPELINE says."""
    early, later = kernel.plan(PipelinedFolds), kernel.plan(PipelinedStores)
    if early is not None:
        linear = fold_early(linear, early.axis)
    if later is not None:
        # After folds, which it may not move.
        linear = store_later(linear, later.axis)
    return linear


def fold_early(linear: Linear, axis_id: int) -> Linear:
    """The list in which rows are first folded one turn early.

    Raises: KernelOptError where the loops do not fit.
    """
    turn = turn_of(linear.uops, axis_id)
    found = folds(linear.uops, *turn) if turn is not None else []
    if turn is not None and len(found) > 1:
        early = FoldsEarly(linear, *turn, found[0], found[-1])
        if early.fits():
            return early.run()
    raise KernelOptError(
        f"{linear.name}: PIPELINE folds wants two folds of as many turns in each row, the first of "
        "them of memory alone into one number; other Opts have left none"
    )


def store_later(linear: Linear, axis_id: int) -> Linear:
    """The list in which rows are stored one turn later.

    Raises: KernelOptError where the loops do not fit.
    """
    uops = linear.uops
    row = Row(uops, axis_id)
    if row.fits:
        handed = Handed(uops, row)
        reads = {memory_of(u) for u in uops if u.op is Ops.LOAD}
        if handed.fits and not any(memory_of(u) in reads for u in row.rest if u.op is Ops.STORE):
            return StoresLater(linear, row, handed).run()
    raise KernelOptError(
        f"{linear.name}: PIPELINE stores wants one loop that fills a row of scratch and one that "
        "stores it at the same steps; other Opts have left none"
    )


def turn_of(uops: tuple[UOp, ...], axis_id: int) -> tuple[int, int] | None:
    """Where the loop over rows begins, and where it ends; None where there is none."""
    start = next((i for i, u in enumerate(uops) if is_loop(u) and u.arg.id == axis_id), None)
    return None if start is None else (start, end_of(uops, uops[start]))


def end_of(uops: tuple[UOp, ...], loop: UOp) -> int:
    """Where a loop ends."""
    return next(i for i, u in enumerate(uops) if u.op is Ops.END and u.src[0] is loop)


def is_loop(u: UOp) -> bool:
    """Whether a node begins a loop."""
    return u.op is Ops.RANGE


def sources(u: UOp) -> list[UOp]:
    """The sources of a node, through the INDEX that it may read."""
    return [x for s in u.src for x in (s.src if s.op is Ops.INDEX else (s,))]


class Pipeline:
    """State of one rewriting: the list, scratch for what is handed on, and numbers of new loops."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear
        self.memories: list[UOp] = []
        self.ranges = 1 + max([r.arg.id for u in linear.uops for r in u.ranges])

    def places(self, dtype: DType, kind: DType, count: int) -> list[UOp]:
        """Scratch for so many numbers; indices are of dtype `kind`."""
        memory = new_stage([*self.linear.uops, *self.memories], dtype, size=count).memory
        self.memories.append(memory)
        return [memory.index(UOp.const(kind, i), UOp.const(kind, 0)) for i in range(count)]

    def new_loop(self, size: UOp, dtype: DType) -> UOp:
        """A loop of its own."""
        self.ranges += 1
        return UOp(Ops.RANGE, dtype, (size,), RangeArg(self.ranges - 1, AxisType.LOOP))

    def listed(self, nodes: Iterable[UOp]) -> Linear:
        """The list with other nodes."""
        return replace(self.linear, uops=(*self.memories, *nodes))


class Fold(NamedTuple):
    """Loops inside of one another, the innermost with ACCUMULATE: places in the list of nodes."""

    loops: tuple[int, ...]
    ends: tuple[int, ...]  # of the same loops, so the first is the last place

    def sizes(self, uops: tuple[UOp, ...]) -> list[int]:
        """Number of iterations of each loop."""
        return [uops[i].src[0].arg for i in self.loops]

    def parts(self, uops: tuple[UOp, ...]) -> tuple[list[list[UOp]], list[list[UOp]]]:
        """Splits each loop's body into what stands before the next loop within, and after it."""
        starts, inner = [*self.loops[1:], self.ends[-1]], len(self.loops) - 1
        before = [list(uops[i + 1 : j]) for i, j in zip(self.loops, starts, strict=True)]
        after = [list(uops[self.ends[i + 1] + 1 : self.ends[i]]) for i in range(inner)]
        return before, [*after, []]


def is_total(u: UOp) -> bool:
    """Whether a node folds all lanes of a register into one number."""
    return u.op is Ops.REDUCE and not any(r.arg.kind.is_lane for r in u.ranges)


def folds(uops: tuple[UOp, ...], start: int, stop: int) -> list[Fold]:
    """The folds of a turn that are no more than one loop in another, of fixed sizes, in order."""
    found = []
    i = start + 1
    while i < stop:
        if is_loop(uops[i]):
            last = end_of(uops, uops[i])
            loops = [j for j in range(i, last) if is_loop(uops[j])]
            ends = [end_of(uops, uops[j]) for j in loops]
            nested = all([a > b for a, b in pairwise(ends)])
            fixed = all([uops[j].src[0].op is Ops.CONST for j in loops])
            inside = uops[loops[-1] : ends[-1]]
            if nested and fixed and any([u.op is Ops.ACCUMULATE for u in inside]):
                found.append(Fold(tuple(loops), tuple(ends)))
            i = last
        i += 1
    return found


class FoldsEarly(Pipeline):
    """The first fold of a row runs in the loops of the last fold of the row before."""

    def __init__(self, linear: Linear, start: int, stop: int, first: Fold, last: Fold) -> None:
        super().__init__(linear)
        self.start, self.stop = start, stop
        self.first, self.last = first, last
        uops = linear.uops
        self.row = uops[start]
        before = uops[start + 1 : first.loops[0]]
        # What is loaded, or made of that, and listed too early, stands behind the fold as well.
        self.aside: dict[UOp, None] = {}
        for u in before:
            if u.op is Ops.LOAD or not self.aside.keys().isdisjoint(sources(u)):
                self.aside[u] = None
        self.before = [u for u in before if u not in self.aside]
        self.fold = uops[first.loops[0] : first.ends[0] + 1]
        # What is computed from the number of the row: its places, for one.
        self.computed = [u for u in self.before if u.op in ELEMENTWISE]
        self.regs = [u for u in (*self.before, *self.fold) if u.op is Ops.DEFINE_REG]
        self.outer = [u for u in self.before if u.op is Ops.DEFINE_REG]
        # What reads the registers has to be this and nothing else: numbers for all lanes each.
        after = uops[first.ends[0] + 1 :]
        self.totals = [u for u in after if any([s in self.outer for s in sources(u)])]

    def fits(self) -> bool:
        """Whether it can be done."""
        uops, sizes = self.linear.uops, self.last.sizes(self.linear.uops)
        stored = {memory_of(u) for u in uops if u.op is Ops.STORE}
        read = [memory_of(u) for u in self.fold if u.op is Ops.LOAD]
        return (
            self.first.sizes(uops) in (sizes, [prod(sizes)])
            and set(self.before) <= {*self.computed, *self.regs}
            and all([u.op is Ops.LOAD or u.op in ELEMENTWISE for u in self.aside])
            and self.aside.keys().isdisjoint(toposort(*self.fold))
            and all([m.op is Ops.PARAM and m not in stored for m in read])
            and all([is_total(u) for u in self.totals])
            and self.row.src[0].op is Ops.CONST
        )

    def run(self) -> Linear:
        """The new list."""
        uops, kind = self.linear.uops, self.row.dtype
        [unread], *cells = [
            self.places(dtype, kind, 1) for dtype in [kind, *[u.dtype for u in self.totals]]
        ]
        kept = [at for (at,) in cells]
        zero, one = UOp.const(kind, 0), UOp.const(kind, 1)
        new = [*uops[: self.start], unread.store(one), self.row]
        # The fold as it was, in a loop that only the first row enters.
        count = unread.load()
        only = self.new_loop(count, kind)
        new += [*self.computed, count, only, *self.outer]
        new += [*self.fold, *self.totals]
        new += [at.store(u) for at, u in zip(kept, self.totals, strict=True)]
        loaded = [at.load() for at in kept]
        new += [UOp(Ops.END, dtypes.void, (only,)), *loaded]
        # The rest of the turn, with the fold of the next row in the loops of the last one.
        known = dict(zip(self.totals, loaded, strict=True))
        rest = self.first.ends[0] + 1
        begin, end = self.last.loops[0], self.last.ends[0] + 1
        new += self.changed([*self.aside, *uops[rest:begin]], known)
        new += self.together(known, kept)
        new += [unread.store(zero), *self.changed(uops[end : self.stop], known)]
        return self.listed([*new, *uops[self.stop :]])

    def changed(self, nodes: Iterable[UOp], known: dict[UOp, UOp]) -> list[UOp]:
        """Nodes of the turn that read loaded numbers, without those that made them."""
        return substitute_all([u for u in nodes if u not in known], known)

    def together(self, known: dict[UOp, UOp], kept: list[UOp]) -> list[UOp]:
        """The last fold of a row and the first of the next one, or of the last one again."""
        uops, row = self.linear.uops, self.row
        step = row.alu(Ops.ADD, UOp.const(row.dtype, 1))
        inside = step.alu(Ops.CMPLT, row.src[0])
        number = UOp(Ops.WHERE, row.dtype, (inside, step, row))
        ids = 1 + max([u.arg.id for u in uops if u.op is Ops.DEFINE_REG])
        changes = {row: number}
        for i, u in enumerate(self.regs):
            changes[u] = UOp(u.op, u.dtype, u.src, u.arg._replace(id=ids + i))
        loops, turns = [uops[i] for i in self.last.loops], list[UOp]()
        own = [uops[i] for i in self.first.loops]
        if len(own) == len(loops):
            changes |= dict(zip(own, loops, strict=True))
        else:
            # One number for the turns of loops inside of one another.
            turn = loops[0]
            for r in loops[1:]:
                scaled = turn.alu(Ops.MUL, r.src[0])
                turn = scaled.alu(Ops.ADD, r)
                turns += [scaled, turn]
            changes[own[0]] = turn
        opened, closed = [
            [substitute_all(nodes, changes) for nodes in part] for part in self.first.parts(uops)
        ]
        if len(own) < len(loops):
            outer = [list[UOp]() for _ in loops[1:]]
            opened, closed = [*outer, turns + opened[0]], [*outer, closed[0]]
        new = [step, inside, number, *substitute_all(self.before, changes)]
        before, after = self.last.parts(uops)
        for r, nodes, more in zip(loops, before, opened, strict=True):
            new += [r, *self.changed(nodes, known), *more]
        for r, nodes, more in reversed([*zip(loops, after, closed, strict=True)]):
            new += [*self.changed(nodes, known), *more, UOp(Ops.END, dtypes.void, (r,))]
        totals = substitute_all(self.totals, changes)
        return [*new, *totals, *[at.store(u) for at, u in zip(kept, totals, strict=True)]]


class Row:
    """The parts of one turn of a loop over rows: places in the list, and the loops in question."""

    def __init__(self, uops: tuple[UOp, ...], axis_id: int) -> None:
        self.fits = False
        turn = turn_of(uops, axis_id)
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


class Handed:
    """Values of a row that its stores need: made again from its number, or kept in scratch."""

    def __init__(self, uops: tuple[UOp, ...], row: Row) -> None:
        inner = depths(uops, row)
        listed = {u: i for i, u in enumerate(uops[row.start + 1 : row.last_start])}
        wanted = {s for u in row.rest for s in sources(u) if s in listed}
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


class StoresLater(Pipeline):
    """Rows are stored in the loop that fills the next one."""

    def __init__(self, linear: Linear, row: Row, handed: Handed) -> None:
        super().__init__(linear)
        self.row, self.handed = row, handed
        self.new: list[UOp] = []

    def add(self, u: UOp) -> UOp:
        """Lists a node."""
        self.new.append(u)
        return u

    def two_places(self, dtype: DType) -> tuple[UOp, UOp]:
        """Scratch for a number that is read in the loop over rows, and once more after it."""
        first, second = self.places(dtype, self.row.loop.dtype, 2)
        return first, second

    def keep(self, places: tuple[UOp, UOp], value: UOp) -> None:
        """Stores a number in both places."""
        for at in places:
            self.add(at.store(value))

    def loop(self, size: UOp, parts: Iterable[tuple[tuple[UOp, ...], dict[UOp, UOp]]]) -> None:
        """A loop of its own over copies of bodies, each with changes of its own."""
        row = self.row
        r = self.new_loop(size, row.fill.dtype)
        self.add(r)
        # What both bodies have in common is listed once.
        listed: dict[UOp, None] = {}
        for body, changes in parts:
            changes = {**changes, row.fill: r, row.last: r}
            listed.update(dict.fromkeys(substitute_all(body, changes)))
        self.new += listed
        self.add(UOp(Ops.END, dtypes.void, (r,)))

    def handed_on(self, number: UOp, kept: list[tuple[UOp, UOp]], place: int) -> dict[UOp, UOp]:
        """Replaces the values of a row in its stores; `number` is that of the row."""
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
        self.loop(stored, [(row.rest, self.handed_on(before, kept, 0)), fill])
        self.new += uops[row.fill_stop + 1 : row.last_start]
        for u, places in zip(self.handed.kept, kept, strict=True):
            self.keep(places, u)
        self.keep(number, row.loop)
        self.keep(step, steps)
        self.add(uops[row.stop])
        stored = self.add(step[1].load())
        last = self.handed_on(self.add(number[1].load()), kept, 1)
        self.loop(stored, [(row.rest, last)])
        self.new += uops[row.stop + 1 :]
        return self.listed(self.new)
