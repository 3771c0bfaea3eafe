"""Records how each value is read, and what is materialized.

`Reading` and `Materialized` pass between the two walks of `schedule/fusion/materialize.py`.
Functions here depend on nodes and ranges only; `schedule/fusion/body.py` knows the whole body.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aster_ml.dtype import DType
from aster_ml.uop.graph import toposort
from aster_ml.uop.movement import Indices, both
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import MOVEMENT, Ops, ParamArg
from aster_ml.uop.ranges import iterations

ZERO = UOp.index_const(0)
# Indices that depend on data: any element may be read.
DATA_DEPENDENT: Indices = (UOp.index_const(-1),) * 99
LEAVES = frozenset({Ops.PARAM, Ops.CONST, Ops.DEFINE_VAR, Ops.IOTA, Ops.DEVICE, Ops.SINK})
MARKS = (Ops.DETACH, Ops.CONTIGUOUS_BACKWARD)
VIEWS_OF_MEMORY = frozenset({*MARKS, Ops.AFTER, Ops.RESHAPE, Ops.CONTIGUOUS})
# Values that are memory, or too cheap to share: an output of them is a copy.
READ_IN_PLACE = frozenset({Ops.PARAM, Ops.CONST, Ops.AFTER, *MOVEMENT, Ops.DETACH})


class AccessPath:
    """Path of a read: at `idxs`, where `valid` holds.

    `nest` are the ranges of all loops around the read, with `turns` iterations in total. `summed`
    says that a sum reads it through movement ops only. One in `share` iterations reads it; the
    others read its neighbours in a stack. A body (`Body.way`) has one object for equal paths, which
    equal layers share.
    """

    __slots__ = (
        "idxs",
        "is_long",
        "nest",
        "of_scalar",
        "share",
        "summed",
        "turns",
        "used",
        "valid",
    )

    def __init__(
        self,
        idxs: Indices,
        valid: UOp | None,
        nest: tuple[UOp, ...],
        summed: bool,
        share: int,
        turns: int,
    ) -> None:
        self.idxs, self.valid, self.nest = idxs, valid, nest
        self.summed, self.share, self.turns = summed, share, turns
        # Cached: the ranges that it depends on, whether its indices are too long, and the path of a
        # scalar operand beside the value.
        self.used: frozenset[UOp] | None = None
        self.is_long: bool | None = None
        self.of_scalar: AccessPath | None = None


class Reading:
    """Read of a node by the stored value `root`, along a path, after some STOREs.

    A body (`Body.reading`) has one object for equal readings.
    """

    __slots__ = ("after", "root", "way")

    def __init__(self, root: UOp, way: AccessPath, after: tuple[UOp, ...]) -> None:
        self.root, self.way, self.after = root, way, after


class Use:
    """A node at one of its readings: the uses of its sources (`below`), and its expression.

    The downward walk sets `reading` and `below`, the upward walk `value`.
    """

    __slots__ = ("below", "reading", "value")
    reading: Reading
    below: tuple[Use, ...]
    value: UOp


@dataclass
class Materialized:
    """A stored value: the expression `value` over `ranges`, its memory, and what it waits for.

    `target` is the STORE of the body that names the memory, or None for a temporary.
    """

    node: UOp
    ranges: tuple[UOp, ...]
    target: UOp | None = None
    # Its use of its sources, over its ranges; None where no kernel computes it.
    use: Use | None = None
    value: UOp | None = None
    outer: frozenset[UOp] = frozenset()
    size: int = 0
    has_reduce: bool = False
    # The order of its axes in memory, outermost first, where it differs from their own.
    layout: tuple[int, ...] | None = None


def estimate(size: int | UOp) -> int:
    """A size as a number; of a symbolic one, its largest."""
    return size if isinstance(size, int) else int(size.vmax)


def reach_of_columns(outputs: Sequence[UOp], used: frozenset[UOp]) -> int:
    """Elements spanned by the loops outside of `used`, which go down columns.

    0 unless the last axis of the outputs is in `used`.
    """
    ranges = [r for r in outputs if r.op is Ops.RANGE]
    if not ranges or ranges[-1] not in used:
        return 0
    first = next((i for i, r in enumerate(ranges) if r not in used), len(ranges))
    return iterations(ranges[first:]) if first < len(ranges) else 0


def kept_in(flat: UOp, size: int) -> UOp | None:
    """The bounds check of an offset that a variable may put out of bounds; else None.

    Offsets that depend on loaded numbers are not checked here.
    """
    if flat.vmin >= 0 and flat.vmax < size:
        return None
    order = toposort(flat)
    if not any([u.op is Ops.DEFINE_VAR for u in order]) or any([u.op is Ops.LOAD for u in order]):
        return None
    above = None if flat.vmin >= 0 else index_alu(Ops.CMPLT, UOp.index_const(-1), flat)
    below = None if flat.vmax < size else index_alu(Ops.CMPLT, flat, UOp.index_const(size))
    return both(above, below)


def memory_leaf(number: int, size: int, dtype: DType) -> UOp:
    """A leaf of an expression that stands for memory, which its owner maps to a slot."""
    return UOp(Ops.PARAM, dtype, (), ParamArg(number, size, "memory"))


def next_leaf(leaves: Iterable[UOp], size: int, dtype: DType) -> UOp:
    """A leaf with the number after these."""
    return memory_leaf(max([leaf.arg.slot for leaf in leaves], default=-1) + 1, size, dtype)


def changes_width(u: UOp) -> bool:
    """Whether a BITCAST changes the number of elements."""
    return u.dtype.itemsize != u.src[0].dtype.itemsize


def without_effects(u: UOp) -> UOp:
    """A view of memory without the effects before it; any other node as it is."""
    views: list[UOp] = []
    x = u
    while x.op in MOVEMENT or x.op is Ops.AFTER:
        if x.op is not Ops.AFTER:
            views.append(x)
        x = x.src[0]
    if x.op is not Ops.PARAM:
        return u
    for v in reversed(views):
        x = v.replace(src=(x, *v.src[1:]))
    return x
