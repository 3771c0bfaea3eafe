"""Keeps what is known of each node while its kernel is written, numbers among it.

Receives nodes of the linear stage. Writes no text.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aster_ml.config import EXACT
from aster_ml.dtype import DType
from aster_ml.renderer.lanes import Lanes, instances, size_of, split_lanes
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, ReduceArg

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
DTYPE_OF, KIND_OF = operator.attrgetter("dtype"), operator.attrgetter("kind")
ADD, AFTER, AND, MUL, OR, XOR = Ops.ADD, Ops.AFTER, Ops.AND, Ops.MUL, Ops.OR, Ops.XOR
# A value while it is written: text of the language, or a number that is known (a tuple of numbers
# for a SIMD value whose elements differ).
Value = Any
# Writer, dtype and width of the result, text of the operands, the node (None inside of a fold).
Rule = Callable[[Any, DType, int, list[str], "UOp | None"], str]


class Shape(NamedTuple):
    """The lanes of a value that are written out, the SIMD lane, its width, and how many instances.

    Many values of a kernel share one.
    """

    lanes: Lanes
    vector: UOp | None
    width: int
    instances: int


def shape_over(ranges: Sequence[UOp]) -> Shape:
    """The shape of a value with these lanes, in this order."""
    lanes, vector = split_lanes(ranges)
    return Shape(lanes, vector, 1 if vector is None else size_of(vector), instances(lanes))


class Cell:
    """State of one node while its kernel is written.

    `lanes` are written out, `width` is that of the SIMD lane; `values` has one entry an instance.
    `inputs` are the cells of the sources, each with the instance that each of ours reads.
    """

    __slots__ = ("base", "carried", "consumer", "count", "depth", "dtype", "fused", "gate",
                 "inputs", "lanes", "offsets", "op", "place", "splats", "spread", "step",
                 "u", "unit", "uses", "value", "values", "vector", "width")  # fmt: skip

    def __init__(self, u: UOp, shape: Shape) -> None:
        self.u = u
        self.op = u.op
        self.dtype = u.dtype
        self.lanes, self.vector, self.width, self.count = shape
        self.values: list[Value] = [None] * self.count
        self.inputs: list[Input] = []
        # How many nodes read it, the last of them (no Cell, which would hold this one and be held
        # by it), and how many loops it stands in.
        self.uses = 0
        self.consumer: UOp | None = None
        self.depth = 0
        # The widths in which SIMD consumers read this scalar, and the SIMD values made for them.
        self.spread: set[int] = set()
        self.splats: dict[tuple[int, int], str] = {}
        # Of a MUL: its only use is an accumulation, which takes both factors.
        self.fused = False
        # Of a loop: the accumulators that its body changes.
        self.carried: dict[Cell, None] = {}
        # Of an access: the buffer, the base, the offset of each instance, what one step of the
        # SIMD lane adds (None when the base itself changes with it), the gate, the stored value.
        self.place: UOp | None = None
        self.base: Input | None = None
        self.offsets: list[int] = []
        self.step: int | None = 0
        # Elements of the buffer that one of ours is: several of a word.
        self.unit = 1
        self.gate: Input | None = None
        self.value: Input | None = None


Input = tuple[Cell, "list[int] | None"]
# A cell and which of its values.
Instance = tuple[Cell, int]


class Address:
    """Elements of a buffer: `base + offset`; the base is text of the language or None."""

    __slots__ = ("base", "base_node", "offset", "place")

    def __init__(self, place: UOp, base: str | None, base_node: UOp | None, offset: int) -> None:
        self.place = place
        self.base = base
        self.base_node = base_node
        self.offset = offset


def strip_after(u: UOp) -> UOp:
    """The node that AFTER marks, which is read at the same point."""
    while u.op is AFTER:
        u = u.src[0]
    return u


def fold_op(u: UOp) -> Ops:
    """The op by which an ACCUMULATE or REDUCE folds."""
    return u.arg.op if isinstance(u.arg, ReduceArg) else u.arg


def chosen_inputs(c: Cell, k: int) -> list[Input]:
    """Lists what instance `k` of a WHERE reads: its condition; where that is known, one source."""
    d, m = c.inputs[0]
    condition = d.values[k if m is None else m[k]]
    if condition is None:
        return c.inputs[:1]
    if condition.__class__ is not bool:
        return c.inputs
    return c.inputs[1:2] if condition else c.inputs[2:]


def fold(c: Cell, values: list[Value]) -> Value:
    """The value of an integer op whose operands are known; None for other ops."""
    dts = [*map(DTYPE_OF, c.u.src)]
    if "float" in map(KIND_OF, dts):
        return None
    if c.width == 1 or tuple not in map(type, values):
        return evaluate(c.op, c.dtype, tuple(values), dts)
    rows = [v if v.__class__ is tuple else (v,) * c.width for v in values]
    return tuple([evaluate(c.op, c.dtype, row, dts) for row in zip(*rows, strict=True)])


def simplify(c: Cell, values: list[Value]) -> Value:
    """One operand, or a constant, where known numbers make it the result; else None."""
    op = c.op
    if len(values) != 2:
        return None
    if c.u.src[0].dtype.kind == "float":
        # What is 0 in a lane because something else is chosen in it; -0.0 + 0 is 0.0.
        neutral = op is ADD and 0 in values and not EXACT
        return values[1 - values.index(0)] if neutral else None
    x, y = values
    if x.__class__ is tuple or y.__class__ is tuple:
        return None
    known, other = (x, y) if y.__class__ is str else (y, x)
    if op in (ADD, OR, XOR) and known == 0:
        return other
    if op in (MUL, AND):
        if known == 0:
            return known
        if known == 1 and (op is MUL or c.dtype.kind == "bool"):
            return other
    if op is OR and known is True:
        return True
    return x if known is y and NEUTRAL.get(op) == known else None


# What changes nothing as the second operand of an op, and not as the first.
NEUTRAL = {Ops.SUB: 0, Ops.SHL: 0, Ops.SHR: 0, Ops.IDIV: 1}
