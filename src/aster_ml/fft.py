"""Computes Fourier transforms of real and complex tensors, as `numpy.fft` and the array API have
them.

Receives real tensors, ComplexTensors and arrays; returns ComplexTensors, or real tensors where the
result is real. A size is split into factors that small matrices transform, with rotations between
(Cooley and Tukey); a size with a large prime factor is a convolution of a power of two (Bluestein).
Work grows as n log n. Everything is an operation on tensors: lazy, differentiable, jittable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.complex.tensor import ComplexTensor, parts_of
from aster_ml.dtype import to_dtype, to_numpy_dtype
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from aster_ml.extend import resolved
from aster_ml.helpers import all_int

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

# Size of the largest transform by a matrix.
MAX_FACTOR = 32
# Norm -> exponents of the size that the forward and the inverse transform are divided by.
NORMS = {None: (0.0, 1.0), "backward": (0.0, 1.0), "ortho": (0.5, 0.5), "forward": (1.0, 0.0)}
Array = np.ndarray[Any, Any]
# The real part and, where there is one, the imaginary part.
Parts = tuple[Tensor, Tensor | None]
# Arguments of a transform of several axes; how a result is scaled.
Sizes: TypeAlias = Sequence[int | None] | None
Axes: TypeAlias = Sequence[int] | None
Norm: TypeAlias = str | None


# tables, in float64


@cache
def split(n: int) -> tuple[int, ...]:
    """Factors of n up to MAX_FACTOR, few and of similar size; () where a prime factor is larger."""
    primes, left = [], n
    for p in range(2, MAX_FACTOR + 1):
        while left % p == 0:
            primes.append(p)
            left //= p
    if left > 1:
        return ()
    count = next(c for c in range(1, len(primes) + 2) if MAX_FACTOR**c >= n)
    while True:
        groups = [1] * count
        for p in reversed(primes):
            i = groups.index(min(groups))
            groups[i] *= p
        if max(groups) <= MAX_FACTOR:
            return tuple(sorted(groups, reverse=True))
        count += 1


def roots(n: int, powers: Array) -> Array:
    """exp(-2 pi i k / n) of whole numbers k."""
    turns = powers % n
    found: Array = np.exp(-2j * np.pi * turns / n)
    return found


@cache
def matrix(r: int, sign: int, scale: float) -> Array:
    """The DFT matrix of size r: [2, r, 2, r], parts of the result, then parts of the input."""
    w = roots(r, np.outer(np.arange(r), np.arange(r)) * sign) * scale
    return np.array([[w.real, -w.imag], [w.imag, w.real]]).transpose(0, 2, 1, 3).copy()


@cache
def rotation(r: int, m: int, sign: int) -> Array:
    """The twiddle factors between transforms of sizes r and m: [2, 2, r, m]."""
    w = roots(r * m, np.outer(np.arange(r), np.arange(m)) * sign)
    return np.array([[w.real, w.real], [-w.imag, w.imag]])


@cache
def chirp(n: int, size: int, sign: int) -> tuple[Array, Array]:
    """exp(-pi i k**2 / n), and the transform of its conjugate, extended periodically to `size`."""
    # Python ints do not overflow.
    w = roots(2 * n, np.array([k * k % (2 * n) for k in range(n)]) * sign)
    circle = np.zeros(size, np.complex128)
    circle[:n] = w.conj()
    circle[size - n + 1 :] = w.conj()[:0:-1]
    return w, np.fft.fft(circle)


def table(array: Array, like: Tensor) -> Tensor:
    """A table in the dtype and on the device of a tensor."""
    return Tensor(array.astype(to_numpy_dtype(like.dtype)), device=like.device)


# transforms of the last axis


def transform(x: Parts, sign: int, scale: float) -> tuple[Tensor, Tensor]:
    """sum_j x[j] exp(-2 pi i j k sign / n) * scale along the last axis: [b, n] -> [b, n]."""
    n = x[0].shape[-1]
    factors = split(n)
    if n == 1:
        re, im = x
        return re * scale, re.zeros_like() if im is None else im * scale
    return by_factors(x, factors, sign, scale) if factors else by_chirp(x, sign, scale)


def by_factors(
    x: Parts, factors: tuple[int, ...], sign: int, scale: float
) -> tuple[Tensor, Tensor]:
    """The transform of a product of factors: a small matrix and twiddle factors for each."""
    b, n = x[0].shape
    r, left = factors[0], n // factors[0]
    w = table(matrix(r, sign, scale), x[0]).reshape(2 * r, 2, r)
    pair = w[:, 0] @ x[0].reshape(b, r, left)
    if x[1] is not None:
        pair = pair + w[:, 1] @ x[1].reshape(b, r, left)
    done = 1
    for after in factors[1:]:
        # For each batch and result so far: multiply by twiddle factors, transform the next factor.
        turns = table(rotation(r, left, sign), x[0])
        pair = pair.reshape(b * done, 2, r, left).contiguous()
        pair = pair * turns[0].reshape(2, r, left) + pair.flip(1) * turns[1].reshape(2, r, left)
        done, left = done * r, left // after
        pair = pair.permute(0, 2, 1, 3).reshape(b * done, 2 * after, left).contiguous()
        r = after
        pair = table(matrix(r, sign, 1.0), x[0]).reshape(2 * r, 2 * r) @ pair
    # The first factor of the input is the last digit of the result.
    count = len(factors)
    pair = pair.reshape(b, *factors[:-1], 2, factors[-1])
    pair = pair.permute(count, 0, count + 1, *range(count - 1, 0, -1))
    pair = pair.reshape(2, b, n).contiguous()
    return pair[0], pair[1]


def by_chirp(x: Parts, sign: int, scale: float) -> tuple[Tensor, Tensor]:
    """The transform of any size, as a circular convolution with a chirp.

    Source: L. Bluestein, A linear filtering approach to the computation of the DFT, 1970.
    """
    n = x[0].shape[-1]
    size = 1 << (2 * n - 2).bit_length()
    w, kernel = chirp(n, size, sign)
    turned = times(x, w, x[0])
    re, im = (part.pad(((0, 0), (0, size - n))) for part in turned)
    factors = split(size)
    there = times(by_factors((re, im), factors, 1, 1.0), kernel, x[0])
    back = by_factors(there, factors, -1, 1.0 / size)
    return times((back[0][:, :n], back[1][:, :n]), w * scale, x[0])


def times(x: Parts, w: Array, like: Tensor) -> tuple[Tensor, Tensor]:
    """Complex numbers times a table of complex numbers."""
    c, s = table(w.real, like), table(w.imag, like)
    re, im = x
    if im is None:
        return re * c, re * s
    return re * c - im * s, re * s + im * c


# arguments


def factor(n: int, norm: Norm, back: bool) -> float:
    """Factor of the result."""
    if norm not in NORMS:
        raise ArgumentError(f"norm {norm!r}; 'backward', 'ortho' or 'forward' is wanted")
    return math.pow(n, -NORMS[norm][back])


def as_parts(x: Any, what: str) -> Parts:
    """The real and imaginary parts of the input; sizes are constants."""
    parts = parts_of(x)
    if not all_int(parts[0].shape):
        raise ShapeError(f"{what}: sizes of {parts[0].shape} are symbolic; numbers are wanted")
    if not parts[0].shape:
        raise ShapeError(f"{what}: a tensor without axes; at least one is wanted")
    return parts


def as_real(x: Any, what: str) -> Tensor:
    """Checks and casts the input of a transform of real numbers."""
    real, imag = as_parts(x, what)
    if imag is not None:
        raise DTypeError(f"{what}: complex numbers, where real ones are wanted; fft takes them")
    return real


def axis_of(x: Tensor, axis: int, what: str) -> int:
    """An axis counted from the front."""
    ndim = len(x.shape)
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{what}: axis {axis} of a tensor with axes {-ndim} to {ndim - 1}")
    return axis % ndim


def check_size(n: Any, what: str) -> int:
    """Checks the number of points asked for."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise ShapeError(f"{what}: n={n!r} points; 1 or more are wanted")
    return int(n)


