"""Simplifies division and remainder of index expressions; both round down.

Receives IDIV and MOD nodes with simplified sources, returns their replacements. The rules read
numerators as linear forms (`uop/rules/linear_form`).

Notation: `c` is a positive constant, `x` a sum of `a*t` with integer `a`, `k` its constant.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import Rule, UPat
from aster_ml.uop.rules.linear_form import (
    Form,
    bounds_of,
    factors_of,
    form_of,
    is_below,
    least_value,
    node_of,
    number,
    product_of,
    sort_atoms,
)

INDEX = dtypes.index


def div(x: UOp, y: UOp) -> UOp:
    """x IDIV y, not simplified."""
    return UOp(Ops.IDIV, INDEX, (x, y))


def mod(x: UOp, y: UOp) -> UOp:
    """x MOD y, not simplified."""
    return UOp(Ops.MOD, INDEX, (x, y))


def div_node(form: Form, c: int) -> UOp:
    """form IDIV c; the form itself when c is 1."""
    return node_of(form) if c == 1 else div(node_of(form), number(c))


def mod_node(form: Form, c: int) -> UOp:
    """form MOD c; 0 when c is 1."""
    return number(0) if c == 1 else mod(node_of(form), number(c))


def add(x: UOp, y: UOp) -> UOp:
    """x ADD y, not simplified."""
    return UOp(Ops.ADD, INDEX, (x, y))


def read(x: UOp) -> tuple[Form, int, int]:
    """A numerator as its form and bounds; shared by the rules of one division."""
    form = form_of(x)
    low, high = x.bounds
    low2, high2 = form.bounds()
    return form, max(low, low2), min(high, high2)


Info = tuple[Form, int, int]


# rules for both, where the divisor is a constant


def negative_divisor(u: UOp, x: UOp, c: UOp) -> UOp:
    """rewrite: x // -c -> (-x) // c; x % -c -> -((-x) % c)."""
    result = UOp(u.op, INDEX, (node_of(form_of(x).scaled(-1)), number(-c.arg)))
    return result if u.op is Ops.IDIV else UOp(Ops.MUL, INDEX, (result, number(-1)))


def one_quotient(u: UOp, c: UOp, info: Info) -> UOp | None:
    """rewrite: x // c -> q; x % c -> x - q*c. when: the bounds of x share the quotient q."""
    form, low, high = info
    q = low // c.arg
    if q != high // c.arg:
        return None
    if u.op is Ops.IDIV:
        return number(q)
    return node_of(Form(form.terms, form.const - q * c.arg))


