"""Places asynchronous MMAs in a list: where sums begin, and a wait before each reader of a sum.

Receives a kernel as a list, or a part of one; returns it with products that are added to what is
there already, and with a MMA_WAIT before each node that reads an accumulator that may be under way.

rewrite: reg = 0; reg += a @ b; x + reg -> reg = x; reg += a @ b
why: sums of a loop stay in the registers in which tensor cores have them, and are added there
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from aster_ml.codegen.kernel import Kernel
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, substitute_all
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def settled(left: int) -> UOp:
    """Products on operands in local memory are done, but for some."""
    return UOp(Ops.MMA_WAIT, dtypes.void, (), left)


def is_begun(u: UOp) -> bool:
    """Whether an ACCUMULATE adds a product that goes on beside other work."""
    return u.op is Ops.ACCUMULATE and u.src[1].op is Ops.MMA and bool(u.src[1].arg.majors)


def add_in_place(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Starts the accumulators of a product from the value that the product is added to."""
    at = {u: i for i, u in enumerate(linear.uops)}
    sums = {u.src[0] for u in linear.uops if is_begun(u)}
    readers: dict[UOp, list[UOp]] = {}
    for u in linear.uops:
        if u.op not in (Ops.ACCUMULATE, Ops.END):
            for s in u.src:
                readers.setdefault(s, []).append(u)
    new: dict[UOp, UOp] = {}
    for u in linear.uops:
        if u.op is not Ops.ADD:
            continue
        for start, reg in (u.src, u.src[::-1]):
            is_alone = reg in sums and readers[reg] == [u] and reg.src[0].op is Ops.CONST
            if is_alone and start in at and at[start] < at[reg]:
                start = substitute(start, new)
                new[reg] = new[u] = UOp(reg.op, reg.dtype, (start, *reg.src[1:]), reg.arg)
    uops = [u for u in linear.uops if u.op is not Ops.ADD or u not in new]
    return replace(linear, uops=tuple(substitute_all(uops, new)))


def settle_where_read(uops: Iterable[UOp]) -> list[UOp]:
    """A list in which products are waited for before somebody has their sums: no more than that."""
    under_way: list[UOp] = []
    listed: list[UOp] = []
    for u in uops:
        if u.op is Ops.MMA_WAIT:
            under_way = under_way[len(under_way) - u.arg :] if u.arg else []
        elif is_begun(u):
            under_way = [*under_way, u.src[0]]
        else:
            read = [i for i, reg in enumerate(under_way) if reg in u.src]
            if read and u.op is not Ops.END:
                left = len(under_way) - 1 - max(read)
                listed.append(settled(left))
                under_way = under_way[len(under_way) - left :] if left else []
        listed.append(u)
    return listed
