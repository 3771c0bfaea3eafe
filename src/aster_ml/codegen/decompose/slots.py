"""Counts the instructions of an op on a Target by the arithmetic that replaces it.

Receives nodes and a Target; returns instructions for one element. `decompose/ops` replaces ops;
nothing is replaced here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from aster_ml.codegen.decompose.ops import decompose
from aster_ml.dtype import DType, dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops

# Ops that a processor may lack and that become many others.
LONG = frozenset({Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.TANH, Ops.POW, Ops.THREEFRY})


def slots_of(u: UOp, target: Target) -> int:
    """Instructions of a node for each element: 1, or those that `decompose` makes of it."""
    if u.op not in LONG or target.has_op(u.op.name):
        return 1
    sources = tuple([s if s.op is Ops.CONST else s.dtype for s in u.src])
    return counted(u.op, u.dtype, u.arg, sources, target)


@functools.lru_cache(maxsize=256)
def counted(
    op: Ops, dtype: DType, arg: Any, sources: tuple[UOp | DType, ...], target: Target
) -> int:
    """`slots_of` by op, dtypes and arg; constant sources are given as nodes."""
    place = UOp.index_const(0)
    values = [
        s if isinstance(s, UOp) else UOp.param(i, 1, s).index(place).load()
        for i, s in enumerate(sources)
    ]
    store = UOp.param(len(sources), 1, dtype).index(place).store(UOp(op, dtype, tuple(values), arg))
    nodes = toposort(decompose(UOp.sink(store), target))
    return sum([u.op in ELEMENTWISE and u.dtype is not dtypes.index for u in nodes])


def more_slots(nodes: Iterable[UOp], target: Target) -> int:
    """Counts the instructions of these nodes beyond one each."""
    return sum([slots_of(u, target) - 1 for u in nodes if u.op in LONG])


def takes_long(u: UOp, target: Target) -> bool:
    """Whether the target lacks the op of a node, and many instructions replace it."""
    return u.op in LONG and not target.has_op(u.op.name)
