"""Tells einops how to reshape, reduce and join tensors.

Receives what einops asks of a framework; returns tensors. einops finds the classes of frameworks
among the subclasses of its `AbstractBackend`, so ours is made as soon as both are imported, in
whichever order; nothing is imported for it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.tensor import Tensor


class Methods:
    """Methods that einops asks a framework for."""

    framework_name = "aster_ml"

    def is_appropriate_type(self, x: Any) -> bool:
        """Whether `x` is of this framework."""
        return isinstance(x, Tensor)

    def from_numpy(self, x: Any) -> Any:
        """A tensor of an array."""
        return Tensor(x)

    def to_numpy(self, x: Any) -> Any:
        """An array of a tensor."""
        return x.numpy()

    def arange(self, start: int, stop: int) -> Any:
        """The integers of a range."""
        return Tensor.arange(start, stop)

    def reshape(self, x: Any, shape: Any) -> Any:
        """The elements in another shape."""
        return x.reshape(tuple(shape))

    def transpose(self, x: Any, axes: Any) -> Any:
        """The axes in this order."""
        return x.permute(tuple(axes))

    def reduce(self, x: Any, operation: str, axes: Any) -> Any:
        """The sum, mean, product, least, greatest, any or all over the axes."""
        return getattr(x, operation)(tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: list[Any]) -> Any:
        """All of them along a new first axis."""
        return tensors[0].stack(*tensors[1:])

    def add_axis(self, x: Any, new_position: int) -> Any:
        """A new axis of size 1."""
        return x.unsqueeze(new_position)

    def tile(self, x: Any, repeats: Any) -> Any:
        """The elements over and over."""
        return x.repeat(tuple(repeats))

    def concat(self, tensors: list[Any], axis: int) -> Any:
        """One behind the other."""
        return tensors[0].cat(*tensors[1:], dim=axis)

    def is_float_type(self, x: Any) -> bool:
        """Whether a mean is a number of this dtype."""
        return bool(dtypes.is_float(x.dtype))

    def einsum(self, pattern: str, *x: Any) -> Any:
        """A sum of products."""
        return Tensor.einsum(pattern, *x)


# A class is found only as long as somebody has it.
MADE: list[type] = []


def imported(backends: ModuleType) -> None:
    """Lets einops find our class; the core calls this when the module of backends has run."""
    MADE.append(type("AsterBackend", (Methods, backends.AbstractBackend), {}))
