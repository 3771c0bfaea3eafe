"""The specification of nodes as a table of rules, each True or False for a node of its op.

Rows are those of `uop.spec_tables`; what both stages allow a node to be is in `shared_spec`.
"""

from __future__ import annotations

import functools
from typing import Any

from aster_ml.compat.patterns import PatternMatcher, UPat
from aster_ml.uop import spec_rows, spec_tables
from aster_ml.uop.node import UOp


def keeps_rows(rows: tuple[Any, ...], x: UOp) -> bool:
    """Whether a node keeps the rules of its op."""
    return all([bool(keeps(x)) for _, keeps in rows])


def matcher(table: spec_rows.Table) -> PatternMatcher:
    """A table of the specification as rules."""
    return PatternMatcher(
        [(UPat(op, name="x"), functools.partial(keeps_rows, rows)) for op, rows in table.items()]
    )


tensor_spec = matcher(spec_tables.TENSOR)
kernel_spec = matcher(spec_tables.KERNEL)
shared_spec = matcher(
    {op: rows for op, rows in spec_tables.TENSOR.items() if op in spec_tables.KERNEL}
)
