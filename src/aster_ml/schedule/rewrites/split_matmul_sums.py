"""Splits sums of several matrix products into separate products.

Receives and returns a body. Which loops a product gets is not decided here.

rewrite: REDUCE(a * b + c * d, axes) -> REDUCE(a * b, axes) + CONTIGUOUS(REDUCE(c * d, axes))
when: the elements of all factors are used many times each, and each sum is long
why: the gradient by a weight that is used several times is such a sum; in one kernel its products
would share registers and panels that each of them can fill
"""

from __future__ import annotations

import functools

from aster_ml.helpers import all_int, prod
from aster_ml.schedule.work import Work
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import MOVEMENT, Ops

# How often each element of a factor is used, at least: else memory is what the kernel waits for,
# and one kernel reads less of it.
MIN_USES = 16
# Steps of a sum from which on it matters little that sums before it are loaded and added.
MIN_LENGTH = 128


def split_products(body: UOp, order: list[UOp], work: Work) -> UOp:
    """A reduction over a sum of matrix products becomes a sum of reductions, one a product."""
    return rebuilt(body, (Ops.REDUCE,), split_one, order)


def split_one(old: UOp, u: UOp) -> UOp:
    """One REDUCE, as several; or as it was."""
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
    """Whether a MUL is a product whose factors repeat what they are made of."""
    most = prod(u.shape) // MIN_USES
    return all([0 < elements_below(s) <= most for s in u.src])


def elements_below(u: UOp) -> int:
    """Elements of what a value shows, below its views."""
    while u.op in MOVEMENT:
        u = u.src[0]
    return int(prod(u.shape)) if all_int(u.shape) else 0
