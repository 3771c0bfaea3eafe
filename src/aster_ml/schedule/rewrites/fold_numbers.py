"""Folds constants on whole tensors.

Receives bodies of tensors; returns bodies with constants folded and neutral operands removed.
Outputs that are one number everywhere are listed separately: they need no kernel, and no memory
until their bytes are read.

Rules are right for NaN, infinities, the sign of zeros and wrapping integers, except two: x * 0 is 0
for a literal 0, as in the reference, and x + 0 is x, although -0.0 + 0 is 0.0. EXACT=1 disables
these two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aster_ml.config import EXACT
from aster_ml.dtype import dtypes
from aster_ml.helpers import all_int, prod
from aster_ml.schedule.work import Work
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, BodyArg, DeviceArg, Ops

# Ops of a number that are the same number.
PASSING = (MOVEMENT - {Ops.PAD}) | {Ops.DETACH, Ops.CONTIGUOUS_BACKWARD}
# Ops of values that read no memory, and the number of nodes that are searched.
NUMBERS_ALONE = PASSING | ELEMENTWISE | {Ops.CONST, Ops.DEVICE}
FEW = 16
# Globals are faster to look up than members of an Enum, and every node is tested for its op.
BITCAST, CONST, MUL, NEG = Ops.BITCAST, Ops.CONST, Ops.MUL, Ops.NEG
COMMUTING = frozenset({Ops.ADD, Ops.MUL, Ops.AND, Ops.OR, Ops.XOR, Ops.MAX})


class Folder:
    """State of folding one body."""

    def __init__(self) -> None:
        self.new: dict[UOp, UOp] = {}
        # Node that is one number everywhere -> the number.
        self.number: dict[UOp, Any] = {}

    def add(self, u: UOp) -> None:
        """Folds the next node; its sources come before it."""
        made, op, src, number, new = u, u.op, u.src, self.number, self.new
        for s in src:
            if new[s] is not s:
                made = UOp(op, u.dtype, tuple(map(new.__getitem__, src)), u.arg)
                break
        if op in PASSING:
            value = number.get(made.src[0])
            if value is not None:
                number[made] = value
        elif src and made not in number:
            made = self.folded_alu(made) if op in ELEMENTWISE else self.folded(made)
        new[u] = made
        if made.op is CONST and made.dtype is not dtypes.index:
            number[made] = made.arg

    def folded(self, u: UOp) -> UOp:
        """A simpler node for the value of a node that is not elementwise."""
        op = u.op
        if op is Ops.PAD:
            self.note_padded(u)
        elif op is Ops.REDUCE:
            return self.folded_reduce(u)
        elif op is Ops.COPY and u.src[0] in self.number:
            return self.spread(u, self.number[u.src[0]])
        return u

    def spread(self, u: UOp, value: Any) -> UOp:
        """The number in the shape and on the device of `u`."""
        made = number_like(u, value)
        self.number[made] = value
        return made

    def folded_alu(self, u: UOp) -> UOp:
        """Folds an elementwise node of numbers, or with a neutral operand."""
        op, number, src = u.op, self.number, u.src
        if u.dtype is dtypes.index or src[0].dtype is dtypes.index:
            return u
        if op is BITCAST and u.dtype.itemsize != src[0].dtype.itemsize:
            return u
        if op is NEG or op is MUL:
            inner = self.negated(u)
            if inner is not None:
                again = self.negated(inner)
                if again is not None and stands_for(again, u):
                    return again
        known = 0
        for s in src:
            known += s in number
        if known == len(src):
            if all_int(u.shape):
                found = self.value_of(u)
                if found is not None:
                    return self.spread(u, found)
            return u
        if known or len(set(src)) < len(src):
            kept = self.kept(u)
            if kept is None:
                return u
            if kept.__class__ is UOp:
                return kept if stands_for(kept, u) else u
            return self.spread(u, kept) if all_int(u.shape) else u
        return u

    def value_of(self, u: UOp) -> Any:
        """The value of an elementwise node of numbers."""
        operands = tuple([self.number[s] for s in u.src])
        if u.op in (Ops.IDIV, Ops.MOD) and operands[1] == 0:
            return None
        return evaluate(u.op, u.dtype, operands, [s.dtype for s in u.src])

    def negated(self, u: UOp) -> UOp | None:
        """Finds the value of which `u` is the negative."""
        if u.op is NEG:
            return u.src[0]
        if u.op is MUL:
            for i in (0, 1):
                if self.number.get(u.src[i]) == -1 and dtypes.min(u.dtype) < 0:
                    return u.src[1 - i]
        return None

    def kept(self, u: UOp) -> Any:
        """The source or number that a node is equal to, or None."""
        if u.op is Ops.WHERE:
            condition = self.number.get(u.src[0])
            if condition is not None:
                return u.src[1] if condition else u.src[2]
            return u.src[1] if u.src[1] is u.src[2] else None
        if len(u.src) != 2:
            return None
        x, y = u.src
        whole = x.dtype.kind != "float"
        if x is y:
            if u.op in (Ops.SUB, Ops.XOR) and whole:
                return 0
            return x if u.op in (Ops.AND, Ops.OR, Ops.MAX) else None
        rule = RIGHT.get(u.op)
        if y in self.number:
            return None if rule is None else rule(u, x, self.number[y], whole)
        if u.op in COMMUTING and rule is not None:
            return rule(u, y, self.number[x], whole)
        return 1 if u.op is Ops.POW and self.number[x] == 1 else None

    def note_padded(self, u: UOp) -> None:
        """Notes a PAD of a number that is the same number: a zero, or without padding."""
        value = self.number.get(u.src[0])
        if value is not None and (is_zero(value) or all([p == (0, 0) for p in u.marg])):
            self.number[u] = value

    def folded_reduce(self, u: UOp) -> UOp:
        """Folds a reduction of a number, and removes padding from a sum."""
        x, axes = u.src[0], u.arg.axes
        if u.arg.op is Ops.ADD and x.op is Ops.PAD and all_int(x.shape):
            pads = x.marg
            rest = tuple([(0, 0) if i in axes else p for i, p in enumerate(pads)])
            if rest != pads:
                x = x.src[0]
                if any([p != (0, 0) for p in rest]):
                    x = x._mop(Ops.PAD, rest)
                    self.note_padded(x)
                u = UOp(Ops.REDUCE, u.dtype, (x, *u.src[1:]), u.arg)
        if x not in self.number or not all_int(x.shape) or 0 in x.shape:
            return u
        count = prod([x.shape[a] for a in axes])
        value = repeated(u, self.number[x], count)
        return u if value is None else self.spread(u, value)


def number_of(root: UOp) -> Any:
    """Evaluates a small expression of numbers, equal everywhere; None for any other value."""
    found: dict[UOp, None] = {}
    stack = [root]
    while stack:
        u = stack.pop()
        if u.op not in NUMBERS_ALONE or len(found) > FEW:
            return None
        found[u] = None
        stack.extend(u.src)
    folder = Folder()
    for u in toposort(root):
        folder.add(u)
    return folder.number.get(folder.new[root])


def stands_for(x: UOp, u: UOp) -> bool:
    """Whether an operand can replace a node: a number may have given shape or device."""
    return x.dtype is u.dtype and x.shape == u.shape and x.device == u.device


def number_like(u: UOp, value: Any) -> UOp:
    """A number in the shape, of the dtype and on the device of `u`."""
    place = (UOp(Ops.DEVICE, dtypes.void, (), DeviceArg(u.device)),) if u.device else ()
    made = UOp(Ops.CONST, u.dtype, place, dtypes.as_const(value, u.dtype))
    if not u.shape:
        return made
    return made._mop(Ops.RESHAPE, (1,) * len(u.shape))._mop(Ops.EXPAND, u.shape)


def is_zero(value: Any) -> bool:
    """Whether a number is the value of padding: 0, and not -0.0."""
    return bool(value == 0 and math.copysign(1.0, value) > 0)


def repeated(u: UOp, value: Any, count: int) -> Any:
    """The reduction of `count` equal numbers; None where it is not folded."""
    if u.arg.op is Ops.MAX:
        return value
    if u.arg.op is Ops.ADD:
        dts = (u.dtype, u.dtype)
        return evaluate(Ops.MUL, u.dtype, (value, dtypes.as_const(count, u.dtype)), dts)
    if u.arg.op is Ops.MUL and u.dtype.kind == "float":
        return evaluate(Ops.POW, u.dtype, (value, float(count)), (u.dtype, u.dtype))
    if u.arg.op is Ops.MUL and u.dtype.kind in ("int", "uint"):
        return evaluate(Ops.MUL, u.dtype, (pow(int(value), count, 1 << 64), 1), (u.dtype, u.dtype))
    return None


def add(u: UOp, x: UOp, c: Any, whole: bool) -> Any:
    """x + 0, x - 0, x | 0, x ^ 0, x << 0, x >> 0; of floats -0.0 + 0 is 0.0, which is lost."""
    if c != 0:
        return None
    # x + -0.0 and x - 0.0 are x whatever x is.
    return x if whole or is_zero(c) is (u.op is Ops.SUB) or not EXACT else None


def multiply(u: UOp, x: UOp, c: Any, whole: bool) -> Any:
    """x * 1 and x * 0; the latter is 0 whatever x is, as in the reference, also for NaN."""
    if c == 1:
        return x
    return 0 if is_zero(c) and (whole or not EXACT) else None


def divide(u: UOp, x: UOp, c: Any, whole: bool) -> Any:
    """x / 1, x // 1."""
    return x if c == 1 else None


