"""Recognises complex operands of real tensors, and hands their arithmetic on.

Receives operands that are no tensors; returns whether they are complex, and results of the plug-in
that has complex tensors (`plugins`), which is imported when it is first needed. Those themselves do
not belong here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml.plugins import provider
from aster_ml.uop.ops import Ops

# Types of complex operands; complex tensors add their own.
COMPLEX_KINDS: set[type] = {complex, np.complex64, np.complex128}
# What an op is called as an operator.
OPERATORS = {
    Ops.ADD: "__add__", Ops.SUB: "__sub__", Ops.MUL: "__mul__", Ops.FDIV: "__truediv__",
    Ops.POW: "__pow__", Ops.CMPEQ: "__eq__", Ops.CMPNE: "__ne__", Ops.CMPLT: "__lt__",
}  # fmt: skip


def is_complex(x: Any) -> bool:
    """Whether an operand is complex: a number, a complex tensor, or an array of another package."""
    if x.__class__ in COMPLEX_KINDS:
        return True
    dtype = getattr(x, "dtype", None)
    return getattr(dtype, "kind", "") == "c" or getattr(dtype, "is_complex", False) is True


def complex_result(x: Any, operator: str, other: Any, reverse: bool) -> Any:
    """Applies an operator to a tensor and a complex operand: a complex tensor, or bools."""
    kind = provider("complex").ComplexTensor
    left, right = (other, x) if reverse else (x, other)
    return getattr(kind(left, device=x.device), operator)(right)


def complex_choice(condition: Any, x: Any, y: Any) -> Any:
    """`x` where the condition holds, else `y`, of which one is complex."""
    kind = provider("complex").ComplexTensor
    one, two = kind(x, device=condition.device), kind(y, device=condition.device)
    return kind(condition.where(one.real, two.real), condition.where(one.imag, two.imag))
