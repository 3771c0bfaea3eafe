"""Emulates DOT and loads of packed words.

Receives and returns scalar nodes. A word is a uint32 of consecutive elements of a narrow dtype, the
first in its lowest bits; `uop/ops.py` defines DOT.
"""

from __future__ import annotations

from aster_ml.dtype import DType, dtypes
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import Ops


def split_dot(dtype: DType, x: UOp, y: UOp) -> UOp:
    """A DOT as products and additions."""
    if dtype is dtypes.float32:
        low = [(v << 16).bitcast(dtype) for v in (x, y)]
        high = [(v & 0xFFFF0000).bitcast(dtype) for v in (x, y)]
        return low[0] * low[1] + high[0] * high[1]

    def byte(word: UOp, number: int) -> UOp:
        """A signed byte of a word."""
        part = word if number == 0 else word >> (8 * number)
        return part.cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtype)

    terms = [(byte(x, i) + 128) * byte(y, i) for i in range(4)]
    return (terms[0] + terms[1]) + (terms[2] + terms[3])


def split_word(load: UOp) -> UOp:
    """A LOAD of a word as loads of its elements."""
    place, gate = load.src[0], load.src[1:]
    narrow = place.dtype
    storage = {1: dtypes.uint8, 2: dtypes.uint16}[narrow.itemsize]
    memory, first = place.src
    parts = []
    for i in range(load.dtype.itemsize // narrow.itemsize):
        at = UOp(Ops.INDEX, narrow, (memory, index_alu(Ops.ADD, first, UOp.index_const(i))))
        element = UOp(Ops.LOAD, narrow, (at, *gate)).bitcast(storage).cast(load.dtype)
        parts.append(element << (8 * narrow.itemsize * i) if i else element)
    result = parts[0]
    for part in parts[1:]:
        result = result | part
    return result
