"""Computes elementwise operators: arithmetic, comparisons, bits, functions, activations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType
from aster_ml.errors import UnsupportedError
from aster_ml.onnx.ops.registry import MICROSOFT, Array, Value, op
from aster_ml.onnx.ops.types import (
    ASTER,
    DATA_TYPES,
    NUMBERS,
    NUMPY,
    element_type,
    numpy_type,
)

# Floats narrower than float32 are computed in it.
NARROW = (dtypes.float16, dtypes.bfloat16, *dtypes.fp8s)


def wide(x: Tensor) -> Tensor:
    """A tensor in at least float32."""
    return x.cast(dtypes.float32) if x.dtype in NARROW else x


def in_float(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function computed in at least float32, its result in the dtype of what is given."""

    @functools.wraps(function)
    def compute(x: Tensor, **attributes: Any) -> Tensor:
        return function(wide(x), **attributes).cast(x.dtype)

    return compute


PLAIN: dict[str, Callable[..., Tensor]] = {
    "Abs": lambda x: x if dtypes.is_unsigned(x.dtype) else x.abs(),
    "Neg": lambda x: -x,
    "Reciprocal": in_float(lambda x: x.reciprocal()),
    "Floor": lambda x: x.floor(),
    "Ceil": lambda x: x.ceil(),
    "Round": lambda x: x.round(),
    "Sqrt": in_float(lambda x: x.sqrt()),
    "Exp": in_float(lambda x: x.exp()),
    "Log": in_float(lambda x: x.log()),
    "Sin": in_float(lambda x: x.sin()),
    "Cos": in_float(lambda x: x.cos()),
    "Tan": in_float(lambda x: x.tan()),
    "Asin": in_float(lambda x: x.asin()),
    "Acos": in_float(lambda x: x.acos()),
    "Atan": in_float(lambda x: x.atan()),
    "Sinh": in_float(lambda x: x.sinh()),
    "Cosh": in_float(lambda x: x.cosh()),
    "Tanh": in_float(lambda x: x.tanh()),
    "Asinh": in_float(lambda x: x.asinh()),
    "Acosh": in_float(lambda x: x.acosh()),
    "Atanh": in_float(lambda x: x.atanh()),
    "Erf": in_float(lambda x: x.erf()),
    "Sign": lambda x: x.sign(),
    "Relu": lambda x: x.relu(),
    "Sigmoid": in_float(lambda x: x.sigmoid()),
    "Softplus": in_float(lambda x: x.softplus()),
    "Softsign": lambda x: x / (1 + x.abs()),
    "Mish": in_float(lambda x: x.mish()),
    "HardSwish": lambda x: x * (x / 6 + 0.5).clip(0, 1),
    "Not": lambda x: x.logical_not(),
    "BitwiseNot": lambda x: x.bitwise_not(),
    "IsNaN": lambda x: x.isnan(),
    "IsInf": lambda x, *, detect_negative, detect_positive: x.isinf(
        bool(detect_positive), bool(detect_negative)
    ),
    "BitCast": lambda x, *, to: x.bitcast(element_type(to)),
    "Where": lambda condition, x, y: condition.where(x, y),
    # Activations with parameters.
    "PRelu": lambda x, slope: (x < 0).where(x * slope, x),
    "HardSigmoid": lambda x, *, alpha, beta: (x * alpha + beta).clip(0, 1),
    "ThresholdedRelu": lambda x, *, alpha: (x > alpha).where(x, 0),
    "Elu": in_float(lambda x, *, alpha: (x < 0).where(alpha * (x.exp() - 1), x)),
    "Celu": in_float(
        lambda x, *, alpha: x.maximum(0) + (alpha * ((x / alpha).exp() - 1)).minimum(0)
    ),
    "Selu": in_float(lambda x, *, alpha, gamma: gamma * (x > 0).where(x, alpha * (x.exp() - 1))),
}
for name_, function_ in PLAIN.items():
    op(name_)(function_)


def aligned(a: Tensor, b: Tensor, axis: int | None, broadcast: int | None) -> tuple[Tensor, Tensor]:
    """Both operands, b stretched from `axis` on as operators before version 7 say."""
    if broadcast and axis is not None and b.ndim:
        at = axis % a.ndim
        b = b.reshape((*b.shape, *(1,) * (a.ndim - at - b.ndim)))
    return a, b


def binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Registers an operator of two tensors that broadcast."""

    @op(name)
    def compute_two(
        a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int | None = None
    ) -> Tensor:
        return function(*aligned(a, b, axis, broadcast))


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b; that of integers without its fraction."""
    return a / b if dtypes.is_float(a.dtype) else a.div(b, rounding_mode="trunc")


