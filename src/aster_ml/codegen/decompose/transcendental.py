"""Computes EXP2, LOG2, SIN and TANH by integer and float arithmetic, for targets without them.

Receives a scalar node of float32 or float64 and returns one of the same dtype: a few dozen nodes
without branches or tables in memory, so that they vectorise. Narrower floats arrive as float32.
POW is in `codegen/decompose/power`.

Backends may or may not fuse a product into the sum that reads it. Results are right either way:
factors of exact products are short. `tools/fit_polynomials.py` fits the coefficients.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from aster_ml.dtype import DType, dtypes, round_float
from aster_ml.errors import InternalError
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# (2**x - 1) / x for x in [-1, 1]. Greatest error 2**-26.2 of 2**x.
# Source: tools/fit_polynomials.py.
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
# Source: tools/fit_polynomials.py.
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
# The same for x in [-1/2, 1/2]. Greatest error 2**-28.3.
# Source: tools/fit_polynomials.py.
EXP2_NEAR_FLOAT32 = (
    0.6931471824645996,
    0.24022647738456726,
    0.05550359934568405,
    0.009618505835533142,
    0.0013390809763222933,
    0.00015326477296184748,
)
# The same for x in [-1/64, 1/64]. Greatest error 2**-33.1.
# Source: tools/fit_polynomials.py.
EXP2_32ND_FLOAT32 = (
    0.6931471824645996,
    0.24022842943668365,
    0.05549582839012146,
)
# Greatest error 2**-24.2.
# Source: tools/fit_polynomials.py.
EXP2_32ND_SHORT_FLOAT32 = (
    0.6931573152542114,
    0.24022649228572845,
)
# Greatest error 2**-57.8.
# Source: tools/fit_polynomials.py.
EXP2_NEAR_FLOAT64 = (
    0.6931471805599453,
    0.24022650695910108,
    0.05550410866482172,
    0.009618129107601596,
    0.0013333558146546422,
    0.00015403530449055824,
    1.525273363387368e-05,
    1.3215438822920427e-06,
    1.017816007065883e-07,
    7.073235732613847e-09,
    4.4388625992330587e-10,
)
# (log2(1 + x) - x) / x for 1 + x in [sqrt(1/2), sqrt(2)]. Greatest error 2**-27.0 of log2(1 + x).
# Source: tools/fit_polynomials.py.
LOG2_FLOAT32 = (
    0.4426950514316559,
    -0.7213475108146667,
    0.4808965027332306,
    -0.3606826066970825,
    0.28861886262893677,
    -0.23995128273963928,
    0.204154834151268,
    -0.18826031684875488,
    0.18688079714775085,
    -0.11639837920665741,
)
# Greatest error 2**-56.0 of log2(1 + x).
# Source: tools/fit_polynomials.py.
LOG2_FLOAT64 = (
    0.4426950408889634,
    -0.7213475204444817,
    0.4808983469630101,
    -0.36067376022220204,
    0.28853900817363276,
    -0.24044917349856895,
    0.20609929188031909,
    -0.18033687795489522,
    0.16029943375470948,
    -0.144269628985268,
    0.13115462961236643,
    -0.12022073662232674,
    0.11096214029210444,
    -0.1031145856262366,
    0.09644505951295253,
    -0.08962961517215129,
    0.08190829351145357,
    -0.08102981386131544,
    0.0928564168578937,
    -0.08746675624490177,
    0.039376063140872074,
)
# (sin(r) - r) / r**3 in powers of r**2, for r in [-1, 1]. Greatest error 2**-31.5 of sin(r).
# Source: tools/fit_polynomials.py.
SIN_FLOAT32 = (
    -0.1666666716337204,
    0.008333354257047176,
    -0.00019842384790536016,
    2.726271304709371e-06,
)
# Greatest error 2**-62.9 of sin(r).
# Source: tools/fit_polynomials.py.
SIN_FLOAT64 = (
    -0.16666666666666666,
    0.008333333333333106,
    -0.00019841269841080228,
    2.7557319148825415e-06,
    -2.5052092418198375e-08,
    1.605717590746354e-10,
    -7.533630512270542e-13,
)
# (cos(r) - 1 + r**2 / 2) / r**4 in powers of r**2, for r in [-pi/4, pi/4]. Greatest error 2**-33.0.
# Source: tools/fit_polynomials.py.
COS_FLOAT32 = (
    0.04166664555668831,
    -0.0013887309469282627,
    2.4432327336398885e-05,
)
# Greatest error 2**-63.9.
# Source: tools/fit_polynomials.py.
COS_FLOAT64 = (
    0.041666666666666595,
    -0.001388888888887334,
    2.4801587288999755e-05,
    -2.755731421614986e-07,
    2.087570525096873e-09,
    -1.1358740664028332e-11,
)
# (tanh(x) - x) / x**3 in powers of x**2, for |x| up to TANH_SPLIT. Greatest error 2**-27.7 of
# tanh(x). Source: TANH_END of tools/fit_polynomials.py.
TANH_SPLIT = 0.625
# Source: tools/fit_polynomials.py.
TANH_FLOAT32 = (
    -0.3333328068256378,
    0.13331405818462372,
    -0.05373651534318924,
    0.02062816731631756,
    -0.0056922961957752705,
)
# Greatest error 2**-56.4.
# Source: tools/fit_polynomials.py.
TANH_FLOAT64 = (
    -0.33333333333332854,
    0.13333333333261935,
    -0.05396825393119559,
    0.021869487574453315,
    -0.00886322098123513,
    0.003591989001921415,
    -0.0014549579982261148,
    0.0005863136655270923,
    -0.0002285584061726786,
    7.713776884706929e-05,
    -1.606934220209635e-05,
)


class Format(NamedTuple):
    """Properties of a binary float type that the algorithms use.

    `fraction` counts the stored bits of the significand. Adding `magic` to a number of moderate
    size rounds it to an integer in the low bits of the sum. `root_half` has the bits of sqrt(1/2).
    exp2 is 0 at `exp2_low` and infinite at `exp2_high`.
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
    cos: tuple[float, ...]
    exp2_near: tuple[float, ...]
    tanh: tuple[float, ...]

    @property
    def sign(self) -> int:
        """The sign bit."""
        return 1 << (self.uint.bits - 1)

    @property
    def infinity(self) -> int:
        """The bits of infinity; NaN without its sign has greater bits."""
        return ((2 * self.bias) + 1) << self.fraction


