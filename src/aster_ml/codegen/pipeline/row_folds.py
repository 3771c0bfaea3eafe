"""Folds rows early: the first fold of row i + 1 runs in the loops of the last fold of row i.

Receives a Linear and the id of its loop over rows; returns the Linear with that fold once before
the first row, and then a row ahead.

rewrite, for each row i: m = A(i); what reads m; s = B(i); what reads s, with folds A and B
-> once, before the first row: m = A(i)
and for each row i: what reads m; s = B(i) and m = A(i + 1) in the same loops; what reads s
when: A reads nothing but its row of memory, which the kernel does not store, and has the loops of
B, or one of as many turns
why: a fold of a row ends with one number out of a register's lanes, for which all else waits; and
memory rests while what was loaded before is folded
The last row is folded once more. Every number is made of the same ones in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from aster_ml.codegen.lower.linearize import memory_of
from aster_ml.codegen.pipeline.lists import Numbers, end_of, ended, loop_at, sources
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.uop.graph import substitute_all, toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops


def fold_early(linear: Linear, axis_id: int) -> Linear:
    """The list in which rows are first folded one turn early.

    Raises: KernelOptError where the loops do not fit.
    """
    turn = loop_at(linear.uops, axis_id)
    found = folds(linear.uops, *turn) if turn is not None else []
    if turn is not None and len(found) > 1:
        early = FoldsEarly(linear, *turn, found[0], found[-1])
        if early.fits():
            return early.run()
    raise KernelOptError(
        f"{linear.name}: PIPELINE folds wants two folds of as many turns in each row, the first of "
        "them of memory alone into one number; other Opts have left none"
    )


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
        if uops[i].op is Ops.RANGE:
            last = end_of(uops, uops[i])
            loops = [j for j in range(i, last) if uops[j].op is Ops.RANGE]
            ends = [end_of(uops, uops[j]) for j in loops]
            nested = all([a > b for a, b in pairwise(ends)])
            fixed = all([uops[j].src[0].op is Ops.CONST for j in loops])
            inside = uops[loops[-1] : ends[-1]]
            if nested and fixed and any([u.op is Ops.ACCUMULATE for u in inside]):
                found.append(Fold(tuple(loops), tuple(ends)))
            i = last
        i += 1
    return found


class FoldsEarly:
    """The first fold of a row runs in the loops of the last fold of the row before."""

    def __init__(self, linear: Linear, start: int, stop: int, first: Fold, last: Fold) -> None:
        self.linear, self.numbers = linear, Numbers(linear.uops)
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
        kinds = [kind, *[u.dtype for u in self.totals]]
        unread, *kept = [self.numbers.cells(dtype, kind, 1)[0] for dtype in kinds]
        zero, one = UOp.const(kind, 0), UOp.const(kind, 1)
        new = [*uops[: self.start], unread.store(one), self.row]
        # The fold as it was, in a loop that only the first row enters.
        count = unread.load()
        # No thread shares out the turn of it.
        like = self.row.replace(arg=self.row.arg._replace(kind=AxisType.LOOP))
        only = self.numbers.loop(like, count)
        new += [*self.computed, count, only, *self.outer]
        new += [*self.fold, *self.totals]
        new += [at.store(u) for at, u in zip(kept, self.totals, strict=True)]
        loaded = [at.load() for at in kept]
        new += [ended(only), *loaded]
        # The rest of the turn, with the fold of the next row in the loops of the last one.
        known = dict(zip(self.totals, loaded, strict=True))
        rest = self.first.ends[0] + 1
        begin, end = self.last.loops[0], self.last.ends[0] + 1
        new += self.changed([*self.aside, *uops[rest:begin]], known)
        new += self.together(known, kept)
        new += [unread.store(zero), *self.changed(uops[end : self.stop], known)]
        return replace(self.linear, uops=(*self.numbers.memories, *new, *uops[self.stop :]))

    def changed(self, nodes: Iterable[UOp], known: dict[UOp, UOp]) -> list[UOp]:
        """Nodes of the turn that read loaded numbers, without those that made them."""
        return substitute_all([u for u in nodes if u not in known], known)

    def together(self, known: dict[UOp, UOp], kept: list[UOp]) -> list[UOp]:
        """The last fold of a row and the first of the next one, or of the last one again."""
        uops, row = self.linear.uops, self.row
        step = row.alu(Ops.ADD, UOp.const(row.dtype, 1))
        inside = step.alu(Ops.CMPLT, row.src[0])
        number = UOp(Ops.WHERE, row.dtype, (inside, step, row))
        changes = {row: number} | {u: self.numbers.register(u) for u in self.regs}
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
            new += [*self.changed(nodes, known), *more, ended(r)]
        totals = substitute_all(self.totals, changes)
        return [*new, *totals, *[at.store(u) for at, u in zip(kept, totals, strict=True)]]
