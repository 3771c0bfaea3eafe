"""Differences to the maximum of their own row, which are never positive.

Receives a kernel whose neighbouring axes are merged; marks such differences under EXP2 by their
form, which `transcendental` knows: its powers of them are shorter. Where the target has EXP2, or
the maximum comes from memory, there is nothing to do here.

rewrite: EXP2((v(o) - REDUCE(v(r), r, MAX)) * b * c) -> EXP2(-MAX(d, -d) * c) with d what c scales
when: the axes o have the sizes of r, so v(o) is one of the values that the maximum is taken of; the
scales b of scores, if there are any, are above 0
why: d <= 0 or NaN, hence d = -|d|
"""

from __future__ import annotations

from aster_ml.codegen.axes import simplify_indices
from aster_ml.codegen.kernel import Kernel
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def mark_differences(kernel: Kernel, target: Target) -> None:
    """Gives differences to the maximum of a row the form of something that is not positive."""
    if target.has_op("EXP2") or not any(u.arg.op is Ops.MAX for u in kernel.reduces):
        return
    found = {}
    for u in kernel.facts.order:
        if u.op is Ops.EXP2:
            d = scaled(u.src[0])
            if is_negative(d):
                negative = UOp(Ops.NEG, d.dtype, (d,))
                size = UOp(Ops.MAX, d.dtype, (d, negative))
                new = UOp(Ops.NEG, d.dtype, (size,))
                found[u] = substitute(u, {d: new})
    if found:
        kernel.sink = substitute(kernel.sink, found)


def scaled(exponent: UOp) -> UOp:
    """What an exponent is a multiple of, or the exponent."""
    if exponent.op is Ops.MUL:
        return next((s for s in exponent.src if s.op is not Ops.CONST), exponent)
    return exponent


def is_negative(d: UOp) -> bool:
    """Whether it is a difference to the maximum of its row, times numbers above 0."""
    while d.op is Ops.MUL and d.src[1].op is Ops.CONST and d.src[1].arg > 0:
        d = d.src[0]
    return d.op is Ops.SUB and is_below(d.src[0], d.src[1])


def is_below(a: UOp, top: UOp) -> bool:
    """Whether `a` is one of the values that a maximum is taken of."""
    if top.op is not Ops.REDUCE or top.arg.op is not Ops.MAX or top.dtype.kind != "float":
        return False
    value, *axes = top.src
    own = sorted([r for r in a.ranges if r not in top.ranges], key=lambda r: r.arg.id)
    axes.sort(key=lambda r: r.arg.id)
    if [r.src[0] for r in own] != [r.src[0] for r in axes]:
        return False
    return simplify_indices(substitute(value, dict(zip(axes, own, strict=True)))) is a
