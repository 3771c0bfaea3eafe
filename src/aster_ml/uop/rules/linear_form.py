"""Converts index expressions to linear forms, sums of integer multiples of monomials, and back.

Receives and returns nodes of dtype index. A `Form` is `sum(coefficient * monomial) + const`; a
monomial is an atom (a range, a variable, a division, ...) or a product of atoms. Equal sums have
equal forms, and `node_of` writes a form in a canonical order. Rules do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.uop.interned import UNSET
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import Ops

INDEX = dtypes.index
# Globals are faster to look up than members of an Enum, and every node is tested for its op.
ADD, CONST, IDIV, MOD = Ops.ADD, Ops.CONST, Ops.IDIV, Ops.MOD
MUL, NEG, RANGE, SUB = Ops.MUL, Ops.NEG, Ops.RANGE, Ops.SUB
# A product of sums is multiplied out up to this many terms; else it stays one monomial.
EXPAND_LIMIT = 32


def number(value: int) -> UOp:
    """An index constant."""
    found = NUMBERS.get(value)
    if found is None:
        found = UOp(Ops.CONST, INDEX, (), value)
        if len(NUMBERS) < 1000:
            NUMBERS[value] = found
    return found


# Cache of constants.
NUMBERS: dict[int, UOp] = {}


def order_of(atom: UOp) -> tuple[int, bool, bytes]:
    """The sort key of a monomial in a sum: its innermost range, then its digest.

    Terms that change least come first, so that a prefix of a sum is loop-invariant.
    """
    digest = atom._digest  # as `atom.digest`: a call for each would show
    if digest is UNSET:
        digest = atom.digest
    if atom.op is RANGE:
        return atom.arg.id, False, digest
    ranges = atom.ranges
    return max([r.arg.id for r in ranges]) if ranges else -1, True, digest


def sort_atoms(atoms: Iterable[UOp]) -> list[UOp]:
    """The atoms in the order of `order_of`."""
    return sorted(atoms, key=order_of)


class Form:
    """`sum(coefficient * monomial) + const`; no coefficient is 0."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: dict[UOp, int], const: int) -> None:
        self.terms = terms
        self.const = const

    def __repr__(self) -> str:
        return f"Form({self.terms!r}, {self.const})"

    def bounds(self) -> tuple[int, int]:
        """Least and greatest value, with monomials treated as independent."""
        return bounds_of(self.terms.items(), self.const)

    def scaled(self, factor: int) -> Form:
        """The form times an integer."""
        if factor == 0:
            return Form({}, 0)
        return Form({t: a * factor for t, a in self.terms.items()}, self.const * factor)

    def plus(self, other: Form, factor: int = 1) -> Form:
        """self + factor * other."""
        terms = dict(self.terms)
        for t, a in other.terms.items():
            merged = terms.get(t, 0) + a * factor
            if merged:
                terms[t] = merged
            else:
                terms.pop(t, None)
        return Form(terms, self.const + other.const * factor)

    def size(self) -> int:
        """Number of summands, the constant among them."""
        return len(self.terms) + (self.const != 0)

    def gcd(self) -> int:
        """Greatest common divisor of the coefficients, without the constant; 0 without terms."""
        return gcd(*self.terms.values())


def bounds_of(terms: Iterable[tuple[UOp, int]], const: int) -> tuple[int, int]:
    """Least and greatest value of a sum."""
    low = high = const
    for t, a in terms:
        t0, t1 = t.bounds
        if a >= 0:
            low += a * t0
            high += a * t1
        else:
            low += a * t1
            high += a * t0
    return low, high


def factors_of(monomial: UOp) -> list[UOp]:
    """The atoms of a monomial."""
    if monomial.op is not MUL:
        return [monomial]
    found = []
    stack = [monomial]
    while stack:
        u = stack.pop()
        if u.op is MUL:
            stack.extend(u.src)
        else:
            found.append(u)
    return found


def product_of(atoms: list[UOp]) -> UOp:
    """The monomial of these atoms, at least one."""
    if len(atoms) > 1:
        atoms = sort_atoms(atoms)
    result = atoms[0]
    for atom in atoms[1:]:
        result = UOp(Ops.MUL, INDEX, (result, atom))
    return result


def multiply(x: Form, y: Form) -> Form:
    """The product, multiplied out."""
    if not x.terms:
        return y.scaled(x.const)
    if not y.terms:
        return x.scaled(y.const)
    result = y.scaled(x.const).plus(Form(x.terms, 0), y.const)
    terms = result.terms
    for s, a in x.terms.items():
        for t, b in y.terms.items():
            monomial = product_of(factors_of(s) + factors_of(t))
            merged = terms.get(monomial, 0) + a * b
            if merged:
                terms[monomial] = merged
            else:
                terms.pop(monomial, None)
    return Form(terms, x.const * y.const)


def form_of(u: UOp) -> Form:
    """The form of an index node; nodes other than sums and products are atoms.

    `u` itself is multiplied out if it is a product of sums. Such a product within a sum is an atom:
    a simplified sum contains none that could be multiplied out.
    """
    form = form_within(u, None)
    assert form is not None
    return form


