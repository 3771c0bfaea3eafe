"""Recognises attention whose scores are never stored: nodes that one kernel computes together.

Receives the nodes of a body, sources first, and which dtypes each device chains products of;
returns the nodes that stay inside of kernels and those that get memory (`rows.Kept`). What codegen
does with such a kernel stands in `chain`.

rewrite: s = q @ k^T; p = exp2((s - max(s)) * c); (p.cast(half) @ v) / sum(p), where each of s and p
would be stored for three readers -> one kernel with three reductions over the keys
when: q, k and v are of a dtype that tensor cores multiply, and nobody else reads s, p or max(s)
why: scores are as many as keys times queries, and each would be written once and read three times
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.kernel_library.rows import Kept
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, Ops

# Fewer queries leave most rows of a tensor core without work; of wider heads than these a work-item
# would have more sums than registers, and of wider ones than half of it more than two gradients'.
# Source: PTX ISA 8.7, "mma.m16n8k16": 16 rows by 256 columns are 128 registers of 255.
LEAST_QUERIES, WIDEST_HEAD = 16, 256
PASSED = ELEMENTWISE | MOVEMENT | {Ops.DETACH}
Readers = dict[UOp, list[UOp]]


class Factor(NamedTuple):
    """Factor of a product: its value before it is made wider, and the nodes above that."""

    value: UOp
    above: tuple[UOp, ...]


def keep(order: list[UOp], chained: dict[str, frozenset[str]]) -> Kept:
    """All attention of a body, each to be computed by one kernel."""
    maxima = [u for u in order if u.op is Ops.REDUCE and u.arg.op is Ops.MAX]
    maxima = [u for u in maxima if u.dtype is dtypes.float32 and u.device in chained]
    known = {u: chained[str(u.device)] for u in maxima}
    if not known:
        return Kept()
    readers: Readers = {}
    for u in order:
        for s in dict.fromkeys(u.src):
            readers.setdefault(s, []).append(u)
    inside: set[UOp] = set()
    stored: set[UOp] = set()
    together: list[tuple[UOp, UOp]] = []
    for top, names in known.items():
        found = attention_at(top, readers, names)
        if found is not None and inside.isdisjoint(found.stored | found.inside):
            inside |= found.inside
            stored |= found.stored
            together += found.together
    return Kept(frozenset(inside), frozenset(stored), tuple(together))


def attention_at(top: UOp, readers: Readers, names: frozenset[str]) -> Kept | None:
    """The attention whose scores have this maximum, if it is one."""
    shape = top.src[0].shape
    if top.arg.axes != (len(shape) - 1,) or not all([isinstance(n, int) for n in shape]):
        return None
    sums = [u for u in below(top.src[0]) if u.op is Ops.REDUCE]
    if len(sums) != 1 or len(shape) < 2 or int(shape[-2]) < LEAST_QUERIES:
        return None
    scores = factors_of(sums[0], names)
    climbed = climb(sums[0], readers, top)
    if not scores or climbed is None or not fits(sums[0].src[0].shape[-1]):
        return None
    inside, ends, kept = climbed
    totals = [u for u in ends if u.src[0].op is Ops.EXP2 and u.arg.axes == top.arg.axes]
    if len(totals) != 1:
        return None
    total, products = totals[0], {u: factors_of(u, names) for u in ends if u is not totals[0]}
    forward = [u for u, found in products.items() if powers_of(found, inside) is total.src[0]]
    if len(forward) != 1 or not all(products.values()):
        return None
    product = forward[0]
    result = result_of(product, total, readers)
    if result is None or not fits(product.src[0].shape[-2]):
        return None
    quotient, passed, more = result
    kept += more
    inside |= {sums[0], *ends, *passed}
    factors = [*scores, *[f for found in products.values() for f in found]]
    stored = {quotient}
    slopes: list[tuple[tuple[int, ...], UOp]] = []
    for u in products:
        if u is not product:
            found = slope_at(u, sums[0], products[u], inside, readers, names)
            if found is None or not set(found.ends) <= set(ends):
                return None
            factors += found.factors
            inside |= found.inside
            stored |= found.stored
            slopes.append((u.arg.axes, found.result))
    if len({f.value.dtype for f in factors}) != 1:
        return None
    for f in factors:
        inside.update(f.above)
    memory = {f.value.base for f in factors if f.value not in inside}
    stored |= {u for u in memory if u.op not in (Ops.PARAM, Ops.AFTER)}
    together = [(u, quotient) for u in kept]
    if any([u.shape[:-1] != quotient.shape[:-1] for u in kept]):
        return None
    # Gradients of keys and values are made of the same scores.
    alike: dict[object, UOp] = {}
    for axes, u in slopes:
        first = alike.setdefault((axes, u.shape), u)
        if first is not u and 2 * int(u.shape[-1]) <= WIDEST_HEAD:
            together.append((u, first))
    stored |= {*kept, *[u for _, u in slopes]}
    return Kept(frozenset(inside - stored), frozenset(stored), tuple(together))


class Slope(NamedTuple):
    """A gradient of queries, keys or values: nodes inside of its kernel, and what is stored.

    `ends` are the sums that what is made of its own product ends in.
    """

    result: UOp
    inside: set[UOp]
    stored: set[UOp]
    factors: list[Factor]
    ends: list[UOp]


def slope_at(
    u: UOp, scores: UOp, mixed: list[Factor], inside: set[UOp], readers: Readers,
    names: frozenset[str],
) -> Slope | None:  # fmt: skip
    """The gradient that a sum of products of what is made of scores is, if one kernel makes it."""
    narrow = [f for f in mixed if f.value in inside]
    columns = u.src[0].shape[-1]
    if len(narrow) != 1 or narrow[0].value.op is not Ops.CAST or not fits(columns):
        return None
    size = prod(scores.shape)
    found = Slope(u, set(), set(), [], [])
    for x in below(narrow[0].value):
        if x.op is not Ops.REDUCE or x is scores:
            continue
        if prod(x.shape) != size:
            found.stored.add(x)
            continue
        own = factors_of(x, names)
        climbed = climb(x, readers, scores)
        if not own or climbed is None or climbed[2] or not fits(x.src[0].shape[-1]):
            return None
        found.inside.update({x, *climbed[0]})
        found.ends.extend(climbed[1])
        found.factors.extend(own)
    above = u
    while len(then := readers.get(above, [])) == 1 and then[0].op in MOVEMENT | {Ops.CAST}:
        above = then[0]
        if above.op is Ops.CAST:
            if above.dtype.itemsize < u.dtype.itemsize:
                return found._replace(result=above, inside=found.inside | {u})
            break
    return found


def powers_of(mixed: list[Factor], inside: set[UOp]) -> UOp | None:
    """Finds the exponentials: the factor of a product that is rounded and meets memory."""
    found = [f.value for f in mixed if f.value in inside]
    return found[0].src[0] if len(found) == 1 and found[0].op is Ops.CAST else None


def fits(width: object) -> bool:
    """Whether tensor cores have registers for heads of this width."""
    return isinstance(width, int) and 0 < width <= WIDEST_HEAD


def below(u: UOp) -> Iterable[UOp]:
    """Lists the sources of a value that arithmetic and views lead to, and their sources."""
    seen = {u: None}
    stack = [u]
    while stack:
        x = stack.pop()
        yield x
        for s in x.src if x.op in PASSED else ():
            if s not in seen:
                seen[s] = None
                stack.append(s)


def factors_of(u: UOp, names: frozenset[str]) -> list[Factor]:
    """The factors of a sum of products along an axis, if a tensor core has their dtype."""
    value = u.src[0]
    if u.arg.op is not Ops.ADD or len(u.arg.axes) != 1 or value.op is not Ops.MUL:
        return []
    found = []
    for s in value.src:
        above = [value]
        while s.op in MOVEMENT:
            above.append(s)
            s = s.src[0]
        if s.op is not Ops.CAST or s.src[0].dtype.name not in names:
            return []
        above.append(s)
        s = s.src[0]
        while s.op in MOVEMENT:
            above.append(s)
            s = s.src[0]
        found.append(Factor(s, tuple(above)))
    return found


def climb(scores: UOp, readers: Readers, top: UOp) -> tuple[set[UOp], list[UOp], list[UOp]] | None:
    """Follows scores upwards to nodes made of them, the sums at their end, and row values kept.

    None where it ends elsewhere.
    """
    inside: set[UOp] = set()
    ends: dict[UOp, None] = {}
    kept: dict[UOp, None] = {}
    stack = [scores]
    while stack:
        for u in readers.get(stack.pop(), ()):
            if u.op is Ops.REDUCE and u is not top:
                if u.arg.op is not Ops.ADD:
                    return None
                ends[u] = None
            elif u.op is Ops.CONTIGUOUS and u.shape == top.shape:
                kept[u] = None
            elif u is not top and u.op not in PASSED:
                return None
            elif u not in inside:
                inside.add(u)
                stack.append(u)
    return inside, list(ends), list(kept)


def result_of(product: UOp, total: UOp, readers: Readers) -> tuple[UOp, set[UOp], list[UOp]] | None:
    """The quotient of two sums, in the dtype in which it is wanted, and the nodes on the way to it.

    With them what else is kept of each row. None where something else reads one of them.
    """
    passed: set[UOp] = set()
    kept: list[UOp] = []
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
            if x.op is Ops.CONTIGUOUS and x.shape == total.shape:
                kept.append(x)
            elif x.op not in PASSED:
                return None
            elif x is not u and x not in passed:
                passed.add(x)
                stack.append(x)
    # What is stored anyway, only with its axes in another order, is stored at once.
    result = x = u
    while len(then := readers.get(x, [])) == 1 and is_stored_as(x, then[0]):
        x = then[0]
        if kept and x.op is not Ops.CAST:
            break
        if x.op is not Ops.PERMUTE:
            result = x
    return result, passed, kept


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
