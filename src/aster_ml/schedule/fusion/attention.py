"""Attention whose scores are never stored: which nodes of a body one kernel computes together.

Receives the nodes of a body, sources first, and who shares the kernels of a device; returns the
nodes that stay inside of kernels and those that get memory. What codegen does with such a kernel
stands in `codegen/gpu/attention`; whether a device is quicker with it says `Workers.attends`.

rewrite: s = q @ k^T; p = exp2((s - max(s)) * c); (p.cast(half) @ v) / sum(p), where each of s and p
would be stored for three readers -> one kernel with three reductions over the keys
when: q, k and v are of a dtype that tensor cores multiply, and nobody else reads s, p or max(s)
why: scores are as many as keys times queries, and each would be written once and read three times
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, Ops

# Fewer queries leave most rows of a tensor core without work; of wider heads than these a work-item
# would have more sums than registers. No tensor core takes more of a head at a time than 16.
LEAST_QUERIES, WIDEST_HEAD, HEAD_PARTS = 16, 128, 16
PASSED = ELEMENTWISE | MOVEMENT | {Ops.DETACH}
Readers = dict[UOp, list[UOp]]


class Attention(NamedTuple):
    """Nodes that stay inside of a kernel, and nodes that get memory of their own."""

    inside: frozenset[UOp] = frozenset()
    stored: frozenset[UOp] = frozenset()


class Factor(NamedTuple):
    """What a product multiplies: its value before it is made wider, and the nodes above that."""

    value: UOp
    above: tuple[UOp, ...]


def find_attention(order: Iterable[UOp], multiplied: dict[str, frozenset[str]]) -> Attention:
    """All attention of a body, each to be computed by one kernel."""
    if not multiplied:
        return Attention()
    nodes = list(order)
    maxima = [u for u in nodes if u.op is Ops.REDUCE and u.arg.op is Ops.MAX]
    maxima = [u for u in maxima if u.dtype is dtypes.float32 and u.device in multiplied]
    known = {u: multiplied[str(u.device)] for u in maxima}
    if not known:
        return Attention()
    readers: Readers = {}
    for u in nodes:
        for s in dict.fromkeys(u.src):
            readers.setdefault(s, []).append(u)
    inside: set[UOp] = set()
    stored: set[UOp] = set()
    for top, attends in known.items():
        found = attention_at(top, readers, attends)
        if found is not None and inside.isdisjoint(found.stored | found.inside):
            inside |= found.inside
            stored |= found.stored
    return Attention(frozenset(inside), frozenset(stored))


def attention_at(top: UOp, readers: Readers, attends: frozenset[str]) -> Attention | None:
    """The attention whose scores have this maximum, if it is one."""
    shape = top.src[0].shape
    if top.arg.axes != (len(shape) - 1,) or not all([isinstance(n, int) for n in shape]):
        return None
    sums = [u for u in below(top.src[0]) if u.op is Ops.REDUCE]
    if len(sums) != 1 or len(shape) < 2 or int(shape[-2]) < LEAST_QUERIES:
        return None
    scores = factors_of(sums[0], attends)
    climbed = climb(sums[0], readers, top)
    if not fits(sums[0].src[0].shape[-1]):
        return None
    if not scores or climbed is None or len(climbed[1]) != 2:
        return None
    inside, ends = climbed
    product, total = sorted(ends, key=lambda u: u.src[0].op is Ops.EXP2)
    mixed = factors_of(product, attends)
    result = result_of(product, total, readers)
    if total.src[0].op is not Ops.EXP2 or total.arg.axes != top.arg.axes or not mixed:
        return None
    if not fits(product.src[0].shape[-2]):
        return None
    if result is None or len({f.value.dtype for f in (*scores, *mixed)}) != 1:
        return None
    powers = [f for f in mixed if f.value in inside]
    memory = {f.value.base for f in (*scores, *mixed) if f not in powers}
    if len(powers) != 1 or powers[0].value.src[0] is not total.src[0]:
        return None
    quotient, passed = result
    inside |= {sums[0], *ends, *passed}
    for f in (*scores, *mixed):
        inside.update(f.above)
    computed = {u for u in memory if u.op not in (Ops.PARAM, Ops.AFTER)}
    stored = frozenset({quotient, *computed})
    return Attention(frozenset(inside) - stored, stored)


def fits(width: object) -> bool:
    """Whether tensor cores have registers for heads of this width."""
    return isinstance(width, int) and 0 < width <= WIDEST_HEAD and width % HEAD_PARTS == 0


def below(u: UOp) -> Iterable[UOp]:
    """What a value is made of by arithmetic and views, and what that is made of."""
    seen = {u: None}
    stack = [u]
    while stack:
        x = stack.pop()
        yield x
        for s in x.src if x.op in PASSED else ():
            if s not in seen:
                seen[s] = None
                stack.append(s)


def factors_of(u: UOp, attends: frozenset[str]) -> list[Factor]:
    """The factors of a sum of products along the last axis, if a tensor core has their dtype."""
    value = u.src[0]
    last = len(value.shape) - 1
    if u.arg.op is not Ops.ADD or u.arg.axes != (last,) or value.op is not Ops.MUL:
        return []
    found = []
    for s in value.src:
        above = [value]
        while s.op in MOVEMENT:
            above.append(s)
            s = s.src[0]
        if s.op is not Ops.CAST or s.src[0].dtype.name not in attends:
            return []
        above.append(s)
        s = s.src[0]
        while s.op in MOVEMENT:
            above.append(s)
            s = s.src[0]
        found.append(Factor(s, tuple(above)))
    return found


def climb(scores: UOp, readers: Readers, top: UOp) -> tuple[set[UOp], list[UOp]] | None:
    """What is made of scores, and the sums that this ends in; None where it ends elsewhere."""
    inside: set[UOp] = set()
    ends: dict[UOp, None] = {}
    stack = [scores]
    while stack:
        for u in readers.get(stack.pop(), ()):
            if u.op is Ops.REDUCE and u is not top:
                if u.arg.op is not Ops.ADD:
                    return None
                ends[u] = None
            elif u is not top and u.op not in PASSED:
                return None
            elif u not in inside:
                inside.add(u)
                stack.append(u)
    return inside, list(ends)


def result_of(product: UOp, total: UOp, readers: Readers) -> tuple[UOp, set[UOp]] | None:
    """The quotient of two sums, in the dtype in which it is wanted, and the nodes on the way to it.

    None where something else reads one of them.
    """
    passed: set[UOp] = set()
    u = product
    while u.op is not Ops.FDIV:
        above = readers.get(u, ())
        if len(above) != 1 or above[0].op not in MOVEMENT | {Ops.FDIV}:
            return None
        u = above[0]
        passed.add(u)
    stack = [total]
    while stack:
        for x in readers.get(stack.pop(), ()):
            if x.op not in PASSED:
                return None
            if x is not u and x not in passed:
                passed.add(x)
                stack.append(x)
    # What is stored anyway, only with its axes in another order, is stored at once.
    result = x = u
    while len(then := readers.get(x, [])) == 1 and is_stored_as(x, then[0]):
        x = then[0]
        if x.op is not Ops.PERMUTE:
            result = x
    return result, passed


def is_stored_as(u: UOp, view: UOp) -> bool:
    """Whether a kernel that makes `u` can as well store what is made of it: no wider numbers, axes
    in another order, and heads one after the other.
    """
    if view.op is Ops.CAST:
        return bool(view.dtype.itemsize < u.dtype.itemsize)
    if view.op is Ops.RESHAPE:
        *outer, heads, width = u.shape
        return bool(view.shape == (*outer, heads * width))
    return view.op in (Ops.PERMUTE, Ops.CONTIGUOUS)
