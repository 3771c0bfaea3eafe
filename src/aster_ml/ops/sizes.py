"""Computes with sizes: products and differences that may hold symbolic sizes, in simplest form.

Receives ints and index nodes; returns ints wherever the symbolic parts cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from aster_ml.errors import ShapeError
from aster_ml.helpers import all_int, ceildiv, prod
from aster_ml.uop.infer import show_shape
from aster_ml.uop.ops import Ops


def factors(shape: Sequence[Any]) -> tuple[int, list[Any]]:
    """The product of sizes as a number and the symbolic factors beside it."""
    number, symbolic, pending = 1, [], list(shape)
    while pending:
        size = pending.pop()
        if isinstance(size, int):
            number *= size
        elif size.op is Ops.CONST:
            number *= size.arg
        elif size.op is Ops.MUL:
            pending.extend(size.src)
        elif size.op is Ops.ADD:
            terms, offset = linear_terms(size)
            common = gcd(offset, *terms.values()) or 1
            number *= common
            simple = sum_of({t: n // common for t, n in terms.items()}, offset // common)
            if isinstance(simple, int) or simple.op is not Ops.ADD:
                pending.append(simple)
            else:
                symbolic.append(simple)
        else:
            symbolic.append(size)
    return number, symbolic


def same_count(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes hold equally many elements."""
    (n, a), (m, b) = factors(one), factors(other)
    return n == m and (n == 0 or sorted(map(id, a)) == sorted(map(id, b)))


def inferred_size(old: Sequence[Any], known: Sequence[Any], what: str = "reshape") -> Any:
    """The size that stands for -1."""
    (have, left), (rest, taken) = factors(old), factors(known)
    fits = rest != 0 and have % rest == 0
    for size in taken:
        fits = fits and size in left
        if fits:
            left.remove(size)
    if not fits:
        count, together = show_shape((prod(old),))[1:-1], show_shape((prod(known),))[1:-1]
        raise ShapeError(
            f"{what}: {show_shape(tuple(old))} has {count} elements, which the known "
            f"sizes, {together} together, do not divide"
        )
    return prod(left) * (have // rest) if left else have // rest


def size_between(start: Any, stop: Any) -> Any:
    """stop - start, with what stands in both left out."""
    if isinstance(start, int) and isinstance(stop, int):
        return stop - start
    terms, number = linear_terms(stop)
    others, offset = linear_terms(start)
    for term, count in others.items():
        terms[term] = terms.get(term, 0) - count
    return sum_of(terms, number - offset)


def size_sum(*sizes: Any) -> Any:
    """The sum of sizes in simplest form."""
    if all_int(sizes):
        return sum(sizes)
    terms: dict[Any, int] = {}
    number = 0
    for size in sizes:
        more, offset = linear_terms(size)
        number += offset
        for term, count in more.items():
            terms[term] = terms.get(term, 0) + count
    return sum_of(terms, number)


def sum_of(terms: dict[Any, int], number: int) -> Any:
    """Terms and a number as one size; equal sums are the same node, whatever made them."""
    result: Any = 0
    for term in sorted([t for t, count in terms.items() if count], key=lambda t: t.digest):
        result = term * terms[term] + result
    return result + number


def same_size(one: Any, other: Any) -> bool:
    """Whether two sizes are equal for all values of their variables."""
    if one is other or one == other:
        return True
    if isinstance(one, int) and isinstance(other, int):
        return False
    between = size_between(one, other)
    return isinstance(between, int) and between == 0


def linear_terms(size: Any) -> tuple[dict[Any, int], int]:
    """A size as a sum: how often each symbolic term stands in it, and a number."""
    terms: dict[Any, int] = {}
    number, pending = 0, [(size, 1)]
    while pending:
        part, count = pending.pop()
        if isinstance(part, int):
            number += part * count
        elif part.op is Ops.CONST:
            number += part.arg * count
        elif part.op is Ops.ADD:
            pending += [(s, count) for s in part.src]
        elif part.op is Ops.MUL and part.src[1].op is Ops.CONST:
            pending.append((part.src[0], count * part.src[1].arg))
        else:
            terms[part] = terms.get(part, 0) + count
    return terms, number


def size_ceildiv(size: Any, amount: int) -> Any:
    """A size divided by an int, rounded up."""
    return ceildiv(size, amount) if isinstance(size, int) else (size + (amount - 1)) // amount
