"""Builds index arithmetic and conditions from what the author of a kernel has written.

Receives translated scalar values; returns index values and bools. Authors count in any integer
dtype; Aster counts in `index`, which has no width, so that its simplifier sees all of it.
"""

from __future__ import annotations

from typing import Any

from aster_ml.dtype import DType, dtypes
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import Ops

INDEX, BOOL = dtypes.index, dtypes.bool
TRUE, FALSE = UOp.const(BOOL, True), UOp.const(BOOL, False)
ZERO = UOp.index_const(0)
PLAIN = frozenset({Ops.ADD, Ops.SUB, Ops.MUL})


def join(a: UOp, b: UOp) -> UOp:
    """Both conditions."""
    if a is TRUE or b is FALSE or a is b:
        return b
    if b is TRUE or a is FALSE:
        return a
    return a.alu(Ops.AND, b)


def as_dtype(index: UOp, dtype: Any) -> UOp:
    """An index value as the dtype that the author gave it."""
    return index if dtype is INDEX else UOp(Ops.CAST, dtype, (index,))


def as_index(x: UOp) -> UOp:
    """An integer value as an index; sums and products of indices become index arithmetic."""
    found: dict[UOp, UOp] = {}
    for u in toposort(x, enter=is_counting):
        found[u] = one_index(u, found)
    return found[x]


def is_counting(x: UOp) -> bool:
    """Whether an integer value may be index arithmetic on what its sources are as indices."""
    if x.op in (Ops.IDIV, Ops.MOD):
        return x.dtype is not INDEX and x.src[1].op is Ops.CONST and x.src[1].arg > 0
    return x.dtype is not INDEX and x.op in PLAIN


def one_index(x: UOp, found: dict[UOp, UOp]) -> UOp:
    """`as_index` of one node, where that of its sources is `found`."""
    if x.dtype is INDEX:
        return x
    if x.op is Ops.CONST:
        return UOp.index_const(int(x.arg))
    if x.op is Ops.CAST and x.src[0].dtype is INDEX:
        return x.src[0]
    if is_counting(x):
        a, b = found[x.src[0]], found[x.src[1]]
        if x.op in PLAIN or a.vmin >= 0:
            return index_alu(x.op, a, b)
    return UOp(Ops.CAST, INDEX, (x,))


def sum_of_indices(op: Any, dtype: DType, row: tuple[UOp, ...]) -> UOp | None:
    """A sum or product of indices as one index, where the author's dtype has room for it."""
    if op not in PLAIN or dtype.kind not in ("int", "uint"):
        return None
    if not any(x.op is Ops.CAST for x in row) or not all(map(is_cast_index, row)):
        return None
    found = index_alu(op, as_index(row[0]), as_index(row[1]))
    fits = dtype.min <= found.vmin and found.vmax <= dtype.max
    return as_dtype(found, dtype) if fits else None


def is_cast_index(x: UOp) -> bool:
    """Whether a value is a number, or an index as another dtype that has room for it."""
    if x.op is not Ops.CAST:
        return x.op is Ops.CONST
    inner = x.src[0]
    return inner.dtype is INDEX and x.dtype.min <= inner.vmin and inner.vmax <= x.dtype.max
