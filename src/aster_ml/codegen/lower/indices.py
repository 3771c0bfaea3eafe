"""Lowers index arithmetic: an integer dtype instead of `index`, vector lanes apart from the rest.

Receives a kernel graph whose axes are final; returns one without index dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import Threads
from aster_ml.dtype import DType, dtypes
from aster_ml.late import late
from aster_ml.target import Target
from aster_ml.uop.graph import holds, toposort
from aster_ml.uop.node import UOp, index_alu, new_node
from aster_ml.uop.ops import DIVISIONS, AxisType, Ops, RangeArg
from aster_ml.uop.rules.linear_form import Form, form_of, node_of
from aster_ml.uop.rules.symbolic import OPAQUE, affine, apart, plain_form, simplify

if TYPE_CHECKING:
    from aster_ml.codegen.work_groups import swizzle
else:
    swizzle = late("codegen.work_groups.swizzle")


def lower_addresses(kernel: Kernel, target: Target) -> None:
    """Makes machine integers of indices: a base that lanes share, and the offset of each lane."""
    narrow = target.index_bits == 32 or (target.has_local and fits_32_bits(kernel))
    whole = dtypes.int32 if narrow else dtypes.int64
    shared = next((r for r in kernel.outputs if kernel.plan_of(Threads, r) is not None), None)
    kernel.sink = lower_indices(kernel.sink, whole, kernel.facts.order, shared)
    if not kernel.in_order:
        ends = kernel.sink.src
        changed = {r.arg.id: r for end in ends for r in end.src[1:] if r.op is Ops.RANGE}
        kernel.outputs = [changed.get(r.arg.id, r) for r in kernel.outputs]


def fits_32_bits(kernel: Kernel) -> bool:
    """Whether no index of a kernel needs more than 32 bits.

    why: a graphics processor has no instructions on 64-bit integers, each is several
    """
    indices = [u for u in kernel.facts.order if u.dtype is INDICES]
    # Sums of indices, taken apart, may have parts that are somewhat larger than they are.
    most = int(dtypes.max(dtypes.int32)) // 2
    return all([-most <= u.vmin and u.vmax <= most for u in indices])


def lower_indices(
    sink: UOp, dtype: DType, order: Iterable[UOp] | None = None, shared: UOp | None = None
) -> UOp:
    """Each INDEX(buffer, i) becomes INDEX(buffer, base, offset), and index values a `dtype`.

    `order` is that of the graph, where it is known. The axis that is `shared` out over threads
    becomes THREAD.

    why: `offset` is a number for every lane, so a renderer needs one address for all of them, and
    for all accesses that differ by a number
    """
    new: dict[UOp, UOp] = {}
    if shared is not None:
        size, thread = shared.src[0], RangeArg(shared.arg.id, AxisType.THREAD)
        lower_below(size, dtype, new)
        new[shared] = UOp(Ops.RANGE, dtype, (new[size],), thread)
    # Buffers that are walked alike share their index.
    parts: dict[tuple[UOp, swizzle.Xor | None], tuple[UOp, UOp]] = {}
    for u in toposort(sink) if order is None else order:
        if u.dtype is INDICES:
            # Where something reads it: of an address the two parts are all that is read.
            continue
        src = u.src
        if u.op is INDEX:
            key = src[1], layout_of(src[0])
            if key not in parts:
                index, layout = key
                parts[key] = (
                    split_lanes(index) if layout is None else swizzle.split_by_xor(index, layout)
                )
            src = (src[0], *parts[key])
        for s in src:
            if s not in new:
                lower_below(s, dtype, new)
        made = tuple(map(new.__getitem__, src))
        if u.op is CAST and u.dtype is made[0].dtype:
            new[u] = made[0]
        else:
            new[u] = u if made == u.src else new_node(u.op, u.dtype, made, u.arg)
    return new[sink]


def layout_of(memory: UOp) -> swizzle.Xor | None:
    """The XOR layout of local memory; None of other memory."""
    while memory.op is AFTER:
        memory = memory.src[0]
    return memory.arg.xor if memory.op is DEFINE_LOCAL else None


def split_lanes(index: UOp) -> tuple[UOp, UOp]:
    """An index as what does not change with lanes and the rest, which is a number for each lane.

    Both are simplified, unless something that is loaded or reduced stands in the index: that has
    an address of its own, which is lowered where it stands in the kernel, and may have other
    readers, so it has to stay one node.
    """
    plain = plain_form(index)
    strides: dict[UOp, int] = {}
    if plain is not None and all([t.op is Ops.RANGE for t in plain.terms]):
        strides = {t: a for t, a in plain.terms.items() if t.arg.kind.is_lane}
        terms = {t: a for t, a in plain.terms.items() if t not in strides}
        base = node_of(Form(terms, plain.const))
    else:
        is_opaque = holds(index, OPAQUE)
        base = index = index if is_opaque else simplify(index)
        lanes = {r for r in index.ranges if r.arg.kind.is_lane}
        if lanes and is_opaque:
            rest, strides = apart(form_of(index), lanes)
            base = node_of(rest)
        elif lanes:
            base, strides = affine(index, lanes)
    offset = ZERO
    for lane in sorted(strides, key=BY_ID):
        step = index_alu(Ops.MUL, lane, UOp.index_const(strides[lane]))
        offset = index_alu(Ops.ADD, offset, step)
    if base.op is Ops.ADD and base.src[1].op is Ops.CONST:
        base, offset = base.src[0], offset + base.src[1]
    return base, offset


AFTER, CAST, DEFINE_LOCAL, INDEX = Ops.AFTER, Ops.CAST, Ops.DEFINE_LOCAL, Ops.INDEX
INDICES = dtypes.index
BY_ID = operator.attrgetter("arg.id")
ZERO = UOp.index_const(0)


def lower_index_dtype(root: UOp, dtype: DType) -> UOp:
    """Every index value as a `dtype`; floor divisions in terms of those that round to zero."""
    new: dict[UOp, UOp] = {}
    lower_below(root, dtype, new)
    return new[root]


def lower_below(root: UOp, dtype: DType, new: dict[UOp, UOp]) -> None:
    """Adds to `new` what index values, and what is made of them, become."""
    stack = [root]
    while stack:
        u = stack[-1]
        for s in u.src:
            if s not in new:
                stack.append(s)
        if stack[-1] is not u:
            continue
        stack.pop()
        if u in new:
            continue
        src = tuple(map(new.__getitem__, u.src))
        if u.dtype is not INDICES:
            if u.op is CAST and u.dtype is src[0].dtype:
                new[u] = src[0]
            else:
                new[u] = u if src == u.src else new_node(u.op, u.dtype, src, u.arg)
        elif u.op is CAST:
            new[u] = src[0] if src[0].dtype is dtype else UOp(CAST, dtype, src)
        elif u.op in DIVISIONS:
            new[u] = lower_division(u, src[0], src[1], dtype)
        else:
            new[u] = new_node(u.op, dtype, src, u.arg)


def lower_division(u: UOp, x: UOp, y: UOp, dtype: DType) -> UOp:
    """A floor division or remainder; shifts and masks where the divisor is a power of two."""
    divisor = y.arg if y.op is Ops.CONST else None
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        # An arithmetic shift and a mask round down for negative numbers too.
        if u.op is Ops.MOD:
            return x.alu(Ops.AND, UOp.const(dtype, divisor - 1))
        return x.alu(Ops.SHR, UOp.const(dtype, divisor.bit_length() - 1))
    if u.src[0].vmin >= 0 and u.src[1].vmin > 0:
        return x.alu(u.op, y)
    # For x < 0 the quotient towards zero of x - (y - 1) is the floor of x / y.
    lowered = (x < 0).where(x - (y - 1), x).alu(Ops.IDIV, y)
    return lowered if u.op is Ops.IDIV else x - lowered * y
