"""Operators on single elements: arithmetic, comparisons, bits, casts, functions of one number."""

from __future__ import annotations

import math
from typing import Any

from aster_ml import Tensor
from aster_ml.torch_backend.aten.registry import OPERATORS, Row, aten
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


@aten("add.Tensor", "add.Scalar", casts="out")
def add(x: Tensor, y: Any, alpha: Any = 1) -> Any:
    """x + alpha * y."""
    return x + scaled(y, alpha)


@aten("sub.Tensor", "sub.Scalar", casts="out")
def sub(x: Tensor, y: Any, alpha: Any = 1) -> Any:
    """x - alpha * y."""
    return x - scaled(y, alpha)


@aten("rsub.Tensor", "rsub.Scalar", casts="out")
def rsub(x: Tensor, y: Any, alpha: Any = 1) -> Any:
    """y - alpha * x."""
    return y - scaled(x, alpha)


@aten("mul.Tensor", "mul.Scalar", casts="out")
def mul(x: Tensor, y: Any) -> Any:
    """The product."""
    return x * y


@aten("div.Tensor", "div.Scalar", casts="out")
def div(x: Tensor, y: Any) -> Any:
    """The quotient, a float."""
    return x / y


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


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", casts="out")
def power(x: Tensor, y: Any) -> Any:
    """x to the power y."""
    return x**y


@aten("pow.Scalar", casts="out")
def power_of_number(x: Any, y: Tensor) -> Any:
    """A number to the power y."""
    return x**y


@aten("maximum", casts="out")
def maximum(x: Tensor, y: Tensor) -> Any:
    """The greater one; NaN if either is."""
    return x.maximum(y)


@aten("minimum", casts="out")
def minimum(x: Tensor, y: Tensor) -> Any:
    """The smaller one; NaN if either is."""
    return x.minimum(y)


@aten("clamp", "clamp.Tensor", casts="out")
def clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    """x held between two bounds; the upper one decides where they cross."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        held = x if low is None else x.maximum(low)
        return held if high is None else held.minimum(high)
    if low is not None and high is not None and low > high:
        return x.ne(x).where(x, high)
    return x if low is None and high is None else x.clamp(low, high)


@aten("clamp_min", casts="out")
def clamp_min(x: Tensor, low: Any) -> Any:
    """x, at least `low`."""
    return x.clamp(low)


@aten("clamp_max", casts="out")
def clamp_max(x: Tensor, high: Any) -> Any:
    """x, at most `high`."""
    return x.clamp(None, high)


@aten("where.self", wants_out=True)
def where(condition: Tensor, x: Tensor, y: Tensor, *, out: Spec) -> Any:
    """x where the condition holds, else y."""
    return condition.where(x.cast(out.dtype), y.cast(out.dtype))


@aten("gelu", casts="out")
def gelu(x: Tensor, approximate: str = "none") -> Any:
    """x times the normal distribution function."""
    return x.gelu() if approximate == "tanh" else x * 0.5 * ((x * math.sqrt(0.5)).erf() + 1)


@aten("leaky_relu", casts="out")
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Any:
    """x, below 0 times the slope."""
    return (x > 0).where(x, x * negative_slope)


@aten("elu", casts="out")
def elu(x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """x, below 0 an exponential function that ends at -alpha."""
    below = (x * input_scale).exp() - 1
    return (x > 0).where(x * scale, below * (alpha * scale))


@aten("hardtanh", casts="out")
def hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Any:
    """x held between two numbers."""
    return clamp(x, low, high)


@aten("logical_not")
def logical_not(x: Tensor) -> Any:
    """Tests whether each element is 0."""
    return x.bool().logical_not()


@aten("logical_and")
def logical_and(x: Tensor, y: Tensor) -> Any:
    """Tests whether neither is 0."""
    return x.bool() & y.bool()


@aten("logical_or")
def logical_or(x: Tensor, y: Tensor) -> Any:
    """Tests whether at least one is not 0."""
    return x.bool() | y.bool()


@aten("logical_xor")
def logical_xor(x: Tensor, y: Tensor) -> Any:
    """Tests whether exactly one is 0."""
    return x.bool() ^ y.bool()


@aten("bitwise_not")
def bitwise_not(x: Tensor) -> Any:
    """All bits turned."""
    return ~x


@aten("bitwise_and.Tensor", "bitwise_and.Scalar", casts="out")
def bitwise_and(x: Tensor, y: Any) -> Any:
    """Bits that both have."""
    return x & y


@aten("bitwise_or.Tensor", "bitwise_or.Scalar", casts="out")
def bitwise_or(x: Tensor, y: Any) -> Any:
    """Bits that one has."""
    return x | y


@aten("bitwise_xor.Tensor", "bitwise_xor.Scalar", casts="out")
def bitwise_xor(x: Tensor, y: Any) -> Any:
    """Bits that one alone has."""
    return x ^ y


@aten("_to_copy", wants_out=True)
def to_copy(x: Tensor, *, out: Spec, dtype: Any = None, non_blocking: bool = False) -> Any:
    """x as another dtype."""
    return x.cast(out.dtype)


@aten("clone", "alias", "detach", "lift_fresh_copy", "lift_fresh", "contiguous")
def same(x: Tensor) -> Any:
    """x as it is."""
    return x


@aten("copy", wants_out=True)
def copy(x: Tensor, source: Tensor, non_blocking: bool = False, *, out: Spec) -> Any:
    """`source` in the shape and dtype of x."""
    return source.cast(out.dtype).expand(x.shape)
