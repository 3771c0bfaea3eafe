"""Sums of a few steps side by side without the factors that are the same in all of them.

Receives a kernel whose Opts are applied and whose products are unpacked from blocks of small
numbers; returns its graph. Which steps stand side by side is not decided here.

rewrite: REDUCE(x * (q * s + m), r, u) -> REDUCE(s * (x0 * q0 + x1 * q1) + m * (x0 + x1), r), where
u is written out: x0 is x at u = 0
when: u are lanes that are folded into one accumulator (UNROLL), s and m do not change with them,
and what is unpacked serves one result
why: scales and minima are those of a block; sums of x alone are shared by all rows of a tile; and
each product is added up by the instruction that multiplies
"""

from __future__ import annotations

import functools
import itertools

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.staging.scales import Scales
from aster_ml.codegen.transforms.decoded import operand_of
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

SUMS = frozenset({Ops.ADD, Ops.SUB, Ops.NEG})


def factor_sums(kernel: Kernel, target: Target) -> None:
    """Factors that stay the same along unrolled lanes are taken out of the sum over them."""
    changes, scales = {}, Scales(kernel, target)
    for u in kernel.reduces:
        lanes = [r for r in u.src[1:] if r.arg.kind is AxisType.UNROLL]
        rest = [r for r in u.src[1:] if r not in lanes]
        operand = operand_of(kernel, u) if rest else None
        if operand is None:
            continue
        if operand.uses > 1:
            # What is unpacked serves several results: the scale is taken in once for all of them.
            value = substitute(u.src[0], scales.inside(u.src[0], rest))
            changes[u] = u.replace(src=(value, *u.src[1:]))
            continue
        # The innermost first: what they have in common is taken out before the next.
        lanes.sort(key=lambda r: -r.arg.id)
        products = products_of(Written(lanes).total(u.src[0]))
        products = [[scales.staged(f, rest) for f in factors] for factors in products]
        value, *more = side_by_side(kernel, products)
        changes[u] = UOp(Ops.REDUCE, u.dtype, (value, *rest, *more), u.arg)
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def products_of(value: UOp) -> list[list[UOp]]:
    """The products that a value adds up, as factors; in the last one, all that is no product."""
    products = []
    while value.op is Ops.MULACC:
        products.append([*value.src[:2]])
        value = value.src[2]
    return [*products, [*value.src] if value.op is Ops.MUL else [value]]


def side_by_side(kernel: Kernel, products: list[list[UOp]]) -> list[UOp]:
    """A sum of products as one product of lanes, and these; anything else as it is.

    why: an accumulator takes a product of each lane in by one instruction
    """
    last = products[-1]
    if len(products) == 1 or len(last) == 1:
        value = last[0] if len(last) == 1 else last[0].alu(Ops.MUL, last[1])
        for a, b in products[-2::-1]:
            value = a.alu(Ops.MULACC, b, value)
        return [value]
    lane = kernel.new_range(UOp.index_const(len(products)), AxisType.UNROLL)
    first, second = last
    for i in reversed(range(len(products) - 1)):
        here = lane.alu(Ops.CMPEQ, UOp.index_const(i))
        first, second = here.where(products[i][0], first), here.where(products[i][1], second)
    return [first.alu(Ops.MUL, second), lane]


class Written:
    """Sums over lanes, the innermost first, written out."""

    def __init__(self, lanes: list[UOp]) -> None:
        self.lanes = lanes

    def total(self, value: UOp, start: UOp | None = None) -> UOp:
        """`start` and the sum of a value over the lanes that it changes with, times the others."""
        lanes = self.lanes
        same = [r for r in lanes if r not in value.ranges]
        if len(same) == len(lanes):
            count = iterations(lanes)
            return plus(value if count == 1 else times(value, float(count)), start)
        factors = value.split_uop(Ops.MUL)
        kept = [f for f in factors if not any([r in f.ranges for r in lanes])]
        if kept:
            rest = [f for f in factors if f not in kept]
            return plus(product([*kept, self.total(product(rest))]), start)
        for i, f in enumerate(factors):
            if f.op in SUMS and self.takes_out(f):
                for term in reversed(terms_of(f)):
                    start = self.total(product([*factors[:i], *term, *factors[i + 1 :]]), start)
                assert start is not None
                return start
        # Those along which some factor stays the same have their sum inside of it.
        inner = self.common(factors)
        if inner:
            within, around = Written(inner), [r for r in lanes if r not in inner]
            value = within.total(value)
            return Written(around).total(value, start)
        for place in itertools.product(*[range(size_of(r)) for r in reversed(lanes)]):
            at = dict(zip(reversed(lanes), map(UOp.index_const, place), strict=True))
            start = plus(product([substitute(f, at) for f in factors]), start)
        assert start is not None
        return start

    def common(self, factors: list[UOp]) -> list[UOp]:
        """The innermost lanes along which some factor stays the same, though not along all."""
        for count in range(len(self.lanes) - 1, 0, -1):
            inner = self.lanes[:count]
            if any([f.ranges.isdisjoint(inner) for f in factors]) and any(
                [not f.ranges.isdisjoint(inner) for f in factors]
            ):
                return inner
            for f in factors:
                if f.op in SUMS and Written(inner).takes_out(f):
                    return inner
        return []

    def takes_out(self, u: UOp) -> bool:
        """Whether some term of a sum, or a factor of one, stays the same along the lanes."""
        return any([f.ranges.isdisjoint(self.lanes) for term in terms_of(u) for f in term])


def terms_of(u: UOp) -> list[list[UOp]]:
    """The products that a sum adds up, as their factors."""
    stack, terms = [(u, 1.0)], []
    while stack:
        x, sign = stack.pop()
        if x.op is Ops.NEG:
            stack.append((x.src[0], -sign))
        elif x.op is Ops.ADD or x.op is Ops.SUB:
            stack += [(x.src[1], sign if x.op is Ops.ADD else -sign), (x.src[0], sign)]
        elif x.op is Ops.CONST:
            terms.append([UOp.const(x.dtype, sign * x.arg)])
        else:
            terms.append([*([UOp.const(x.dtype, sign)] if sign < 0 else []), *x.split_uop(Ops.MUL)])
    return terms


def product(factors: list[UOp]) -> UOp:
    """Factors multiplied, numbers first."""
    numbers = [f for f in factors if f.op is Ops.CONST]
    return functools.reduce(
        lambda a, b: a.alu(Ops.MUL, b), [*numbers, *[f for f in factors if f not in numbers]]
    )


def times(value: UOp, count: float) -> UOp:
    """A multiple."""
    return value.alu(Ops.MUL, UOp.const(value.dtype, count))


def plus(value: UOp, start: UOp | None) -> UOp:
    """A sum, of a product in one instruction."""
    if start is None:
        return value
    if value.op is Ops.MUL:
        return value.src[0].alu(Ops.MULACC, value.src[1], start)
    return value.alu(Ops.ADD, start)
