"""Index expressions as sums of integer multiples of monomials, and back to nodes.

Receives and returns nodes of dtype index. A `Form` is `sum(coefficient * monomial) + const`; a
monomial is an atom (a range, a variable, a division, ...) or a product of atoms. Equal sums have
equal forms, and `node_of` writes a form down in one order that depends on nothing but the
expression. Rules do not belong here.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

INDEX = dtypes.index
# A product of two sums is multiplied out up to this many terms; beyond, it stays one monomial.
EXPAND_LIMIT = 32


def number(value: int) -> UOp:
    """An index constant."""
    found = NUMBERS.get(value)
    if found is None:
        found = UOp(Ops.CONST, INDEX, (), value)
        if len(NUMBERS) < 1000:
            NUMBERS[value] = found
    return found


# Constants that have been asked for, as they mostly come again.
NUMBERS: dict[int, UOp] = {}


def order_of(atom: UOp) -> tuple[int, bool, bytes]:
    """Where a monomial stands in a sum: by its innermost range, then by its digest.

    What changes least stands first, so that the beginning of a sum can leave an inner loop.
    """
    if atom.op is Ops.RANGE:
        return atom.arg.id, False, atom.digest
    ranges = atom.ranges
    return max([r.arg.id for r in ranges]) if ranges else -1, True, atom.digest


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
        """Least and greatest value, each monomial taken for itself."""
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
        """How many summands there are, the constant among them."""
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
    if monomial.op is not Ops.MUL:
        return [monomial]
    found = []
    stack = [monomial]
    while stack:
        u = stack.pop()
        if u.op is Ops.MUL:
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


def multiply(x: Form, y: Form) -> Form | None:
    """The product, multiplied out; None when that gives too many terms."""
    if not x.terms:
        return y.scaled(x.const)
    if not y.terms:
        return x.scaled(y.const)
    if x.size() * y.size() > EXPAND_LIMIT:
        return None
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
    """The form of an index node; what is no sum or product is an atom."""
    op = u.op
    if op is Ops.CONST:
        return Form({}, u.arg)
    if op not in SUMS:
        return Form({u: 1}, 0)
    terms: dict[UOp, int] = {}
    const = 0
    stack = [(u, 1)]
    while stack:
        x, k = stack.pop()
        op = x.op
        if op is Ops.ADD:
            a, b = x.src
            stack.append((b, k))
            stack.append((a, k))
        elif op is Ops.CONST:
            const += k * x.arg
        elif op is Ops.MUL:
            a, b = x.src
            if b.op is Ops.CONST:
                stack.append((a, k * b.arg))
            elif a.op is Ops.CONST:
                stack.append((b, k * a.arg))
            else:
                product = multiply_nodes(x, a, b)
                const += k * product.const
                for t, c in product.terms.items():
                    terms[t] = terms.get(t, 0) + k * c
        elif op is Ops.SUB:
            a, b = x.src
            stack.append((b, -k))
            stack.append((a, k))
        elif op is Ops.NEG:
            stack.append((x.src[0], -k))
        else:
            terms[x] = terms.get(x, 0) + k
    if 0 in terms.values():
        terms = {t: a for t, a in terms.items() if a}
    return Form(terms, const)


SUMS = frozenset({Ops.ADD, Ops.SUB, Ops.NEG, Ops.MUL})


def multiply_nodes(product: UOp, x: UOp, y: UOp) -> Form:
    """The form of a product of two nodes that are no constants."""
    if x.op not in SUMS and y.op not in SUMS:
        return Form({product_of([x, y]): 1}, 0)
    # A monomial that is in order already stays the node it is.
    if y.op not in SUMS and x.op is Ops.MUL and x.src[1].op is not Ops.CONST:
        factors = factors_of(x)
        if not any(f.op in SUMS or f.op is Ops.CONST for f in factors):
            return Form({product_of([*factors, y]): 1}, 0)
    a, b = form_of(x), form_of(y)
    found = multiply(a, b)
    if found is not None:
        return found
    return Form({UOp(Ops.MUL, INDEX, (node_of(a), node_of(b))): 1}, 0)


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
            t = UOp(Ops.MUL, INDEX, (t, number(a)))
        result = t if result is None else UOp(Ops.ADD, INDEX, (result, t))
    if form.const:
        result = UOp(Ops.ADD, INDEX, (result, number(form.const)))
    return result  # type: ignore[no-any-return]


def least_value(form: Form) -> int:
    """A lower bound that knows that a range of symbolic size stays below its size.

    `n*m - 1 - (i*m + j)` with i below n and j below m is found to be at least 0.
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
    """A form that is nowhere larger, without one of the ranges of symbolic size; None if none.

    A range stands at its last value where that makes the sum smaller, else at 0. Only ranges that
    occur as plain factors beside what is never negative are replaced.
    """
    for target in sort_atoms({f for t in form.terms for f in factors_of(t)
                              if f.op is Ops.RANGE and f.src[0].op is not Ops.CONST}):
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
                product = multiply(last, beside)
                if product is None:
                    break
                result = result.plus(product, a)
        else:
            return result
    return None


def is_below(x: Form, limit: Form) -> bool:
    """Whether x < limit is certain."""
    gap = limit.plus(x, -1)
    return least_value(Form(gap.terms, gap.const - 1)) >= 0
