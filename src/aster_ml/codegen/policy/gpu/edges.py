"""Pads axes to a multiple of the tile and masks the steps beyond their end.

Receives a kernel and an axis of it; applies the Opt. How an axis is split afterwards is decided by
`heuristic` and `block_tiles`.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of


def fill_up(kernel: Kernel, r: UOp, n: int) -> None:
    """Pads an axis to a multiple of `n`; steps beyond its end are masked."""
    if size_of(r) % n:
        apply(kernel, Opt(OptOps.SPLIT, axis_name(r), n, how="mask"))


def is_at_least(r: UOp, n: int) -> bool:
    """Whether the size of an axis is a constant of at least `n`."""
    return r.src[0].op is Ops.CONST and size_of(r) >= n