FORMATS = {
    dtypes.float32: Format(
        dtypes.uint32, dtypes.int32, 23, 127, 1.5 * 2.0**23, 2.0**-126, 0x3F3504F3, -152.0, 128.0,
        EXP2_FLOAT32, LOG2_FLOAT32, SIN_FLOAT32, COS_FLOAT32,
        EXP2_NEAR_FLOAT32, TANH_FLOAT32,
    ),
    dtypes.float64: Format(
        dtypes.uint64, dtypes.int64, 52, 1023, 1.5 * 2.0**52, 2.0**-1022, 0x3FE6A09E667F3BCD,
        -1077.0, 1024.0, EXP2_FLOAT64, LOG2_FLOAT64, SIN_FLOAT64, COS_FLOAT64,
        EXP2_NEAR_FLOAT64, TANH_FLOAT64,
    ),
}  # fmt: skip


def format_of(x: UOp) -> Format:
    """The format of a float32 or float64 node.

    Raises: InternalError for another dtype.
    """
    if x.dtype not in FORMATS:
        raise InternalError(
            f"transcendental: {x!r} is {x.dtype.name}; float32 or float64 is wanted"
        )
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
    """x within [low, high]; NaN stays. Each bound is one SIMD instruction."""
    return at_most(at_least(x, low), high)


def at_least(x: UOp, low: float) -> UOp:
    """x, or `low` where x < low; NaN stays."""
    return (x < low).where(x.const_like(low), x)


def at_most(x: UOp, high: float) -> UOp:
    """x, or `high` where x > high; NaN stays."""
    return (x > high).where(x.const_like(high), x)


def exp2_poly(x: UOp, ldexp: bool = False) -> UOp:
    """2**x; `ldexp` says that the target has LDEXP.

    Dtype: that of x, float32 or float64.
    Error: at most 1.25 ULP, 1.7 ULP where nothing is fused; over all numbers, results below the
        least normal one included. 18 operations in float32, 24 in float64; with LDEXP 14 and 20.
    """
    form = format_of(x)
    if ldexp:
        return ldexp_power(clamp(x, form.exp2_low, form.exp2_high), 1.0)
    return exp2_of_reduced(clamp(x, form.exp2_low, form.exp2_high))


# Factors of an exponent that mean a real number: log2(e) and log2(10).
EXACT_FACTORS = (
    Fraction("1.442695040888963407359924681001892137426645954"),
    Fraction("3.321928094887362347870319429489390175864831393"),
)
# Beyond these factors the bounds of exp2, divided by the factor, leave the range of the format.
MIN_FACTOR, MAX_FACTOR = 2.0**-20, 2.0**20