def fitted(x: Tensor, n: int) -> Tensor:
    """The last axis cut or filled with zeros to n."""
    size = x.shape[-1]
    if n <= size:
        return x[..., :n]
    return x.pad((*(((0, 0),) * (len(x.shape) - 1)), (0, n - size)))


def along(
    x: Parts, n: int, axis: int, sign: int, norm: tuple[Norm, bool], what: str
) -> tuple[Tensor, Tensor]:
    """The transform of one axis, cut or filled to n."""
    scale = factor(n, *norm)
    axis = axis_of(x[0], axis, what)
    re, im = (None if p is None else fitted(p.transpose(axis, -1), n) for p in x)
    assert re is not None
    shape = re.shape
    if 0 in shape:
        nothing = re.zeros_like().transpose(axis, -1)
        return nothing, nothing
    rows = math.prod(shape[:-1])
    flat = (re.reshape(rows, n), None if im is None else im.reshape(rows, n))
    found = transform(flat, sign, scale)
    return found[0].reshape(shape).transpose(axis, -1), found[1].reshape(shape).transpose(axis, -1)


def first(x: Tensor, count: int, axis: int) -> Tensor:
    """The first elements of an axis."""
    return x.transpose(axis, -1)[..., :count].transpose(axis, -1)


# one axis


