"""Carries options beside a body: who shares its kernels, how plain it shall be.

Receives settings of the caller; the numbers that outputs turned out to be are kept here on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


class Workers(NamedTuple):
    """Number of workers of a device, the elements from which on a second kernel pays, and
    the results beyond which a kernel can be shared out over them.

    `buffers` are the most that a kernel may have, `nested` the most steps of sums inside of another
    one for each of its results, and `turns` the most that any one sum may have: 0 where there is
    no limit. `chained` names the dtypes of which a tensor core multiplies the result of a product
    by another operand without storing it, `units` are processors of which each computes a tile of
    a product, 0 where that is not known.
    """

    number: int
    least: int
    results: int
    buffers: int = 0
    chained: frozenset[str] = frozenset()
    nested: int = 0
    turns: int = 0
    units: int = 0


WorkersOf = Callable[[str], Workers]


def devices_of(order: Iterable[UOp], workers: WorkersOf) -> dict[str, Workers]:
    """Who shares kernels of each device that has memory among these nodes."""
    names = {u.arg.device for u in order if u.op is Ops.PARAM}
    names |= {str(u.device) for u in order if u.op is Ops.COPY}
    return {name: workers(name) for name in names if name}


class Plainness(IntEnum):
    """Levels of planning: as it is done first; without rewrites, merged kernels and runs, which
    only make a schedule faster; and without fused reductions and numbers known beforehand, too.
    """

    FULL = 0
    PLAIN = 1
    PLAINEST = 2


@dataclass
class Work:
    """`workers` says how many share a kernel of a device, `devices` the same of those of a body;
    `plain` is one of `Plainness`.

    `numbers` are outputs that are one number everywhere, by the argument that they are written to.
    """

    workers: WorkersOf
    plain: int = 0
    devices: dict[str, Workers] = field(default_factory=dict)
    numbers: dict[int, Any] = field(default_factory=dict)
