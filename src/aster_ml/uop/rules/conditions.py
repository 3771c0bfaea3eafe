"""Simplifies comparisons of index expressions, and conjunctions and disjunctions of them.

Receives CMPLT, CMPNE, CMPEQ on index sources and AND, OR on bools, with simplified sources, and
returns their replacements. A comparison is a form against 0: `terms + const < 0`; positive terms
are written on the left, the others on the right, the constant on a side without terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import Rule, UPat
from aster_ml.uop.rules.linear_form import (
    Form,
    bounds_of,
    factors_of,
    form_of,
    least_value,
    node_of,
    number,
    order_of,
    sort_atoms,
)

INDEX = dtypes.index
BOOL = dtypes.bool


def truth(value: Any) -> UOp:
    """A bool constant."""
    return UOp(Ops.CONST, BOOL, (), bool(value))


TRUE, FALSE = truth(True), truth(False)


def negate(u: UOp) -> UOp:
    """not u, a bool."""
    return UOp(Ops.CMPNE, BOOL, (u, TRUE))


def has_symbolic_size(form: Form) -> bool:
    """Whether a range of symbolic size is among the factors."""
    return any(
        f.op is Ops.RANGE and f.src[0].op is not Ops.CONST
        for t in form.terms
        for f in factors_of(t)
    )


def drop_small_rest(form: Form) -> tuple[Form, Form] | None:
    """form = g * high + rest with 0 <= rest < g, for some coefficient g > 1; None if there is none.

    Then form < 0 says high < 0.
    """
    for g in sorted({abs(a) for a in form.terms.values()}, reverse=True):
        if g == 1:
            break
        small = {t: a for t, a in form.terms.items() if a % g}
        r = form.const % g
        low, high = bounds_of(small.items(), r)
        q = low // g
        if q == high // g and len(small) < len(form.terms):
            whole = {t: a // g for t, a in form.terms.items() if a % g == 0}
            return Form(whole, form.const // g + q), Form(small, r - q * g)
    return None


def split_equality(form: Form) -> tuple[Form, ...] | None:
    """Two forms that are both 0 exactly when `form` is; none where it never is; None if neither.

    rewrite: g*x + y == 0 -> x == -m and y == g*m. when: of the values of y, g*m alone is a multiple
    of g.
    """
    for g in sorted({abs(a) for a in form.terms.values()}, reverse=True):
        if g == 1:
            break
        small = {t: a for t, a in form.terms.items() if a % g}
        low, high = bounds_of(small.items(), form.const)
        if high - low >= g:
            continue
        m = high // g
        if m * g < low:
            return ()
        whole = Form({t: a // g for t, a in form.terms.items() if a % g == 0}, m)
        return whole, Form(small, form.const - g * m)
    return None


def clear_division(form: Form) -> Form | None:
    """A form that is below 0 exactly when this one is, without one division; None without any.

    rewrite: x//a + y < 0 -> x + a*y < 0; y - x//a < 0 -> a*y - x + a - 1 < 0. when: a > 0.
    """
    for t in sort_atoms(form.terms):
        sign = form.terms[t]
        if t.op is Ops.IDIV and sign in (1, -1) and t.src[1].op is Ops.CONST:
            a = t.src[1].arg
            if a > 0:
                rest = form.plus(Form({t: 1}, 0), -sign).scaled(a)
                result = rest.plus(form_of(t.src[0]), sign)
                return result if sign == 1 else Form(result.terms, result.const + a - 1)
    return None


def split_sides(form: Form) -> tuple[UOp, UOp]:
    """The positive terms, and the negated rest."""
    left = Form({t: a for t, a in form.terms.items() if a > 0}, 0)
    right = Form({t: -a for t, a in form.terms.items() if a < 0}, -form.const)
    if not left.terms:
        return number(form.const), node_of(Form(right.terms, 0))
    return node_of(left), node_of(right)


def less_than(x: UOp, y: UOp) -> UOp:
    """x < y in normal form: decided by bounds; no common factors, small rests, divisions."""
    form = form_of(x).plus(form_of(y), -1)
    while True:
        low, high = form.bounds()
        if high < 0 or low >= 0:
            return truth(high < 0)
        if has_symbolic_size(form):
            if least_value(form) >= 0:
                return FALSE
            if least_value(Form(form.scaled(-1).terms, -form.const - 1)) >= 0:
                return TRUE
        g = form.gcd()
        if g > 1:
            form = Form({t: a // g for t, a in form.terms.items()}, form.const // g)
            continue
        found = drop_small_rest(form)
        if found is not None:
            form = found[0]
            continue
        cleared = clear_division(form)
        if cleared is None:
            return UOp(Ops.CMPLT, BOOL, split_sides(form))
        form = cleared


def equal(op: Ops, x: UOp, y: UOp) -> UOp:
    """x == y or x != y in normal form."""
    same, both = (TRUE, Ops.AND) if op is Ops.CMPEQ else (FALSE, Ops.OR)
    different = FALSE if same is TRUE else TRUE
    form = form_of(x).plus(form_of(y), -1)
    low, high = form.bounds()
    if low == high == 0:
        return same
    g = form.gcd()
    if low > 0 or high < 0 or (g and form.const % g):
        return different
    if has_symbolic_size(form):
        above, below = Form(form.terms, form.const - 1), form.scaled(-1)
        if least_value(above) >= 0 or least_value(Form(below.terms, below.const - 1)) >= 0:
            return different
    if g > 1:
        form = Form({t: a // g for t, a in form.terms.items()}, form.const // g)
    if form.terms[min(form.terms, key=order_of)] < 0:
        form = form.scaled(-1)
    found = split_equality(form)
    if found is not None:
        if not found:
            return different
        return UOp(both, BOOL, tuple([UOp(op, BOOL, split_sides(part)) for part in found]))
    return UOp(op, BOOL, split_sides(form))


class Interval(NamedTuple):
    """low <= term <= high; None where there is no such bound."""

    term: UOp
    low: int | None
    high: int | None


def interval_of(u: UOp) -> Interval | None:
    """Interval of an index expression that is compared with a constant."""
    if u.op not in (Ops.CMPLT, Ops.CMPEQ) or u.src[0].dtype is not INDEX:
        return None
    x, y = u.src
    if u.op is Ops.CMPLT:
        if y.op is Ops.CONST:
            return Interval(x, None, y.arg - 1)
        return Interval(y, x.arg + 1, None) if x.op is Ops.CONST else None
    return Interval(x, y.arg, y.arg) if y.op is Ops.CONST else None


def parts_of(u: UOp, op: Ops) -> dict[UOp, None]:
    """The operands of nested ANDs, or ORs, without repeats."""
    found: dict[UOp, None] = {}
    stack = [u]
    while stack:
        x = stack.pop()
        if x.op is op:
            stack.extend(reversed(x.src))
        else:
            found[x] = None
    return found


def conditions_of(valid: UOp) -> list[UOp]:
    """The conditions that all hold when the bool `valid` does."""
    return list(parts_of(valid, Ops.AND))


def chain(op: Ops, parts: list[UOp]) -> UOp:
    """The parts in canonical order under one op; there is at least one."""
    ordered = sorted(parts, key=order_of)
    result = ordered[0]
    for part in ordered[1:]:
        result = UOp(op, BOOL, (result, part))
    return result


def complement_of(u: UOp) -> UOp:
    """The negation of `u` in normal form."""
    if u.op is Ops.CMPNE and u.src[1] is TRUE:
        return u.src[0]
    if u.op is Ops.CMPLT and u.src[0].dtype is INDEX:
        return less_than(u.src[1], node_of(form_of(u.src[0]).plus(Form({}, 1))))
    if u.op in (Ops.CMPNE, Ops.CMPEQ) and u.src[0].dtype is not BOOL:
        return UOp(Ops.CMPEQ if u.op is Ops.CMPNE else Ops.CMPNE, BOOL, u.src)
    return negate(u)


def excludes_another(part: UOp, parts: dict[UOp, None]) -> bool:
    """Whether the complement of `part` is among the parts; intervals are compared elsewhere."""
    return interval_of(part) is None and complement_of(part) in parts


def conjunction(u: UOp) -> UOp:
    """AND in normal form."""
    return join_all(parts_of(u, Ops.AND))


def disjunction(u: UOp) -> UOp:
    """OR in normal form."""
    return join_any(parts_of(u, Ops.OR))


def join_all(parts: dict[UOp, None]) -> UOp:
    """All of the parts: no repeats, one interval for each term, False where two exclude."""
    if FALSE in parts:
        return FALSE
    parts.pop(TRUE, None)
    if any(excludes_another(p, parts) for p in parts):
        return FALSE
    intervals: dict[UOp, Interval] = {}
    kept: list[UOp] = []
    for part in parts:
        found = interval_of(part)
        if found is not None:
            before = intervals.get(found.term, Interval(found.term, None, None))
            lows = [v for v in (before.low, found.low) if v is not None]
            highs = [v for v in (before.high, found.high) if v is not None]
            intervals[found.term] = Interval(
                found.term, max(lows, default=None), min(highs, default=None)
            )
        # A disjunction that contains another part is implied by it.
        elif part.op is not Ops.OR or not any(p in parts for p in parts_of(part, Ops.OR)):
            kept.append(part)
    for term, low, high in intervals.values():
        least, greatest = term.bounds
        if low is not None and low <= least:
            low = None
        if high is not None and high >= greatest:
            high = None
        first, last = least if low is None else low, greatest if high is None else high
        if first > last:
            return FALSE
        if first == last:
            kept.append(UOp(Ops.CMPEQ, BOOL, (term, number(first))))
            continue
        if low is not None:
            kept.append(UOp(Ops.CMPLT, BOOL, (number(low - 1), term)))
        if high is not None:
            kept.append(UOp(Ops.CMPLT, BOOL, (term, number(high + 1))))
    return chain(Ops.AND, kept) if kept else TRUE


def join_any(parts: dict[UOp, None]) -> UOp:
    """Any of the parts: no repeats, the widest bound for each term, True where two cover all."""
    if TRUE in parts:
        return TRUE
    parts.pop(FALSE, None)
    if any(excludes_another(p, parts) for p in parts):
        return TRUE
    below: dict[UOp, int] = {}
    above: dict[UOp, int] = {}
    kept: list[UOp] = []
    for part in parts:
        found = interval_of(part) if part.op is Ops.CMPLT else None
        if found is not None and found.high is not None:
            below[found.term] = max(found.high, below.get(found.term, found.high))
        elif found is not None and found.low is not None:
            above[found.term] = min(found.low, above.get(found.term, found.low))
        elif part.op is not Ops.AND or not any(p in parts for p in parts_of(part, Ops.AND)):
            kept.append(part)
    for term, high in below.items():
        if term in above and above[term] <= high + 1:
            return TRUE
        kept.append(UOp(Ops.CMPLT, BOOL, (term, number(high + 1))))
    kept += [UOp(Ops.CMPLT, BOOL, (number(low - 1), term)) for term, low in above.items()]
    return chain(Ops.OR, kept) if kept else FALSE


X, Y = UPat.var("x", INDEX), UPat.var("y", INDEX)
A, B = UPat.var("a", BOOL), UPat.var("b", BOOL)

CONDITION_RULES: list[Rule] = [
    Rule("less-than-normal-form", X < Y, less_than),
    Rule(
        "equal-normal-form",
        UPat((Ops.CMPEQ, Ops.CMPNE), BOOL, (X, Y)),
        lambda u, x, y: equal(u.op, x, y),
    ),
    Rule(
        "not-less-than",
        (X < Y).logical_not(),
        lambda x, y: UOp(Ops.CMPLT, BOOL, (y, UOp(Ops.ADD, INDEX, (x, number(1))))),
    ),
    Rule(
        "not-equal",
        UPat.var("x").eq(UPat.var("y")).logical_not(),
        lambda x, y: UOp(Ops.CMPNE, BOOL, (x, y)),
        lambda x: x.dtype is not BOOL,
    ),
    Rule(
        "not-not-equal",
        UPat.var("x").ne(UPat.var("y")).logical_not(),
        lambda x, y: UOp(Ops.CMPEQ, BOOL, (x, y)),
        lambda x: x.dtype is not BOOL,
    ),
    Rule("conjunction-normal-form", UPat(Ops.AND, BOOL), conjunction),
    Rule("disjunction-normal-form", UPat(Ops.OR, BOOL), disjunction),
]
