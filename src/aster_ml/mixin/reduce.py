"""Reduction vocabulary shared by UOp and Tensor, all over the one primitive `rop`."""

from __future__ import annotations

from typing import Self

from aster_ml.uop.ops import Ops


class ReduceMixin:
    """Fewer values out of many."""

    __slots__ = ()

    def rop(self, op: Ops, axes: tuple[int, ...]) -> Self:
        """`axes` folded with `op`; they stay, with size 1."""
        raise NotImplementedError