def conjunction(u: UOp, x: UOp, c: Any, whole: bool) -> Any:
    """x & 0, and x & c with every bit of c set."""
    if c == 0:
        return 0
    return x if c in (True, -1) and (x.dtype is dtypes.bool or c == -1) else None


def power(u: UOp, x: UOp, c: Any, whole: bool) -> Any:
    """x ** 0, x ** 1, and squares of squares."""
    if c == 0:
        return 1
    if c not in (1, 2, 4, 8):
        return None
    for _ in range(int(c).bit_length() - 1):
        x = UOp(Ops.MUL, x.dtype, (x, x))
    return x


RIGHT: dict[Ops, Callable[[UOp, UOp, Any, bool], Any]] = {
    Ops.ADD: add,
    Ops.SUB: add,
    Ops.OR: add,
    Ops.XOR: add,
    Ops.SHL: add,
    Ops.SHR: add,
    Ops.MUL: multiply,
    Ops.FDIV: divide,
    Ops.IDIV: divide,
    Ops.AND: conjunction,
    Ops.POW: power,
}


def fold_numbers(body: UOp, order: list[UOp], work: Work) -> UOp:
    """Folds constants; outputs that are one constant go to `Work.numbers` and need no kernel.

    Writes to existing memory stay, even if all readers were folded.
    """
    folder = Folder()
    for u in order:
        if u is not body:
            folder.add(u)
    numbers = work.numbers
    kept: list[UOp] = []
    for i, store in enumerate(body.src):
        made = folder.new[store]
        if i < body.arg.fresh and made.src[1] in folder.number and all_int(made.src[1].shape):
            place = made.src[0]
            while place.op is not Ops.PARAM:
                place = place.src[0]
            numbers[place.arg.slot] = folder.number[made.src[1]]
        else:
            kept.append(made)
    fresh = body.arg.fresh - len(numbers)
    asked = set(body.src)
    stores = [u for u in order if u.op is Ops.STORE and u not in asked]
    if stores:
        reached = set(toposort(*kept))
        kept += [made for s in stores if (made := folder.new[s]) not in reached]
    return UOp(Ops.SINK, dtypes.void, tuple(kept), BodyArg(fresh))
