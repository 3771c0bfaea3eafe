"""Computes lengths of ranges, and indices made of ranges.

Receives ranges and indices, as nodes; `codegen.analysis` analyses whole kernels.
"""

from __future__ import annotations

from collections.abc import Iterable

from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import Ops
from aster_ml.uop.rules.symbolic import affine_form, simplify_around

# Globals are faster to look up than members of an Enum, and every node is tested for its op.
CONST = Ops.CONST


def before_last(step: UOp, size: int, lanes: int) -> UOp:
    """max(size - lanes - step * lanes, 0): distance of the lanes from the last ones of an axis."""
    start = index_alu(Ops.MUL, step, UOp.index_const(lanes))
    distance = index_alu(Ops.SUB, UOp.index_const(size - lanes), start)
    return index_alu(Ops.MAX, distance, UOp.index_const(0))


def steps_left(start: UOp, length: int, size: int) -> UOp:
    """min(length, size - start): the steps of a part of an axis, whose last part may be shorter."""
    whole = UOp.index_const(length)
    if size % length == 0:
        return whole
    over = index_alu(Ops.SUB, index_alu(Ops.ADD, start, whole), UOp.index_const(size))
    # Simplified, as indices will be: an axis must stay the same node.
    return simplify_around(index_alu(Ops.SUB, whole, index_alu(Ops.MAX, over, UOp.index_const(0))))


def tells_apart(index: UOp, axis: UOp) -> bool:
    """Whether two values of `axis` never give the same index, for all values of other axes.

    With stride s and size n: smaller terms of the index span less than s, and larger terms are
    multiples of s * n.
    """
    rest, strides = affine_form(index, {axis})
    # An axis that also occurs within another term is a term like any other.
    stride = abs(strides.get(axis) or rest.terms.get(axis, 0))
    if not stride:
        return False
    low = high = 0
    for term, factor in rest.terms.items():
        if term is axis or factor % (stride * size_of(axis)) == 0:
            continue
        # A loaded index is within its bounds.
        ends = (term.vmin * factor, term.vmax * factor)
        low, high = low + min(ends), high + max(ends)
    return bool(high - low < stride)


def size_of(r: UOp) -> int:
    """Size of a range; of a symbolic one, its largest."""
    size = r.src[0]
    return int(size.arg if size.op is CONST else size.vmax)


def iterations(ranges: Iterable[UOp]) -> int:
    """Product of the sizes of ranges."""
    result = 1
    for r in ranges:
        size = r.src[0]  # as in `size_of`: a call for each would show in planning
        result *= size.arg if size.op is CONST else int(size.vmax)
    return result
