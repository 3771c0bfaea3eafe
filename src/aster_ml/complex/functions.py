"""Computes elementary functions of complex numbers by their real and imaginary parts.

Receives the parts of a complex tensor; returns complex tensors, or real ones where a result is
real. Results are right to some units in the last place of the larger part, overflow only where the
result does, and at zeros, infinities and NaN are what C99 (Annex G) and the array API say.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from aster_ml import Tensor
from aster_ml.dtype import to_numpy_dtype

# From here on the hyperbolic functions are half of an exponential.
LARGE = 20.0


class ComplexFunctions:
    """Functions of one complex number."""

    __slots__ = ()

    real: Tensor
    imag: Tensor

    def made(self, real: Any, imag: Any) -> Self:
        """A complex tensor of parts."""
        raise NotImplementedError

    def turned(self) -> Self:
        """i times self."""
        return self.made(-self.imag, self.real)

    def turned_back(self) -> Self:
        """-i times self."""
        return self.made(self.imag, -self.real)

    def conj(self) -> Self:
        """The conjugate."""
        return self.made(self.real, -self.imag)

    def abs(self) -> Any:
        """Absolute values, computed without overflow: a real tensor."""
        return self.real.hypot(self.imag)

    __abs__ = abs

    def angle(self) -> Any:
        """The angle of each number, from -pi to pi: a real tensor."""
        return self.imag.atan2(self.real)

    def isfinite(self) -> Any:
        """Where both parts are finite."""
        return self.real.isfinite() & self.imag.isfinite()

    def isnan(self) -> Any:
        """Where either part is NaN."""
        return self.real.isnan() | self.imag.isnan()

    def isinf(self) -> Any:
        """Where either part is infinite."""
        return self.real.isinf() | self.imag.isinf()

    def sign(self) -> Self:
        """Each number divided by its size; of 0, 0; along an axis where one part is infinite."""
        x, y = self.real, self.imag
        far = (x.isinf() & y.isfinite()) | (y.isinf() & x.isfinite())
        one = x._full_of((), 1)
        x = far.where(x.isinf().where(one.copysign(x), 0), x)
        y = far.where(y.isinf().where(one.copysign(y), 0), y)
        size = x.hypot(y)
        none = size.eq(0)
        size = none.where(1, size)
        return self.made(none.where(0, x / size), none.where(0, y / size))

    def round(self) -> Self:
        """Both parts rounded to whole numbers, halves to the even one."""
        return self.made(self.real.round(), self.imag.round())

    # exponentials and logarithms

    def exp(self) -> Self:
        """e to each number."""
        x, y = self.real, self.imag
        # A large real part overflows only where the result does.
        half = (x * 0.5).exp()
        real = half * y.cos() * half
        imag = y.eq(0).where(y, half * y.sin() * half)
        lost = x.isinf() & y.isfinite().logical_not()
        real = lost.where((x > 0).where(x, 0), real)
        return self.made(real, (lost & (x < 0)).where(0, imag))

    def expm1(self) -> Self:
        """e to each number, less 1, exact near 0."""
        x, y = self.real, self.imag
        near = x.abs() < LARGE
        half = (y * 0.5).sin()
        small = near.where(x, 0)
        whole = self.exp()
        real = near.where(small.expm1() * y.cos() - 2 * half * half, whole.real - 1)
        return self.made(real, whole.imag)

    def log(self) -> Self:
        """The natural logarithm, with an imaginary part from -pi to pi."""
        x, y = self.real.abs(), self.imag.abs()
        a, b = x.maximum(y), x.minimum(y)
        size = self.abs()
        # Near the circle of radius 1 the size says too little.
        near = (size > 0.5) & (size < 2)
        a, b = near.where(a, 1), near.where(b, 0)
        real = near.where(0.5 * ((a - 1) * (a + 1) + b * b).log1p(), size.log())
        return self.made(real, self.angle())

    def log1p(self) -> Self:
        """The natural logarithm of 1 and each number, exact near 0."""
        x, y = self.real, self.imag
        near = (x.abs() < 0.5) & (y.abs() < 0.5)
        a, b = near.where(x, 0), near.where(y, 0)
        whole = self.made(x + 1, y).log()
        return self.made(near.where(0.5 * (a * (a + 2) + b * b).log1p(), whole.real), whole.imag)

    def log2(self) -> Self:
        """The logarithm to base 2."""
        found = self.log()
        return self.made(found.real * (1 / math.log(2)), found.imag * (1 / math.log(2)))

    def log10(self) -> Self:
        """The logarithm to base 10."""
        found = self.log()
        return self.made(found.real * (1 / math.log(10)), found.imag * (1 / math.log(10)))

    def sqrt(self) -> Self:
        """The root whose real part is not negative."""
        x, y = self.real, self.imag
        # By powers of 4, so that no square overflows or vanishes.
        size = x.abs().maximum(y.abs())
        small = size < 2.0**-60
        scale = small.where(2.0**80, (size > 2.0**60).where(x._full_of((), 2.0**-80), 1))
        back = small.where(2.0**-40, (size > 2.0**60).where(x._full_of((), 2.0**40), 1))
        a, b = x * scale, y * scale
        root = ((a.abs() + a.hypot(b)) * 0.5).sqrt()
        other = root.eq(0).where(0, b.abs() / root.eq(0).where(1, root * 2))
        root, other = root * back, other * back
        low = x < 0
        real, imag = low.where(other, root), low.where(root, other).copysign(y)
        far = y.isinf()
        return self.made(far.where(y.abs(), real), far.where(y, imag))

    # hyperbolic functions

    def sinh(self) -> Self:
        """The hyperbolic sine."""
        x, y = self.real, self.imag
        half, sinh, cosh = factors(x)
        real = half * y.cos() * sinh
        imag = y.eq(0).where(y, half * y.sin() * cosh)
        lost = y.isfinite().logical_not() & (x.isinf() | x.eq(0))
        return self.made(lost.where(x, real), imag)

    def cosh(self) -> Self:
        """The hyperbolic cosine."""
        x, y = self.real, self.imag
        half, sinh, cosh = factors(x)
        real = half * y.cos() * cosh
        imag = half * y.sin() * sinh
        far = y.isfinite().logical_not()
        imag = y.eq(0).where(x._full_of((), 1).copysign(x) * y, (far & x.eq(0)).where(x, imag))
        lost = far & x.isinf()
        return self.made(lost.where(x.abs(), real), imag)

    def tanh(self) -> Self:
        """The hyperbolic tangent.

        Source: Kahan 1987, Branch cuts for complex elementary functions.
        """
        x, y = self.real, self.imag
        large = x.abs() > LARGE
        small = large.where(0, x)
        tan, sinh = y.tan(), small.sinh()
        beta = tan * tan + 1
        below = beta * sinh * sinh + 1
        real = large.where(x.sign(), beta * (sinh * sinh + 1).sqrt() * sinh / below)
        away = 4 * y.sin() * y.cos() * (-2 * x.abs()).exp()
        imag = large.where(away, tan / below)
        lost = y.isfinite().logical_not()
        real = (lost & x.isinf().logical_not()).where(x.eq(0).where(x, math.nan), real)
        imag = (lost & x.isinf()).where(0, imag)
        return self.made(real, y.eq(0).where(y, imag))

    def sin(self) -> Self:
        """The sine."""
        return self.turned().sinh().turned_back()

    def cos(self) -> Self:
        """The cosine."""
        return self.turned().cosh()

    def tan(self) -> Self:
        """The tangent."""
        return self.turned().tanh().turned_back()

    # their inverses

    def roots_beside(self) -> tuple[Self, Self]:
        """The roots of 1 - z and of 1 + z."""
        x, y = self.real, self.imag
        return self.made(1 - x, -y).sqrt(), self.made(x + 1, y).sqrt()

    def is_large(self) -> Any:
        """Where 1 is nothing beside the square of a number, or it is not finite."""
        eps = float(np.finfo(to_numpy_dtype(self.real.dtype)).eps)
        return self.isfinite().logical_not() | (self.abs() > 2 * eps**-0.5)

    def log_of_twice(self) -> Any:
        """The logarithm of twice the size."""
        return (self.real * 0.25).hypot(self.imag * 0.25).log() + math.log(8)

    def asin(self) -> Self:
        """The inverse of the sine.

        Source: Kahan 1987, Branch cuts for complex elementary functions.
        """
        x, y = self.real, self.imag
        large = self.is_large()
        kept = self.made(large.where(0, x), large.where(0, y))
        below, above = kept.roots_beside()
        real = kept.real.atan2(below.real * above.real - below.imag * above.imag)
        imag = (below.real * above.imag - below.imag * above.real).asinh()
        real = large.where(x.eq(0).where(x, x.atan2(y.abs())), real)
        imag = large.where(self.log_of_twice(), imag.abs()).copysign(y)
        lost = y.isnan() & self.real.isinf().logical_not()
        return self.made(real, lost.where(y, imag))

    def acos(self) -> Self:
        """The inverse of the cosine.

        Source: Kahan 1987, Branch cuts for complex elementary functions.
        """
        x, y = self.real, self.imag
        large = self.is_large()
        kept = self.made(large.where(0, x), large.where(0, y))
        below, above = kept.roots_beside()
        real = 2 * below.real.atan2(above.real)
        imag = (above.real * below.imag - above.imag * below.real).asinh()
        far = x.eq(0).where(math.pi / 2, y.abs().atan2(x))
        imag = large.where(self.log_of_twice(), imag.abs()).copysign(-y)
        return self.made(large.where(far, real), imag)

    def acosh(self) -> Self:
        """The inverse of the hyperbolic cosine."""
        found = self.acos()
        lost = found.real.isnan() | found.imag.isnan()
        imag = lost.where(found.real, found.real.copysign(self.imag))
        return self.made(found.imag.abs(), imag)

    def asinh(self) -> Self:
        """The inverse of the hyperbolic sine."""
        return self.turned().asin().turned_back()

    def atanh(self) -> Self:
        """The inverse of the hyperbolic tangent."""
        x, y = self.real, self.imag
        large = self.is_large()
        a, b = large.where(0, x.abs()), large.where(0, y)
        real = 0.25 * (4 * a / ((1 - a) * (1 - a) + b * b)).log1p()
        imag = 0.5 * (2 * b).atan2((1 - a) * (a + 1) - b * b)
        size = self.abs()
        away = size.isinf().where(0, x.abs() / size / size)
        away = (x.eq(0) & y.isnan()).where(0, away)
        lost = y.isnan() | (x.isnan() & y.isinf().logical_not())
        turn = lost.where(math.nan, y._full_of((), math.pi / 2))
        real = large.where(away, real).copysign(x)
        return self.made(real, large.where(turn, imag).copysign(y))

    def atan(self) -> Self:
        """The inverse of the tangent."""
        return self.turned().atanh().turned_back()


def factors(x: Any) -> tuple[Any, Any, Any]:
    """Two factors each of sinh x and cosh x that do not overflow; the first one they share."""
    size = x.abs()
    large = size > LARGE
    half = (large.where(size, 0) * 0.5).exp()
    small = large.where(0, x)
    shared = large.where(half * 0.5, 1)
    return shared, large.where(half.copysign(x), small.sinh()), large.where(half, small.cosh())
