"""Edges of blocks: axes that grow to a multiple, whose steps behind the end are masked.

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
    """Lets a number divide an axis: what is behind its end is masked."""
    if size_of(r) % n:
        apply(kernel, Opt(OptOps.SPLIT, axis_name(r), n, how="mask"))


def is_at_least(r: UOp, n: int) -> bool:
    """Whether the size of an axis is a number, and not below this one."""
    return r.src[0].op is Ops.CONST and size_of(r) >= n