def common_factor(u: UOp, c: UOp, info: Info) -> UOp | None:
    """rewrite: (g*x + k) // (g*c) -> (x + k//g) // c; % -> g*((x + k//g) % c) + k%g."""
    form = info[0]
    g = gcd(c.arg, form.gcd())
    if g == 1 or not form.terms:
        return None
    inner = Form({t: a // g for t, a in form.terms.items()}, form.const // g)
    if u.op is Ops.IDIV:
        return div_node(inner, c.arg // g)
    scaled = UOp(Ops.MUL, INDEX, (mod_node(inner, c.arg // g), number(g)))
    return add(scaled, number(form.const % g))


def resolve_remainders(form: Form, c: int) -> tuple[Form, Form] | None:
    """form = c*whole + rest with one quotient for all of rest (then 0 <= rest < c), if there is.

    First tries the remainder of each coefficient that is nearest to 0, then all remainders rounded
    down.
    """
    for up in (False, True):
        whole: dict[UOp, int] = {}
        rest: dict[UOp, int] = {}
        for t, a in form.terms.items():
            r = a % c
            if not up and 2 * r > c:
                r -= c
            if r:
                rest[t] = r
            if a != r:
                whole[t] = (a - r) // c
        low, high = bounds_of(rest.items(), form.const)
        q = low // c
        if q == high // c:
            return Form(whole, q), Form(rest, form.const - q * c)
    return None


def whole_and_rest(u: UOp, c: UOp, info: Info) -> UOp | None:
    """rewrite: (c*x + y) // c -> x; (c*x + y) % c -> y. when: 0 <= y < c."""
    found = resolve_remainders(info[0], c.arg)
    if found is None:
        return None
    return node_of(found[0] if u.op is Ops.IDIV else found[1])


def multiples_below(u: UOp, c: UOp, info: Info) -> UOp | None:
    """rewrite: ... + a*d*(y // d) -> ... + a*y - a*(y % d), then as `whole_and_rest`.

    when: the result has a single quotient. why: a term rounded down to a multiple of d, such as the
    position of a window, cancels against another term only in this form.
    """
    form = info[0]
    rounded = [t for t, a in form.terms.items() if t.op is Ops.IDIV and is_multiple(a, t.src[1])]
    if not rounded:
        return None
    terms, const = dict(form.terms), form.const
    for t in rounded:
        y, d = form_of(t.src[0]), t.src[1]
        a = form.terms[t] // d.arg
        # Another rewritten term may have added to this one: that part stays.
        for part, k in ((t, -d.arg), *y.terms.items(), (mod(t.src[0], d), -1)):
            terms[part] = terms.get(part, 0) + a * k
        const += a * y.const
    apart = Form({t: a for t, a in terms.items() if a}, const)
    return whole_and_rest(u, c, (apart, *info[1:]))


def is_multiple(a: int, d: UOp) -> bool:
    """Whether a coefficient is a multiple of a constant divisor."""
    return bool(d.op is Ops.CONST and d.arg > 1 and a % d.arg == 0)


def small_rest(u: UOp, c: UOp, info: Info) -> UOp | None:
    """rewrite: (g*x + y) // (g*c) -> x // c; % -> g*(x % c) + y. when: 0 <= y < g.

    why: an addend below the common factor of the other terms never carries.
    """
    form, d = info[0], c.arg
    for g in sorted({gcd(d, a) for a in form.terms.values()}, reverse=True):
        if g == 1 or g == d:
            continue
        high: dict[UOp, int] = {}
        small: dict[UOp, int] = {}
        for t, a in form.terms.items():
            (small if a % g else high)[t] = a
        low_bound, high_bound = bounds_of(small.items(), form.const)
        q = low_bound // g
        if not small or q != high_bound // g:
            continue
        inner = Form({t: a // g for t, a in high.items()}, q)
        if u.op is Ops.IDIV:
            return div_node(inner, d // g)
        scaled = UOp(Ops.MUL, INDEX, (mod_node(inner, d // g), number(g)))
        return add(scaled, node_of(Form(small, form.const - q * g)))
    return None


# rules of division by a constant


def div_of_div(c: UOp, info: Info) -> UOp | None:
    """rewrite: (x//a + k) // c -> (x + a*k) // (a*c). when: a > 0."""
    form = info[0]
    if len(form.terms) != 1:
        return None
    ((t, a),) = form.terms.items()
    if a != 1 or t.op is not Ops.IDIV or t.src[1].op is not Ops.CONST or t.src[1].arg <= 0:
        return None
    inner = t.src[1].arg
    x = form_of(t.src[0])
    return div_node(Form(x.terms, x.const + form.const * inner), inner * c.arg)


def take_out_multiples(c: UOp, info: Info) -> UOp | None:
    """rewrite: (c*x + y + k) // c -> x + (y + k%c) // c + k//c."""
    form, d = info[0], c.arg
    whole = {t: a // d for t, a in form.terms.items() if a % d == 0}
    if not whole and 0 <= form.const < d:
        return None
    rest = {t: a for t, a in form.terms.items() if a % d}
    inner = div_node(Form(rest, form.const % d), d)
    return add(node_of(Form(whole, form.const // d)), inner)


def div_of_mod(c: UOp, info: Info) -> UOp | None:
    """rewrite: (x % (a*c)) // c -> (x // c) % a."""
    form, d = info[0], c.arg
    if len(form.terms) != 1 or form.const:
        return None
    ((t, a),) = form.terms.items()
    if a != 1 or t.op is not Ops.MOD or t.src[1].op is not Ops.CONST:
        return None
    m = t.src[1].arg
    if m <= 0 or m % d:
        return None
    return mod(div(t.src[0], number(d)), number(m // d))


# rules of remainders by a constant


def reduce_coefficients(c: UOp, info: Info) -> UOp | None:
    """rewrite: (a*x + k) % c -> ((a%c)*x + k%c) % c, the sign of a kept."""
    form, d = info[0], c.arg
    if 0 <= form.const < d and all(-d < a < d for a in form.terms.values()):
        return None
    terms = {t: a % d if a > 0 else -(-a % d) for t, a in form.terms.items() if a % d}
    return mod_node(Form(terms, form.const % d), d)


def mod_of_mod(c: UOp, info: Info) -> UOp | None:
    """rewrite: (x + a*(y % d)) % c -> (x + a*y) % c. when: c divides a*d."""
    form, m = info[0], c.arg
    result = form
    for t, a in form.terms.items():
        if t.op is Ops.MOD and t.src[1].op is Ops.CONST and a * t.src[1].arg % m == 0:
            result = result.plus(Form({t: 1}, 0), -a).plus(form_of(t.src[0]), a)
    return None if result is form else mod_node(result, m)


# rules where the divisor is symbolic


def split_by(x: Form, d: Form) -> tuple[Form, Form]:
    """x = q*d + rest, as much as the terms of x show."""
    lead = max(d.terms, key=lambda t: (len(factors_of(t)), t.digest))
    lead_a, lead_factors = d.terms[lead], factors_of(lead)
    q, rest = Form({}, 0), x
    for t in sort_atoms(x.terms):
        a = rest.terms.get(t, 0)
        factors = factors_of(t)
        if not a or a % lead_a:
            continue
        missing = [f for f in lead_factors if f not in factors]
        if missing or len(factors) < len(lead_factors):
            continue
        for f in lead_factors:
            if f in factors:
                factors.remove(f)
            else:
                break
        else:
            part = Form({product_of(factors): a // lead_a}, 0) if factors else Form({}, a // lead_a)
            smaller = rest
            for s, b in d.terms.items():
                for p, e in part.terms.items() or [(None, part.const)]:
                    monomial = s if p is None else product_of(factors_of(p) + factors_of(s))
                    smaller = smaller.plus(Form({monomial: 1}, 0), -b * e)
            smaller = smaller.plus(part, -d.const)
            if smaller.size() < rest.size():
                q, rest = q.plus(part), smaller
    return q, rest


def symbolic_divisor(u: UOp, x: UOp, d: UOp) -> UOp | None:
    """rewrite: (q*d + y) // d -> q + y//d; % -> y % d; and without y//d where 0 <= y < d."""
    divisor = form_of(d)
    if not divisor.terms or not (d.bounds[0] > 0 or d.bounds[1] < 0):
        return None
    form = form_of(x)
    q, rest = split_by(form, divisor)
    if d.bounds[0] > 0 and least_value(rest) >= 0 and is_below(rest, divisor):
        return node_of(q if u.op is Ops.IDIV else rest)
    if q.size() == 0:
        return None
    if not rest.size():
        return node_of(q) if u.op is Ops.IDIV else number(0)
    if u.op is Ops.IDIV:
        return add(node_of(q), div(node_of(rest), d))
    return mod(node_of(rest), d)


def symbolic_div_of_div(x: UOp, d: UOp, e: UOp) -> UOp:
    """rewrite: (x // d) // e -> x // (d*e). when: d and e are positive."""
    return div(x, UOp(Ops.MUL, INDEX, (d, e)))


def both_positive(d: UOp, e: UOp) -> bool:
    """Guard of nested division."""
    return bool(d.bounds[0] > 0 and e.bounds[0] > 0)


def positive(c: UOp) -> bool:
    """Guard: the divisor is positive."""
    return bool(c.arg > 0)


ANY_X, ANY_C = UPat.var("x"), UPat.cvar("c")
BOTH = UPat((Ops.IDIV, Ops.MOD), INDEX, (ANY_X, ANY_C))
DIV = UPat(Ops.IDIV, INDEX, (ANY_X, ANY_C))
MOD = UPat(Ops.MOD, INDEX, (ANY_X, ANY_C))
SYMBOLIC = UPat((Ops.IDIV, Ops.MOD), INDEX, (ANY_X, UPat.var("d")))
DIV_OF_DIV = UPat(Ops.IDIV, INDEX, (UPat(Ops.IDIV, None, (ANY_X, UPat.var("d"))), UPat.var("e")))


def rule(name: str, pattern: UPat, replace: Callable[..., UOp | None]) -> Rule:
    """A row for a positive constant divisor; consecutive rows share the form of the numerator."""
    return Rule(name, pattern, replace, positive, read)


DIVMOD_RULES: list[Rule] = [
    Rule("divmod-negative-divisor", BOTH, negative_divisor, lambda c: c.arg < 0),
    rule("divmod-one-quotient", BOTH, one_quotient),
    rule("divmod-whole-and-rest", BOTH, whole_and_rest),
    rule("divmod-multiples-below", BOTH, multiples_below),
    rule("divmod-common-factor", BOTH, common_factor),
    rule("mod-of-mod", MOD, mod_of_mod),
    rule("divmod-small-rest", BOTH, small_rest),
    rule("div-of-div", DIV, div_of_div),
    rule("div-of-mod", DIV, div_of_mod),
    rule("div-take-out-multiples", DIV, take_out_multiples),
    rule("mod-reduce-coefficients", MOD, reduce_coefficients),
    Rule("divmod-symbolic-divisor", SYMBOLIC, symbolic_divisor),
    Rule("div-of-div-symbolic", DIV_OF_DIV, symbolic_div_of_div, both_positive),
]
