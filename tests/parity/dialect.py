"""Names of the reference's low-level node API: one namespace of ops, tables of rules, programs.

Adapters over `aster_ml.compat` and Aster's own simplifier and code generator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aster_ml.compat.dialect import Dialect
from aster_ml.uop.ops import Ops as OwnOps


class OpsMeta(type):
    """Looks a name up among Aster's ops, then in the dialect."""

    def __getattr__(cls, name: str) -> Any:
        for table in (OwnOps, Dialect):
            if name in table.__members__:
                return table[name]
        raise AttributeError(name)

    def __iter__(cls) -> Iterator[Any]:
        return iter([*OwnOps, *Dialect])

    def __instancecheck__(cls, op: Any) -> bool:
        return isinstance(op, (OwnOps, Dialect))


class Ops(metaclass=OpsMeta):
    """Aster's ops and those of the dialect under one name."""
