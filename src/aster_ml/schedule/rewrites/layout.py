"""Chooses the memory layout of a stored value: the order of its axes, by how it is read.

Receives all access paths of a stored value; returns the order of its axes, outermost first, or None
for row-major order. Only temporaries whose memory no step takes as a contiguous run have another
order.

rewrite: [.., channel, row, column], stored as it is -> [.., row, channel, column]
when: each reading sums over channels, and over windows that slide along rows; and the rows of one
channel fill two pages of memory
why: a window is then a few runs of memory; in row-major order each channel of a window is on a page
of its own, and kernels copy it to scratch (docs/explanation/tuning/convolutions.md)
"""

from __future__ import annotations

from collections.abc import Iterable

from aster_ml.helpers import all_int, prod
from aster_ml.schedule.fusion.uses import AccessPath
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations

# Channels of fewer pages gain nothing. Measured: on one and two threads of a Zen 4, 2026-11-23
# (docs/explanation/tuning/convolutions.md).
PAGES = 2


def order_of_axes(u: UOp, ways: Iterable[AccessPath]) -> tuple[int, ...] | None:
    """The order of the axes of `u` for these reads; None for row-major, or if reads differ."""
    shape = u.shape
    if len(shape) < 3 or not all_int(shape):
        return None
    first, *others = {tuple(map(role_of, way.idxs)) for way in ways}
    last = len(shape) - 1
    windows = [a for a in range(last) if first[a] == "window"]
    summed = [a for a in range(max(windows, default=0)) if first[a] == "sum"]
    if others or not windows or not summed or first[last] == "sum":
        return None
    if prod([shape[a] for a in (*windows, last)]) * u.dtype.itemsize < PAGES * ASSUMED.page_nbytes:
        return None
    around = [a for a in range(last) if a not in windows and a not in summed]
    order = (*around, *windows, *summed, last)
    return None if order == tuple(range(len(shape))) else order


def role_of(idx: UOp) -> str:
    """Role of an axis in a read: "sum" over it, or over a "window" that results move."""
    sums = [r for r in idx.ranges if r.arg.kind is AxisType.REDUCE]
    if idx.op is Ops.RANGE:
        return "sum" if sums else "along"
    moved = [r for r in idx.ranges if r.arg.kind is not AxisType.REDUCE]
    return "window" if sums and iterations(sums) < iterations(moved) else "along"
