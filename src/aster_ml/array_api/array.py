"""Defines the array of the namespace: a Tensor with the attributes and the truth of the standard.

Receives tensors; returns arrays, complex ones as ComplexTensors of arrays. Functions stand in the
other modules of this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.complex import ComplexTensor, complex64, complex128
from aster_ml.complex.dtype import ComplexDType, known_complex_dtype
from aster_ml.dtype import least_upper_dtype, to_dtype

# What places and counts are numbered in.
INDEX = dtypes.int64


class Array(Tensor):
    """A Tensor as the array API has it: `size` is a number, and one element has a truth."""

    __slots__ = ()

    @property
    def size(self) -> int:  # type: ignore[override]
        """Number of elements."""
        return int(self.numel())

    def __bool__(self) -> bool:
        return bool(self.item())

    def to_device(self, device: str, /, *, stream: Any = None) -> Any:
        """The same elements on another device."""
        if stream is not None:
            raise ValueError(f"stream {stream!r}; devices here have none")
        return self.to(device)


def as_array(x: Any) -> Any:
    """A tensor or a number as an Array, a complex one as a ComplexTensor of Arrays."""
    if isinstance(x, Array):
        return x
    if isinstance(x, ComplexTensor | complex):
        z = x if isinstance(x, ComplexTensor) else ComplexTensor(x)
        if isinstance(z.real, Array) and isinstance(z.imag, Array):
            return z
        return ComplexTensor(Array(z.real), Array(z.imag))
    return Array(x)


def as_complex(x: Any, dtype: ComplexDType) -> Any:
    """An array or a number as one of a complex dtype."""
    if not isinstance(x, Tensor | ComplexTensor):
        x = ComplexTensor(np.asarray(x, dtype.name))
    z = as_array(x)
    return (z if isinstance(z, ComplexTensor) else ComplexTensor(z)).cast(dtype)


def as_pair(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Two operands as arrays of one dtype; a Python number takes that of the other if it can."""
    common = common_dtype(x1, x2)
    if isinstance(common, ComplexDType):
        return as_complex(x1, common), as_complex(x2, common)
    if isinstance(x1, Tensor):
        one = as_array(x1)
        two = as_array(x2) if isinstance(x2, Tensor) else number_beside(one, x2)
    else:
        two = as_array(x2)
        one = number_beside(two, x1)
    wanted = least_upper_dtype(one.dtype, two.dtype)
    return one.cast(wanted), two.cast(wanted)


def common_dtype(*values: Any) -> ComplexDType | None:
    """The complex dtype that a result of these has; None where all are real."""
    kinds = [getattr(x, "dtype", None) for x in values]
    if not any([isinstance(k, ComplexDType) for k in kinds] + [isinstance(x, complex)
                                                              for x in values]):  # fmt: skip
        return None
    known = [k for k in kinds if k is not None]
    if not known:
        return complex_beside(dtypes.default_float)
    wide = [k in (dtypes.float64, complex128) for k in known]
    return complex128 if any(wide) else complex64


def complex_beside(dtype: Any) -> ComplexDType:
    """The complex dtype that a real one is promoted to."""
    return complex128 if dtype is dtypes.float64 else complex64


def number_beside(x: Any, number: Any) -> Any:
    """A Python number as an array that stands beside `x`."""
    fits = x.dtype.kind == "float" or (isinstance(number, int) and x.dtype.kind != "bool")
    return Array(number, dtype=x.dtype if fits or isinstance(number, bool) else None)


def dtype_of(dtype: Any) -> Any:
    """A dtype as those of these packages; None stays None."""
    if dtype is None:
        return None
    return known_complex_dtype(dtype) or to_dtype(dtype)


def by_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that only moves elements, for complex arrays too."""

    @functools.wraps(function)
    def of_any(x: Any, /, *args: Any, **keywords: Any) -> Any:
        if isinstance(x, ComplexTensor | complex):
            return as_array(x).each(lambda part: function(part, *args, **keywords))
        return function(x, *args, **keywords)

    return of_any


def truth(x: Any) -> Any:
    """Where an array is other than 0."""
    x = as_array(x)
    return x.real.ne(0) | x.imag.ne(0) if isinstance(x, ComplexTensor) else x.ne(0)
