"""Pipelines a loop over rows: a part of each row runs in the loops of a part of the row before.

Receives a Linear, the place of its loop over rows, and what `row_folds` or `row_stores` has chosen:
two parts of an iteration, one of which runs an iteration ahead of the other, each with loops of as
many steps; returns the Linear with the prologue, the body and the epilogue made of them.

rewrite, of parts A (ahead) and B: for each row i: A(i); B(i)
-> for each row i: A(i) if it is the first one; B(i) and A(i + 1) in the same loops
when: A stores nothing that is seen: of the row behind the last one it runs on the last one again
rewrite: -> for each row i: B(i - 1), if there is one, and A(i) in the same loops; B(last row)
when: A stores, so that it runs once a row

Threads may share rows out: which row is a thread's first one says a number in scratch, the size of
a loop that runs there alone, or everywhere else. What A hands on to B waits in scratch, too.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise
from typing import NamedTuple

from aster_ml.codegen.pipeline.lists import Kept, Numbers, end_of, ended, loads_of, stores_of
from aster_ml.uop.graph import substitute_all
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


class Nest(NamedTuple):
    """A list with loops in one another: what is before them, in each around the next, and behind.

    `opened` and `closed` are of each loop what stands before and behind the next one.
    """

    before: list[UOp]
    loops: list[UOp]
    opened: list[list[UOp]]
    closed: list[list[UOp]]
    behind: list[UOp]

    @property
    def inside(self) -> list[UOp]:
        """The nodes in its loops."""
        return [*chain(*self.opened), *chain(*self.closed)]

    @property
    def sizes(self) -> list[int]:
        """Number of iterations of each loop, all of which are constants."""
        return [size_of(r) for r in self.loops]

    def changed(self, changes: dict[UOp, UOp]) -> Nest:
        """The same with other nodes in place of some."""
        loops = [changes.get(r, r) for r in self.loops]
        before, behind, *others = [
            substitute_all(nodes, changes)
            for nodes in (self.before, self.behind, *self.opened, *self.closed)
        ]
        return Nest(before, loops, others[: len(loops)], others[len(loops) :], behind)

    def along(self, loops: list[UOp]) -> Nest:
        """The same in other loops; one loop goes along several as one number."""
        if len(loops) == len(self.loops):
            return self.changed(dict(zip(self.loops, loops, strict=True)))
        number, numbers = loops[0], list[UOp]()
        for r in loops[1:]:
            scaled = number.alu(Ops.MUL, r.src[0])
            number = scaled.alu(Ops.ADD, r)
            numbers += [scaled, number]
        new, around = self.changed({self.loops[0]: number}), [list[UOp]() for _ in loops[1:]]
        opened, closed = [*around, [*numbers, *new.opened[0]]], [*around, new.closed[0]]
        return Nest(new.before, loops, opened, closed, new.behind)


def nests_of(nodes: list[UOp]) -> list[Nest]:
    """The loops of a list, with what is around each, that have no two loops beside one another."""
    found = []
    i = 0
    while i < len(nodes):
        if nodes[i].op is Ops.RANGE:
            last = end_of(nodes, nodes[i])
            starts = [j for j in range(i, last) if nodes[j].op is Ops.RANGE]
            ends = [end_of(nodes, nodes[j]) for j in starts]
            if all([a > b for a, b in pairwise(ends)]):
                next_starts = [*starts[1:], ends[-1]]
                opened = [nodes[j + 1 : k] for j, k in zip(starts, next_starts, strict=True)]
                closed = [*[nodes[k + 1 : j] for j, k in pairwise(ends)], list[UOp]()]
                loops = [nodes[j] for j in starts]
                found.append(Nest(nodes[:i], loops, opened, closed, nodes[last + 1 :]))
            i = last
        i += 1
    return found


def joined(*nests: Nest) -> list[UOp]:
    """Lists nests that have the same loops as one; what they have in common stands there once."""
    listed: list[UOp] = []
    loops = nests[0].loops
    for r, *opened in zip(loops, *[n.opened for n in nests], strict=True):
        listed += [r, *dict.fromkeys(chain(*opened))]
    for r, *closed in reversed([*zip(loops, *[n.closed for n in nests], strict=True)]):
        listed += [*dict.fromkeys(chain(*closed)), ended(r)]
    return listed


class RowPipeline:
    """A loop over rows at a place of a list, and two parts of an iteration, of which one is ahead.

    `again` is computed from the number of a row for both parts, and `kept` is handed on.
    """

    def __init__(
        self, linear: Linear, place: tuple[int, int], ahead: Nest, behind: Nest, again: list[UOp],
        kept: list[UOp],
    ) -> None:  # fmt: skip
        self.linear, self.place, self.numbers = linear, place, Numbers(linear.uops)
        self.ahead, self.behind, self.again = ahead, behind, again
        self.row, self.steps = linear.uops[place[0]], ahead.loops[0].src[0]
        # What stores may not run on past the last row: then the other part runs late.
        self.is_late = any([u.op is Ops.STORE for u in ahead.inside])
        # In the first iteration of a thread, and then: how often the prologue runs; or the steps of
        # the loop in which the late part does.
        zero, one = [UOp.const(self.row.dtype, n) for n in range(2)]
        self.states = (zero, self.steps) if self.is_late else (one, zero)
        values = [self.row, *([self.row] if self.is_late else []), *kept]
        self.begun, *self.kept = [Kept(u, self.numbers, self.row.dtype) for u in values]

    def run(self) -> Linear:
        """The new list."""
        (start, stop), uops = self.place, self.linear.uops
        first, later = [self.begun.place().store(n) for n in self.states]
        count = self.begun.place().load()
        listed = self.late(count, later) if self.is_late else self.early(count, later)
        listed = [*uops[:start], first, self.row, *listed, uops[stop]]
        listed += [*(self.epilogue() if self.is_late else []), *uops[stop + 1 :]]
        return replace(self.linear, uops=(*self.numbers.memories, *listed))

    def early(self, count: UOp, later: UOp) -> list[UOp]:
        """An iteration whose part ahead is that of the next row, or of the last one again."""
        row, ahead, known = self.row, self.ahead, loads_of(self.kept)
        # No thread shares out the one iteration of the prologue.
        like = row.replace(arg=row.arg._replace(kind=AxisType.LOOP))
        only = self.numbers.loop(like, count)
        own = [u for u in ahead.before if u not in self.again]
        listed = [*self.again, count, only, *own, *joined(ahead), *ahead.behind]
        listed += [*stores_of(self.kept), ended(only), *known.values()]
        step = row.alu(Ops.ADD, UOp.const(row.dtype, 1))
        inside = step.alu(Ops.CMPLT, row.src[0])
        number = UOp(Ops.WHERE, row.dtype, (inside, step, row))
        registers = [u for u in (*ahead.before, *ahead.inside) if u.op is Ops.DEFINE_REG]
        changes = {row: number} | {u: self.numbers.register(u) for u in registers}
        behind = self.behind.changed(known)
        after = ahead.changed(changes).along(behind.loops)
        values = dict(zip(ahead.behind, after.behind, strict=True))
        listed += [*behind.before, step, inside, number, *after.before, *joined(behind, after)]
        return [*listed, *after.behind, *stores_of(self.kept, values), later, *behind.behind]

    def late(self, count: UOp, later: UOp) -> list[UOp]:
        """An iteration whose part behind is that of the row before, where there is one."""
        row, ahead = self.row, self.ahead
        left = self.steps.alu(Ops.SUB, count)
        alone, both = [self.numbers.loop(ahead.loops[0], size) for size in (left, count)]
        before = row.alu(Ops.SUB, UOp.const(row.dtype, 1))
        behind = self.behind_of({**loads_of(self.kept[1:]), row: before}, both)
        listed = [*ahead.before, count, left, *joined(ahead.along([alone])), *behind.before]
        listed += [*joined(behind, ahead.along([both])), *ahead.behind]
        return [*listed, *stores_of(self.kept), later]

    def epilogue(self) -> list[UOp]:
        """The part behind of the last row."""
        count = self.begun.place(1).load()
        loop = self.numbers.loop(self.ahead.loops[0], count)
        behind = self.behind_of(loads_of(self.kept, 1), loop)
        return [count, *behind.before, *joined(behind)]

    def behind_of(self, known: dict[UOp, UOp], loop: UOp) -> Nest:
        """The part behind of another row, whose number and values are known."""
        again = substitute_all(self.again, known)
        behind = self.behind.changed({**known, **dict(zip(self.again, again, strict=True))})
        return behind.along([loop])._replace(before=[*known.values(), *again])
