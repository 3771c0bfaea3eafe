"""Fourier transforms of random sizes, lengths, axes and norms, beside NumPy's in float64."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import fft
from tests.fuzz.budget import check_all, draws

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 30, 31, 33, 36, 37, 64, 77, 97, 128, 210, 251)
REAL = ("rfft", "ihfft", "rfftn")
HALF = ("irfft", "hfft", "irfftn")
ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
SEVERAL = ("fftn", "ifftn", "rfftn", "irfftn")


def drawn_call(r: random.Random) -> tuple[str, Any, dict[str, Any]]:
    """A function, an array and the other arguments."""
    name = r.choice(ONE + SEVERAL)
    ndim = r.randint(1, 3)
    shape = [r.choice((1, 2, 3, 4)) for _ in range(ndim)]
    shape[r.randrange(ndim)] = r.choice(SIZES)
    rng = np.random.default_rng(r.randrange(1 << 30))
    x = rng.standard_normal(shape)
    if name not in REAL and (name in HALF or r.random() < 0.7):
        x = x + 1j * rng.standard_normal(shape)
    if r.random() < 0.5:
        x = x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)
    norm = r.choice(("backward", "ortho", "forward", None))
    if name in ONE:
        axis = r.randrange(-ndim, ndim)
        short = name in HALF and shape[axis] == 1
        n = r.choice(SIZES) if short or r.random() < 0.4 else None
        return name, x, {"n": n, "axis": axis, "norm": norm}
    axes = r.sample(range(ndim), r.randint(1, ndim))
    short = name in HALF and shape[axes[-1]] == 1
    s = [r.randint(1, 9) for _ in axes] if short or r.random() < 0.4 else None
    return name, x, {"s": s, "axes": axes, "norm": norm}


def check(seed: int) -> str | None:
    name, x, rest = drawn_call(random.Random(seed))
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    wanted = getattr(np.fft, name)(wide, **rest)
    got = getattr(fft, name)(x, **rest).numpy()
    call = f"{name}({x.dtype.name}{list(x.shape)}, {rest})"
    single = x.dtype in (np.float32, np.complex64)
    kind = "c" if wanted.dtype.kind == "c" else "f"
    dtype = {"c": ("complex128", "complex64"), "f": ("float64", "float32")}[kind][single]
    if got.shape != wanted.shape or got.dtype != dtype:
        return f"{call}: {got.dtype}{got.shape}, wanted {dtype}{wanted.shape}"
    error = float(np.linalg.norm((got - wanted).ravel()))
    # What cancels is small beside what went in.
    size = max(float(np.linalg.norm(wanted.ravel())), 1e-3)
    return None if error <= (1e-5 if single else 1e-12) * size else f"{call}: {error / size:.1e}"


def test_transforms_are_those_of_numpy(record_property: Callable[[str, str], None]) -> None:
    check_all("fft", draws(20, 3000), check, record_property)