def exp2_of_scaled(x: UOp, factor: float, ldexp: bool = False, falling: bool = False) -> UOp | None:
    """2**(x * factor) without the rounding of the product; None for a very large or small factor.

    log2(e) and log2(10) mean the real numbers, so that exp2(x * log2(e)) is e**x. `falling`
    promises that x * factor is at most 0, or NaN, and that x is a rounded difference.

    Dtype: that of x, float32 or float64.
    Error: at most 1.7 ULP where products are fused. Where nothing is, the product is rounded after
        all, which shows in large results. As many operations as exp2 by itself; three less where
        the result is seen to be at most 1, or one less with LDEXP.
    """
    form = format_of(x)
    factor = round_float(factor, x.dtype)
    if not MIN_FACTOR <= abs(factor) <= MAX_FACTOR:
        return None
    rest = 0.0
    for exact in EXACT_FACTORS:
        if abs(factor) == round_float(float(exact), x.dtype):
            rest = round_float(float(exact - Fraction(abs(factor))), x.dtype)
            rest = math.copysign(rest, rest * factor)
    if falling:
        return falling_exp2(x, factor, rest, ldexp, unit_of(factor, rest, x))
    found = signed_size(x)
    if found is not None and found[1] * factor < 0.0:
        sign = found[1]
        return falling_exp2(size_of_float(found[0]), factor * sign, rest * sign, ldexp)
    low, high = sorted([(form.exp2_low - 0.5) / factor, (form.exp2_high + 0.5) / factor])
    x = clamp(x, round_float(low, x.dtype), round_float(high, x.dtype))
    if ldexp:
        return ldexp_power(x, factor, rest)
    shifted = mulacc(x, factor * 0.5, form.magic)
    r = mulacc(x, factor * 0.5, form.magic - shifted)
    if rest:
        r = mulacc(x, rest * 0.5, r)
    return scaled_polynomial(r, shifted)


def signed_size(x: UOp) -> tuple[UOp, float] | None:
    """y and a sign with x = sign * |y|, up to the sign of zeros; None for other forms of x."""
    sign = 1.0
    while x.op is Ops.NEG:
        x, sign = x.src[0], -sign
    if x.op is Ops.MAX:
        for y, other in (x.src, x.src[::-1]):
            if other.op is Ops.NEG and other.src[0] is y:
                return y, sign
    if x.op is Ops.MUL:
        # y * (1 if y < 0 else -1), whose derivative at 0 is that of -y.
        for y, turn in (x.src, x.src[::-1]):
            if turn is (y < 0.0).where(y.const_like(1.0), y.const_like(-1.0)):
                return y, -sign
    return None


def size_of_float(x: UOp) -> UOp:
    """|x|."""
    form = format_of(x)
    return (x.bitcast(form.uint) & (form.sign - 1)).bitcast(x.dtype)


def falling_exp2(x: UOp, factor: float, rest: float, ldexp: bool, unit: float = 0.0) -> UOp:
    """2**(x * (factor + rest)) for a product that is at most 0, or NaN."""
    form = format_of(x)
    bound = round_float((form.exp2_low - 0.5) / factor, x.dtype)
    x = at_most(x, bound) if factor < 0.0 else at_least(x, bound)
    if ldexp:
        return ldexp_power(x, factor, rest, unit)
    p, exponent = near_power(x, factor, rest, 2.0**-FALLING, unit)
    scale = (exponent + ((form.bias + FALLING) << form.fraction)).bitcast(x.dtype)
    return p * scale


def unit_of(factor: float, rest: float, x: UOp) -> float:
    """1 / (factor + rest) as a float of the dtype of x; 0.0 where that is not nearly exact.

    Its error is at most an eighth of half a unit in the last place of x.
    """
    if not rest:
        return 0.0
    exact = 1 / (Fraction(factor) + Fraction(rest))
    unit = round_float(float(exact), x.dtype)
    near = abs(Fraction(unit) / exact - 1) <= Fraction(1, 1 << (format_of(x).fraction + 5))
    return unit if near else 0.0


# p is divided by 2**FALLING and its factor multiplied by it, so that both are normal numbers.
FALLING = 64


