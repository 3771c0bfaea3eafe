"""Bounds how much code a loop body has, on every kind of machine."""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import Fragments
from aster_ml.helpers import prod
from aster_ml.uop.ops import VALUES, Ops

# Most nodes times lane instances in one loop body: keeps compile time and registers in hand. Of
# what is written out because it has to be, and in a search, there may be four times as many.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_BODY = 512


def is_small(kernel: Kernel) -> bool:
    """Whether the loop body stays within bounds; lanes of a tensor core are few instructions."""
    if kernel.plan(Fragments) is not None:
        return True
    nodes = kernel.facts.order
    lanes = [int(r.src[0].vmax) for r in nodes if r.op is Ops.RANGE and r.arg.kind.is_lane]
    work = sum(1 for u in nodes if u.op in VALUES)
    return bool(prod(lanes) // max(lanes, default=1) * work <= 4 * MAX_BODY)
