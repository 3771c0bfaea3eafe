"""Computes POW of floats and integers for targets without it.

Receives the two scalar nodes and returns one of their dtype: float32, float64, or an integer type;
narrower floats arrive as float32. The logarithm has two parts, so that its product with a large
exponent keeps the precision that exp2 needs. As in `codegen/decompose/transcendental`, factors of
exact products are short, so fusing by a backend changes nothing.
"""

from __future__ import annotations

import math
from fractions import Fraction

from aster_ml.codegen.decompose.transcendental import (
    clamp,
    exp2_of_reduced,
    exp2_poly,
    format_of,
    horner,
    split_exponent,
)
from aster_ml.dtype import dtypes, round_float
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# 3 * (atanh(s) - s - s**3/3) / s**5 in powers of s**2, for |s| up to 0.1716.
# Source: tools/fit_polynomials.py.
ATANH_FLOAT32 = (
    0.6000002026557922,
    0.42843663692474365,
    0.34564030170440674,
)
# Source: tools/fit_polynomials.py.
ATANH_FLOAT64 = (
    0.6,
    0.42857142857150726,
    0.3333333332876609,
    0.27272728275769165,
    0.2307681624082481,
    0.20006054524152053,
    0.1746322785348337,
    0.18526730602658867,
)
# 2 / (3 ln 2).
ATANH_TO_LOG2 = Fraction("0.961796693925975604906616454001261424951097")
# Constant integer exponents within these become multiplications.
MIN_MULTIPLIED, MAX_MULTIPLIED = -4, 8
# |y| beyond which x**y is 0, 1 or infinite for every x that is not 1 in magnitude.
MAX_EXPONENT = {dtypes.float32: 2.0**34, dtypes.float64: 2.0**66}


def shorten(x: UOp) -> UOp:
    """x with the lower half of its significand cleared: the product of two such is exact."""
    form = format_of(x)
    dropped = (form.fraction + 2) // 2
    mask = (1 << form.uint.bits) - (1 << dropped)
    return (x.bitcast(form.uint) & mask).bitcast(x.dtype)


