"""Simplifies terms of a gradient while they are built: folds numbers, factors and signs.

Receives and returns nodes of the tensor stage. A term that is one number everywhere is a CONST
without axes, which stands beside any shape. Gathering looks into terms only, never into nodes of
the graph that is differentiated: those stay whole, so that what is stored is read, and so that the
result can be differentiated for each of them again.

With EXACT=1 only what keeps every NaN, infinity, sign of zero and rounding is done: signs are
gathered, factors are not, and 0 is a number like others.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

from aster_ml.config import EXACT
from aster_ml.dtype import DType, can_lossless_cast, sum_acc_dtype, truncate
from aster_ml.uop.infer import Shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Factors are gathered while their product stays far from overflow and underflow, float16 included.
MIN_FACTOR, MAX_FACTOR = 1e-4, 1e4
# A factor goes below these, where there are fewer elements, or as many.
SAME_ELEMENTS = frozenset({Ops.EXPAND, Ops.RESHAPE})


def is_number(u: UOp) -> bool:
    """Whether `u` is a plain number; a constant with a device is a tensor, whose gradient may be
    asked for.
    """
    return u.op is Ops.CONST and not u.src


class Term:
    """A node that is part of a gradient; `known` are the nodes that are not looked into.

    `answer`, once it is asked for, is a CALL and what its author's function gives for this gradient
    of it.
    """

    __slots__ = ("answer", "known", "node")
    answer: tuple[UOp, Any]

    def __init__(self, node: UOp, known: Container[UOp]) -> None:
        self.node = node
        self.known = known

    def of(self, node: UOp) -> Term:
        """Another term beside this one."""
        return self if node is self.node else Term(node, self.known)

    def number(self, value: Any) -> Term:
        """A number as our dtype holds it."""
        return self.of(UOp.const(self.node.dtype, truncate(value, self.node.dtype)))

    @property
    def is_number(self) -> bool:
        """Whether the term is one number everywhere."""
        return is_number(self.node)

    @property
    def is_zero(self) -> bool:
        """Whether the term is the number zero."""
        return is_number(self.node) and self.node.arg == 0

    def may_open(self, op: Ops) -> bool:
        """Whether the term is a node of this op that may be looked into."""
        return self.node.op is op and self.node not in self.known

    @property
    def has_factor(self) -> bool:
        """Whether the term is something times a number."""
        return self.may_open(Ops.MUL) and is_number(self.node.src[1])

    # arithmetic

    def scale(self, factor: float) -> Term:
        """The term times a number, gathered with factors and signs that it has already.

        A sign goes into a number always, being exact; a factor while the product stays in bounds.
        """
        if factor == 1 or (self.is_zero and not EXACT):
            return self
        if factor == 0 and not EXACT:
            return self.number(0)
        u, known = self.node, self.known
        # Movements that the factor goes below, the outermost first.
        above: list[UOp] = []
        while u not in known and factor != 1:
            if u.op in SAME_ELEMENTS:
                above.append(u)
            elif u.op is Ops.NEG and factor < 0:
                factor = -factor
            elif u.op is Ops.MUL and is_number(u.src[1]):
                both = u.src[1].arg * factor
                near = MIN_FACTOR < abs(both) < MAX_FACTOR and not EXACT
                if abs(factor) != 1 and not near:
                    break
                # A factor and its reciprocal, each rounded, are one where the dtype cannot tell.
                factor = 1.0 if truncate(both, u.dtype) == 1 else both
            else:
                break
            u = u.src[0]
        if is_number(u):
            u = UOp.const(u.dtype, truncate(u.arg * factor, u.dtype))
        elif factor == -1:
            u = u.alu(Ops.NEG)
        elif factor != 1:
            u = u.alu(Ops.MUL, UOp.const(u.dtype, factor))
        for x in reversed(above):
            u = moved(x, u)
        return self.of(u)

    def __neg__(self) -> Term:
        """The sign goes into a number where there is one."""
        return self.scale(-1.0)

    def __add__(self, other: Term) -> Term:
        if (self.is_zero or other.is_zero) and not EXACT:
            return other if self.is_zero else self
        if self.node is other.node:
            return self.scale(2.0)
        if self.is_number and other.is_number:
            return self.number(self.node.arg + other.node.arg)
        if self.is_number or self.may_open(Ops.NEG):
            self, other = other, self
        if other.may_open(Ops.NEG):
            return self.of(self.node.alu(Ops.SUB, other.node.src[0]))
        return self.of(self.node.alu(Ops.ADD, other.node))

    def __mul__(self, x: UOp) -> Term:
        if is_number(x):
            return self.scale(x.arg)
        if self.is_number:
            return self.of(x).scale(self.node.arg)
        return self.of(self.node.alu(Ops.MUL, x))

    def __truediv__(self, x: UOp) -> Term:
        if self.is_zero and not EXACT:
            return self
        if is_number(x) and x.arg != 0:
            if self.is_number:
                return self.number(self.node.arg / x.arg)
            # The reciprocal of a power of two is exact; beside a factor it costs no rounding more.
            exact = (
                abs(math.frexp(x.arg)[0]) == 0.5 and abs(truncate(1 / x.arg, x.dtype)) < math.inf
            )
            if exact or (self.has_factor and not EXACT):
                return self.scale(1 / x.arg)
        return self.of(self.node.alu(Ops.FDIV, x))

    def where(self, condition: UOp, other: Term | None = None) -> Term:
        """The term where the condition holds, else another one (by default 0)."""
        rest = UOp.const(self.node.dtype, 0) if other is None else other.node
        return self if rest is self.node else self.of(condition.alu(Ops.WHERE, self.node, rest))

    def unless(self, condition: UOp) -> Term:
        """0 where the condition holds, else the term."""
        return self.number(0).where(condition, self)

    # dtype and shape

    def convert(self, dtype: DType) -> Term:
        """The term as `dtype`; there and back through a wider type is no conversion."""
        u = self.node
        if u.dtype is dtype:
            return self
        if self.is_number:
            return self.of(UOp.const(dtype, truncate(u.arg, dtype)))
        if self.may_open(Ops.CAST):
            inner = u.src[0]
            if inner.dtype is dtype and can_lossless_cast(dtype, u.dtype):
                return self.of(inner)
        return self.of(u.cast(dtype))

    def move(self, op: Ops, arg: Any) -> Term:
        """A movement of the elements; a number stays one."""
        return self if self.is_number else self.of(self.node._mop(op, arg))

    def reshape(self, shape: Shape) -> Term:
        """The term with another shape; a number needs none."""
        if self.is_number:
            return self
        u = self.node
        while u.shape != shape and u.op is Ops.RESHAPE and u not in self.known:
            u = u.src[0]
        return self.of(u if u.shape == shape else u._mop(Ops.RESHAPE, shape))

    def spread(self, shape: Shape) -> Term:
        """The term with this shape; its own sizes are the same or 1, or it has no axes."""
        u = self.node
        if u.shape == shape:
            return self
        if not u.shape:
            u = u._mop(Ops.RESHAPE, (1,) * len(shape))
        return self.of(u if u.shape == shape else u._mop(Ops.EXPAND, shape))

    def total(self, axes: tuple[int, ...]) -> Term:
        """Sum over `axes`, which stay with size 1; halves are added up in float32.

        Factors and signs go behind the sum, which has fewer elements.
        """
        term = self
        factors: list[float] = []
        while not EXACT and (term.may_open(Ops.NEG) or term.has_factor):
            u = term.node
            factors.append(-1.0 if u.op is Ops.NEG else u.src[1].arg)
            term = term.of(u.src[0])
        wide = term.convert(sum_acc_dtype(self.node.dtype)).node
        term = self.of(wide._rop(Ops.ADD, axes)).convert(self.node.dtype)
        for factor in reversed(factors):
            term = term.scale(factor)
        return term


def moved(u: UOp, source: UOp) -> UOp:
    """The movement `u` of another source."""
    return UOp(u.op, source.dtype, (source, *u.src[1:]), u.arg)
