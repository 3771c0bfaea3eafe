"""Algebra on index and bool expressions and kernel graphs, and what code generation asks of them.

Receives scalar expressions and whole kernel graphs; nodes with axes, as tensors have, do not belong
here, for a rule may put a constant in the place of a node. The rules stand by subject in
`uop/sums`, `uop/divmod`, `uop/conditions` and `uop/algebra`; this module joins them into one table,
`symbolic`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from aster_ml.uop.algebra import (
    ANY_DTYPE_RULES,
    BOOL_RULES,
    CONSTANT_RULES,
    FLOAT_RULES,
    GATE_RULES,
    WHOLE_NUMBER_RULES,
)
from aster_ml.uop.conditions import CONDITION_RULES, TRUE, Interval, conditions_of, interval_of
from aster_ml.uop.divmod import DIVMOD_RULES
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.linear_form import Form, form_of, node_of, number
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import PatternMatcher
from aster_ml.uop.rewrite import rewrite_after
from aster_ml.uop.sums import SUM_RULES

symbolic = PatternMatcher([
    *CONSTANT_RULES, *SUM_RULES, *DIVMOD_RULES, *WHOLE_NUMBER_RULES, *FLOAT_RULES,
    *ANY_DTYPE_RULES, *BOOL_RULES, *CONDITION_RULES, *GATE_RULES,
])


def simplify(u: UOp) -> UOp:
    """The same value by fewer operations: an index or bool expression, or a whole kernel graph."""
    done: dict[UOp, UOp] = {}
    rewrite_after(u, symbolic, None, done)
    return done[u]


def simplify_all(uops: Iterable[UOp]) -> list[UOp]:
    """`simplify` on several expressions, sharing the work."""
    done: dict[UOp, UOp] = {}
    uops = list(uops)
    for u in uops:
        if u not in done:
            rewrite_after(u, symbolic, None, done)
    return [done[u] for u in uops]


# strides


def affine(u: UOp, lanes: Collection[UOp]) -> tuple[UOp, dict[UOp, int]]:
    """An index as base + sum of lane * stride, both simplified.

    The dict has the stride of each lane in which the index is affine, 0 where it does not depend on
    the lane. A lane that is missing there is not affine, and the base still depends on it.
    """
    u, *simple = simplify_all([u, *lanes])
    form = form_of(u)
    strides = {lane: stride for lane, s in zip(lanes, simple)
               if (stride := stride_in(form, s)) is not None}
    # A lane whose size is an expression may be another node once that is simplified.
    gone = {s for lane, s in zip(lanes, simple) if lane in strides}
    base = {t: a for t, a in form.terms.items() if t not in gone}
    return node_of(Form(base, form.const)), strides


def stride_in(form: Form, lane: UOp) -> int | None:
    """The coefficient of a range; None where it occurs in any other way too."""
    for t in form.terms:
        if t is not lane and lane in t.ranges:
            return None
    return form.terms.get(lane, 0)


def stride_of(u: UOp, r: UOp) -> int | None:
    """What one step of the range adds to an index: 0 without it, None where it is not affine."""
    if r not in u.ranges:
        return 0
    u, r = simplify_all([u, r])
    return stride_in(form_of(u), r)


# what is known where a condition holds


def cost_of(u: UOp) -> int:
    """How much work an expression is; divisions dominate."""
    return sum([COSTS.get(x.op, 2 if x.src else 0) for x in toposort(u)])


COSTS = {Ops.IDIV: 40, Ops.MOD: 40, Ops.MUL: 3, Ops.RANGE: 0, Ops.DEFINE_VAR: 0}


def outside_ranges(u: UOp) -> bool:
    """Where substitution goes: a range stays the range it is, whatever is known of its size."""
    return u.op is not Ops.RANGE


def intervals_of(valid: UOp) -> list[Interval]:
    """The bounds that a simplified condition gives to index terms, beside those they have."""
    found: dict[UOp, tuple[int, int]] = {}
    for part in conditions_of(valid):
        known = interval_of(part)
        if known is None:
            continue
        least, greatest = found.get(known.term, known.term.bounds)
        found[known.term] = (
            least if known.low is None else max(least, known.low),
            greatest if known.high is None else min(greatest, known.high),
        )
    return [Interval(term, low, high) for term, (low, high) in found.items() if low <= high]


def narrow(u: UOp, known: Iterable[Interval]) -> tuple[UOp, dict[UOp, UOp]]:
    """`u` with a variable of the narrower bounds in the place of each term, simplified.

    Of a term that is a sum, a summand with coefficient 1 or -1 is written by means of the variable.
    The dict says what the variables stand for.
    """
    changes: dict[UOp, UOp] = {}
    meaning: dict[UOp, UOp] = {}
    for i, (term, low, high) in enumerate(known):
        assert low is not None
        assert high is not None
        stand_in = number(low) if low == high else UOp.variable(f"given {i}", low, high)
        if low != high:
            meaning[stand_in] = term
        form = form_of(term)
        if term in form.terms:
            changes[term] = stand_in
            continue
        units = [t for t, a in form.terms.items() if a in (1, -1) and t not in changes]
        if units:
            unit = units[-1]
            a = form.terms[unit]
            rest = form.plus(Form({unit: 1}, 0), -a)
            changes[unit] = node_of(form_of(stand_in).plus(rest, -1).scaled(a))
    return simplify(substitute(u, changes, outside_ranges)), meaning


def simplify_given(u: UOp, valid: UOp) -> UOp:
    """`u`, simplified by what is known where the bool `valid` holds; elsewhere it may differ.

    `valid` is a conjunction; each part that bounds an index term counts.
    """
    u, valid = simplify(u), simplify(valid)
    parts = {part: TRUE for part in conditions_of(valid) if part.src}
    if not parts:
        return u
    u = simplify(substitute(u, parts, outside_ranges))
    known = intervals_of(valid)
    atoms = [k for k in known if k.term in form_of(k.term).terms]
    sums = [k for k in known if k not in atoms]
    cost = cost_of(u)
    for group in [atoms] * bool(atoms) + [[*atoms, k] for k in sums]:
        if cost < LEAST_COST:
            break
        narrowed, meaning = narrow(u, group)
        found = simplify(substitute(narrowed, meaning, outside_ranges))
        found_cost = cost_of(found)
        if found_cost < cost:
            u, cost = found, found_cost
    return u


# Below it nothing is left to gain from knowing more: no division, comparison or choice.
LEAST_COST = 2


def bounds_given(u: UOp, valid: UOp) -> tuple[int, int]:
    """Least and greatest value that an index can have where `valid` holds."""
    u, valid = simplify(u), simplify(valid)
    low, high = u.bounds
    known = intervals_of(valid)
    atoms = [k for k in known if k.term in form_of(k.term).terms]
    for group in [known, atoms, *[[*atoms, k] for k in known if k not in atoms]]:
        narrowed = narrow(u, group)[0]
        low, high = max(low, narrowed.vmin), min(high, narrowed.vmax)
    return low, high
