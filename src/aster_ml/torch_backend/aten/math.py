"""Computes elementwise operators: arithmetic, comparisons, bits, casts, functions of one number."""

from __future__ import annotations

import math
from typing import Any

from aster_ml import Tensor
from aster_ml.torch_backend.aten.registry import OPERATORS, Row, aten, expressions
from aster_ml.torch_backend.types import Spec

# Operators of one tensor that are a method of Tensor under the same name, in the result's dtype.
for name in (
    "abs neg exp exp2 log log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "sqrt rsqrt reciprocal sigmoid erf relu sign floor ceil round trunc square silu"
).split():
    OPERATORS[f"{name}.default"] = Row(lambda x, name=name: getattr(x, name)(), casts="out")
# Methods that answer with a bool.
for name in "isnan isinf isfinite".split():
    OPERATORS[f"{name}.default"] = Row(lambda x, name=name: getattr(x, name)())
# Methods that Tensor may have: without them PyTorch computes these.
for name in "expm1 log1p".split():
    if hasattr(Tensor, name):
        OPERATORS[f"{name}.default"] = Row(lambda x, name=name: getattr(x, name)(), casts="out")
if hasattr(Tensor, "atan2"):
    OPERATORS["atan2.default"] = Row(lambda x, y: x.atan2(y), casts="out")
for name in "eq ne lt le gt ge".split():
    row = Row(lambda x, y, name=name: compare(name, x, y), casts="common")
    OPERATORS[f"{name}.Tensor"] = OPERATORS[f"{name}.Scalar"] = row


def compare(name: str, x: Tensor, y: Any) -> Any:
    """A comparison by its name."""
    return getattr(x, name if name in ("eq", "ne") else f"__{name}__")(y)


def scaled(y: Any, alpha: Any) -> Any:
    """The second operand of `add` and `sub`."""
    return y if alpha == 1 else y * alpha


@aten("div.Tensor_mode", "div.Scalar_mode", casts="out", refuses=lambda node: no_floor(node))
def div_mode(x: Tensor, y: Any, rounding_mode: Any = None) -> Any:
    """The quotient, rounded as asked."""
    return x.div(y, rounding_mode=rounding_mode)


@aten("floor_divide", "floor_divide.Scalar", casts="out", refuses=lambda node: no_floor(node))
def floor_divide(x: Tensor, y: Any) -> Any:
    """The quotient, rounded down."""
    return x.div(y, rounding_mode="floor")


@aten("remainder.Tensor", "remainder.Scalar", casts="out", refuses=lambda node: no_floor(node))
def remainder(x: Tensor, y: Any) -> Any:
    """Remainder of the quotient rounded down."""
    return x % y


@aten("fmod.Tensor", "fmod.Scalar", casts="out", refuses=lambda node: no_floor(node))
def fmod(x: Tensor, y: Any) -> Any:
    """Remainder of the quotient rounded towards zero."""
    return x - x.div(y, rounding_mode="trunc") * y


def no_floor(node: Any) -> str | None:
    """Float quotients are rounded from the exact one, which PyTorch has its own way of."""
    value = node.meta["val"]
    mode = node.kwargs.get("rounding_mode", "floor")
    if value.dtype.is_floating_point and mode is not None:
        return "rounded quotients of floats"
    return None


@aten("clamp", "clamp.Tensor", casts="out")
def clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    """x held between two bounds; the upper one decides where they cross."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        held = x if low is None else x.maximum(low)
        return held if high is None else held.minimum(high)
    if low is not None and high is not None and low > high:
        return x.ne(x).where(x, high)
    return x if low is None and high is None else x.clamp(low, high)


@aten("where.self", wants_out=True)
def where(condition: Tensor, x: Tensor, y: Tensor, *, out: Spec) -> Any:
    """x where the condition holds, else y."""
    return condition.where(x.cast(out.dtype), y.cast(out.dtype))


@aten("gelu", casts="out")
def gelu(x: Tensor, approximate: str = "none") -> Any:
    """x times the normal distribution function."""
    return x.gelu() if approximate == "tanh" else x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1)


@aten("elu", casts="out")
def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """x, below 0 an exponential function that ends at -alpha."""
    below = (x * input_scale).exp() - 1
    return (x > 0).where(x * scale, below * (alpha * scale))


expressions(
    {
        "add.Tensor add.Scalar": lambda x, y, alpha=1: x + scaled(y, alpha),
        "sub.Tensor sub.Scalar": lambda x, y, alpha=1: x - scaled(y, alpha),
        "rsub.Tensor rsub.Scalar": lambda x, y, alpha=1: y - scaled(x, alpha),
        "mul.Tensor mul.Scalar": lambda x, y: x * y,
        "div.Tensor div.Scalar": lambda x, y: x / y,
        "pow.Tensor_Tensor pow.Tensor_Scalar": lambda x, y: x**y,
        "pow.Scalar": lambda x, y: x**y,
        # NaN if either is.
        "maximum": lambda x, y: x.maximum(y),
        "minimum": lambda x, y: x.minimum(y),
        "clamp_min": lambda x, low: x.clamp(low),
        "clamp_max": lambda x, high: x.clamp(None, high),
        "leaky_relu": lambda x, negative_slope=0.01: (x > 0).where(x, x * negative_slope),
        "hardtanh": lambda x, low=-1.0, high=1.0: clamp(x, low, high),
        "bitwise_and.Tensor bitwise_and.Scalar": lambda x, y: x & y,
        "bitwise_or.Tensor bitwise_or.Scalar": lambda x, y: x | y,
        "bitwise_xor.Tensor bitwise_xor.Scalar": lambda x, y: x ^ y,
    },
    casts="out",
)

expressions(
    {
        "logical_not": lambda x: x.bool().logical_not(),
        "logical_and": lambda x, y: x.bool() & y.bool(),
        "logical_or": lambda x, y: x.bool() | y.bool(),
        "logical_xor": lambda x, y: x.bool() ^ y.bool(),
        "bitwise_not": lambda x: ~x,
        "clone alias detach lift_fresh_copy lift_fresh contiguous": lambda x: x,
    },
)

expressions(
    {
        "_to_copy": lambda x, *, out, dtype=None, non_blocking=False: x.cast(out.dtype),
        "copy": lambda x, source, non_blocking=False, *, out: source.cast(out.dtype).expand(
            x.shape
        ),
    },
    wants_out=True,
)
