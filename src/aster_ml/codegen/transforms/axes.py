"""Axes before anything is scheduled: neighbours merged, divided ones split, indices simplified.

Receives a Kernel or its graph as the schedule gives it; changes nothing of what it computes. Which
Opts axes get is chosen in `policy/cpu/heuristic`, and applied by `Kernel`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.tails import mask_tail
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import holds_known, toposort
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import OPAQUE, affine_form, simplify, simplify_around

ZERO = UOp.index_const(0)
# Names of a module are found faster than members of an Enum, and every node is asked for its op.
INDEX, LOAD, STORE, WHERE = Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.WHERE
BOOL, INDICES = dtypes.bool, dtypes.index
# What reads a range as part of an address, or where its loop ends.
PLAIN_READERS = frozenset({Ops.INDEX, Ops.END, Ops.REDUCE})


def merge_axes(kernel: Kernel, target: Target) -> None:
    """Makes one axis of neighbours that every access walks as one.

    rewrite: r0 (size a), r1 (size b) -> r (size a*b), r0 = r // b, r1 = r % b
    when: in every index the stride of r0 is b times that of r1, and neither stands elsewhere
    why: fewer, longer loops; and lanes that need not stop at the end of a row
    """
    groups = [list(kernel.outputs)]
    for u in kernel.reduces:
        if u.src[1:]:
            groups.append(list(u.src[1:]))
    if all(len(g) < 2 for g in groups):
        return
    elsewhere = stray_ranges(kernel)
    accesses = kernel.accesses()
    closed_by = Counter([r for g in groups for r in g])
    changes: dict[UOp, UOp] = {}
    parts: dict[UOp, tuple[UOp, ...]] = {}
    for group in groups:
        # The axis that ends in `last`, a neighbour of what comes next.
        axis: UOp | None = None
        last: UOp | None = None
        for r in group:
            if r in elsewhere or closed_by[r] > 1 or r.src[0].op is not Ops.CONST:
                axis = last = None
                continue
            if axis is None or last is None or not all(walks_as_one(a, last, r) for a in accesses):
                axis = last = r
                continue
            merged = kernel.new_range(size_of(axis) * size_of(r), axis.arg.kind)
            # Indices are affine with matching strides, so r0 * b + r1 stands for the merged axis:
            # r0 -> 0 and r1 -> merged says the same.
            changes[last], parts[last] = ZERO, ()
            changes[r], parts[r] = merged, (merged,)
            kernel.outputs = [merged if x is axis else x for x in kernel.outputs if x is not r]
            axis, last = merged, r
    order = kernel.rewrite(changes, parts) if changes else kernel.facts.order
    kernel.sink = simplify_indices(kernel.sink, order)


def split_divided_axes(kernel: Kernel, target: Target) -> None:
    """Splits each output axis that indices divide in two.

    rewrite: r (size a*b), r // b, r % b -> r0 (size a), r1 (size b), r0 * b + r1, r0, r1
    also: (r + x) // b, where x is of a reduction, as in windows; r grows to a multiple of b
    why: what is repeated or interleaved then has plain strides, and SIMD lanes need no gather
    """
    found = False
    for r in list(kernel.outputs):
        if r.src[0].op is not Ops.CONST:
            continue
        divided = [u for u in kernel.facts.divisions if walks(u.src[0], r)]
        n = min([u.src[1].arg for u in divided], default=1)
        if not 1 < n < size_of(r):
            continue
        if size_of(r) % n:
            # Windows are worth it.
            if all([u.src[0] is r for u in divided]):
                continue
            at = kernel.outputs.index(r)
            mask_tail(kernel, r, n)
            r = kernel.outputs[at]
        kernel.split(r, n, AxisType.LOOP)
        found = True
    if found:
        kernel.sink = simplify_indices(kernel.sink, kernel.facts.order)


def walks(u: UOp, r: UOp) -> bool:
    """Whether an index is an axis, or the axis and a step of a reduction."""
    if u is r or r not in u.ranges:
        return u is r
    rest, strides = affine_form(u, {r})
    return strides.get(r) == 1 and all(
        [t.op is Ops.RANGE and t.arg.kind is AxisType.REDUCE for t in rest.terms]
    )


def walks_as_one(access: Access, outer: UOp, inner: UOp) -> bool:
    """Whether an access goes on over the end of `inner` as it goes along it."""
    far, near = access.stride(outer), access.stride(inner)
    return far is not None and near is not None and far == near * size_of(inner)


def stray_ranges(kernel: Kernel) -> set[UOp]:
    """Ranges that something other than a plain address or a loop's end reads."""
    found: set[UOp] = set()
    for u in kernel.facts.order:
        # What index arithmetic makes is judged where it is read.
        if u.dtype is INDICES or u.op in PLAIN_READERS:
            continue
        for s in u.src:
            if s.dtype is INDICES:
                found.update(s.ranges)
    return found


# What an index is made of in which nothing stands that is loaded.
PLACES = frozenset({
    Ops.CONST, Ops.RANGE, Ops.DEFINE_VAR,
    Ops.ADD, Ops.SUB, Ops.MUL, Ops.NEG, Ops.IDIV, Ops.MOD, Ops.MAX,
})  # fmt: skip


def loads_places(order: Iterable[UOp]) -> bool:
    """Whether more than arithmetic on ranges and variables stands in some index of a graph."""
    return any([u.dtype is INDICES and u.op not in PLACES for u in order])


def simplify_kernel(kernel: Kernel, target: Target) -> None:
    """Every index, gate, comparison of indices and choice by place is simplified.

    why: addresses are simplified where lanes are set apart from them; before that only where one
    reads what has an address itself, or where loops stay as they were written
    """
    order = kernel.facts.order
    kernel.sink = simplify_indices(
        kernel.sink, order, addresses=kernel.in_order or loads_places(order)
    )


def simplify_indices(sink: UOp, order: Iterable[UOp] | None = None, addresses: bool = True) -> UOp:
    """The kernel with every index, gate, comparison of indices and choice by place simplified.

    `order` is that of the graph, where it is known. Without `addresses` those of loads and stores
    stay as they are.
    """
    new: dict[UOp, UOp] = {}
    opaque: dict[UOp, bool] = {}
    # A view: of what is in `new` by then.
    stay = new.keys().isdisjoint
    for u in toposort(sink) if order is None else order:
        src = u.src
        if new and not stay(src):
            src = tuple(map(new.get, src, src))
        elif not src or u.dtype is INDICES:
            continue
        if u.dtype is BOOL and src[0].dtype is INDICES:
            new[u] = simplify_around(u if src == u.src else new_node(u.op, u.dtype, src, u.arg))
            continue
        if u.op is INDEX and addresses:
            src = (src[0], simplify_around(src[1]))
        elif u.op is LOAD and len(src) > 1:
            src = (src[0], simplify_around(src[1]))
        elif u.op is STORE and len(src) > 2:
            src = (*src[:2], simplify_around(src[2]))
        elif u.op is WHERE and compares_places(src[0], opaque):
            src = (simplify(src[0]), *src[1:])
        if src != u.src:
            new[u] = new_node(u.op, u.dtype, src, u.arg)
    return new.get(sink, sink)


def compares_places(u: UOp, opaque: dict[UOp, bool]) -> bool:
    """Whether a condition is made of indices alone; `opaque` has what is known of others."""
    # What is loaded is soon met; ranges are found for every node below.
    return not holds_known(u, OPAQUE, opaque) and bool(u.ranges)