def split_constant(value: Fraction, x: UOp) -> tuple[UOp, UOp]:
    """A constant as a short float of the dtype of x and the rest of it."""
    form = format_of(x)
    scale = 1 << ((form.fraction + 1) // 2)
    high = Fraction(math.floor(value * scale), scale)
    return x.const_like(float(high)), x.const_like(round_float(float(value - high), x.dtype))


def log2_in_two(x: UOp) -> tuple[UOp, UOp]:
    """log2 of a finite x > 0 as a short number and the rest, with an error of 2**-34 (2**-64).

    Source: the scheme of fdlibm's `e_pow` (log by atanh of (m - 1) / (m + 1) in split numbers).
    """
    k, m = split_exponent(x)
    u, v = m - 1.0, m + 1.0
    v_high = shorten(v)
    v_low = m - (v_high - 1.0)
    inverse = v.alu(Ops.RECIPROCAL)
    s = u * inverse
    s_high = shorten(s)
    s_low = ((u - s_high * v_high) - s_high * v_low) * inverse
    # log2(m) = 2 / (3 ln 2) * s * (3 + s**2 + ...); the bracket has two parts, too.
    z = s * s
    table = ATANH_FLOAT32 if x.dtype is dtypes.float32 else ATANH_FLOAT64
    square = s_high * s_high
    rest = z * z * horner(z, table) + s_low * (s_high + s)
    t_high = shorten(square + 3.0 + rest)
    t_low = rest - ((t_high - 3.0) - square)
    a = s_high * t_high
    b = s_low * t_high + t_low * s
    p_high = shorten(a + b)
    p_low = b - (p_high - a)
    c_high, c_low = split_constant(ATANH_TO_LOG2, x)
    high = c_high * p_high
    low = c_low * p_high + p_low * x.const_like(round_float(float(ATANH_TO_LOG2), x.dtype))
    top = shorten((high + low) + k)
    return top, low - ((top - k) - high)


def exp2_of_product(y: UOp, high: UOp, low: UOp, special: UOp | None = None) -> UOp:
    """2**(y * (high + low)), `high` being short.

    Where `special` is not 0, it replaces high + low.
    """
    y = clamp(y, -MAX_EXPONENT[y.dtype], MAX_EXPONENT[y.dtype])
    y_high = shorten(y)
    exact = y_high * high
    rest = (y - y_high) * high + y * low
    total = exact + rest
    if special is not None:
        total = special.ne(0.0).where(y * special, total)
    form = format_of(y)
    inside = clamp(total, form.exp2_low, form.exp2_high)
    # The parts do not add up to a clamped total, nor to a special value.
    whole = total.eq(inside)
    if special is not None:
        whole = whole & special.eq(0.0)
    return exp2_of_reduced(
        inside, whole.where(rest, rest.const_like(0.0)), whole.where(exact, inside)
    )


def pow_float(x: UOp, y: UOp) -> UOp:
    """x**y with the special cases of C's pow (C17 F.10.4.4).

    Dtype: that of both, float32 or float64.
    Error: at most 1.5 ULP in float32 and float64, 2 ULP where nothing is fused. Constant integer
        exponents n are multiplications from 1 to 8 (at most n ULP) and from -4 to -1 (at most
        1.5 |n| ULP), 0.5 and -0.5 square roots, powers of a constant base save the logarithm. About
        120 operations otherwise.
    """
    if y.op is Ops.CONST:
        found = pow_constant(x, y.arg)
        if found is not None:
            return found
    if x.op is Ops.CONST and 0.0 < x.arg < math.inf:
        return pow_of_constant(x, y)
    form = format_of(x)
    bits = x.bitcast(form.uint)
    magnitude = (bits & (form.sign - 1)).bitcast(x.dtype)
    zero = magnitude.const_like(0.0)
    special = (magnitude < math.inf).where(zero, magnitude)
    special = magnitude.eq(0.0).where(x.const_like(-math.inf), special)
    result = exp2_of_product(y, *log2_in_two(magnitude), special)
    half = y * 0.5
    integer = y.alu(Ops.TRUNC).eq(y)
    odd = integer & half.alu(Ops.TRUNC).ne(half)
    sign = odd.where(bits & form.sign, bits.const_like(0))
    result = (result.bitcast(form.uint) ^ sign).bitcast(x.dtype)
    undefined = (x < 0.0) & (x > -math.inf) & ~integer
    result = undefined.where(x.const_like(math.nan), result)
    return (y.eq(0.0) | x.eq(1.0)).where(x.const_like(1.0), result)


def pow_constant(x: UOp, y: float) -> UOp | None:
    """x**y for a constant y that needs no logarithm; None for others."""
    if y == 0.0:
        return x.const_like(1.0)
    if math.isfinite(y) and y == int(y):
        if not MIN_MULTIPLIED <= y <= MAX_MULTIPLIED:
            return None
        # The reciprocal first: a power may overflow where its reciprocal is finite and not 0.
        return power_by_squaring(x if y > 0 else x.alu(Ops.RECIPROCAL), abs(int(y)))
    if abs(y) != 0.5:
        return None
    form = format_of(x)
    # sqrt(-0) is -0, a power of it is 0; sqrt(-inf) is NaN, a power of it is infinite.
    root = (x.alu(Ops.SQRT).bitcast(form.uint) & (form.sign - 1)).bitcast(x.dtype)
    root = x.eq(-math.inf).where(x.const_like(math.inf), root)
    return root if y > 0 else root.alu(Ops.RECIPROCAL)


def pow_of_constant(x: UOp, y: UOp) -> UOp:
    """x**y for a constant finite x > 0, whose logarithm is computed at compile time."""
    if x.arg == 1.0:
        return x
    if x.arg == 2.0:
        return exp2_poly(y)
    high, low = log2_of_constant(x.arg)
    scale = 1 << ((format_of(x).fraction + 1) // 2)
    _, exponent = math.frexp(high)
    step = Fraction(2) ** exponent / scale
    total = Fraction(high) + Fraction(low)
    short = math.floor(total / step) * step
    rest = round_float(float(total - short), x.dtype)
    return exp2_of_product(y, x.const_like(float(short)), x.const_like(rest))


def log2_of_constant(value: float) -> tuple[float, float]:
    """log2(value) as a float and the remainder, with an error of about 2**-90."""
    m, k = math.frexp(value)
    if m < math.sqrt(0.5):
        m, k = m * 2, k - 1
    s = (Fraction(m) - 1) / (Fraction(m) + 1)
    digits = 1 << 120
    term = Fraction(int(s * digits), digits)
    square = Fraction(int(s * s * digits), digits)
    total, n = Fraction(0), 1
    while term != 0:
        total += term / n
        term = Fraction(int(term * square * digits), digits)
        n += 2
    exact = k + total * 3 * ATANH_TO_LOG2
    high = float(exact)
    return high, float(exact - Fraction(high))


def power_by_squaring(x: UOp, n: int) -> UOp:
    """x**n for n >= 1, by multiplications."""
    result: UOp | None = None
    while True:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        if n == 0:
            assert result is not None
            return result
        x = x * x


def pow_int(x: UOp, y: UOp) -> UOp:
    """x**y on integers (or bools), wrapped; a negative y gives 1 / x**-y, rounded towards zero.

    Dtype: that of both. A constant exponent costs its squarings; a variable one costs a squaring
    for each of its bits.
    """
    if x.dtype is dtypes.bool:
        return x | ~y
    if y.op is Ops.CONST and y.arg >= 0:
        return power_by_squaring(x, y.arg) if y.arg else x.const_like(1)
    low, high = y.bounds
    result = x.const_like(1)
    power = x
    bits = max(int(high).bit_length(), 1)
    for i in range(bits):
        result = (y & (1 << i)).ne(0).where(result * power, result)
        if i + 1 < bits:
            power = power * power
    if low >= 0:
        return result
    sign = (y & 1).ne(0).where(x, x.const_like(1))
    unit = x.eq(1) | x.eq(-1)
    return (y < 0).where(unit.where(sign, x.const_like(0)), result)
