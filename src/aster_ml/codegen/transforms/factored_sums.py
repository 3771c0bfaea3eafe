"""Sums of a few steps side by side without the factors that are the same in all of them.

Receives a kernel whose Opts are applied and whose products are unpacked from blocks of small
numbers; returns its graph. Which steps stand side by side is not decided here.

rewrite: REDUCE(x * (q * s + m), r, u) -> REDUCE(s * REDUCE(x * q, u) + m * REDUCE(x, u), r)
when: u are lanes that are folded into one accumulator (UNROLL), and s and m do not change with them
why: scales and minima are those of a block; and sums of x alone are shared by all rows of a tile
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.unpacked import operand_of
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ReduceArg
from aster_ml.uop.ranges import iterations

# Products that a value is written out to, at most.
MAX_TERMS = 4
# A product: the factor that stays the same along the lanes, and the one that changes; None is one.
Term = tuple[UOp | None, UOp | None]


def factor_sums(kernel: Kernel, target: Target) -> None:
    """Factors that stay the same along unrolled lanes are taken out of the sum over them."""
    changes = {}
    for u in kernel.reduces:
        lanes = [r for r in u.src[1:] if r.arg.kind is AxisType.UNROLL]
        rest = [r for r in u.src[1:] if r not in lanes]
        if not lanes or not rest or operand_of(kernel, u) is None:
            continue
        value = folded(u.src[0], sorted(lanes, key=lambda r: -r.arg.id))
        changes[u] = UOp(Ops.REDUCE, u.dtype, (value, *rest), u.arg)
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def folded(value: UOp, lanes: list[UOp]) -> UOp:
    """The sum of a value over lanes, the first of them innermost."""
    pending: list[UOp] = []
    for r in lanes:
        pending.append(r)
        terms = terms_of(value, {*pending})
        if terms is not None and any([outer is not None for outer, _ in terms]):
            value = total(value, terms, pending)
            pending = []
    return summed(value, pending)


def total(value: UOp, terms: list[Term], lanes: list[UOp]) -> UOp:
    """The sum of each product over the lanes, times its own factor, all added up."""
    result: UOp | None = None
    by_inner: dict[UOp | None, UOp | None] = {}
    for outer, inner in terms:
        if inner in by_inner:
            one = UOp.const(value.dtype, 1)
            outer = (by_inner[inner] or one).alu(Ops.ADD, outer or one)
        by_inner[inner] = outer
    for inner, outer in by_inner.items():
        if inner is None:
            part = UOp.const(value.dtype, iterations(lanes))
        else:
            part = summed(inner, lanes)
        if outer is not None:
            part = outer.alu(Ops.MUL, part)
        result = part if result is None else result.alu(Ops.ADD, part)
    assert result is not None
    return result


def summed(value: UOp, lanes: list[UOp]) -> UOp:
    """A value added up over lanes."""
    if not lanes:
        return value
    return UOp(Ops.REDUCE, value.dtype, (value, *lanes), ReduceArg(Ops.ADD))


def terms_of(u: UOp, lanes: set[UOp]) -> list[Term] | None:
    """A value as a sum of products, each in two factors; None where these are too many."""
    if lanes.isdisjoint(u.ranges):
        return [(u, None)]
    if u.op is Ops.NEG:
        below = terms_of(u.src[0], lanes)
        return None if below is None else [negated(t, u) for t in below]
    if u.op not in (Ops.ADD, Ops.SUB, Ops.MUL):
        return [(None, u)]
    left, right = [terms_of(s, lanes) for s in u.src]
    if left is None or right is None:
        return None
    if u.op is Ops.MUL:
        found = [(times(a, c), times(b, d)) for a, b in left for c, d in right]
    else:
        found = left + ([negated(t, u) for t in right] if u.op is Ops.SUB else right)
    if all([outer is None for outer, _ in found]):
        # Nothing to take out: it stays as it is.
        return [(None, u)]
    return found if len(found) <= MAX_TERMS else [(None, u)]


def negated(term: Term, like: UOp) -> Term:
    """A product with the other sign."""
    outer, inner = term
    return (UOp.const(like.dtype, -1) if outer is None else outer.alu(Ops.NEG)), inner


def times(a: UOp | None, b: UOp | None) -> UOp | None:
    """A product of factors that may be absent."""
    if a is None or b is None:
        return b if a is None else a
    return a.alu(Ops.MUL, b)
