"""Trip counts of reductions over mostly zeros: the loop runs only where a term is nonzero.

Receives a kernel whose Opts are applied; returns its graph. Which axes there are is not decided
here.

rewrite: REDUCE(v, k) with v = 0 unless a <= k < b -> REDUCE(v at k = a + j, j < b - a)
when: a and b are affine in the loops around the reduction, or such a number over a constant, a step
is always left, and another loop runs within k
why: the gradient of a convolution by its input reads a smaller image than it makes, with zeros all
around; each of its rows needs only the rows of weights that meet the image
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.config import EXACT
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of
from aster_ml.uop.rules.conditions import conditions_of
from aster_ml.uop.rules.linear_form import Form, form_of, node_of
from aster_ml.uop.rules.symbolic import simplify_around

# Places of the loops around a reduction at which it is looked for a step.
MOST_PLACES = 1024
# Of these kinds zero times anything that is finite is zero.
NUMBERS = frozenset({"float", "int", "uint"})


def limit_reductions(kernel: Kernel, target: Target) -> None:
    """Limits each sum to the steps at which its terms can be other than zero."""
    changes = {u: with_limits(kernel, u) for u in kernel.reduces}
    changes = {u: new for u, new in changes.items() if new is not u}
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def with_limits(kernel: Kernel, u: UOp) -> UOp:
    """A reduction with its loops limited to the steps at which its terms can be other than zero."""
    loops = [r for r in u.src[1:] if r.arg.kind is AxisType.REDUCE]
    # What runs within the innermost loop are lanes at most.
    outer = loops if len(loops) < len(u.src) - 1 else loops[:-1]
    conditions = nonzero_conditions(u.src[0]) if u.arg.op is Ops.ADD and outer else []
    if not conditions or any(differs_by_lane(c) for c in conditions):
        return u
    closed = [r for x in kernel.reduces for r in x.src[1:]]
    new = u
    for r in outer:
        if r.src[0].op is Ops.CONST and closed.count(r) == 1:
            new = limited(new, r, conditions)
    return new


def nonzero_conditions(value: UOp) -> list[UOp]:
    """Comparisons of indices without each of which a value is zero."""
    found: list[UOp] = []
    seen: set[UOp] = set()
    stack = [value]
    multiplied = NUMBERS - {"float"} if EXACT else NUMBERS
    while stack:
        u = stack.pop()
        if u in seen:
            continue
        seen.add(u)
        if u.op is Ops.LOAD:
            found += [c for g in u.src[1:] for c in conditions_of(g) if is_comparison(c)]
        elif u.op in (Ops.CAST, Ops.NEG) or (u.op is Ops.MUL and u.dtype.kind in multiplied):
            stack.extend(reversed(u.src))
    return list(dict.fromkeys(found))


def is_comparison(condition: UOp) -> bool:
    """Whether it compares indices."""
    return condition.op is Ops.CMPLT and condition.src[0].dtype is dtypes.index


def differs_by_lane(condition: UOp) -> bool:
    """Whether a condition holds for some lanes of a step and not for others, as only a run tells.

    why: with tests in it that it cannot do without, a loop is no quicker for having fewer steps
    """
    lanes = [r.arg.kind.is_lane for r in condition.ranges]
    return any(lanes) and not all(lanes)


def masks_of_last(gates: Iterable[UOp], r: UOp, lane: UOp) -> frozenset[UOp]:
    """Finds the gates that mask lanes at the last step of a loop and at no other."""
    if r.arg.kind.is_lane or r.src[0].op is not Ops.CONST or size_of(r) < 2:
        return frozenset()
    found = frozenset([c for g in gates for c in conditions_of(g) if {r, lane} <= c.ranges])
    return found if all([fails_last(c, r) for c in found]) else frozenset()


def fails_last(condition: UOp, r: UOp) -> bool:
    """Whether it is an `x < y` that holds at all steps of a loop but for lanes of the last one."""
    if not is_comparison(condition):
        return False
    room = form_of(condition.src[1]).plus(form_of(condition.src[0]), -1)
    step, least = room.terms.get(r, 0), room.bounds()[0]
    return step < 0 and least < 1 <= least - step


class Bound(NamedTuple):
    """`form` over `step`, rounded down: a number of steps."""

    form: Form
    step: int

    def at(self, places: dict[UOp, int]) -> int:
        """Its value where the loops that it depends on are at these places."""
        total = self.form.const + sum([n * places[r] for r, n in self.form.terms.items()])
        return total // self.step

    def node(self) -> UOp:
        """Its value where that is not negative, else 0 or less."""
        node = node_of(self.form)
        if self.step == 1:
            return node
        above = index_alu(Ops.MAX, node, UOp.index_const(0))
        return index_alu(Ops.IDIV, above, UOp.index_const(self.step))


class Bounds:
    """Where the steps of a loop begin and end: at the largest of `low`, before the least `high`.

    `exact` are the comparisons that then hold at every step.
    """

    def __init__(self, r: UOp, conditions: list[UOp]) -> None:
        self.size = size_of(r)
        self.low: list[Bound] = []
        self.high: list[Bound] = []
        self.exact: list[UOp] = []
        for c in conditions:
            if r in c.ranges:
                self.add(r, c)

    def add(self, r: UOp, condition: UOp) -> None:
        """Takes in `x < y`, if it is affine."""
        room = form_of(condition.src[1]).plus(form_of(condition.src[0]), -1)
        step = room.terms.pop(r, 0)
        kinds = {t.arg.kind for t in room.terms if t.op is Ops.RANGE}
        if not step or any(t.op is not Ops.RANGE for t in room.terms):
            return
        if not kinds <= {AxisType.LOOP}:
            return
        if step > 0:
            self.low.append(Bound(Form(room.scaled(-1).terms, step - room.const), step))
        else:
            self.high.append(Bound(Form(room.terms, room.const - step - 1), -step))
        self.exact.append(condition)

    def count(self, places: dict[UOp, int]) -> int:
        """Counts the steps where the loops that they depend on are at these places."""
        first = max([0, *[x.at(places) for x in self.low]])
        return min([self.size, *[x.at(places) for x in self.high]]) - first

    def never_empty(self, low: list[Bound], high: list[Bound]) -> bool:
        """Whether there is a step at every place of the loops around; False where that is long."""
        if all([x.step == 1 for x in low + high]):
            ends = [Form({}, self.size), *[x.form for x in high]]
            starts = [Form({}, 0), *[x.form for x in low]]
            return all([h.plus(f, -1).bounds()[0] >= 1 for h in ends for f in starts])
        axes = list(dict.fromkeys([r for x in low + high for r in x.form.terms]))
        if any([r.src[0].op is not Ops.CONST for r in axes]) or iterations(axes) > MOST_PLACES:
            return False
        places = itertools.product(*[range(size_of(r)) for r in axes])
        return all([self.count(dict(zip(axes, at, strict=True))) >= 1 for at in places])

    def nodes(self) -> tuple[UOp, UOp] | None:
        """The first step, and how many there are; None where that says nothing, or may be none."""
        low = [x for x in self.low if x.form.bounds()[1] // x.step > 0]
        high = [x for x in self.high if x.form.bounds()[0] // x.step < self.size]
        if not (low or high) or not self.never_empty(low, high):
            return None
        first = largest([x.node() for x in low])
        size = UOp.index_const(self.size)
        over = largest(
            [
                node_of(Form({}, self.size).plus(x.form, -1))
                if x.step == 1
                else index_alu(Ops.SUB, size, x.node())
                for x in high
            ]
        )
        steps = index_alu(Ops.SUB, index_alu(Ops.SUB, size, over), first)
        # At least one, so that the loop needs no test before its first step.
        return first, index_alu(Ops.MAX, steps, UOp.index_const(1))


def largest(nodes: list[UOp]) -> UOp:
    """The largest of the nodes and 0."""
    result = UOp.index_const(0)
    for node in nodes:
        result = index_alu(Ops.MAX, node, result)
    return result


class Window(NamedTuple):
    """An axis of results with the steps of a sum that move over it, past both ends of an operand.

    `waste` is how many steps there are for each one that meets the operand.
    """

    step: UOp
    waste: float


def windows_of(axes: list[UOp], reduce: UOp) -> dict[UOp, Window]:
    """The axes along which a sum moves over an operand that is shorter than they are."""
    result: dict[UOp, Window] = {}
    if reduce.arg.op is not Ops.ADD:
        return result
    conditions = [c for c in nonzero_conditions(reduce.src[0]) if len(c.ranges) == 2]
    for axis in axes:
        for step in [r for r in reduce.src[1:] if not r.arg.kind.is_lane]:
            mine = [c for c in conditions if c.ranges == {axis, step}]
            if not mine or step.src[0].op is not Ops.CONST or axis.src[0].op is not Ops.CONST:
                continue
            bounds = Bounds(step, mine)
            used = sum([max(bounds.count({axis: i}), 0) for i in range(size_of(axis))])
            if len(bounds.exact) == len(mine) and used:
                result[axis] = Window(step, size_of(axis) * size_of(step) / used)
    return result


def limited(u: UOp, r: UOp, conditions: list[UOp]) -> UOp:
    """The reduction with one of its loops limited, if that can be."""
    bounds = Bounds(r, conditions)
    found = bounds.nodes()
    if found is None:
        return u
    first, steps = found
    # Of the same id, by which sums of indices are ordered, so that what is outside comes first.
    loop = UOp(Ops.RANGE, r.dtype, (simplify_around(steps),), r.arg)
    value = without_conditions(u.src[0], frozenset(bounds.exact))
    value = substitute(value, {r: index_alu(Ops.ADD, first, loop)})
    return UOp(Ops.REDUCE, u.dtype, (value, *[loop if x is r else x for x in u.src[1:]]), u.arg)


def without_conditions(value: UOp, exact: frozenset[UOp]) -> UOp:
    """A value whose loads no longer ask what holds anyway."""
    changes: dict[UOp, UOp] = {}
    for x in toposort(value):
        if x.op is Ops.LOAD and x.src[1:]:
            kept = [c for c in conditions_of(x.src[1]) if c not in exact]
            if len(kept) < len(conditions_of(x.src[1])):
                gates = [functools.reduce(lambda a, b: a.alu(Ops.AND, b), kept)] if kept else []
                changes[x] = UOp(Ops.LOAD, x.dtype, (x.src[0], *gates), x.arg)
    return substitute(value, changes) if changes else value
