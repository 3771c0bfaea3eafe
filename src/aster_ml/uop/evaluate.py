"""Evaluates elementwise ops and scalar expressions on Python numbers: the meaning of every op.

Receives Python values (ints, floats, bools) with their dtypes and returns such values: integers
wrap, floats round once to their dtype, index arithmetic is exact and its division rounds down.
Constant folding, the interpreter and the rule tests share this definition. Memory and tensors do
not belong here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from aster_ml.dtype import DType, bitcast_value, cast_value, dtypes, round_float, truncate
from aster_ml.errors import ArgumentError, InternalError
from aster_ml.helpers import cdiv
from aster_ml.ops.symbol import ABOVE
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops

BITCAST, CAST = Ops.BITCAST, Ops.CAST


def round_exact(value: Fraction, dtype: DType) -> float:
    """An exact value rounded to a float dtype, without double rounding."""
    try:
        near = float(value)
    except OverflowError:
        return round_float(math.inf if value > 0 else -math.inf, dtype)
    if dtype is dtypes.float64 or math.isinf(near):
        return round_float(near, dtype)
    exact = Fraction(near)
    if exact != value:
        # Rounding to odd first makes the second rounding correct.
        other = math.nextafter(near, math.inf if exact < value else -math.inf)
        near = near if math.frexp(near)[0] * 2**53 % 2 == 1 else other
    return round_float(near, dtype)


def divide(x: float, y: float) -> float:
    """IEEE division of doubles."""
    if y == 0:
        if x == 0 or x != x:
            return math.nan
        return math.copysign(math.inf, x) * math.copysign(1.0, y)
    return x / y


def exp2(x: float) -> float:
    """2**x with overflow to infinity."""
    try:
        return math.exp2(x)
    except OverflowError:
        return math.inf


def log2(x: float) -> float:
    """Logarithm to base 2 with IEEE's special values."""
    if x == 0:
        return -math.inf
    return math.nan if x != x or x < 0 else math.log2(x)


def sine(x: float) -> float:
    """sin(x); NaN of infinities."""
    return math.nan if math.isinf(x) else math.sin(x)


def trunc(x: Any) -> Any:
    """Rounded towards zero; zeros keep their sign, infinities and NaN stay."""
    if x.__class__ is not float:
        return x
    return math.copysign(float(math.trunc(x)), x) if math.isfinite(x) else x


def maximum(x: Any, y: Any) -> Any:
    """The larger; NaN if either is; +0 above -0."""
    if x != x or y != y:
        return math.nan
    if x == y == 0 and x.__class__ is float:
        return y if math.copysign(1.0, x) < 0 else x
    return x if x >= y else y


def integer_divide(dtype: DType, x: int, y: int) -> int:
    """IDIV: rounded towards zero, for index dtype rounded down; 0 when `y` is 0."""
    if y == 0:
        return 0
    return x // y if dtype is dtypes.index else cdiv(x, y)


def power(dtype: DType, x: Any, y: Any) -> Any:
    """C's pow on floats; on ints exact, negative exponents rounded towards zero."""
    if dtype.kind != "float":
        if y >= 0:
            # Modular power: only the low bits of a wrapping result are kept.
            return (
                x**y
                if dtype is dtypes.index or dtype is dtypes.bool
                else pow(x, y, 1 << dtype.bits)
            )
        return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    try:
        return math.pow(x, y)
    except OverflowError:
        return -math.inf if x < 0 and y % 2 == 1 else math.inf
    except ValueError:
        # Zero to a negative power, or a negative base with a fractional exponent.
        if x == 0:
            odd = y % 2 == 1
            return math.copysign(math.inf, x) if odd else math.inf
        return math.nan


def shift_left(dtype: DType, x: int, y: int) -> int:
    """SHL: 0 when `y` is not below the width; index has no width."""
    if dtype is dtypes.index:
        return x << y if y >= 0 else 0
    return x << y if 0 <= y < dtype.bits else 0


def shift_right(dtype: DType, x: int, y: int) -> int:
    """SHR: signed types keep the sign, at any distance."""
    if y < 0 or (dtype is not dtypes.index and y >= dtype.bits):
        return -1 if x < 0 else 0
    return x >> y


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
MASK = 0xFFFFFFFF


