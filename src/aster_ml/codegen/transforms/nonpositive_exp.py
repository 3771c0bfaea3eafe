"""EXP2 of differences to a row's maximum, which are never positive: the short form of the power.

Receives a kernel whose neighbouring axes are merged; promises of an EXP2 of such a difference that
its exponent falls, so that `decompose/transcendental` has a shorter power for it. Where the target
has EXP2, or the maximum comes from memory, there is nothing to do here.

rewrite: EXP2((v(o) - REDUCE(v(r), r, MAX)) * b * c) -> the same with a PowerArg
when: the axes o have the sizes of r, so v(o) is one of the values that the maximum is taken of; the
scales b of scores and c, if there are any, are above 0
why: v(o) <= MAX or one of them is NaN
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.axes import simplify_indices
from aster_ml.target import Target
from aster_ml.uop.graph import rebuilt, substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, PowerArg


def mark_differences(kernel: Kernel, target: Target) -> None:
    """Marks each EXP2 of a difference to the maximum of its row: its argument is at most 0."""
    if target.has_op("EXP2") or not any(u.arg.op is Ops.MAX for u in kernel.reduces):
        return
    # Sources first: an exponent may be made of other powers, which are to be the same everywhere.
    kernel.sink = rebuilt(kernel.sink, POWERS, promised, kernel.facts.order)


POWERS = frozenset({Ops.EXP2})


def promised(old: UOp, u: UOp) -> UOp:
    """A power, which promises that its exponent falls where that of the `old` one does."""
    return UOp(Ops.EXP2, u.dtype, u.src, PowerArg(True)) if falls(old.src[0]) else u


def falls(exponent: UOp) -> bool:
    """Whether it is a difference to the maximum of its row, times numbers above 0."""
    while exponent.op is Ops.MUL and exponent.src[1].op is Ops.CONST and exponent.src[1].arg > 0:
        exponent = exponent.src[0]
    return exponent.op is Ops.SUB and is_below(exponent.src[0], exponent.src[1])


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
