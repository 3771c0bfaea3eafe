"""Records how each value is read, and what is materialized.

`Reading` and `Materialized` pass between the two walks of `schedule/fusion/materialize.py`. Plain
functions of nodes and ranges; what depends on a whole body is in `schedule/fusion/body.py`.
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
# Stands for indices that are data: any element may be read.
DATA_DEPENDENT: Indices = (UOp.index_const(-1),) * 99
LEAVES = frozenset({Ops.PARAM, Ops.CONST, Ops.DEFINE_VAR, Ops.IOTA, Ops.DEVICE, Ops.SINK})
MARKS = (Ops.DETACH, Ops.CONTIGUOUS_BACKWARD)
VIEWS_OF_MEMORY = frozenset({*MARKS, Ops.AFTER, Ops.RESHAPE, Ops.CONTIGUOUS})
# Values that already are memory or make none worth sharing: an output of them is a copy.
READ_IN_PLACE = frozenset({Ops.PARAM, Ops.CONST, Ops.AFTER, *MOVEMENT, Ops.DETACH})


class AccessPath:
    """Path of a read, whoever reads: at `idxs`, where `valid` holds.

    `nest` are the ranges of all loops around the reading, which take so many `turns`. `summed` says
    that a sum reads it through nothing but movement. Of so many turns of the loops as `share` says,
    one reads it: the others have what lies beside it in a stack. A body (`Body.way`) has one object
    for equal ways, and layers that are alike read in the same ones.
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
        # Once asked for: the ranges that it depends on, whether its indices are too long, and the
        # way in which a scalar beside the value is read.
        self.used: frozenset[UOp] | None = None
        self.is_long: bool | None = None
        self.of_scalar: AccessPath | None = None


class Reading:
    """Read of a node by the stored value `root`, in a way, after some STOREs.

    A body (`Body.reading`) has one object for equal readings.
    """

    __slots__ = ("after", "root", "way")

    def __init__(self, root: UOp, way: AccessPath, after: tuple[UOp, ...]) -> None:
        self.root, self.way, self.after = root, way, after


class Use:
    """A node at one of its readings: the uses of its sources that make it, and its expression.

    Whoever makes one gives it its `reading` and `below`; the walk up its `value`.
    """

    __slots__ = ("below", "reading", "value")
    reading: Reading
    below: tuple[Use, ...]
    value: UOp


@dataclass
class Materialized:
    """A value with memory: `value` over `ranges`; where it goes, and what it must wait for.

    `target` is the STORE of the body that names the memory, or None for a temporary.
    """

    node: UOp
    ranges: tuple[UOp, ...]
    target: UOp | None = None
    # How it is made of its sources, over its ranges; None of what no kernel makes.
    use: Use | None = None
    value: UOp | None = None
    outer: frozenset[UOp] = frozenset()
    size: int = 0
    has_reduce: bool = False
    # Its axes as they lie in memory, the outermost first, where that is not their own order.
    layout: tuple[int, ...] | None = None


def estimate(size: int | UOp) -> int:
    """A size as a number; of a symbolic one, its largest."""
    return size if isinstance(size, int) else int(size.vmax)


def reach_of_columns(outputs: Sequence[UOp], used: frozenset[UOp]) -> int:
    """Elements between the first and the last of what loops outside of `used` run over.

    Where the last axis of the outputs is one of `used` these go down columns; else 0.
    """
    ranges = [r for r in outputs if r.op is Ops.RANGE]
    if not ranges or ranges[-1] not in used:
        return 0
    first = next((i for i, r in enumerate(ranges) if r not in used), len(ranges))
    return iterations(ranges[first:]) if first < len(ranges) else 0


def kept_in(flat: UOp, size: int) -> UOp | None:
    """The condition under which a place lies inside of memory, where a variable may put it outside.

    Places that loaded numbers decide are theirs to keep inside.
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
    """A leaf of an expression that stands for memory: which, its owner knows."""
    return UOp(Ops.PARAM, dtype, (), ParamArg(number, size, "memory"))


def next_leaf(leaves: Iterable[UOp], size: int, dtype: DType) -> UOp:
    """A leaf beside these, which has the next number."""
    return memory_leaf(max([leaf.arg.slot for leaf in leaves], default=-1) + 1, size, dtype)


def changes_width(u: UOp) -> bool:
    """Whether a BITCAST changes the number of elements."""
    return u.dtype.itemsize != u.src[0].dtype.itemsize


def without_effects(u: UOp) -> UOp:
    """A view of memory without the effects that it has to see; anything else as it is."""
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