def threefry(counter: int, key: int) -> int:
    """Threefry-2x32 with 20 rounds; the low word of counter, key and result is the first.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11); Random123.
    """
    keys = (key & MASK, key >> 32, (key & MASK) ^ (key >> 32) ^ 0x1BD11BDA)
    x0 = ((counter & MASK) + keys[0]) & MASK
    x1 = ((counter >> 32) + keys[1]) & MASK
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 = (x0 + x1) & MASK
            x1 = ((x1 << r) | (x1 >> (32 - r))) & MASK
            x1 ^= x0
        x0 = (x0 + keys[(group + 1) % 3]) & MASK
        x1 = (x1 + keys[(group + 2) % 3] + group + 1) & MASK
    return x0 | (x1 << 32)


def dot(dtype: DType, x: int, y: int) -> Any:
    """DOT: the sum of products of the narrow elements of two words."""
    if dtype.kind == "float":
        a, b = (parts(word, 16, dtypes.uint16, dtypes.bfloat16) for word in (x, y))
        return a[0] * b[0] + a[1] * b[1]
    signed = (parts(word, 8, dtypes.uint8, dtypes.int8) for word in (x, y))
    return sum([(a + 128) * b for a, b in zip(*signed, strict=True)])


def scale(x: float, y: float) -> float:
    """LDEXP, exact where float64 holds the result."""
    if not math.isfinite(x) or not math.isfinite(y):
        return x * y if y != y else x * exp2(y)
    try:
        return math.ldexp(x, math.floor(y))
    except OverflowError:
        return math.copysign(math.inf, x)


def parts(word: int, bits: int, storage: DType, dtype: DType) -> list[Any]:
    """The elements in a word, the lowest bits first."""
    mask = (1 << bits) - 1
    return [bitcast_value((word >> i) & mask, storage, dtype) for i in range(0, 32, bits)]


