"""Defines the extension `fft`: Fourier transforms with the standard's signatures.

Receives arrays; returns complex arrays, or real ones where the result is real. The transforms
stand in `aster_ml.fft`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aster_ml import dtypes
from aster_ml import fft as transforms
from aster_ml.array_api.array import Array, as_array, dtype_of

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip


def of_one_axis(name: str) -> Callable[..., Any]:
    """A transform of one axis."""
    transform = getattr(transforms, name)

    def function(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Any:
        return as_array(transform(as_array(x), n, axis, norm))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `aster_ml.fft.{name}`, of one axis."
    return function


def of_axes(name: str) -> Callable[..., Any]:
    """A transform of several axes."""
    transform = getattr(transforms, name)

    def function(
        x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None,
        norm: str = "backward",
    ) -> Any:  # fmt: skip
        return as_array(transform(as_array(x), s, axes, norm))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `aster_ml.fft.{name}`, of several axes."
    return function


fft, ifft = of_one_axis("fft"), of_one_axis("ifft")
rfft, irfft = of_one_axis("rfft"), of_one_axis("irfft")
hfft, ihfft = of_one_axis("hfft"), of_one_axis("ihfft")
fftn, ifftn = of_axes("fftn"), of_axes("ifftn")
rfftn, irfftn = of_axes("rfftn"), of_axes("irfftn")


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequency of each element of `fft` of n samples that are d apart."""
    wanted = dtype_of(dtype) or dtypes.default_float
    return Array(transforms.fftfreq(n, d, dtype=wanted, device=device))


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Any:
    """The frequency of each element of `rfft` of n samples that are d apart."""
    wanted = dtype_of(dtype) or dtypes.default_float
    return Array(transforms.rfftfreq(n, d, dtype=wanted, device=device))


def fftshift(x: Any, /, *, axes: Any = None) -> Any:
    """The frequency 0 moved to the middle of axes, of all where none is given."""
    return as_array(transforms.fftshift(as_array(x), axes))


def ifftshift(x: Any, /, *, axes: Any = None) -> Any:
    """The inverse of `fftshift`."""
    return as_array(transforms.ifftshift(as_array(x), axes))
