"""Movement vocabulary shared by UOp and Tensor, all over the one primitive `mop`."""

from __future__ import annotations

from typing import Any, Self

from aster_ml.helpers import argfix, prod
from aster_ml.uop.ops import Ops


class MovementMixin:
    """The same elements under other indices."""

    __slots__ = ()

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes, outermost first."""
        raise NotImplementedError

    def mop(self, op: Ops, arg: Any) -> Self:
        """The movement node `op` with a complete, checked argument."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numel(self) -> Any:
        """Number of elements."""
        return prod(self.shape)
