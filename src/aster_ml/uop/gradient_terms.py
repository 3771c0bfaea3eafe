"""Simplifies terms of a gradient while they are built: folds numbers, factors and signs.

Receives and returns nodes of the tensor stage. A term that is one number everywhere is a CONST
without axes, which broadcasts to any shape. Factors are collected within terms only, never within
nodes of the differentiated graph: those stay unchanged, so that stored values are read, and the
result can be differentiated with respect to them again.

With EXACT=1 every NaN, infinity, sign of zero and rounding is kept: signs are collected, factors
are not, and 0 is not special.
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

# Factors are collected while their product stays far from overflow and underflow, also in float16.
MIN_FACTOR, MAX_FACTOR = 1e-4, 1e4
# A factor moves below these ops, where there are fewer elements, or as many.
SAME_ELEMENTS = frozenset({Ops.EXPAND, Ops.RESHAPE})


def is_number(u: UOp) -> bool:
    """Whether `u` is a number; a constant with a device is a tensor, which may have a gradient."""
    return u.op is Ops.CONST and not u.src


class Term:
    """A node that is part of a gradient; nodes in `known` are not taken apart.

    `answer` caches a CALL with the result of its `grad_fxn` for this gradient.
    """

    __slots__ = ("answer", "known", "node")
    answer: tuple[UOp, Any]

    def __init__(self, node: UOp, known: Container[UOp]) -> None:
        self.node = node
        self.known = known

    def of(self, node: UOp) -> Term:
        """A term of another node, with the same `known`."""
        return self if node is self.node else Term(node, self.known)

    def number(self, value: Any) -> Term:
        """A number in the dtype of the term."""
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
        """Whether the term is a node of this op that may be taken apart."""
        return self.node.op is op and self.node not in self.known

    @property
    def has_factor(self) -> bool:
        """Whether the term is a product with a number."""
        return self.may_open(Ops.MUL) and is_number(self.node.src[1])

    # arithmetic

    def scale(self, factor: float) -> Term:
        """The term times a number, merged with its factors and signs.

        A sign is always merged, being exact; a factor while the product stays in bounds.
        """
        if factor == 1 or (self.is_zero and not EXACT):
            return self
        if factor == 0 and not EXACT:
            return self.number(0)
        u, known = self.node, self.known
        # Movement ops that the factor moves below, the outermost first.
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
                # A factor times its reciprocal counts as 1 if it rounds to 1.
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
        """The negated term; a number factor takes the sign."""
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
            # The reciprocal of a power of two is exact; merged with a factor it adds no rounding.
            exact = (
                abs(math.frexp(x.arg)[0]) == 0.5 and abs(truncate(1 / x.arg, x.dtype)) < math.inf
            )
            if exact or (self.has_factor and not EXACT):
                return self.scale(1 / x.arg)
        return self.of(self.node.alu(Ops.FDIV, x))

    def where(self, condition: UOp, other: Term | None = None) -> Term:
        """The term where the condition holds, else `other` (by default 0)."""
        rest = UOp.const(self.node.dtype, 0) if other is None else other.node
        return self if rest is self.node else self.of(condition.alu(Ops.WHERE, self.node, rest))

    def unless(self, condition: UOp) -> Term:
        """0 where the condition holds, else the term."""
        return self.number(0).where(condition, self)

    # dtype and shape

    def convert(self, dtype: DType) -> Term:
        """The term as `dtype`; a round trip through a wider type is removed."""
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
        """The term under a movement op; a number stays unchanged."""
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
        """The term broadcast to this shape; its sizes are equal or 1, or it has no axes."""
        u = self.node
        if u.shape == shape:
            return self
        if not u.shape:
            u = u._mop(Ops.RESHAPE, (1,) * len(shape))
        return self.of(u if u.shape == shape else u._mop(Ops.EXPAND, shape))

    def total(self, axes: tuple[int, ...]) -> Term:
        """Sum over `axes`, which stay with size 1; float16 is summed in float32.

        Factors and signs move after the sum, which has fewer elements.
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
    """The movement op `u` applied to another source."""
    return UOp(u.op, source.dtype, (source, *u.src[1:]), u.arg)
