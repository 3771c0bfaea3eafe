"""Simplifies index and bool expressions and kernel graphs, and answers questions about them.

Receives scalar expressions and kernel graphs; no tensors, since a rule may replace a node by a
scalar constant. The table `symbolic` joins the rules of `uop/rules/sums`, `uop/rules/divmod`,
`uop/rules/conditions` and `uop/rules/algebra`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from aster_ml.errors import InternalError
from aster_ml.uop.graph import holds, substitute, toposort
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, VarArg
from aster_ml.uop.pattern import PatternMatcher, tell_rewritten
from aster_ml.uop.print.infix import render_expr
from aster_ml.uop.rewrite import MIN_STEPS, steps_allowed
from aster_ml.uop.rules.algebra import (
    ANY_DTYPE_RULES,
    BOOL_RULES,
    CONSTANT_RULES,
    FLOAT_RULES,
    GATE_RULES,
    WHOLE_NUMBER_RULES,
)
from aster_ml.uop.rules.conditions import (
    BOOL,
    CONDITION_RULES,
    TRUE,
    Interval,
    conditions_of,
    interval_of,
    join_all,
    join_any,
    parts_of,
)
from aster_ml.uop.rules.divmod import DIVMOD_RULES
from aster_ml.uop.rules.linear_form import (
    INDEX,
    Form,
    factors_of,
    form_of,
    form_within,
    is_plain_division,
    node_of,
    number,
    product_form,
)
from aster_ml.uop.rules.sums import SUM_RULES, merge_terms
from aster_ml.watch import WATCHERS

symbolic = PatternMatcher(
    [
        *CONSTANT_RULES,
        *SUM_RULES,
        *DIVMOD_RULES,
        *WHOLE_NUMBER_RULES,
        *FLOAT_RULES,
        *ANY_DTYPE_RULES,
        *BOOL_RULES,
        *CONDITION_RULES,
        *GATE_RULES,
    ]
)


def simplify(u: UOp) -> UOp:
    """The same value by fewer operations: an index or bool expression, or a whole kernel graph."""
    simple = u._simple
    if simple is UNSET:
        return simplify_all([u])[0]
    return u if simple is None else simple


def simplify_around(u: UOp) -> UOp:
    """`simplify`, but loads and reductions below stay unchanged.

    why: a reduction may have another reader, and must stay one node
    """
    if u._simple is UNSET and u.dtype is INDEX:
        plain = plain_form(u)
        if plain is not None:
            # The sum, as most indices, contains no loads or reductions.
            return with_simple(u, node_of(plain))
    if not holds(u, OPAQUE):
        return simplify(u)
    inner = [x for x in toposort(u, enter=lambda n: n.op not in OPAQUE) if x.op in OPAQUE]
    names = {
        x: UOp(Ops.DEFINE_VAR, x.dtype, (), VarArg(f"inner {i}", *x.bounds))
        for i, x in enumerate(inner)
    }
    return substitute(simplify(substitute(u, names)), {v: x for x, v in names.items()})


OPAQUE = frozenset({Ops.LOAD, Ops.REDUCE, Ops.PARAM})


def simplify_all(uops: Iterable[UOp]) -> list[UOp]:
    """`simplify` on several expressions, sharing the work and cached results."""
    done: dict[UOp, UOp] = {}
    result = []
    for u in uops:
        simple = u._simple
        if simple is UNSET:
            simplify_into(u, done)
            simple = done[u]
        result.append(u if simple is None else simple)
    for u, simple in done.items():
        with_simple(u, simple)
    return result


def with_simple(u: UOp, found: UOp) -> UOp:
    """Caches the result of `simplify` in its node."""
    # A node does not refer to itself: it would never be freed.
    found._simple = None
    if found is not u:
        u._simple = found
    return found


# Globals are faster to look up than members of an Enum, and every node is tested for its op.
CONST, IDIV, RANGE = Ops.CONST, Ops.IDIV, Ops.RANGE
ADD, MUL, SUB = Ops.ADD, Ops.MUL, Ops.SUB
SUM_OPS = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG})
# Limits of visited nodes for normalising a whole sum at once: the first time, and after one failed.
LONG_WALK, SHORT_WALK = 10_000, 200
JOIN_OPS = frozenset({Ops.AND, Ops.OR})
SUM_RULE = SUM_RULES[0]


def simplify_into(root: UOp, done: dict[UOp, UOp]) -> None:
    """Fills `done` for everything below `root`, as `graph_rewrite` with `symbolic` would.

    Whole sums and whole conjunctions are normalised at once, so that a sum of n terms is sorted
    once instead of n times.
    """
    table = symbolic.table
    # (node, what it waits for): None for its sources, a Form for the atoms of a sum, a dict for the
    # parts of a conjunction, a node for its replacement.
    stack: list[tuple[UOp, Any]] = [(root, None)]
    steps, limit = 0, MIN_STEPS
    walk = LONG_WALK
    while stack:
        u, waits = stack.pop()
        if waits.__class__ is UOp:
            done[u] = done[waits]
            continue
        if u in done:
            continue
        simple = u._simple
        if simple is not UNSET:
            done[u] = u if simple is None else simple
            continue
        op, src = u.op, u.src
        if not src or (op is RANGE and not src[0].src) or is_plain_division(u):
            # No rule changes these.
            done[u] = u
            continue
        result: UOp | None
        if u.dtype is INDEX and op in SUM_OPS:
            if waits is None:
                waits = form_within(u, walk)
                if waits is None:
                    # Too many paths: simplify its sources first, so that there are fewer.
                    walk = SHORT_WALK
                    pending = [s for s in src if s not in done]
                    if pending:
                        stack.append((u, None))
                        stack.extend([(s, None) for s in pending])
                        continue
                    waits = form_of(UOp(op, INDEX, tuple([done[s] for s in src])))
                elif is_plain(waits):
                    result = node_of(waits)
                    SUM_RULE.fired += result is not u
                    if WATCHERS and result is not u:
                        tell_rewritten(SUM_RULE, u, result)
                    done[u] = done[result] = result
                    continue
                place = len(stack)
                for t in waits.terms:
                    for f in factors_of(t) if t.op is Ops.MUL else (t,):
                        if f not in done:
                            stack.append((f, None))
                if len(stack) > place:
                    stack.insert(place, (u, waits))
                    continue
            fresh = renewed(waits, done)
            form = merge_terms(fresh)
            result = node_of(form)
            settled = form is waits or all(
                [done.get(f) is f for t in form.terms for f in atoms_of(t)]
            )
            SUM_RULE.fired += result is not u
            if WATCHERS and result is not u:
                tell_rewritten(SUM_RULE, u, result)
        elif u.dtype is BOOL and op in JOIN_OPS:
            if waits is None:
                waits = parts_of(u, op)
                pending = [p for p in waits if p not in done]
                if pending:
                    stack.append((u, waits))
                    stack.extend([(p, None) for p in pending])
                    continue
            parts = {q: None for p in waits for q in parts_of(done[p], op)}
            result = (join_all if op is Ops.AND else join_any)(parts)
            settled = all([done.get(p) is p for p in parts_of(result, op)])
            rule = AND_RULE if op is Ops.AND else OR_RULE
            rule.fired += result is not u
            if WATCHERS and result is not u:
                tell_rewritten(rule, u, result)
        else:
            pending = [s for s in src if s not in done]
            if pending:
                stack.append((u, None))
                stack.extend([(s, None) for s in pending])
                continue
            new = u
            changed = tuple(map(done.__getitem__, src))
            if changed != src:
                new = UOp(op, u.dtype, changed, u.arg)
                if new in done:
                    done[u] = done[new]
                    continue
            matcher = table[op]
            result = matcher(new, None) if matcher is not None else None
            if result is None:
                done[u] = done[new] = new
                continue
            settled = False
        if result in done:
            done[u] = done[result]
        elif settled or not result.src:
            done[u] = done[result] = result
        else:
            steps += 1
            if steps > limit:
                limit = steps_allowed(root)
                if steps > limit:
                    raise InternalError(
                        f"simplify does not end: {render_expr(u)} becomes "
                        f"{render_expr(result)} after {steps} results"
                    )
            stack.append((u, result))
            stack.append((result, None))


AND_RULE, OR_RULE = [r for r in CONDITION_RULES if r.pattern.ops in ((Ops.AND,), (Ops.OR,))]


def atoms_of(monomial: UOp) -> list[UOp]:
    """The factors of a monomial."""
    return factors_of(monomial) if monomial.op is Ops.MUL else [monomial]


def renewed(form: Form, done: dict[UOp, UOp]) -> Form:
    """The form with simplified atoms."""
    for t in form.terms:
        if t.op is Ops.MUL or done[t] is not t:
            break
    else:
        # No factor is a sum, so the terms stay monomials.
        return form
    if all([done[f] is f and f.op not in SUM_OPS for t in form.terms for f in atoms_of(t)]):
        return form
    result = Form({}, form.const)
    for t, a in form.terms.items():
        result = result.plus(product_form([form_of(done[f]) for f in atoms_of(t)], a))
    return result


# strides


def affine(u: UOp, lanes: Collection[UOp]) -> tuple[UOp, dict[UOp, int]]:
    """An index as base + sum of lane * stride, both simplified.

    The dict has the stride of each lane in which the index is affine, 0 if it does not depend on
    the lane. The index is not affine in a lane that is missing; then the base depends on it.
    """
    rest, strides = affine_form(u, lanes)
    return node_of(rest), strides


def affine_form(u: UOp, lanes: Collection[UOp]) -> tuple[Form, dict[UOp, int]]:
    """`affine` with the base as a form."""
    # The form of a simplified index needs no work.
    form = plain_form(u) if u._simple is UNSET else None
    simple = list(lanes)
    if form is None:
        # A lane of symbolic size may become another node when its size is simplified.
        u, *simple = simplify_all([u, *lanes])
        form = form_of(u)
    return apart(form, lanes, simple)


def apart(
    form: Form, lanes: Collection[UOp], simple: Iterable[UOp] | None = None
) -> tuple[Form, dict[UOp, int]]:
    """A sum without its multiples of lanes, and the strides of the lanes, as in `affine`.

    `simple` are the lanes as they occur in the sum.
    """
    terms = form.terms
    # Ranges within terms, other than ranges that are terms themselves.
    tangled: set[UOp] = set()
    for t in terms:
        if t.op is not Ops.RANGE:
            tangled |= t.ranges
        elif t.src[0].op is not Ops.CONST:
            tangled |= t.ranges - {t}
    strides: dict[UOp, int] = {}
    rest = dict(terms)
    for lane, s in zip(lanes, lanes if simple is None else simple, strict=True):
        if s not in tangled:
            strides[lane] = terms.get(s, 0)
            rest.pop(s, None)
    return Form(rest, form.const), strides


def plain_form(u: UOp) -> Form | None:
    """The form of a simplified sum of ranges of constant size and their quotients; else None."""
    form = form_within(u, SHORT_WALK)
    return None if form is None or not is_plain(form) else form


def is_plain(form: Form) -> bool:
    """Whether a sum consists of ranges of constant size, which cannot be simplified.

    A quotient of a range may replace the range, if the range itself is no term.
    """
    terms = form.terms
    for t in terms:
        if t.op is RANGE:
            size = t.src[0]
            if size.op is not CONST or size.arg < 2:
                return False
        elif t.op is not IDIV or not is_plain_division(t) or t.src[0] in terms:
            return False
    return True


def plain_strides(u: UOp) -> dict[UOp, int] | None:
    """The strides of a sum of ranges of constant size, as in `affine_form`; else None."""
    strides: dict[UOp, int] = {}
    stack = [(u, 1)]
    left = SHORT_WALK
    while stack:
        if left == 0:
            return None
        left -= 1
        x, k = stack.pop()
        op, src = x.op, x.src
        if op is RANGE:
            size = src[0]
            if size.op is not CONST or size.arg < 2:
                return None
            strides[x] = strides.get(x, 0) + k
        elif op is ADD:
            stack += [(src[1], k), (src[0], k)]
        elif op is MUL and src[1].op is CONST:
            stack.append((src[0], k * src[1].arg))
        elif op is SUB:
            stack += [(src[1], -k), (src[0], k)]
        elif op is not CONST:
            return None
    return strides


def stride_of(u: UOp, r: UOp) -> int | None:
    """Change of an index by one step of the range: 0 without it, None where it is not affine."""
    if r not in u.ranges:
        return 0
    u, r = simplify_all([u, r])
    form = form_of(u)
    if any([t is not r and r in t.ranges for t in form.terms]):
        return None
    return form.terms.get(r, 0)


# what is known where a condition holds


def cost_of(u: UOp) -> int:
    """Cost of an expression; divisions dominate."""
    return sum([COSTS.get(x.op, 2 if x.src else 0) for x in toposort(u)])


COSTS = {Ops.IDIV: 40, Ops.MOD: 40, Ops.MUL: 3, Ops.RANGE: 0, Ops.DEFINE_VAR: 0}


def outside_ranges(u: UOp) -> bool:
    """Whether substitution enters a node: ranges stay unchanged, also their sizes."""
    return u.op is not Ops.RANGE


def intervals_of(valid: UOp) -> list[Interval]:
    """The bounds that a simplified condition implies for index terms."""
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


def narrow(
    u: UOp, known: Iterable[Interval], wanted: Collection[UOp] | None = None
) -> tuple[UOp, dict[UOp, UOp]] | None:
    """`u` with each term replaced by a variable with the narrower bounds, simplified.

    In a term that is a sum, a summand with coefficient 1 or -1 is expressed by the variable. The
    dict maps variables to their terms. None where no node of `wanted` is replaced.
    """
    changes: dict[UOp, UOp] = {}
    meaning: dict[UOp, UOp] = {}
    for i, (term, low, high) in enumerate(known):
        assert low is not None
        assert high is not None
        realized_view = number(low) if low == high else UOp.variable(f"given {i}", low, high)
        if low != high:
            meaning[realized_view] = term
        form = form_of(term)
        if term in form.terms:
            changes[term] = realized_view
            continue
        units = [t for t, a in form.terms.items() if a in (1, -1) and t not in changes]
        if wanted is not None:
            units = [t for t in units if t in wanted]
        if units:
            unit = units[-1]
            a = form.terms[unit]
            rest = form.plus(Form({unit: 1}, 0), -a)
            changes[unit] = node_of(form_of(realized_view).plus(rest, -1).scaled(a))
    if wanted is not None and not any(t in wanted for t in changes):
        return None
    return simplify(substitute(u, changes, outside_ranges)), meaning


def simplify_given(u: UOp, valid: UOp) -> UOp:
    """`u`, simplified under the assumption that `valid` holds; elsewhere the value may differ.

    `valid` is a conjunction; each operand that bounds an index term is used.
    """
    u, valid = simplify(u), simplify(valid)
    parts = {part: TRUE for part in conditions_of(valid) if part.src}
    if not parts:
        return u
    u = simplify(substitute(u, parts, outside_ranges))
    known = intervals_of(valid)
    atoms = [k for k in known if k.term in form_of(k.term).terms]
    sums = [k for k in known if k not in atoms]
    for group in [atoms] * bool(atoms) + [[*atoms, k] for k in sums]:
        wanted = below_choices(u)
        narrowed = narrow(u, group, wanted) if wanted else None
        if narrowed is not None:
            found = simplify(substitute(*narrowed, outside_ranges))
            if cost_of(found) < cost_of(u):
                u = found
    return u


def below_choices(u: UOp) -> set[UOp]:
    """Nodes below a division, comparison or WHERE: only these profit from narrower bounds."""
    return set(toposort(*[s for x in toposort(u) if x.op in CHOICES for s in x.src]))


CHOICES = frozenset(
    {
        Ops.IDIV,
        Ops.MOD,
        Ops.MAX,
        Ops.WHERE,
        Ops.CMPLT,
        Ops.CMPNE,
        Ops.CMPEQ,
        Ops.CAST,
    }
)


def bounds_given(u: UOp, valid: UOp) -> tuple[int, int]:
    """Bounds of an index under the assumption that `valid` holds."""
    u, valid = simplify(u), simplify(valid)
    low, high = u.bounds
    known = intervals_of(valid)
    atoms = [k for k in known if k.term in form_of(k.term).terms]
    for group in [known, atoms, *[[*atoms, k] for k in known if k not in atoms]]:
        narrowed = narrow(u, group)
        if narrowed is not None:
            low, high = max(low, narrowed[0].vmin), min(high, narrowed[0].vmax)
    return low, high
