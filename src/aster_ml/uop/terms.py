"""Terms of a gradient, written down as a person would: numbers folded, factors and signs gathered.

Receives and returns nodes of the tensor stage. A term that is one number everywhere is a CONST
without axes, which stands beside any shape. Numbers are gathered in float64 and rounded once, where
they are used; gathering changes a result by a rounding, never more.
"""

from __future__ import annotations

import math
from typing import Any

from aster_ml.dtype import DType, can_lossless_cast, sum_acc_dtype, truncate
from aster_ml.uop.infer import Shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Factors are gathered while their product stays far from overflow and underflow, float16 included.
LEAST_FACTOR, GREATEST_FACTOR = 1e-4, 1e4


def is_number(u: UOp) -> bool:
    """Whether `u` is a plain number; a constant with a device is a tensor, whose gradient may be
    asked for.
    """
    return u.op is Ops.CONST and not u.src


def is_zero(u: UOp) -> bool:
    """Whether `u` is the number zero."""
    return is_number(u) and u.arg == 0


def constant(dtype: DType, value: Any) -> UOp:
    """The number `value` as `dtype` holds it."""
    return UOp.const(dtype, truncate(value, dtype))


def convert(u: UOp, dtype: DType) -> UOp:
    """`u` as `dtype`; there and back through a wider type is no conversion."""
    if u.dtype is dtype:
        return u
    if is_number(u):
        return constant(dtype, u.arg)
    if u.op is Ops.CAST and u.src[0].dtype is dtype and can_lossless_cast(dtype, u.dtype):
        return u.src[0]
    return u.cast(dtype)


# A factor goes below these, where there are fewer elements, or as many.
SAME_ELEMENTS = frozenset({Ops.EXPAND, Ops.RESHAPE})


def on_source(u: UOp, source: UOp) -> UOp:
    """The movement `u` of another source."""
    return UOp(u.op, source.dtype, (source, *u.src[1:]), u.arg)


def has_factor(u: UOp) -> bool:
    """Whether `u` is something times a number."""
    return u.op is Ops.MUL and is_number(u.src[1])


def scale(u: UOp, factor: float) -> UOp:
    """`u * factor`, gathered with a factor that `u` has already."""
    if factor == 1 or is_zero(u):
        return u
    if is_number(u):
        return constant(u.dtype, u.arg * factor)
    if factor == 0:
        return UOp.const(u.dtype, 0)
    if u.op in SAME_ELEMENTS:
        return on_source(u, scale(u.src[0], factor))
    if has_factor(u):
        both = u.src[1].arg * factor
        if LEAST_FACTOR < abs(both) < GREATEST_FACTOR:
            # A factor and its reciprocal, each rounded, are one where the dtype cannot tell.
            return scale(u.src[0], 1.0 if truncate(both, u.dtype) == 1 else both)
    return negate(u) if factor == -1 else u.alu(Ops.MUL, UOp.const(u.dtype, factor))


def negate(u: UOp) -> UOp:
    """`-u`, the sign put into a constant factor where there is one."""
    if u.op is Ops.NEG:
        return u.src[0]
    if is_number(u) or has_factor(u):
        return scale(u, -1.0)
    if u.op in SAME_ELEMENTS:
        return on_source(u, negate(u.src[0]))
    return u.alu(Ops.NEG)


def add(a: UOp, b: UOp) -> UOp:
    """`a + b` of two gradients of one value."""
    if is_zero(a):
        return b
    if is_zero(b):
        return a
    if a is b:
        return scale(a, 2.0)
    if is_number(a):
        a, b = b, a
    if is_number(a):
        return constant(a.dtype, a.arg + b.arg)
    if a.op is Ops.NEG:
        a, b = b, a
    return a.alu(Ops.SUB, b.src[0]) if b.op is Ops.NEG else a.alu(Ops.ADD, b)


def multiply(g: UOp, x: UOp) -> UOp:
    """`g * x`."""
    if is_number(x):
        return scale(g, x.arg)
    return scale(x, g.arg) if is_number(g) else g.alu(Ops.MUL, x)


def divide(g: UOp, x: UOp) -> UOp:
    """`g / x`."""
    if is_zero(g):
        return g
    if is_number(x) and x.arg != 0:
        if is_number(g):
            return constant(g.dtype, g.arg / x.arg)
        # The reciprocal of a power of two is exact; beside a factor there is a rounding less.
        if has_factor(g) or abs(math.frexp(x.arg)[0]) == 0.5:
            return scale(g, 1 / x.arg)
    return g.alu(Ops.FDIV, x)


def choose(condition: UOp, x: UOp, y: UOp) -> UOp:
    """`x` where the condition holds, else `y`."""
    return x if x is y else condition.alu(Ops.WHERE, x, y)


def zero(u: UOp) -> UOp:
    """The number zero of the dtype of `u`."""
    return UOp.const(u.dtype, 0)


def reshape(u: UOp, shape: Shape) -> UOp:
    """`u` with another shape; a number needs none."""
    if is_number(u) or u.shape == shape:
        return u
    if u.op is Ops.RESHAPE:
        return reshape(u.src[0], shape)
    return u.mop(Ops.RESHAPE, shape)


def spread(u: UOp, shape: Shape) -> UOp:
    """`u`, whose sizes are those of `shape` or 1, or which has no axes, with this shape."""
    if u.shape == shape:
        return u
    if is_number(u) or not u.shape:
        u = u.mop(Ops.RESHAPE, (1,) * len(shape))
    return u if u.shape == shape else u.mop(Ops.EXPAND, shape)


def total(u: UOp, axes: tuple[int, ...]) -> UOp:
    """Sum over `axes`, which stay with size 1; halves are added up in float32."""
    if u.op is Ops.NEG:
        return negate(total(u.src[0], axes))
    if has_factor(u):
        return scale(total(u.src[0], axes), u.src[1].arg)
    wide = sum_acc_dtype(u.dtype)
    return convert(convert(u, wide).rop(Ops.ADD, axes), u.dtype)
