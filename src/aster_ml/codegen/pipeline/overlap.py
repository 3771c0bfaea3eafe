"""Cuts an iteration of two chained products: exp of a tile overlaps the product of the one before.

Receives the nodes of an iteration that use a stage, once a kernel of the Opt TC chain is a list;
gives parts of which the first product and exp run an iteration ahead of the second product.
Exponentials, and what results are rescaled by, wait for the next iteration in memory of each
work-item's own.

rewrite: for k: s = q @ keys(k); p, a = exp of s; o = o * a; o += p @ values(k)
-> p, a = exp of q @ keys(0); for k from 1 on: s = q @ keys(k) begins; o = o * a; o += p @
values(k - 1) begins; p, a = exp of s; and behind the loop o = o * a; o += p @ values of the last
why: a tensor core multiplies while other units compute exp
"""

from __future__ import annotations

from aster_ml.codegen.pipeline.async_mma import is_begun
from aster_ml.codegen.pipeline.lists import Kept, Numbers, is_private, needed_by, stores_of
from aster_ml.codegen.pipeline.stages import Part, Stages
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def overlapped(
    name: str, use: list[UOp], stages: Stages, numbers: Numbers
) -> tuple[list[Part], list[Kept]]:
    """The parts of an iteration, and the values that wait for the next one.

    Raises: KernelOptError where an iteration does not begin two products of tiles that TMA brings.
    """
    begun = [u for u in use if is_begun(u)]
    if [u.src[1].arg.majors for u in begun] != ["kk", "rn"]:
        raise KernelOptError(f"{name}: PIPELINE producer wants two chained products of boxes (TMA)")
    scores, mixed = begun
    sums = mixed.src[0]
    powers, start_of = mixed.src[1].src[0].src[0], sums.src[0]
    again = next(s for s in start_of.src if s.op is not Ops.LOAD)
    kept = [Kept(u, numbers, dtypes.int32, private=True) for u in (powers, again)]
    multiply = needed_by([scores, end_of_product(scores, use)], use)
    cut = {powers, again}
    found = toposort(mixed, end_of_product(mixed, use), enter=lambda u: u not in cut)
    mix = [u for u in use if u in found and u not in cut]
    finish = [u for u in use if is_private(u) and sums in u.src]
    others = {*mix, *finish}
    roots = [u for u in use if u not in others and (is_private(u) or is_effect(u))]
    first = set(multiply)
    rest = [u for u in needed_by(roots, use) if u not in first]
    rest += stores_of(kept)
    part = stages.part
    return [part(multiply, 1), part(mix), part(rest, 1), part(finish, fenced=True)], kept


def end_of_product(product: UOp, nodes: list[UOp]) -> UOp:
    """The END of the loop of one step in which a list has a product."""
    at = nodes.index(product)
    loop = next(u for u in reversed(nodes[:at]) if u.op is Ops.RANGE)
    return next(u for u in nodes[at:] if u.op is Ops.END and u.src[0] is loop)


def is_effect(u: UOp) -> bool:
    """Whether a node is one that an iteration is there for."""
    return u.op in (Ops.ACCUMULATE, Ops.END)
