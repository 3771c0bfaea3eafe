"""Emulates narrow floats: converts bits to float32 and back, with rounding.

Receives and returns scalar nodes. A float16, bfloat16, fp8e4m3 or fp8e5m2 value is held as the
float32 that equals it. float32 arithmetic, rounded to the narrow type after each operation, gives
the result of narrow arithmetic, since float32 has more than twice the precision. (It may round
twice below the smallest normal float32, where bfloat16 has numbers too.) float16 uses the target's
conversions; the other types use integer arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.dtype import DType, bitcast_value, dtypes, round_float
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class Narrow(NamedTuple):
    """A float type that can be emulated, and the type its bits are stored as."""

    storage: DType
    fraction: int
    bias: int
    # Codes without sign: the first that is no finite number, what infinity becomes, and NaN.
    overflow: int
    infinity: int
    nan: int


NARROW = {
    dtypes.float16: Narrow(dtypes.float16, 10, 15, 0x7C00, 0x7C00, 0x7E00),
    dtypes.bfloat16: Narrow(dtypes.uint16, 7, 127, 0x7F80, 0x7F80, 0x7FC0),
    dtypes.fp8e4m3: Narrow(dtypes.uint8, 3, 7, 0x7F, 0x7F, 0x7F),
    dtypes.fp8e5m2: Narrow(dtypes.uint8, 2, 15, 0x7C, 0x7C, 0x7E),
}
# Their results are exact in the narrow type of their sources.
EXACT_OPS = frozenset({Ops.NEG, Ops.MAX, Ops.WHERE, Ops.TRUNC})

# Source: IEEE 754-2019, 3.4 (binary32: all of the exponent set, none of the fraction).
FLOAT32_INFINITY = 0x7F800000


def is_nan(x: UOp) -> UOp:
    """Tests whether x is NaN."""
    return x.ne(x)


def decode(stored: UOp, dtype: DType) -> UOp:
    """The float32 that equals a stored value of `dtype`."""
    if dtype is dtypes.float16:
        return stored.cast(dtypes.float32)
    bits = stored.cast(dtypes.uint32)
    if dtype is dtypes.bfloat16:
        return (bits << 16).bitcast(dtypes.float32)
    form = NARROW[dtype]
    code = bits & 0x7F
    # Under the wider exponent the bits mean 2**(bias - 127) of the value, below normal ones too.
    shifted = code << (23 - form.fraction)
    value = shifted.bitcast(dtypes.float32) * 2.0 ** (127 - form.bias)
    special = shifted | FLOAT32_INFINITY
    magnitude = (code < form.overflow).where(value.bitcast(dtypes.uint32), special)
    return (magnitude | ((bits & 0x80) << 24)).bitcast(dtypes.float32)


def encode(value: UOp, dtype: DType) -> UOp:
    """Encodes a float32 that equals a value of `dtype` as it is stored."""
    if dtype is dtypes.float16:
        return value.cast(dtypes.float16)
    if dtype is dtypes.bfloat16:
        return (value.bitcast(dtypes.uint32) >> 16).cast(dtypes.uint16)
    return encode_fp8(value, dtype)


def encode_constant(value: float, dtype: DType) -> UOp:
    """Encodes a number as it is stored."""
    form = NARROW[dtype]
    if dtype is dtypes.float16:
        return UOp.const(dtype, round_float(value, dtype))
    if value != value:
        return UOp.const(form.storage, form.nan)
    return UOp.const(form.storage, bitcast_value(round_float(value, dtype), dtype, form.storage))


def round_to(value: UOp, dtype: DType) -> UOp:
    """The value of `dtype` nearest to a float32, ties to even, as a float32.

    Overflow gives infinity, in fp8 the greatest number; infinity is NaN in fp8e4m3.
    """
    if dtype is dtypes.float16:
        return value.cast(dtypes.float16).cast(dtypes.float32)
    if dtype is dtypes.bfloat16:
        bits = value.bitcast(dtypes.uint32)
        nearest = bits + (((bits >> 16) & 1) + 0x7FFF)
        kept = is_nan(value).where(bits | 0x00400000, nearest)
        return (kept & 0xFFFF0000).bitcast(dtypes.float32)
    return decode(encode_fp8(value, dtype), dtype)


def encode_fp8(value: UOp, dtype: DType) -> UOp:
    """The bits of the fp8 number nearest to a float32, ties to even."""
    form = NARROW[dtype]
    bits = value.bitcast(dtypes.uint32)
    magnitude = bits & 0x7FFFFFFF
    dropped = 23 - form.fraction
    odd = (magnitude >> dropped) & 1
    nearest = (magnitude + (odd + ((1 << (dropped - 1)) - 1))) >> dropped
    normal = nearest - ((127 - form.bias) << form.fraction)
    # Subnormal numbers are equally spaced: adding a number with that spacing rounds to them.
    exponent = 1 - form.bias - form.fraction + 23
    shifted = magnitude.bitcast(dtypes.float32) + 2.0**exponent
    tiny = shifted.bitcast(dtypes.uint32) - ((exponent + 127) << 23)
    least_normal = (128 - form.bias) << 23
    code = (magnitude < least_normal).where(tiny, normal)
    # Finite values saturate.
    finite = magnitude < FLOAT32_INFINITY
    end = finite.where(code.const_like(form.overflow - 1), code.const_like(form.infinity))
    code = (code < form.overflow).where(code, end)
    if form.nan != form.infinity:
        code = is_nan(value).where(code.const_like(form.nan), code)
    return (code | ((bits >> 24) & 0x80)).cast(dtypes.uint8)


def round_to_odd(x: UOp) -> UOp:
    """A float64 rounded to odd: an inexact value becomes the neighbour whose last bit is 1.

    Rounding the float32 to a type of at most 22 bits then equals rounding x directly.
    """
    near = x.cast(dtypes.float32)
    back = near.cast(dtypes.float64)
    bits = near.bitcast(dtypes.uint32)
    outward = magnitude_of(back) > magnitude_of(x)
    towards_zero = bits - outward.cast(dtypes.uint32)
    return (towards_zero | back.ne(x).cast(dtypes.uint32)).bitcast(dtypes.float32)


def magnitude_of(x: UOp) -> UOp:
    """|x| of a float64."""
    return (x.bitcast(dtypes.uint64) & ((1 << 63) - 1)).bitcast(dtypes.float64)


def cast_to_narrow(x: UOp, dtype: DType) -> UOp:
    """A value of a native dtype, rounded once to a narrow `dtype`, as a float32."""
    if x.dtype is dtypes.float64:
        return round_to(round_to_odd(x), dtype)
    # Integers that float32 rounds are beyond all numbers of the other narrow types.
    if dtype is dtypes.bfloat16 and x.dtype.kind in ("int", "uint") and x.dtype.bits >= 32:
        return round_to(sticky_float32(x), dtype)
    return round_to(x.cast(dtypes.float32), dtype)


def sticky_float32(x: UOp) -> UOp:
    """An integer of 32 or 64 bits as float32, rounded to odd at its 10th bit or later."""
    # Each step applies where 24 bits do not hold the integer, and keeps at least 10 bits.
    result = x.cast(dtypes.float32)
    for shift in (8,) if x.dtype.bits == 32 else (14, 28, 40):
        held = 24 if shift in (8, 14) else shift + 10
        mask = (1 << shift) - 1
        kept = (x >> shift) | (x & mask).ne(0).cast(x.dtype)
        large = x > (1 << held)
        if x.dtype.kind == "int":
            large = large | (x < -(1 << held))
        result = large.where(kept.cast(dtypes.float32) * float(1 << shift), result)
    return result
