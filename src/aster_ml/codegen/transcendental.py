"""EXP2, LOG2 and SIN as polynomials over integer and float arithmetic, for targets without them.

Receives a scalar node of float32 or float64 and returns one of the same dtype: a few dozen nodes
without branches or tables in memory, so that they become SIMD code as any arithmetic does. Narrower
floats come here as float32. Powers stand in `codegen/power`.

Backends may fuse any product into the sum that reads it. Nothing here needs a product to be rounded
by itself, nor to be fused: products that have to be exact are so because their factors are short.

The coefficients are fitted by `tools/fit_polynomials.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from aster_ml.dtype import DType, dtypes
from aster_ml.errors import InternalError
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# (2**x - 1) / x on [-1, 1]. Greatest error 2**-26.2 of 2**x.
EXP2_FLOAT32 = (
    0.6931472420692444,
    0.24022668600082397,
    0.05550365895032883,
    0.009616844356060028,
    0.0013341717422008514,
    0.00015645299572497606,
    1.4917241969669703e-05,
)
# Greatest error 2**-56.6 of 2**x.
EXP2_FLOAT64 = (
    0.6931471805599453,
    0.2402265069591003,
    0.055504108664822825,
    0.009618129107637385,
    0.0013333558146309845,
    0.00015403530387186494,
    1.5252733847515318e-05,
    1.3215488727101668e-06,
    1.0178078720184504e-07,
    7.054609428465442e-09,
    4.446079830486715e-10,
    2.5908294640646177e-11,
    1.3581969425278922e-12,
)
# log2(1 + x) / x for 1 + x in [sqrt(1/2), sqrt(2)]. Greatest relative error 2**-26.2.
LOG2_FLOAT32 = (
    1.4426950216293335,
    -0.7213475108146667,
    0.4809037744998932,
    -0.3606826066970825,
    0.28830376267433167,
    -0.23978900909423828,
    0.20888276398181915,
    -0.19332493841648102,
    0.16334925591945648,
    -0.07968006283044815,
)
# Greatest relative error 2**-56.0.
LOG2_FLOAT64 = (
    1.4426950408889634,
    -0.7213475204444817,
    0.4808983469630101,
    -0.36067376022220204,
    0.28853900817363276,
    -0.24044917349856895,
    0.20609929188031909,
    -0.18033687795489522,
    0.16029943375470948,
    -0.14426962898528523,
    0.1311546296124426,
    -0.12022073662143637,
    0.11096214028762437,
    -0.10311458564072905,
    0.0964450596098634,
    -0.0896296151323067,
    0.08190829261786674,
    -0.08102981292661952,
    0.0928564194918524,
    -0.0874667623366376,
    0.03937606662814646,
)
# (sin(r) - r) / r**3 as a polynomial in r**2, r in [-pi/2, pi/2]. Greatest error 2**-27.3 of sin(r).
SIN_FLOAT32 = (
    -0.16666659712791443,
    0.008333069272339344,
    -0.00019809776858892292,
    2.606095677037956e-06,
)
# Greatest error 2**-61.6 of sin(r).
SIN_FLOAT64 = (
    -0.16666666666666666,
    0.008333333333333207,
    -0.00019841269841212476,
    2.755731921156841e-06,
    -2.5052106904260732e-08,
    1.6058940990537257e-10,
    -7.643018961400803e-13,
    2.7214140410335173e-15,
)


class Format(NamedTuple):
    """What the algorithms need to know of a binary float type.

    `fraction` counts the stored bits of the significand. Added to a number of moderate size, `magic`
    rounds it to an integer, which then stands in the low bits of the sum. `root_half` are the bits
    of sqrt(1/2). Results of exp2 are 0 at `exp2_low` and infinite at `exp2_high`.
    """

    uint: DType
    sint: DType
    fraction: int
    bias: int
    magic: float
    least_normal: float
    root_half: int
    exp2_low: float
    exp2_high: float
    exp2: tuple[float, ...]
    log2: tuple[float, ...]
    sin: tuple[float, ...]

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.uint.bits - 1)

    @property
    def infinity(self) -> int:
        """The bits of infinity; those of NaN without sign are above."""
        return ((2 * self.bias) + 1) << self.fraction


FORMATS = {
    dtypes.float32: Format(
        dtypes.uint32, dtypes.int32, 23, 127, 1.5 * 2.0**23, 2.0**-126, 0x3F3504F3, -152.0, 128.0,
        EXP2_FLOAT32, LOG2_FLOAT32, SIN_FLOAT32,
    ),
    dtypes.float64: Format(
        dtypes.uint64, dtypes.int64, 52, 1023, 1.5 * 2.0**52, 2.0**-1022, 0x3FE6A09E667F3BCD,
        -1077.0, 1024.0, EXP2_FLOAT64, LOG2_FLOAT64, SIN_FLOAT64,
    ),
}  # fmt: skip


def format_of(x: UOp) -> Format:
    """The format of a float32 or float64 node.

    Raises: InternalError for another dtype.
    """
    if x.dtype not in FORMATS:
        raise InternalError(f"transcendental: {x!r} is {x.dtype.name}; float32 or float64 is wanted")
    return FORMATS[x.dtype]


def mulacc(x: UOp, y: UOp | float, z: UOp | float) -> UOp:
    """x * y + z."""
    return x.alu(Ops.MULACC, x.ufix(y), x.ufix(z))


def horner(x: UOp, coefficients: tuple[float, ...]) -> UOp:
    """sum(coefficients[i] * x**i)."""
    result = x.const_like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = mulacc(result, x, c)
    return result


def clamp(x: UOp, low: float, high: float) -> UOp:
    """x within [low, high]; NaN stays. Written so that SIMD units need one instruction an end."""
    x = (x < low).where(x.const_like(low), x)
    return (x > high).where(x.const_like(high), x)


def exp2_poly(x: UOp) -> UOp:
    """2**x.

    Dtype: that of x, float32 or float64.
    Error: at most 1 ULP over all float32, 1 ULP over float64; results below the least normal
        number are rounded as well as others. 16 operations in float32, 22 in float64.
    """
    form = format_of(x)
    return exp2_of_reduced(clamp(x, form.exp2_low, form.exp2_high))


def exp2_of_reduced(x: UOp, low: UOp | None = None, exact: UOp | None = None) -> UOp:
    """2**x for x within the bounds of its format, or NaN.

    With `exact` and `low` it is 2**(exact + low), of which x is the rounded sum.
    """
    form = format_of(x)
    # x = 2m + r with r in [-1, 1]: an even whole part makes 2**(2m) two equal factors, each of them
    # a normal number even where the result overflows or is not.
    shifted = mulacc(x, 0.5, form.magic)
    m = shifted - form.magic
    r = mulacc(m, -2.0, x if exact is None else exact)
    if low is not None:
        r = r + low
    p = mulacc(r, horner(r, form.exp2), 1.0)
    # The low bits of `shifted` are m; what stands above them leaves at the top.
    exponent = (shifted.bitcast(form.uint) << form.fraction) + (form.bias << form.fraction)
    scale = exponent.bitcast(x.dtype)
    return p * scale * scale


def split_exponent(x: UOp) -> tuple[UOp, UOp]:
    """k and m - 1 with x = 2**k * m and m in [sqrt(1/2), sqrt(2)), exact for finite x > 0.

    Both have the dtype of x. For other x they are some finite numbers.
    """
    form = format_of(x)
    tiny = x < form.least_normal
    step = form.fraction + 1
    bits = tiny.where(x * 2.0**step, x).bitcast(form.uint)
    above = bits - form.root_half
    k = (above.bitcast(form.sint) >> form.fraction).cast(x.dtype)
    k = tiny.where(k - float(step), k)
    exponent_mask = (1 << form.uint.bits) - (1 << form.fraction)
    m = (bits - (above & exponent_mask)).bitcast(x.dtype)
    return k, m - 1.0


def log2_poly(x: UOp) -> UOp:
    """Logarithm of x to base 2; -inf at both zeros, NaN below.

    Dtype: that of x, float32 or float64.
    Error: at most 1.5 ULP over all float32, 1.5 ULP over float64, near 1 too. 29 operations in
        float32, 40 in float64.
    """
    form = format_of(x)
    k, f = split_exponent(x)
    result = mulacc(f, horner(f, form.log2), k)
    result = (x < math.inf).where(result, x)
    special = x.eq(0.0).where(x.const_like(-math.inf), x.const_like(math.nan))
    return (x > 0.0).where(result, special)


# 1 / (2 pi), 1220 bits after the point: what the largest float64 needs.
INVERSE_TURN_BITS = 1220
INVERSE_TURN = int(
    "28be60db9391054a7f09d5f47d4d377036d8a5664f10e4107f9458eaf7aef1586dc91b8e909374b801924bba827464"
    "873f877ac72c4a69cfba208d7d4baed1213a671c09ad17df904e64758e60d4ce7d272117e2ef7e4a0ec7fe25fff781"
    "6603fbcbc462d6829b47db4d9fb3c9f2c26dd3d18fd9a797fa8b5d49eeb1faf97c5ecf41ce7de294a4ba9afed7ec47"
    "e357421580cc11bf1edaeaf",
    16,
)


def sin_poly(x: UOp) -> UOp:
    """sin(x), x in radians, of any finite size; NaN for infinities.

    Dtype: that of x, float32 or float64.
    Error: at most 1.5 ULP over all float32, 3 ULP over float64. About 75 operations in float32, 120
        in float64, most of them to take whole turns from x exactly.
    """
    form = format_of(x)
    bits = x.bitcast(form.uint)
    magnitude_bits = bits & (form.sign - 1)
    magnitude = magnitude_bits.bitcast(x.dtype)
    reduce = half_turns_float32 if x.dtype is dtypes.float32 else half_turns_float64
    rest, flip = reduce(magnitude_bits)
    small = magnitude < math.pi / 2 if x.dtype is dtypes.float64 else magnitude < 1.5707963705062866
    r = small.where(magnitude, rest)
    flip = small.where(flip.const_like(0), flip) ^ (bits & form.sign)
    z = r * r
    result = mulacc(r * z, horner(z, form.sin), r)
    result = (result.bitcast(form.uint) ^ flip).bitcast(x.dtype)
    return (magnitude_bits < form.infinity).where(result, x.const_like(math.nan))


def turn_words(dtype: DType, leading: int, count: int) -> list[UOp]:
    """The first words of 1 / (2 pi) after `leading` zero bits, as constants of an unsigned dtype."""
    width = dtype.bits
    total = INVERSE_TURN >> (INVERSE_TURN_BITS + leading - width * count)
    return [
        UOp.const(dtype, (total >> (width * (count - 1 - i))) & ((1 << width) - 1))
        for i in range(count)
    ]


def bit_window(words: list[UOp], position: UOp, levels: int, count: int) -> list[UOp]:
    """`count` words of a long number from bit `position` on, chosen without memory.

    The top `levels` bits of the position choose words, each bit halving what is left to choose
    from; the rest of it shifts.
    """
    width = words[0].dtype.bits
    for level in reversed(range(levels)):
        skip = 1 << level
        kept = count + skip
        far = (position & (width << level)).ne(0)
        words = [far.where(words[i + skip], words[i]) for i in range(kept)]
    shift = position & (width - 1)
    # The last bit of a right shift is apart from the rest, so that no shift is by a whole word.
    opposite = shift.const_like(width - 1) - shift
    return [
        (words[i] << shift) | ((words[i + 1] >> 1) >> opposite) for i in range(count)
    ]


def half_turns_float32(bits: UOp) -> tuple[UOp, UOp]:
    """What is left of a float32 when half turns are taken from it, and the sign that they leave.

    `bits` are those of a finite number of at least 1. The rest is a float32 in [-pi/2, pi/2], right
    to its last bit or so; the sign is 0 or the sign bit.
    Source: Payne, Hanek, "Radian reduction for trigonometric functions" (SIGNUM 1983).
    """
    u64 = dtypes.uint64
    position = (bits >> 23) - 127
    significand = ((bits & 0x7FFFFF) | 0x800000)
    # x is significand * 2**(position - 23). Of the product with 1 / (2 pi) whole turns go, and with
    # them all bits of 1 / (2 pi) before the window; 96 bits leave an error of 2**-72 turns.
    w0, w1, w2 = bit_window(turn_words(dtypes.uint32, 23, 7), position, 2, 3)
    wide = significand.cast(u64)
    turns = ((significand * w0).cast(u64) << 32) + wide * w1.cast(u64)
    turns = turns + ((wide * w2.cast(u64)) >> 32)
    # As a signed number, twice the turns is what is left beside the nearest half turn.
    rest = turns << 1
    flip = ((turns ^ rest) >> 32).cast(dtypes.uint32) & 0x80000000
    high = (rest >> 32).cast(dtypes.int32).cast(dtypes.float64)
    low = (rest.cast(dtypes.uint32) >> 1).cast(dtypes.int32).cast(dtypes.float64)
    # float64 holds either word exactly, and vector units convert 32-bit integers faster than 64.
    radians = mulacc(high, math.pi * 2.0**-32, low * (math.pi * 2.0**-63))
    return radians.cast(dtypes.float32), flip


def multiply_high(x: UOp, y_high: UOp, y_low: UOp) -> UOp:
    """The upper 64 bits of x * (y_high * 2**32 + y_low), all uint64, x below 2**53."""
    mask = 0xFFFFFFFF
    high, low = x >> 32, x & mask
    middle = high * y_low + ((low * y_low) >> 32)
    return high * y_high + (middle >> 32) + ((low * y_high + (middle & mask)) >> 32)


def half_turns_float64(bits: UOp) -> tuple[UOp, UOp]:
    """What is left of a float64 when half turns are taken from it, and the sign that they leave.

    As `half_turns_float32`; the rest has an error of about 1 ULP.
    """
    position = (bits >> 52) - 1023
    significand = (bits & ((1 << 52) - 1)) | (1 << 52)
    w0, w1, w2 = bit_window(turn_words(dtypes.uint64, 52, 19), position, 4, 3)
    w1_high, w1_low, w2_high = w1 >> 32, w1 & 0xFFFFFFFF, w2 >> 32
    # 128 bits of turns from 160 bits of window. A float64 may lie within 2**-62 of a half turn.
    product = significand * w1
    tail = ((significand & 0xFFFFFFFF) * w2_high >> 32) + (significand >> 32) * w2_high
    low = product + tail
    carry = (low < product).cast(dtypes.uint64)
    high = significand * w0 + multiply_high(significand, w1_high, w1_low) + carry
    rest = (high << 1) | (low >> 63)
    flip = (high ^ rest) & (1 << 63)
    fine = (low & ((1 << 63) - 1)).cast(dtypes.int64).cast(dtypes.float64)
    coarse = rest.bitcast(dtypes.int64).cast(dtypes.float64)
    return mulacc(coarse, math.pi * 2.0**-64, fine * (math.pi * 2.0**-127)), flip