def fft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """The transform of an axis, cut or filled with zeros to n: a ComplexTensor.

    `norm` says which way is divided by n: "backward" the inverse, "forward" this one, "ortho" both
    by its root. float32 and narrower give complex64, float64 complex128.

    Raises: ShapeError, ArgumentError for arguments that make no sense.
    Source: numpy.fft.fft; Array API 2024.12, fft.
    """
    return whole_spectrum(as_parts(x, "fft"), n, axis, (norm, False), "fft", 1)


def ifft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """The inverse of `fft`: a ComplexTensor."""
    return whole_spectrum(as_parts(x, "ifft"), n, axis, (norm, True), "ifft", -1)


def rfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """The first n // 2 + 1 elements of the transform of real numbers; the others are conjugates."""
    return half_spectrum(as_real(x, "rfft"), n, axis, (norm, False), "rfft", 1)


def irfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """The inverse of `rfft`: n real numbers, 2 * (m - 1) of m where n is not given."""
    return real_inverse(as_parts(x, "irfft"), n, axis, (norm, True), "irfft", -1)


def hfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """The transform of numbers of which the second half are conjugates: n real numbers."""
    return real_inverse(as_parts(x, "hfft"), n, axis, (norm, False), "hfft", 1)


def ihfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Any:
    """The inverse of `hfft`: n // 2 + 1 elements."""
    return half_spectrum(as_real(x, "ihfft"), n, axis, (norm, True), "ihfft", -1)


def points(x: Tensor, n: int | None, axis: int, what: str) -> int:
    """The number of points asked for, checked; the size of the axis where none is."""
    return check_size(x.shape[axis_of(x, axis, what)] if n is None else n, what)


def whole_spectrum(
    x: Parts, n: int | None, axis: int, norm: tuple[Norm, bool], what: str, sign: int
) -> ComplexTensor:
    """The transform of an axis."""
    return ComplexTensor(*along(x, points(x[0], n, axis, what), axis, sign, norm, what))


