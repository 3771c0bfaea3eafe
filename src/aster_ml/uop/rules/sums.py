"""Normalises sums and products of index expressions, with the divisions within them.

Receives ADD, SUB, MUL and NEG nodes of dtype index with simplified sources, and returns their
normal form: products multiplied out, like terms merged, and a quotient joined with its remainder.
"""

from __future__ import annotations

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import DIVISIONS, Ops
from aster_ml.uop.pattern import PatternMatcher, Rule, UPat
from aster_ml.uop.rules.divmod import DIVMOD_RULES
from aster_ml.uop.rules.linear_form import (
    Form,
    factors_of,
    form_of,
    is_plain_division,
    node_of,
    number,
    product_of,
)

INDEX = dtypes.index
DIVMOD = PatternMatcher(DIVMOD_RULES)


def divisions_in(form: Form) -> int:
    """Counts the divisions and remainders among the factors."""
    return sum([f.op in DIVISIONS for t in form.terms for f in factors_of(t)])


def quotient_form(division: UOp) -> Form:
    """The form of a division, simplified by the rules of division."""
    settled = Form({}, 0)
    stack = [(division, 1)]
    while stack:
        t, a = stack.pop()
        # No rule changes a plain division; without others the table need not be compiled.
        plain = t.op is not Ops.IDIV or is_plain_division(t)
        result = None if plain else DIVMOD.rewrite(t)
        if result is None:
            settled = settled.plus(Form({t: 1}, 0), a)
        else:
            form = form_of(result)
            settled = settled.plus(Form({}, form.const), a)
            stack.extend([(s, a * b) for s, b in reversed(form.terms.items())])
    return settled


def times(form: Form, y: UOp) -> Form:
    """form * y."""
    if y.op is Ops.CONST:
        return form.scaled(y.arg)
    return form_of(UOp(Ops.MUL, INDEX, (node_of(form), y)))


def join_remainder(form: Form, t: UOp, f: UOp) -> Form | None:
    """rewrite: a*c*(x//c) + a*(x%c) -> a*x. `f` is the remainder, a factor of the monomial `t`.

    when: the result has fewer divisions, so the form contains the (simplified) quotient; and bounds
    as tight, since those of `a*x - b*(x//c)` may be wider.
    """
    x, c = f.src
    if c.bounds[0] <= 0:
        return None
    factors = factors_of(t)
    factors.remove(f)
    step = form_of(x).plus(times(quotient_form(UOp(Ops.IDIV, INDEX, (x, c))), c), -1)
    if factors:
        step = times(step, product_of(factors))
    a = form.terms[t]
    joined = form.plus(Form({t: 1}, 0), -a).plus(step, a)
    if divisions_in(joined) < divisions_in(form) and within(joined, form):
        return joined
    return None if factors or c.op is not Ops.CONST else join_congruent(form, t, a * c.arg)


def within(inner: Form, outer: Form) -> bool:
    """Whether the bounds of one form are within those of the other."""
    (low, high), (least, greatest) = inner.bounds(), outer.bounds()
    return least <= low and high <= greatest


def join_congruent(form: Form, t: UOp, whole: int) -> Form | None:
    """rewrite: a*c*(y//c) + a*(x%c) -> a*y. when: c divides x - y. `t` is x%c, `whole` is a*c."""
    x, c = t.src
    for q, b in form.terms.items():
        if q.op is Ops.IDIV and b == whole and q.src[1] is c:
            y = form_of(q.src[0])
            gap = y.plus(form_of(x), -1)
            if gap.const % c.arg == 0 and all(k % c.arg == 0 for k in gap.terms.values()):
                a = form.terms[t]
                return form.plus(Form({t: a, q: b}, 0), -1).plus(y, a)
    return None


def join_remainders(form: Form, t: UOp) -> Form | None:
    """rewrite: a*(x%c) + a*c*((x//c)%d) -> a*(x%(c*d)). `t` is x%c."""
    x, c = t.src
    a = form.terms[t]
    if c.op is not Ops.CONST or c.arg <= 0:
        return None
    for s, b in form.terms.items():
        if s.op is Ops.MOD and b == a * c.arg and s.src[1].op is Ops.CONST and s.src[1].arg > 0:
            quotient = quotient_form(UOp(Ops.IDIV, INDEX, (x, c)))
            gap = form_of(s.src[0]).plus(quotient, -1)
            d = s.src[1].arg
            if gap.const % d == 0 and all(k % d == 0 for k in gap.terms.values()):
                whole = UOp(Ops.MOD, INDEX, (x, number(c.arg * d)))
                return form.plus(Form({t: a, s: b}, 0), -1).plus(Form({whole: a}, 0))
    return None


def make_remainder(form: Form, t: UOp) -> Form | None:
    """rewrite: a*x - a*c*(x//c) -> a*(x%c). when: fewer terms are left."""
    x, c = t.src
    e = form.terms[t]
    if c.op is not Ops.CONST or c.arg <= 0 or e % c.arg:
        return None
    a = -e // c.arg
    remainder = UOp(Ops.MOD, INDEX, (x, c))
    made = form.plus(Form({t: 1}, 0), -e).plus(form_of(x), -a).plus(Form({remainder: 1}, 0), a)
    return made if made.size() < form.size() else None


# Ops of terms that may have a division as a factor.
WITH_DIVISIONS = frozenset({Ops.MUL, Ops.MOD, Ops.IDIV})


def merge_divisions(form: Form) -> Form | None:
    """One step of `join_remainder` or `make_remainder`; None when there is none left."""
    for t in form.terms:
        if t.op not in WITH_DIVISIONS:
            continue
        for f in factors_of(t):
            if f.op is Ops.MOD:
                joined = join_remainder(form, t, f)
                if joined is None and t is f:
                    joined = join_remainders(form, t)
                if joined is not None:
                    return joined
        if t.op is Ops.IDIV:
            made = make_remainder(form, t)
            if made is not None:
                return made
    return None


def sum_normal_form(u: UOp) -> UOp:
    """rewrite: a sum or product -> the sum of its monomials in canonical order."""
    return node_of(merge_terms(form_of(u)))


def merge_terms(form: Form) -> Form:
    """The form with terms of a single value folded, and divisions merged."""
    terms = form.terms
    for t in terms:
        low, high = t.bounds
        if low == high:
            fixed = {t: a * t.bounds[0] for t, a in terms.items() if t.bounds[0] == t.bounds[1]}
            form = Form(
                {t: a for t, a in terms.items() if t not in fixed}, form.const + sum(fixed.values())
            )
            break
    while len(form.terms) > 1:
        merged = merge_divisions(form)
        if merged is None:
            break
        form = merged
    return form


SUM_RULES: list[Rule] = [
    Rule("sum-normal-form", UPat((Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG), INDEX), sum_normal_form),
]
