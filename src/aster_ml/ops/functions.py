"""Defines exponentials, logarithms, trigonometric and hyperbolic functions, the error function.

Receives tensors of any numeric dtype (ints count as the default float) and returns tensors built
from the few functions that every backend has: exp2, log2, sin, tanh, sqrt. float16, bfloat16 and
fp8 go through float32. Gradients of functions that are put together from pieces are not those of
the pieces: what is handed down is the slope itself (`Handle.with_slope`), right at zeros, poles and
ends of the domain. Where a formula holds on part of the line only, its input is made harmless
elsewhere, so that no other gradient meets an infinity that was not chosen.

Polynomials are minimax fits of the relative error (Remez exchange in 80 digits), one table for
float32, one for float64, lowest power first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.ops import Self
from aster_ml.uop.ops import Ops

Table = tuple[tuple[float, ...], tuple[float, ...]]

ASIN = (
    (
        0.166667525,
        0.0749529765,
        0.0454703774,
        0.0241795013,
        0.0421663389,
    ),
    (
        0.1666666666666676,
        0.07499999999970801,
        0.04464285717461028,
        0.03038194270786724,
        0.022372214985144852,
        0.01735161206061083,
        0.013980819966519937,
        0.011398917063832312,
        0.010780225499339687,
        0.003706511701230045,
        0.021707197580028162,
        -0.020998711106204597,
        0.032628405034749085,
    ),
)
ATAN = (
    (
        -0.333333152,
        0.199984714,
        -0.142435312,
        0.105938016,
        -0.0607819642,
    ),
    (
        -0.33333333333333326,
        0.1999999999999765,
        -0.14285714285385995,
        0.11111111088071718,
        -0.09090908141322442,
        0.07692282698685754,
        -0.0666622603743836,
        0.058770162105024254,
        -0.0521837694263348,
        0.04503469337045553,
        -0.033473262419724384,
        0.015194564289386765,
    ),
)
SINH = (
    (
        0.166666665,
        0.00833335006,
        0.000198361597,
        2.81695172e-06,
    ),
    (
        0.16666666666666666,
        0.008333333333333333,
        0.000198412698412696,
        2.755731922411629e-06,
        2.5052108346509174e-08,
        1.6059050601239818e-10,
        7.646482897148948e-13,
        2.8482329732039093e-15,
    ),
)
ERF = (
    (
        1.12837917,
        -0.376126258,
        0.112835852,
        -0.0268538118,
        0.00518832732,
        -0.000801018925,
        7.85384405e-05,
    ),
    (
        1.1283791670955126,
        -0.3761263890318375,
        0.11283791670954857,
        -0.026866170645072893,
        0.005223977624780835,
        -0.0008548326978740568,
        0.00012055331036846668,
        -1.4925593505766364e-05,
        1.6460972801190717e-06,
        -1.6350025076223882e-07,
        1.4657878989888874e-08,
        -1.136566313662848e-09,
        5.94525769394152e-11,
    ),
)
ERFC = (
    (
        0.000271269094,
        -1.62963712,
        -0.913543339,
        -0.156414797,
        0.0363677358,
        -0.00606586724,
        0.000636707178,
        -3.12869584e-05,
    ),
    (
        -2.660154370111841e-07,
        -1.6279043095223173,
        -0.9184610739971073,
        -0.1482320709555991,
        0.027522227096142843,
        0.00040717259533381233,
        -0.002554908300534453,
        0.0009274153807392455,
        -6.630185340863711e-05,
        -0.00010062796485469153,
        6.458910636666263e-05,
        -2.3691121604369414e-05,
        6.206137763710555e-06,
        -1.2193508671073605e-06,
        1.800918610634011e-07,
        -1.9508296625481213e-08,
        1.4672722647826596e-09,
        -6.85515440260923e-11,
        1.4989990233811557e-12,
    ),
)

# tan(pi / 8): above it, the arc tangent is taken of (t - 1) / (t + 1) instead.
ATAN_SPLIT = 0.41421356237309503
# pi / 2 as a sum of parts, so short that what is left after each is exact, and up to where that
# holds; of float32 and of float64.
HALF_PI = (
    ((1.5703125, 0.0004837512969970703, 7.549789415861596e-08, 5.390302953474238e-15), 4e6),
    ((1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21), 1e9),
)
# Above it x**2 + 1 is x**2 for float32 and float64 alike, and x**2 may overflow.
LARGE = 1e9


def through_float32(function: Callable[[Self], Self]) -> Callable[[Self], Self]:
    """Makes a function of a float32 or float64 tensor one of a tensor of any numeric dtype."""

    @functools.wraps(function)
    def method(self: Self) -> Self:
        x = self._floating()
        if x.dtype.itemsize >= 4:
            return function(x)
        return function(x.cast(dtypes.float32)).cast(x.dtype)

    return method


def horner(x: Any, table: Table) -> Any:
    """The polynomial of `table` at x."""
    coefficients = table[x.dtype is dtypes.float64]
    result = x._scalar(coefficients[-1])
    for c in coefficients[-2::-1]:
        result = result.alu(Ops.MULACC, x, x._scalar(c))
    return result


# exponentials and logarithms


@through_float32
def exp(self: Self) -> Self:
    """e**self.

    Shapes: self [*s] -> [*s].
    Error: about 1 + |x| / 2 ULP, from rounding x / ln(2) before 2 is raised to it.
    """
    return (self * (1 / math.log(2))).exp2()


@through_float32
def log(self: Self) -> Self:
    """Natural logarithm; NaN below 0, -inf at 0.

    Shapes: self [*s] -> [*s].
    Error: 2 ULP.
    """
    return self.log2() * math.log(2)


@through_float32
def log10(self: Self) -> Self:
    """Logarithm to base 10; NaN below 0, -inf at 0.

    Shapes: self [*s] -> [*s].
    Error: 2 ULP.
    """
    return self.log2() * math.log10(2)


def log_of_one_plus(self: Self) -> Self:
    """log(1 + self) without losing the digits of a small self.

    What 1 + x rounds away is put back as a factor, after W. Kahan.
    """
    whole = self + 1
    exact = whole.eq(1)
    found = exact.where(1, whole - 1)
    factor = (self / found).detach()
    # At infinity the factor is infinity over infinity.
    return exact.where(self, whole.log() * whole.eq(math.inf).where(1, factor))


def logaddexp(self: Self, other: Any) -> Self:
    """log(exp(self) + exp(other)), without overflow.

    Shapes: self [*b, n], other [*b, n] -> [*b, n]; b broadcasts.
    """
    x, y = self._floating()._broadcasted(other)
    if x.dtype.itemsize < 4:
        return x.cast(dtypes.float32).logaddexp(y.cast(dtypes.float32)).cast(x.dtype)
    same = x.eq(y)
    # Two equal infinities have no difference; their sum of halves is what they are.
    off = same.where(0, x - y)
    far = off.alu(Ops.MAX, -off)
    middle = same.where(x * 0.5 + y * 0.5, x.alu(Ops.MAX, y))
    return middle + log_of_one_plus((-far).exp())


# trigonometric


@through_float32
def cos(self: Self) -> Self:
    """Cosine of self in radians, as 1 - 2 * sin(x / 2)**2, which keeps large x exact.

    Shapes: self [*s] -> [*s].
    Error: 2**-22 absolute in float32.
    """
    half = (self * 0.5).sin()
    return 1 - half * half * 2


@through_float32
def tan(self: Self) -> Self:
    """Tangent of self in radians.

    Shapes: self [*s] -> [*s].
    Error: 4 ULP in float32 up to 4e6, near poles as well.
    """
    found = self.sin() / cos_near_zeros(self)
    return self._with_slope(found, found * found + 1)


def cos_near_zeros(self: Self) -> Self:
    """Cosine whose relative error is small near its zeros too, save for those far out.

    A sine of the distance to the nearest zero, which parts of pi / 2 give without rounding.
    """
    parts, furthest = HALF_PI[self.dtype is dtypes.float64]
    size = self.alu(Ops.MAX, -self)
    near = size < furthest
    x = near.where(size, 0)
    below = (x * (1 / math.pi)).trunc()
    odd = below * 2 + 1
    distance = x
    for part in parts:
        distance = odd.alu(Ops.MULACC, self._scalar(-part), distance)
    half = below * 0.5
    found = near.where(distance, size * 0.5).sin()
    signed = half.trunc().eq(half).where(-found, found)
    return near.where(signed, 1 - found * found * 2)


def arc_sine_parts(self: Self) -> tuple[Self, Self]:
    """Where |x| is above 1/2; asin(x) below it, asin(sqrt((1 - |x|) / 2)) above."""
    size = self.alu(Ops.MAX, -self)
    above = size > 0.5
    z = above.where((1 - size) * 0.5, self * self)
    root = above.where(above.where(z, 1).sqrt(), self)
    return above, root + root * z * horner(z, ASIN)


def arc_sine_slope(self: Self) -> Self:
    """1 / sqrt(1 - x**2)."""
    return ((1 - self) * (1 + self)).sqrt().reciprocal()


@through_float32
def asin(self: Self) -> Self:
    """Arc sine; NaN outside -1 to 1.

    Shapes: self [*s] -> [*s].
    Error: 3 ULP in float32.
    """
    above, part = arc_sine_parts(self)
    outer = math.pi / 2 - part * 2
    found = above.where((self < 0).where(-outer, outer), part)
    return self._with_slope(found, arc_sine_slope(self))


@through_float32
def acos(self: Self) -> Self:
    """Arc cosine; NaN outside -1 to 1.

    Shapes: self [*s] -> [*s].
    Error: 3 ULP in float32.
    """
    above, part = arc_sine_parts(self)
    below = self < 0
    outer = below.where(math.pi - part * 2, part * 2)
    found = above.where(outer, math.pi / 2 - part)
    return self._with_slope(found, -arc_sine_slope(self))


@through_float32
def atan(self: Self) -> Self:
    """Arc tangent.

    Shapes: self [*s] -> [*s].
    Error: 3 ULP in float32.
    """
    size = self.alu(Ops.MAX, -self)
    outer = size > 1
    t = outer.where(outer.where(size, 1).reciprocal(), size)
    upper = t > ATAN_SPLIT
    t = upper.where((t - 1) / (t + 1), t)
    z = t * t
    part = t + t * z * horner(z, ATAN)
    part = upper.where(part + math.pi / 4, part)
    part = outer.where(math.pi / 2 - part, part)
    found = self.eq(0).where(self, (self < 0).where(-part, part))
    return self._with_slope(found, (self * self + 1).reciprocal())


# hyperbolic


@through_float32
def sinh(self: Self) -> Self:
    """Hyperbolic sine.

    Shapes: self [*s] -> [*s].
    Error: that of `exp`; 2 ULP below 1.
    """
    return self._with_slope(sinh_value(self), cosh_value(self))


def sinh_value(self: Self) -> Self:
    """`sinh` as a formula, with the formula's own slope."""
    size = self.alu(Ops.MAX, -self)
    inner = size < 1
    x = inner.where(self, 0)
    z = x * x
    # The root of e**x does not overflow before the result does.
    root = (size * 0.5).exp()
    large = root * 0.5 * root - 0.5 / root / root
    return inner.where(x + x * z * horner(z, SINH), (self < 0).where(-large, large))


