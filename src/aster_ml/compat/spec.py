"""Gives the specification of nodes as a table of rules, each True or False for a node of its op.

Rows are those of `uop.spec.tables`; what both stages allow a node to be is in `shared_spec`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from aster_ml.compat.patterns import PatternMatcher, UPat
from aster_ml.extend import KERNEL_SPEC, TENSOR_SPEC
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def keeps_rows(rows: tuple[Any, ...], x: UOp) -> bool:
    """Whether a node keeps the rules of its op."""
    return all([bool(keeps(x)) for _, keeps in rows])


def matcher(table: Mapping[Ops, tuple[Any, ...]]) -> PatternMatcher:
    """A table of the specification as rules."""
    return PatternMatcher(
        [(UPat(op, name="x"), functools.partial(keeps_rows, rows)) for op, rows in table.items()]
    )


tensor_spec = matcher(TENSOR_SPEC)
kernel_spec = matcher(KERNEL_SPEC)
shared_spec = matcher({op: rows for op, rows in TENSOR_SPEC.items() if op in KERNEL_SPEC})
