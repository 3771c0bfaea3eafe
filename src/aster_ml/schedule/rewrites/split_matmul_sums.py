"""Splits sums of several matrix products into separate products.

Receives and returns a body. Codegen decides the loops of each product.

rewrite: REDUCE(a * b + c * d, axes) -> REDUCE(a * b, axes) + CONTIGUOUS(REDUCE(c * d, axes))
when: each element of all factors is used many times, and each sum is long
why: the gradient of a shared weight is such a sum; in one kernel its products would share registers
and panels, which each product can fill
"""

from __future__ import annotations

import functools

from aster_ml.helpers import all_int, prod
from aster_ml.schedule.work import Work
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops

# Minimum uses of each element of a factor: with fewer the kernel is memory-bound, and one kernel
# reads less.
MIN_USES = 16
# Minimum steps of a sum: in a longer one it costs little to load and add the previous sums.
MIN_LENGTH = 128


def split_products(body: UOp, order: list[UOp], work: Work) -> UOp:
    """A reduction over a sum of matrix products becomes a sum of reductions, one a product."""
    return rebuilt(body, (Ops.REDUCE,), split_one, order)


def split_one(old: UOp, u: UOp) -> UOp:
    """A REDUCE as a sum of several, or the unchanged node."""
    x = u.src[0]
    if u.arg.op is not Ops.ADD or x.op is not Ops.ADD or u.dtype.kind != "float":
        return u
    if not all_int(x.shape) or prod([x.shape[a] for a in u.arg.axes]) < MIN_LENGTH:
        return u
    terms = x.split_uop(Ops.ADD)
    products = [t for t in terms if t.op is Ops.MUL and is_product(t)]
    if len(products) < 2:
        return u
    rest = [t for t in terms if t not in products]
    first = [functools.reduce(lambda a, b: a.alu(Ops.ADD, b), rest)] if rest else []
    total: UOp | None = None
    for term in [*first, *products]:
        part = UOp(Ops.REDUCE, u.dtype, (term,), u.arg)
        if total is None:
            total = part
        else:
            total = UOp(Ops.CONTIGUOUS, u.dtype, (total,)).alu(Ops.ADD, part)
    return u if total is None else total


def is_product(u: UOp) -> bool:
    """Whether a MUL multiplies factors whose elements are used many times."""
    most = prod(u.shape) // MIN_USES
    return all([0 < elements_below(s) <= most for s in u.src])


def elements_below(u: UOp) -> int:
    """Elements of the value below a chain of views."""
    while u.op in MOVEMENT:
        u = u.src[0]
    return int(prod(u.shape)) if all_int(u.shape) else 0
