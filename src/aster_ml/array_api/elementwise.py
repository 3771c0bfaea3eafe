"""Defines the elementwise functions of one array, and of two that broadcast.

Receives arrays, and Python numbers beside them; returns arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aster_ml import dtypes
from aster_ml.array_api.array import as_array, as_pair
from aster_ml.complex import ComplexTensor

__all__ = [
    "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "ceil", "clip", "conj", "copysign", "cos", "cosh", "divide", "equal", "exp", "expm1", "floor",
    "floor_divide", "greater", "greater_equal", "hypot", "imag", "isfinite", "isinf", "isnan",
    "less", "less_equal", "log", "log1p", "log2", "log10", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "multiply", "negative",
    "nextafter", "not_equal", "positive", "pow", "real", "reciprocal", "remainder", "round", "sign",
    "signbit", "sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc",
]  # fmt: skip

# Kinds of dtypes that have infinities and NaN.
FLOATING = ("float", "complex")


def of_one(name: str, method: str, whole: bool = False) -> Callable[[Any], Any]:
    """A function of one array; ints are `whole` already where that says so."""

    def function(x: Any, /) -> Any:
        x = as_array(x)
        kept = whole and x.dtype.kind not in ("float", "complex")
        return x if kept else getattr(x, method)()

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `Tensor.{method}`, by element."
    return function


def of_two(name: str, method: str) -> Callable[[Any, Any], Any]:
    """A function of two arrays."""

    def function(x1: Any, x2: Any, /) -> Any:
        one, two = as_pair(x1, x2)
        return getattr(one, method)(two)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"As `Tensor.{method}`, by element."
    return function


abs = of_one("abs", "abs")
acos = of_one("acos", "acos")
acosh = of_one("acosh", "acosh")
asin = of_one("asin", "asin")
asinh = of_one("asinh", "asinh")
atan = of_one("atan", "atan")
atanh = of_one("atanh", "atanh")
bitwise_invert = of_one("bitwise_invert", "bitwise_not")
ceil = of_one("ceil", "ceil", whole=True)
cos = of_one("cos", "cos")
cosh = of_one("cosh", "cosh")
exp = of_one("exp", "exp")
expm1 = of_one("expm1", "expm1")
floor = of_one("floor", "floor", whole=True)
log = of_one("log", "log")
log10 = of_one("log10", "log10")
log1p = of_one("log1p", "log1p")
log2 = of_one("log2", "log2")
logical_not = of_one("logical_not", "logical_not")
negative = of_one("negative", "__neg__")
reciprocal = of_one("reciprocal", "reciprocal")
round = of_one("round", "round", whole=True)
sign = of_one("sign", "sign")
sin = of_one("sin", "sin")
sinh = of_one("sinh", "sinh")
sqrt = of_one("sqrt", "sqrt")
square = of_one("square", "square")
tan = of_one("tan", "tan")
tanh = of_one("tanh", "tanh")
trunc = of_one("trunc", "trunc", whole=True)

add = of_two("add", "__add__")
atan2 = of_two("atan2", "atan2")
bitwise_and = of_two("bitwise_and", "__and__")
bitwise_left_shift = of_two("bitwise_left_shift", "__lshift__")
bitwise_or = of_two("bitwise_or", "__or__")
bitwise_right_shift = of_two("bitwise_right_shift", "__rshift__")
bitwise_xor = of_two("bitwise_xor", "__xor__")
copysign = of_two("copysign", "copysign")
divide = of_two("divide", "__truediv__")
equal = of_two("equal", "__eq__")
floor_divide = of_two("floor_divide", "__floordiv__")
greater = of_two("greater", "__gt__")
greater_equal = of_two("greater_equal", "__ge__")
hypot = of_two("hypot", "hypot")
less = of_two("less", "__lt__")
less_equal = of_two("less_equal", "__le__")
logaddexp = of_two("logaddexp", "logaddexp")
logical_and = of_two("logical_and", "__and__")
logical_or = of_two("logical_or", "__or__")
logical_xor = of_two("logical_xor", "__xor__")
maximum = of_two("maximum", "maximum")
minimum = of_two("minimum", "minimum")
multiply = of_two("multiply", "__mul__")
nextafter = of_two("nextafter", "nextafter")
not_equal = of_two("not_equal", "__ne__")
pow = of_two("pow", "__pow__")
remainder = of_two("remainder", "__mod__")
subtract = of_two("subtract", "__sub__")


def positive(x: Any, /) -> Any:
    """The same elements."""
    return as_array(x).clone()


def conj(x: Any, /) -> Any:
    """The conjugate, which of a real number is the number."""
    x = as_array(x)
    return x.conj() if isinstance(x, ComplexTensor) else x


def real(x: Any, /) -> Any:
    """The real part."""
    x = as_array(x)
    return x.real if isinstance(x, ComplexTensor) else x


def imag(x: Any, /) -> Any:
    """The imaginary part, 0 of real numbers."""
    x = as_array(x)
    return x.imag if isinstance(x, ComplexTensor) else x.zeros_like()


def signbit(x: Any, /) -> Any:
    """Tests the sign bit, of zeros and NaN too."""
    x = as_array(x)
    return x.ones_like().copysign(x) < 0


def isfinite(x: Any, /) -> Any:
    """Tests whether each number is neither infinite nor NaN."""
    x = as_array(x)
    return x.isfinite() if x.dtype.kind in FLOATING else x.ones_like(dtype=dtypes.bool)


def isinf(x: Any, /) -> Any:
    """Tests whether each number is infinite."""
    x = as_array(x)
    return x.isinf() if x.dtype.kind in FLOATING else x.zeros_like(dtype=dtypes.bool)


def isnan(x: Any, /) -> Any:
    """Tests whether each element is NaN."""
    x = as_array(x)
    return x.isnan() if x.dtype.kind in FLOATING else x.zeros_like(dtype=dtypes.bool)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """The elements, no less than `min` and no more than `max`, of the dtype of `x`."""
    x = as_array(x)
    dtype = x.dtype
    x = x if min is None else maximum(x, min)
    x = x if max is None else minimum(x, max)
    return x.cast(dtype)
