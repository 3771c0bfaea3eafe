"""The array of the namespace: a Tensor with what the standard has as attributes, and its truth.

Receives tensors; returns arrays. Functions stand in the other modules of this package.
"""

from __future__ import annotations

from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.dtype import least_upper_dtype, to_dtype

# What places and counts are numbered in.
INDEX = dtypes.int64


class Array(Tensor):
    """A Tensor as the array API has it: `size` is a number, and one element has a truth."""

    __slots__ = ()

    @property
    def size(self) -> int:  # type: ignore[override]
        """How many elements there are."""
        return int(self.numel())

    def __bool__(self) -> bool:
        return bool(self.item())

    def to_device(self, device: str, /, *, stream: Any = None) -> Any:
        """The same elements on another device."""
        if stream is not None:
            raise ValueError(f"stream {stream!r}; devices here have none")
        return self.to(device)


def as_array(x: Any) -> Any:
    """A tensor or a number as an Array."""
    return x if isinstance(x, Array) else Array(x)


def as_pair(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Two operands as arrays of one dtype; a Python number takes that of the other if it can."""
    if isinstance(x1, Tensor):
        one = as_array(x1)
        two = as_array(x2) if isinstance(x2, Tensor) else number_beside(one, x2)
    else:
        two = as_array(x2)
        one = number_beside(two, x1)
    common = least_upper_dtype(one.dtype, two.dtype)
    return one.cast(common), two.cast(common)


def number_beside(x: Any, number: Any) -> Any:
    """A Python number as an array that stands beside `x`."""
    fits = x.dtype.kind == "float" or (isinstance(number, int) and x.dtype.kind != "bool")
    return Array(number, dtype=x.dtype if fits or isinstance(number, bool) else None)


def dtype_of(dtype: Any) -> Any:
    """A dtype as those of this package; None stays None."""
    return None if dtype is None else to_dtype(dtype)