def form_within(u: UOp, limit: int | None) -> Form | None:
    """`form_of`, or None after visiting more than `limit` nodes.

    Sums that share subexpressions have more paths than nodes, so an unsimplified sum needs a limit.
    """
    op = u.op
    if op is CONST:
        return Form({}, u.arg)
    if op not in SUMS:
        return Form({u: 1}, 0)
    if op is MUL and u.src[0].op is not CONST and u.src[1].op is not CONST:
        return form_of_product(u, limit)
    terms: dict[UOp, int] = {}
    const = 0
    stack = [(u, 1)]
    left = -1 if limit is None else limit
    while stack:
        if left == 0:
            return None
        left -= 1
        x, k = stack.pop()
        op = x.op
        if op is ADD:
            a, b = x.src
            stack.append((b, k))
            stack.append((a, k))
        elif op is CONST:
            const += k * x.arg
        elif op is MUL:
            a, b = x.src
            if b.op is CONST:
                stack.append((a, k * b.arg))
            elif a.op is CONST:
                stack.append((b, k * a.arg))
            else:
                atoms, c = split_factors(x)
                if not atoms:
                    const += k * c
                    continue
                t = product_of(atoms)
                terms[t] = terms.get(t, 0) + k * c
        elif op is SUB:
            a, b = x.src
            stack.append((b, -k))
            stack.append((a, k))
        elif op is NEG:
            stack.append((x.src[0], -k))
        else:
            terms[x] = terms.get(x, 0) + k
    if 0 in terms.values():
        terms = {t: a for t, a in terms.items() if a}
    return Form(terms, const)


SUMS = frozenset({Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL})


def split_factors(product: UOp) -> tuple[list[UOp], int]:
    """The factors of a product that are not constants, and the product of the constants."""
    atoms, c = [], 1
    for f in factors_of(product):
        if f.op is Ops.CONST:
            c *= f.arg
        else:
            atoms.append(f)
    return atoms, c


def form_of_product(product: UOp, limit: int | None) -> Form | None:
    """The form of a product of nodes other than constants, multiplied out."""
    atoms, c = split_factors(product)
    forms = [form_within(f, limit) for f in atoms]
    known = [f for f in forms if f is not None]
    return product_form(known, c) if len(known) == len(forms) else None


def product_form(forms: list[Form], c: int) -> Form:
    """c * all of the forms: multiplied out, or, with too many terms, one monomial of sums.

    All or nothing, so that the order in which a product was built does not matter.
    """
    result = Form({}, c)
    sums: list[Form] = []
    terms = 1
    for form in forms:
        if form.size() > 1:
            sums.append(form)
            terms *= form.size()
        else:
            result = multiply(result, form)
    if terms > EXPAND_LIMIT and result.size():
        ((t, a),) = result.terms.items() or [(None, result.const)]
        atoms = ([] if t is None else factors_of(t)) + [node_of(form) for form in sums]
        return Form({product_of(atoms): a}, 0)
    for form in sums:
        result = multiply(result, form)
    return result


def node_of(form: Form) -> UOp:
    """The form as nodes, in canonical order, the constant last."""
    terms = form.terms
    if not terms:
        return number(form.const)
    result: Any = None
    order = terms if len(terms) == 1 else sort_atoms(terms)
    for t in order:
        a = terms[t]
        if a != 1:
            factor = NUMBERS.get(a)
            t = new_node(MUL, INDEX, (t, number(a) if factor is None else factor))
        result = t if result is None else new_node(ADD, INDEX, (result, t))
    if form.const:
        result = new_node(ADD, INDEX, (result, number(form.const)))
    return result  # type: ignore[no-any-return]


def is_plain_division(u: UOp) -> bool:
    """Whether a node is a range of constant size divided by a smaller constant, as of a reshape."""
    if u.op is not IDIV and u.op is not MOD:
        return False
    x, c = u.src
    if x.op is not RANGE or c.op is not CONST or x.src[0].op is not CONST:
        return False
    return bool(1 < c.arg < x.src[0].arg)


def least_value(form: Form) -> int:
    """A lower bound that uses that a range of symbolic size is below its size.

    `n*m - 1 - (i*m + j)` with i < n and j < m has the lower bound 0.
    """
    low = form.bounds()[0]
    for _ in range(8):
        if low >= 0:
            return low
        bounded = replace_inner_range(form)
        if bounded is None:
            return low
        form = bounded
        low = max(low, form.bounds()[0])
    return low


def replace_inner_range(form: Form) -> Form | None:
    """A lower bound of a form without one of its ranges of symbolic size; None if it has none.

    The range takes its last value where that makes the sum smaller, else 0. Only ranges that are
    plain factors of nonnegative cofactors are replaced.
    """
    for target in sort_atoms(
        {
            f
            for t in form.terms
            for f in factors_of(t)
            if f.op is Ops.RANGE and f.src[0].op is not Ops.CONST
        }
    ):
        last = form_of(target.src[0])
        last = Form(last.terms, last.const - 1)
        result = Form({}, form.const)
        for t, a in form.terms.items():
            factors = factors_of(t)
            if target not in factors:
                if target in t.ranges:
                    break
                result = result.plus(Form({t: a}, 0))
                continue
            factors.remove(target)
            if target in factors or any(f.bounds[0] < 0 or target in f.ranges for f in factors):
                break
            if a < 0:
                beside = Form({product_of(factors): 1}, 0) if factors else Form({}, 1)
                result = result.plus(multiply(last, beside), a)
        else:
            return result
    return None


def is_below(x: Form, limit: Form) -> bool:
    """Whether x < limit is proven."""
    gap = limit.plus(x, -1)
    return least_value(Form(gap.terms, gap.const - 1)) >= 0