@through_float32
def cosh(self: Self) -> Self:
    """Hyperbolic cosine.

    Shapes: self [*s] -> [*s].
    Error: that of `exp`.
    """
    return self._with_slope(cosh_value(self), sinh_value(self))


def cosh_value(self: Self) -> Self:
    """`cosh` as a formula, with the formula's own slope."""
    root = (self.alu(Ops.MAX, -self) * 0.5).exp()
    return root * 0.5 * root + 0.5 / root / root


@through_float32
def tanh(self: Self) -> Self:
    """Hyperbolic tangent.

    Shapes: self [*s] -> [*s].
    Error: 1.6 ULP.
    """
    return self.alu(Ops.TANH)


@through_float32
def asinh(self: Self) -> Self:
    """Inverse hyperbolic sine.

    Shapes: self [*s] -> [*s].
    """
    size = self.alu(Ops.MAX, -self)
    large = size > LARGE
    x = large.where(1, size)
    z = x * x
    near = log_of_one_plus(x + z / (1 + (z + 1).sqrt()))
    found = large.where(size.log() + math.log(2), near)
    found = self.eq(0).where(self, (self < 0).where(-found, found))
    return self._with_slope(found, (self * self + 1).sqrt().reciprocal())


@through_float32
def acosh(self: Self) -> Self:
    """Inverse hyperbolic cosine; NaN below 1.

    Shapes: self [*s] -> [*s].
    """
    large = self > LARGE
    # Far below 1 the root cancels what stands beside it.
    x = (large | (self < 1)).where(2, self) - 1
    value = large.where(self.log() + math.log(2), log_of_one_plus(x + (x * (x + 2)).sqrt()))
    # Below -1 there is no value, and yet the slope of the formula.
    slope = ((self - 1) * (self + 1)).sqrt().reciprocal()
    return self._with_slope((self < 1).where(math.nan, value), slope)


@through_float32
def atanh(self: Self) -> Self:
    """Inverse hyperbolic tangent; NaN outside -1 to 1.

    Shapes: self [*s] -> [*s].
    """
    size = self.alu(Ops.MAX, -self)
    found = log_of_one_plus(size * 2 / (1 - size)) * 0.5
    found = self.eq(0).where(self, (self < 0).where(-found, found))
    return self._with_slope(found, ((1 - self) * (1 + self)).reciprocal())


# error function


@through_float32
def erf(self: Self) -> Self:
    """Error function.

    Shapes: self [*s] -> [*s].
    Error: 3 ULP in float32; from 1 on, 2 to the power of a polynomial is 1 - erf.
    """
    size = self.alu(Ops.MAX, -self)
    inner = size <= 1
    x = inner.where(self, 0)
    # Past the limit the result is 1; a NaN passes.
    limit = 6.0 if self.dtype is dtypes.float64 else 4.0
    outer = 1 - horner(-(-size).alu(Ops.MAX, self._scalar(-limit)), ERFC).exp2()
    found = inner.where(x * horner(x * x, ERF), (self < 0).where(-outer, outer))
    return self._with_slope(found, (-(self * self)).exp() * (2 / math.sqrt(math.pi)))