def multiply_add(dtype: DType, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    plain = x * y + z
    if dtype.kind == "float" and math.isinf(z) and math.isfinite(x) and math.isfinite(y):
        return z  # whatever the product: it overflows only where rounding is not wanted
    if dtype.kind != "float" or not all(map(math.isfinite, (x, y, z))):
        return plain
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    return round_exact(exact, dtype) if exact != 0 else plain


# The least number that overflows float32.
FLOAT32_END = 2.0**128

# Op -> its value on operands of the result's dtype, before it is rounded or wrapped to that dtype.
MEANING: dict[Ops, Callable[..., Any]] = {
    Ops.NEG: lambda d, x: (not x) if d is dtypes.bool else -x,
    Ops.EXP2: lambda d, x: exp2(x),
    Ops.LOG2: lambda d, x: log2(x),
    Ops.SIN: lambda d, x: sine(x),
    Ops.TANH: lambda d, x: math.tanh(x),
    Ops.SQRT: lambda d, x: math.nan if x != x or x < 0 else math.sqrt(x),
    Ops.RECIPROCAL: lambda d, x: divide(1.0, x),
    Ops.TRUNC: lambda d, x: trunc(x),
    Ops.EXP2_32NDS: lambda d, x: 2.0 ** ((bitcast_value(x, d, dtypes.uint32) & 31) / 32),
    Ops.ADD: lambda d, x, y: x + y,
    Ops.SUB: lambda d, x, y: x - y,
    Ops.MUL: lambda d, x, y: x * y,
    Ops.FDIV: lambda d, x, y: divide(x, y),
    Ops.IDIV: integer_divide,
    Ops.MOD: lambda d, x, y: x - y * integer_divide(d, x, y),
    Ops.MAX: lambda d, x, y: maximum(x, y),
    Ops.POW: power,
    Ops.CMPLT: lambda d, x, y: x < y,
    Ops.CMPNE: lambda d, x, y: x != y,
    Ops.CMPEQ: lambda d, x, y: x == y,
    Ops.XOR: lambda d, x, y: x ^ y,
    Ops.OR: lambda d, x, y: x | y,
    Ops.AND: lambda d, x, y: x & y,
    Ops.SHL: shift_left,
    Ops.SHR: shift_right,
    Ops.THREEFRY: lambda d, x, y: threefry(x, y),
    Ops.DOT: dot,
    Ops.LDEXP: lambda d, x, y: scale(x, y),
    Ops.WHERE: lambda d, c, x, y: x if c else y,
    Ops.MULACC: multiply_add,
}


def evaluate(op: Ops, dtype: DType, operands: tuple[Any, ...], source_dtypes: Any) -> Any:
    """The value of an elementwise node of `dtype` on these operands.

    `source_dtypes` are the dtypes of the operands; CAST and BITCAST read them.
    """
    if op is CAST:
        value, source = operands[0], source_dtypes[0]
        if source.kind in ("int", "uint", "index") and dtype.kind == "float":
            return round_exact(Fraction(value), dtype)
        if dtype is dtypes.index and source.kind == "float":
            # index is unbounded, so a float saturates at the bounds of int64.
            return cast_value(value, source, dtypes.int64)
        return cast_value(value, source, dtype)
    if op is BITCAST:
        return bitcast_value(operands[0], source_dtypes[0], dtype)
    value = MEANING[op](dtype, *operands)
    if dtype in dtypes.fp8s:
        # Computed in float32, whose overflow differs from that of fp8.
        if value == value and not abs(value) < FLOAT32_END:
            value = math.copysign(math.inf, value)
    return truncate(value, dtype)


# Op -> the value of an empty REDUCE.
IDENTITY: dict[Ops, Callable[[DType], Any]] = {
    Ops.ADD: lambda d: dtypes.as_const(0, d),
    Ops.MUL: lambda d: dtypes.as_const(1, d),
    Ops.MAX: dtypes.min,
    Ops.OR: lambda d: dtypes.as_const(0, d),
    Ops.AND: lambda d: dtypes.as_const(-1 if d.kind == "int" else dtypes.max(d), d),
}


def identity_of(op: Ops, dtype: DType) -> Any:
    """The identity element of a reduction by `op`."""
    return IDENTITY[op](dtype)


def evaluate_reduce(u: UOp, values: Mapping[UOp, Any]) -> Any:
    """The value of a kernel-stage REDUCE: folded over its ranges, the last one fastest."""
    sizes = [range(evaluate_expr(r.src[0], values)) for r in u.src[1:]]
    result = identity_of(u.arg.op, u.dtype)
    dts = (u.dtype, u.dtype)
    for position in itertools.product(*sizes):
        inner = {**values, **dict(zip(u.src[1:], position))}
        result = evaluate(u.arg.op, u.dtype, (result, evaluate_expr(u.src[0], inner)), dts)
    return result


def evaluate_expr(u: UOp, values: Mapping[UOp, Any]) -> Any:
    """The value of a scalar expression, given those of its ranges, variables and loads.

    Raises: ArgumentError naming a leaf that `values` lacks; InternalError for a node without value.
    """
    known: dict[UOp, Any] = {}
    order = toposort(u, enter=lambda s: s not in values and s.op not in STOPS)
    for x in order:
        if x in values:
            known[x] = values[x]
        elif x.op in ELEMENTWISE:
            operands = tuple([known[s] for s in x.src])
            known[x] = evaluate(x.op, x.dtype, operands, [s.dtype for s in x.src])
        elif x.op is Ops.CONST:
            known[x] = x.arg
        elif x.op is Ops.BIND:
            known[x] = x.src[1].arg
        elif x.op is Ops.REDUCE:
            known[x] = evaluate_reduce(x, values)
        elif x.op in LEAVES:
            raise ArgumentError(f"evaluate: no value was given for {x!r}")
        else:
            raise InternalError(f"{x!r} has no value among scalars")
    return known[u]


# Ops whose values are given; nothing below them is evaluated.
LEAVES = frozenset({Ops.RANGE, Ops.DEFINE_VAR, Ops.LOAD, Ops.INDEX})
STOPS = LEAVES | {Ops.REDUCE, Ops.BIND}
ABOVE["evaluate"] = evaluate_expr
