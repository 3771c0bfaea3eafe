"""Marks results of operations that leave their operand as it is: values of their own.

Receives and returns values of any kind. For nodes, which nothing changes, that is the operand
itself; tensors, which may be written to, have their own answer (`mixin.handle`).
"""

from __future__ import annotations

from typing import Self


class OwnMixin:
    """The same elements, apart."""

    __slots__ = ()

    def _own(self) -> Self:
        """The same elements, as a value that no write to those of self changes."""
        return self