def ldexp_power(x: UOp, factor: float, rest: float = 0.0, unit: float = 0.0) -> UOp:
    """2**(x * (factor + rest)) by LDEXP, for a product of moderate size, or NaN.

    The product is not rounded where products are fused. In float32 registers hold a table of
    2**(n / 32); the remainder is so small that half of the polynomial is enough, or a third with a
    `unit`, of which x is a rounded multiple.
    """
    form = format_of(x)
    if x.dtype is dtypes.float32:
        magic = form.magic / 32
        shifted = mulacc(x, factor, magic)
        nearest = shifted - magic
        r, scale = remainder(x, nearest.alu(Ops.NEG), factor, rest, unit)
        power = shifted.alu(Ops.EXP2_32NDS)
        coefficients = EXP2_32ND_SHORT_FLOAT32 if unit else EXP2_32ND_FLOAT32
        p = mulacc(power * r, horner(r, scaled(coefficients, scale)), power)
        return p.alu(Ops.LDEXP, nearest)
    whole = mulacc(x, factor, form.magic) - form.magic
    r, scale = remainder(x, whole.alu(Ops.NEG), factor, rest, unit)
    return mulacc(r, horner(r, scaled(form.exp2_near, scale)), 1.0).alu(Ops.LDEXP, whole)


def near_power(
    x: UOp, factor: float, rest: float = 0.0, size: float = 1.0, unit: float = 0.0
) -> tuple[UOp, UOp]:
    """p and n with 2**(x * (factor + rest)) * size = 2**n * p, n in the bits of an exponent.

    The product is not rounded where products are fused; it is of moderate size.
    """
    form = format_of(x)
    shifted = mulacc(x, factor, form.magic)
    r, scale = remainder(x, form.magic - shifted, factor, rest, unit)
    coefficients = tuple([c * size for c in scaled(form.exp2_near, scale)])
    p = mulacc(r, horner(r, coefficients), size)
    # The shift drops the bits above n.
    return p, shifted.bitcast(form.uint) << form.fraction


def remainder(x: UOp, taken: UOp, factor: float, rest: float, unit: float) -> tuple[UOp, float]:
    """r and s with r * s = x * (factor + rest) + taken.

    With `unit`, the reciprocal of the factor, r is in units of x: one operation, as `taken` has
    few bits.
    """
    if unit:
        return mulacc(taken, unit, x), factor
    r = mulacc(x, factor, taken)
    return (mulacc(x, rest, r) if rest else r), 1.0


def scaled(coefficients: tuple[float, ...], scale: float) -> tuple[float, ...]:
    """The coefficients of q with r * q(r) = s * p(s), s = r * scale, from the coefficients of p."""
    return tuple([c * scale ** (i + 1) for i, c in enumerate(coefficients)])


def exp2_of_reduced(x: UOp, low: UOp | None = None, exact: UOp | None = None) -> UOp:
    """2**x for x within the bounds of its format, or NaN.

    With `exact` and `low` it is 2**(exact + low), of which x is the rounded sum.
    """
    form = format_of(x)
    # x = 2m + 2r with r in [-1/2, 1/2]: 2**(2m) is two equal factors, each a normal number even
    # where the result overflows or is subnormal.
    shifted = mulacc(x, 0.5, form.magic)
    r = mulacc(x if exact is None else exact, 0.5, form.magic - shifted)
    return scaled_polynomial(r if low is None else mulacc(low, 0.5, r), shifted)


def scaled_polynomial(r: UOp, shifted: UOp) -> UOp:
    """2**(2r + 2m) for r in [-1/2, 1/2]; the low bits of `shifted` are m."""
    form = format_of(r)
    p = mulacc(r, horner(r, scaled(form.exp2, 2.0)), 1.0)
    # The shift drops the bits above m.
    exponent = (shifted.bitcast(form.uint) << form.fraction) + (form.bias << form.fraction)
    scale = exponent.bitcast(r.dtype)
    return p * scale * scale


