"""Defines the operations that UOp and Tensor share, and those of Tensor alone, by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from aster_ml.tensor import Tensor

# The type of the tensor that a function is a method of; the modules of this package define methods
# as functions, and `ops.operations` attaches them.
Self = TypeVar("Self", bound="Tensor")