def half_spectrum(
    x: Tensor, n: int | None, axis: int, norm: tuple[Norm, bool], what: str, sign: int
) -> ComplexTensor:
    """The first half of the transform of real numbers, and the element in the middle."""
    size = points(x, n, axis, what)
    found = along((x, None), size, axis, sign, norm, what)
    return ComplexTensor(*[first(part, size // 2 + 1, axis) for part in found])


def real_inverse(
    x: Parts, n: int | None, axis: int, norm: tuple[Norm, bool], what: str, sign: int
) -> Tensor:
    """The transform of half of a spectrum whose other half are the conjugates."""
    axis = axis_of(x[0], axis, what)
    size = check_size(2 * (x[0].shape[axis] - 1) if n is None else n, what)
    half = [None if p is None else fitted(p.transpose(axis, -1), size // 2 + 1) for p in x]
    re, im = half
    assert re is not None
    mirrored = slice(1, (size + 1) // 2)
    if mirrored.stop > 1:
        re = re.cat(re[..., mirrored].flip(-1), dim=-1)
        im = None if im is None else im.cat(-im[..., mirrored].flip(-1), dim=-1)
    return along((re, im), size, -1, sign, norm, what)[0].transpose(axis, -1)


# several axes


def axes_of(x: Tensor, s: Sizes, axes: Axes, what: str) -> tuple[list[int | None], list[int]]:
    """Sizes (None where an axis keeps its own) and axes of a transform of several."""
    if axes is None:
        axes = range(-len(s), 0) if s is not None else range(len(x.shape))
    places = [axis_of(x, a, what) for a in axes]
    sizes: Sequence[int | None] = [None] * len(places) if s is None else s
    if len(sizes) != len(places):
        raise ShapeError(f"{what}: {len(sizes)} sizes for {len(places)} axes; equally many do")
    # In NumPy, -1 means the size of the axis, even for irfft, whose result is twice as long.
    return [x.shape[a] if n == -1 else n for n, a in zip(sizes, places)], places


def fftn(x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Any:
    """`fft` of several axes, of all where neither sizes `s` nor axes are given."""
    return of_axes(x, s, axes, norm, fft, "fftn")


def ifftn(x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Any:
    """The inverse of `fftn`."""
    return of_axes(x, s, axes, norm, ifft, "ifftn")


def of_axes(
    x: Any, s: Sizes, axes: Axes, norm: Norm, transform: Callable[..., Any], what: str
) -> ComplexTensor:
    """A transform of several axes, the last one first."""
    sizes, places = axes_of(as_parts(x, what)[0], s, axes, what)
    for n, axis in zip(reversed(sizes), reversed(places)):
        x = transform(x, n, axis, norm)
    return x if isinstance(x, ComplexTensor) else ComplexTensor(x)


def rfftn(x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Any:
    """`rfft` of the last of several axes, then `fft` of the others."""
    sizes, places = axes_of(as_real(x, "rfftn"), s, axes, "rfftn")
    check_some(places, "rfftn")
    found = rfft(x, sizes[-1], places[-1], norm)
    for n, axis in zip(sizes[:-1], places[:-1]):
        found = fft(found, n, axis, norm)
    return found


def irfftn(x: Any, s: Sizes = None, axes: Axes = None, norm: Norm = "backward") -> Any:
    """The inverse of `rfftn`: a real tensor."""
    sizes, places = axes_of(as_parts(x, "irfftn")[0], s, axes, "irfftn")
    check_some(places, "irfftn")
    found = x
    for n, axis in zip(sizes[:-1], places[:-1]):
        found = ifft(found, n, axis, norm)
    return irfft(found, sizes[-1], places[-1], norm)


def check_some(axes: list[int], what: str) -> None:
    """Raises ShapeError for an empty list of axes, since real transforms need a last axis."""
    if not axes:
        raise ShapeError(f"{what}: no axes; one at least is wanted")


def fft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: Norm = "backward") -> Any:
    """`fftn` of the last two axes."""
    return fftn(x, s, axes, norm)


def ifft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: Norm = "backward") -> Any:
    """`ifftn` of the last two axes."""
    return ifftn(x, s, axes, norm)


def rfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: Norm = "backward") -> Any:
    """`rfftn` of the last two axes."""
    return rfftn(x, s, axes, norm)


def irfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: Norm = "backward") -> Any:
    """`irfftn` of the last two axes."""
    return irfftn(x, s, axes, norm)


# frequencies


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of `fft` of n samples with spacing d."""
    return frequencies(np.fft.fftfreq(check_size(n, "fftfreq"), d), dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequency of each element of `rfft` of n samples with spacing d."""
    return frequencies(np.fft.rfftfreq(check_size(n, "rfftfreq"), d), dtype, device)


def frequencies(values: Array, dtype: Any, device: Any) -> Tensor:
    """Frequencies as a tensor, of the default float where no dtype is given."""
    wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
    return Tensor(values, dtype=wanted, device=device)


def fftshift(x: Any, axes: Any = None) -> Any:
    """The frequency 0 moved to the middle of axes, of all where none is given."""
    return shifted(x, axes, 1)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of `fftshift`."""
    return shifted(x, axes, -1)


def shifted(x: Any, axes: Any, sign: int) -> Any:
    """Axes rolled by half of their sizes, rounded down."""
    if not isinstance(x, Tensor | ComplexTensor):
        array = np.asarray(resolved(x))
        x = ComplexTensor(array) if array.dtype.kind == "c" else Tensor(array)
    count = len(x.shape)
    wanted = range(count) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    real = x.real if isinstance(x, ComplexTensor) else x
    for axis in [axis_of(real, a, "fftshift") for a in wanted]:
        size = x.shape[axis]
        if size > 1:
            x = x.roll(size // 2 if sign > 0 else -(size // 2), axis)
    return x
