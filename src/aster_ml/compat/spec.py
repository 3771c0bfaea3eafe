"""The specification of nodes as a table of rules, each True or False for a node of its op.

Rows are those of `uop.spec.tables`; what both stages allow a node to be is in `shared_spec`.
"""

from __future__ import annotations

import functools
from typing import Any

from aster_ml.compat.patterns import PatternMatcher, UPat
from aster_ml.uop.node import UOp
from aster_ml.uop.spec import rows, tables


def keeps_rows(rows: tuple[Any, ...], x: UOp) -> bool:
    """Whether a node keeps the rules of its op."""
    return all([bool(keeps(x)) for _, keeps in rows])


def matcher(table: rows.Table) -> PatternMatcher:
    """A table of the specification as rules."""
    return PatternMatcher(
        [(UPat(op, name="x"), functools.partial(keeps_rows, rows)) for op, rows in table.items()]
    )


tensor_spec = matcher(tables.TENSOR)
kernel_spec = matcher(tables.KERNEL)
shared_spec = matcher({op: rows for op, rows in tables.TENSOR.items() if op in tables.KERNEL})