for name_, function_of_two in {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": quotient,
    "And": lambda a, b: a & b,
    "Or": lambda a, b: a | b,
    "Xor": lambda a, b: a ^ b,
    "Equal": lambda a, b: a.eq(b),
    "Less": lambda a, b: a < b,
    "Greater": lambda a, b: a > b,
    "LessOrEqual": lambda a, b: a <= b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "BitwiseAnd": lambda a, b: a & b,
    "BitwiseOr": lambda a, b: a | b,
    "BitwiseXor": lambda a, b: a ^ b,
}.items():
    binary(name_, function_of_two)


@op("Pow", raw=True)
def pow_(
    x: Value, y: Value, *, axis: int | None = None, broadcast: int | None = None, call: Any
) -> Tensor:
    """Powers in the dtype of the base; one number as exponent becomes products."""
    base = call.tensor(x)
    if isinstance(y, np.ndarray) and y.size == 1 and y.ndim <= base.ndim:
        power = float(y.reshape(()))
        if dtypes.is_float(base.dtype):
            return wide(base).pow(power).cast(base.dtype)
        if power.is_integer() and power >= 0:
            return base.pow(int(power)).cast(base.dtype)
    base, exponent = aligned(base, call.tensor(y), axis, broadcast)
    if dtypes.is_float(base.dtype):
        return wide(base).pow(wide(exponent.cast(base.dtype))).cast(base.dtype)
    if dtypes.is_float(exponent.dtype):
        return base.cast(dtypes.float64).pow(exponent.cast(dtypes.float64)).cast(base.dtype)
    return base.pow(exponent.cast(base.dtype)).cast(base.dtype)


