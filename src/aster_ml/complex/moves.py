"""Reshapes and reorders complex tensors, each part by itself.

Receives shapes, axes, places; returns complex tensors of the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from aster_ml import Tensor
from aster_ml.complex.linalg import ComplexLinalg


class ComplexMoves(ComplexLinalg):
    """Moving."""

    __slots__ = ()

    def each(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Applies a linear function of real tensors to each part."""
        return self.made(function(self.real), function(self.imag))

    def reshape(self, *shape: Any) -> Self:
        """The same elements in another shape."""
        return self.each(lambda part: part.reshape(*shape))

    def permute(self, *order: Any) -> Self:
        """Axes in another order."""
        return self.each(lambda part: part.permute(*order))

    def transpose(self, dim0: int = 1, dim1: int = 0) -> Self:
        """Two axes exchanged."""
        return self.each(lambda part: part.transpose(dim0, dim1))

    @property
    def T(self) -> Self:
        """The last two axes exchanged, as of Tensor."""
        return self.each(lambda part: part.T)

    @property
    def mT(self) -> Self:
        """The last two axes exchanged, without the conjugate."""
        return self.transpose(-2, -1)

    def flip(self, *axis: Any) -> Self:
        """Elements in reverse along axes."""
        return self.each(lambda part: part.flip(*axis))

    def roll(self, shifts: Any, dims: Any = None) -> Self:
        """Elements shifted along axes, those that leave coming in at the other end."""
        if dims is None:
            return self.each(lambda part: part.roll(shifts))
        return self.each(lambda part: part.roll(shifts, dims))

    def squeeze(self, dim: int | None = None) -> Self:
        """Without axes of size 1."""
        return self.each(lambda part: part.squeeze(dim))

    def unsqueeze(self, dim: int) -> Self:
        """With a new axis of size 1."""
        return self.each(lambda part: part.unsqueeze(dim))

    def expand(self, *shape: Any) -> Self:
        """Axes of size 1 repeated."""
        return self.each(lambda part: part.expand(*shape))

    def pad(self, padding: Sequence[Any]) -> Self:
        """Zeros around, as `Tensor.pad` has them."""
        return self.each(lambda part: part.pad(padding))

    def to(self, device: Any) -> Self:
        """The same elements on another device."""
        return self.each(lambda part: part.to(device))

    def contiguous(self) -> Self:
        """Parts in memory of their own."""
        return self.each(lambda part: part.contiguous())

    def detach(self) -> Self:
        """The same values, through which no gradient passes."""
        return self.each(lambda part: part.detach())


# Methods of Tensor that only move elements, or add them up: each part by itself.
PART_METHODS = (
    "_broadcast_to", "clone", "cumsum", "diagonal", "flatten", "gather", "masked_select", "ravel",
    "repeat", "repeat_interleave", "shrink", "swapaxes", "tril", "triu", "view",
)  # fmt: skip


def by_parts(name: str) -> Callable[..., ComplexMoves]:
    """A method that applies that of Tensor to each part."""

    def method(self: ComplexMoves, *args: Any, **keywords: Any) -> ComplexMoves:
        return self.each(lambda part: getattr(part, name)(*args, **keywords))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"As `Tensor.{name}`, of each part."
    return method


for part_method in PART_METHODS:
    setattr(ComplexMoves, part_method, by_parts(part_method))
