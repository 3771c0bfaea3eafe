"""Writes several maxima that become one, on x86: NaN is looked for in pairs of operands.

Receives the writer, accumulators that are folded into one after their loop, and what each of them
takes; returns the text of their new values. A maximum of two floats by itself is in `llvm_rules`.

x86 has no instruction that keeps NaN whichever operand it is in, so each maximum takes a comparison
and a choice more. Here the first accumulator alone keeps NaN, of all operands; what the others make
of it does not matter, since they are folded with the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aster_ml.dtype import DType, dtypes
from aster_ml.renderer.cell import Cell
from aster_ml.renderer.llvm.rules import (
    RANGE_WIDTHS,
    has_avx512,
    in_both_orders,
    is_x86,
    literal,
    llvm_type,
    select,
    write_range,
)
from aster_ml.target import Target
from aster_ml.uop.ops import Ops


def become_one(c: Cell, target: Target) -> bool:
    """Whether all instances that this ACCUMULATE changes are SIMD values that one REDUCE folds."""
    reg, last = c.inputs[0][0], c.inputs[0][0].consumer
    return (
        reg.dtype in (dtypes.float32, dtypes.float64)
        and is_x86(target)
        and reg.width > 1
        and 1 < reg.count == c.count
        and c.inputs[1][0].width <= reg.width
        and reg.uses == 2
        and last is not None
        and last.op is Ops.REDUCE
        and set(reg.lanes) <= set(last.src[1:])
    )


def write_maxima(
    w: Any, dtype: DType, n: int, before: list[str], operands: Iterable[str]
) -> list[str]:
    """The new values of these accumulators; each operand is asked for when it is due."""
    kind, mask = llvm_type(dtype, n), llvm_type(dtypes.bool, n)
    found: list[str] = []
    nans, waiting = "", before[0]
    for old, x in zip(before, operands, strict=True):
        found.append(larger(w, dtype, n, [old, x]))
        # The first operand goes with its accumulator, the others with one another.
        if waiting:
            unordered = w.emit(f"fcmp uno {kind} {waiting}, {x}")
            nans = w.emit(f"or {mask} {nans}, {unordered}") if nans else unordered
            waiting = ""
        else:
            waiting = x
    if waiting:
        unordered = w.emit(f"fcmp uno {kind} {waiting}, {waiting}")
        nans = w.emit(f"or {mask} {nans}, {unordered}")
    found[0] = select(w, dtype, n, nans, literal(math.nan, dtype, n), found[0])
    return found


def larger(w: Any, dtype: DType, n: int, x: list[str]) -> str:
    """The larger of two floats, +0 above -0; anything for NaN."""
    if n * dtype.bits in RANGE_WIDTHS and has_avx512(w.target):
        return write_range(w, dtype, n, x)
    bits = dtypes.uint32 if dtype is dtypes.float32 else dtypes.uint64
    common = in_both_orders(w, dtype, n, x)
    return str(w.emit(f"bitcast {llvm_type(bits, n)} {common} to {llvm_type(dtype, n)}"))