def split_exponent(x: UOp) -> tuple[UOp, UOp]:
    """k and m with x = 2**k * m and m in [sqrt(1/2), sqrt(2)), exact for finite x > 0.

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
    return k, (bits - (above & exponent_mask)).bitcast(x.dtype)


def log2_poly(x: UOp) -> UOp:
    """Logarithm of x to base 2; -inf at both zeros, NaN below.

    Dtype: that of x, float32 or float64.
    Error: at most 1.15 ULP, 1.4 ULP where nothing is fused; over all numbers, near 1 and below the
        least normal one too. 28 operations in float32, 39 in float64.
    """
    form = format_of(x)
    k, m = split_exponent(x)
    f = m - 1.0
    # k + f is exact where k is 0 or next to it, and the rest is small beside k + f.
    result = mulacc(f, horner(f, form.log2), k + f)
    result = (x < math.inf).where(result, x)
    special = x.eq(0.0).where(x.const_like(-math.inf), x.const_like(math.nan))
    return (x > 0.0).where(result, special)


# tanh is 1 in both formats from here on. Source: 1 - tanh(x) < 2 * exp(-2 * x) <= 2**-54 for x of
# 19.1 and more, half of the spacing of float64 below 1.
TANH_HIGH = 20.0


def tanh_poly(x: UOp, ldexp: bool = False) -> UOp:
    """tanh(x): a polynomial below TANH_SPLIT, 1 - 2 / (e**(2x) + 1) above.

    Dtype: that of x, float32 or float64.
    Error: at most 1.5 ULP, 1.6 ULP where nothing is fused. 29 operations in float32, 40 in float64;
        with LDEXP 28 and 40, and 1.8 ULP in float32 where nothing is fused.
    """
    form = format_of(x)
    size = size_of_float(x)
    z = x * x
    near = mulacc(x, z * horner(z, form.tanh), x)
    end, factor = at_most(size, TANH_HIGH), 2 / math.log(2)
    if ldexp:
        above = ldexp_power(end, factor) + 1.0
    else:
        p, exponent = near_power(end, factor)
        scale = (exponent + (form.bias << form.fraction)).bitcast(x.dtype)
        above = mulacc(p, scale, 1.0)
    far = 1.0 - x.const_like(2.0).alu(Ops.FDIV, above)
    result = (size < TANH_SPLIT).where(near, far).bitcast(form.uint)
    # A zero loses its sign in the polynomial.
    return ((result & (form.sign - 1)) | (x.bitcast(form.uint) & form.sign)).bitcast(x.dtype)


# 1 / (2 pi), 1220 bits after the point: what the largest float64 needs. Source: Payne and Hanek,
# "Radian reduction for trigonometric functions" (SIGNUM Newsletter 18, 1983).
INVERSE_TURN_BITS = 1220
INVERSE_TURN = int(
    "28be60db9391054a7f09d5f47d4d377036d8a5664f10e4107f9458eaf7aef1586dc91b8e909374b801924bba827464"
    "873f877ac72c4a69cfba208d7d4baed1213a671c09ad17df904e64758e60d4ce7d272117e2ef7e4a0ec7fe25fff781"
    "6603fbcbc462d6829b47db4d9fb3c9f2c26dd3d18fd9a797fa8b5d49eeb1faf97c5ecf41ce7de294a4ba9afed7ec47"
    "e357421580cc11bf1edaeaf",
    16,
)


def sin_poly(x: UOp, wide: DType = dtypes.float64) -> UOp:
    """sin(x), x in radians, of any finite size; NaN for infinities.

    Dtype: that of x, float32 or float64. The remainder of a float32 beside quarter turns is
        computed in `wide`, float64 or float32.
    Error: at most 1.5 ULP in float32, or 2 ULP in `wide` float32, 3 ULP in float64, over all
        numbers. About 80 operations in float32, 130 in float64, most of them to take whole turns
        from x exactly.
    """
    form = format_of(x)
    bits = x.bitcast(form.uint)
    magnitude_bits = bits & (form.sign - 1)
    magnitude = magnitude_bits.bitcast(x.dtype)
    if x.dtype is dtypes.float32:
        quarter, rest = quarters_float32(magnitude_bits, wide)
    else:
        quarter, rest = quarters_float64(magnitude_bits)
    small = magnitude < 1.0
    r = small.where(magnitude, rest)
    quarter = small.where(quarter.const_like(0), quarter)
    z = r * r
    sine = mulacc(r * z, horner(z, form.sin), r)
    cosine = mulacc(z, mulacc(z, horner(z, form.cos), -0.5), 1.0)
    result = (quarter & 1).ne(0).where(cosine, sine)
    flip = ((quarter >> 1) << (form.uint.bits - 1)) ^ (bits & form.sign)
    result = (result.bitcast(form.uint) ^ flip).bitcast(x.dtype)
    return (magnitude_bits < form.infinity).where(result, x.const_like(math.nan))


def turn_words(dtype: DType, leading: int, count: int) -> list[UOp]:
    """The first words of 1 / (2 pi) after `leading` zero bits, as unsigned constants."""
    width = dtype.bits
    total = INVERSE_TURN >> (INVERSE_TURN_BITS + leading - width * count)
    return [
        UOp.const(dtype, (total >> (width * (count - 1 - i))) & ((1 << width) - 1))
        for i in range(count)
    ]


def bit_window(words: list[UOp], position: UOp, levels: int, count: int) -> list[UOp]:
    """`count` words of a long number from bit `position` on, selected without memory.

    Each of the top `levels` bits of the position selects half of the words that are left; the
    lower bits shift.
    """
    width = words[0].dtype.bits
    for level in reversed(range(levels)):
        skip = 1 << level
        kept = count + skip
        far = (position & (width << level)).ne(0)
        words = [far.where(words[i + skip], words[i]) for i in range(kept)]
    shift = position & (width - 1)
    # A right shift of 1 is separate, so that no shift is by a whole word.
    opposite = shift.const_like(width - 1) - shift
    return [(words[i] << shift) | ((words[i + 1] >> 1) >> opposite) for i in range(count)]


def quarters_float32(bits: UOp, wide: DType = dtypes.float64) -> tuple[UOp, UOp]:
    """Reduces a float32 to quarter turns, modulo 4, and the remainder.

    `bits` are those of a finite number of at least 1. The count is a uint32, the remainder a
    float32 in [-pi/4, pi/4], rounded once, or a few times if `wide` is float32.
    Source: Payne, Hanek, "Radian reduction for trigonometric functions" (SIGNUM 1983).
    """
    u64 = dtypes.uint64
    position = (bits >> 23) - 127
    significand = (bits & 0x7FFFFF) | 0x800000
    # x is significand * 2**(position - 23). Whole turns of the product with 1 / (2 pi) do not
    # count, nor do the bits of 1 / (2 pi) before the window; 96 bits leave an error of 2**-64
    # turns, and no float32 is within 2**-33 of a quarter turn.
    w0, w1, w2 = bit_window(turn_words(dtypes.uint32, 23, 7), position, 2, 3)
    factor = significand.cast(u64)
    turns = ((significand * w0).cast(u64) << 32) + factor * w1.cast(u64)
    turns = turns + ((factor * w2.cast(u64)) >> 32)
    count = ((turns >> 32).cast(dtypes.uint32) + (1 << 29)) >> 30
    # The bits after the two of whole quarters, as a signed number, are the distance to the nearest.
    rest = turns << 2
    # float64 holds either word exactly, and SIMD units convert 32-bit integers faster than 64-bit
    # ones; float32 holds the high word exactly where it is so small that the low word matters.
    high = (rest >> 32).cast(dtypes.uint32).bitcast(dtypes.int32).cast(wide)
    low = (rest.cast(dtypes.uint32) >> 1).bitcast(dtypes.int32).cast(wide)
    radians = mulacc(high, math.pi * 2.0**-33, low * (math.pi * 2.0**-64))
    return count, radians.cast(dtypes.float32)


def multiply_high(x: UOp, y: UOp) -> UOp:
    """The upper 64 bits of x * y, both uint64, x below 2**53."""
    mask = 0xFFFFFFFF
    x_high, x_low, y_high, y_low = x >> 32, x & mask, y >> 32, y & mask
    middle = x_high * y_low + ((x_low * y_low) >> 32)
    return x_high * y_high + (middle >> 32) + ((x_low * y_high + (middle & mask)) >> 32)


def quarters_float64(bits: UOp) -> tuple[UOp, UOp]:
    """Reduces a float64 to quarter turns, modulo 4, and the remainder.

    As `quarters_float32`, with a uint64 and a float64; the remainder has an error of about 1 ULP.
    """
    position = (bits >> 52) - 1023
    significand = (bits & ((1 << 52) - 1)) | (1 << 52)
    w0, w1, w2 = bit_window(turn_words(dtypes.uint64, 52, 19), position, 4, 3)
    # 128 bits of turns: a float64 may be within 2**-64 of a quarter turn.
    product = significand * w1
    low = product + multiply_high(significand, w2)
    carry = (low < product).cast(dtypes.uint64)
    high = significand * w0 + multiply_high(significand, w1) + carry
    count = (high + (1 << 61)) >> 62
    rest = ((high << 2) | (low >> 62)).bitcast(dtypes.int64).cast(dtypes.float64)
    fine = (low & ((1 << 62) - 1)).bitcast(dtypes.int64).cast(dtypes.float64)
    return count, mulacc(rest, math.pi * 2.0**-65, fine * (math.pi * 2.0**-127))