@op("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    """Remainders, with the sign of the divisor or (`fmod`) of the dividend."""
    if not fmod:
        return a % b
    if dtypes.is_float(a.dtype):
        rest = wide(a).abs() % wide(b).abs()
        return (wide(a) < 0).where(-rest, rest).cast(a.dtype)
    return a - a.div(b, rounding_mode="trunc") * b


@op("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """Bits moved; all of them out where as many are asked for as there are."""
    bits = 8 * x.dtype.itemsize
    inside, places = y < bits, y.minimum(bits - 1)
    if direction == "LEFT":
        return inside.where(x << places, 0)
    # A signed number keeps its sign however far it goes.
    moved = x >> places
    return inside.where(moved, 0) if dtypes.is_unsigned(x.dtype) else moved


@op("Sum", "Mean", "Max", "Min", raw=True)
def many(*xs: Value, call: Any) -> Tensor:
    """One of four functions over any number of tensors that broadcast."""
    parts = [call.tensor(x) for x in xs]
    kind = call.node.kind
    if kind in ("Sum", "Mean"):
        total = reduce(lambda a, b: a + b, parts)
        return total / len(parts) if kind == "Mean" else total
    greatest = kind == "Max"
    return reduce(lambda a, b: a.maximum(b) if greatest else a.minimum(b), parts)


@op("Clip")
def clip(x: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Tensor:
    """Between two bounds; the upper one counts where they cross."""
    if min is not None:
        x = x.maximum(min.cast(x.dtype))
    return x if max is None else x.minimum(max.cast(x.dtype))


# activations with parameters


@op("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float) -> Tensor:
    """x, or `alpha` times it below 0."""
    return (x < 0).where(x * alpha, x)


@op("Shrink")
def shrink(x: Tensor, *, bias: float, lambd: float) -> Tensor:
    """x nearer to 0 by `bias`, and 0 within `lambd` of it."""
    return (x < -lambd).where(x + bias, (x > lambd).where(x - bias, 0)).cast(x.dtype)


@op("Gelu")
@op("Gelu", domain=MICROSOFT)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """x times the normal distribution function, by erf or by tanh."""
    y = wide(x)
    if approximate == "tanh":
        inner = 0.044715 * y * y * y + y
        return (0.5 * y * (1 + (math.sqrt(2 / math.pi) * inner).tanh())).cast(x.dtype)
    return (0.5 * y * (1 + (y * math.sqrt(0.5)).erf())).cast(x.dtype)


@op("Swish")
def swish(x: Tensor, *, alpha: float) -> Tensor:
    """x times the sigmoid of alpha x."""
    y = wide(x)
    return (y * (y * alpha).sigmoid()).cast(x.dtype)


@op("QuickGelu", domain=MICROSOFT)
def quick_gelu(x: Tensor, *, alpha: float = 1.702) -> Tensor:
    """x times the sigmoid of alpha x."""
    return swish(x, alpha=alpha)


# types


@op("Cast", raw=True)
def cast_by_name(x: Value, *, to: str, call: Any) -> Value:
    """Another element type by its name, as before version 6."""
    number = DATA_TYPES.get(to)
    if number is None:
        raise UnsupportedError(f"Cast of version {call.version} to {to!r}")
    return cast(x, to=number, call=call)


@op("Cast", raw=True, since=6)
def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up", call: Any) -> Value:
    """Another element type. Narrow floats saturate unless told otherwise."""
    if to not in ASTER:
        return narrowed(call.read(x), to, bool(saturate), round_mode)
    if isinstance(x, np.ndarray) and x.dtype == np.object_:
        return np.asarray(x, NUMPY[to])
    return cast_to(call.tensor(x), element_type(to), bool(saturate))


def narrowed(values: Array, number: int, saturate: bool, round_mode: str = "nearest") -> Array:
    """Numbers in a type that only NumPy has, within its bounds."""
    kind = np.dtype(NUMPY[number])
    if kind == np.object_:
        return text_of(values)
    if kind in SHORT_INTEGERS:
        return np.trunc(values.astype(np.float64)).astype(np.int64).astype(np.int8).astype(kind)
    if kind == np.dtype(ml_dtypes.float8_e8m0fnu) and round_mode != "nearest":
        exponent = np.log2(np.maximum(np.abs(values.astype(np.float64)), 2.0**-149))
        rounding = np.ceil if round_mode == "up" else np.floor
        values = np.exp2(np.clip(rounding(exponent), -127, 127)).astype(np.float64)
    elif saturate:
        most = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
        wide_values = values.astype(np.float32)
        values = np.where(np.isnan(wide_values), wide_values, np.clip(wide_values, -most, most))
    return np.asarray(values).astype(kind)


# Those of fewer than 8 bits: what is too large wraps around.
SHORT_INTEGERS = frozenset(
    map(np.dtype, (ml_dtypes.uint4, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.int2))
)


def text_of(values: Array) -> Array:
    """Numbers as text."""
    result = np.empty(values.size, np.object_)
    result[:] = [format_number(value) for value in values.reshape(-1).tolist()]
    return result.reshape(values.shape)


def format_number(value: Any) -> str:
    """A number as ONNX writes it."""
    if isinstance(value, float):
        return {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(str(value), f"{value:.9g}")
    return str(value)


def cast_to(x: Tensor, dtype: DType, saturate: bool) -> Tensor:
    """x in another dtype; in fp8, what is too large becomes the largest value or (unless
    `saturate`) an infinity or NaN.
    """
    if dtype not in dtypes.fp8s or not dtypes.is_float(x.dtype) or x.dtype is dtype:
        return x.cast(dtype)
    most, y = FP8[dtype][0], wide(x)
    if saturate:
        return y.isnan().where(y, y.clip(-most, most)).cast(dtype)
    _, last, beyond = FP8[dtype]
    too_large = y.abs() > last
    if beyond == math.inf:
        signed = (y < 0).where(-beyond, beyond)
        return too_large.where(signed.cast(dtype), y.clip(-most, most).cast(dtype))
    return too_large.where(beyond, y.clip(-most, most)).cast(dtype)


# The largest value, the largest that rounds to it, and what becomes of more.
FP8 = {
    dtypes.fp8e4m3: (448.0, 464.0, math.nan),
    dtypes.fp8e5m2: (57344.0, math.nextafter(61440.0, 0), math.inf),
}


@op("CastLike", raw=True)
def cast_like(
    x: Value, target: Value, *, saturate: int = 1, round_mode: str = "up", call: Any
) -> Value:
    """In the element type of another tensor."""
    kind = numpy_type(target.dtype) if isinstance(target, Tensor) else target.dtype
    return cast(x, to=NUMBERS[kind], saturate=saturate, round_mode=round_mode, call=call)


@op("Constant", raw=True)
def constant(
    *,
    value: Array | None = None,
    sparse_value: Array | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
    value_string: str | None = None,
    value_strings: list[str] | None = None,
) -> Array:
    """A value of the file."""
    if value is not None:
        return value
    if sparse_value is not None:
        return sparse_value
    for given, kind in (
        (value_float, np.float32), (value_floats, np.float32),
        (value_int, np.int64), (value_ints, np.int64),
        (value_string, np.object_), (value_strings, np.object_),
    ):  # fmt: skip
        if given is not None:
            return np.asarray(given, kind)
    raise UnsupportedError("a constant without a value")


@op("Dropout", host="ratio training_mode", is_random=True)
def dropout(
    x: Tensor,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int | None = None,
    is_test: int | None = None,
    call: Any,
) -> Value:
    """x, and where it is kept; in training some of it is 0 and the rest is larger."""
    share = 0.5 if ratio is None else float(ratio.reshape(()))
    # Before version 7 it is dropped unless it is said that this is a test.
    training = training_mode is not None and bool(training_mode.reshape(()))
    training = training or (call.version < 7 and not is_test)
    if not training or share == 0:
        return x, Tensor.ones(x.shape, dtype=dtypes.bool, device=x.device)
    call.draws()
    kept = Tensor.rand(x.shape, device=x.device) >= share
    return (kept.where(x, 0) / (1 - share)).cast(x.dtype), kept
