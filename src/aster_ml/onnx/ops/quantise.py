"""Computes operators on quantised numbers: small integers (or narrow floats) times a scale."""

from __future__ import annotations

from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType
from aster_ml.errors import ShapeError, UnsupportedError
from aster_ml.onnx.ops.math import cast_to, narrowed, wide
from aster_ml.onnx.ops.nets import conv
from aster_ml.onnx.ops.registry import MICROSOFT, Value, op
from aster_ml.onnx.ops.types import ASTER, NUMBERS, NUMPY, numpy_type

# Integers of fewer than 8 bits, by their number: those of Aster's that hold them, and the bounds.
SHORT: dict[int, tuple[DType, int, int]] = {
    21: (dtypes.uint8, 0, 15), 22: (dtypes.int8, -8, 7),
    25: (dtypes.uint8, 0, 3), 26: (dtypes.int8, -2, 1),
}  # fmt: skip


def along(x: Tensor, scale: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point stretched to x: one for all, one an index of `axis`, or one a block."""
    if scale.numel() == 1 and scale.ndim <= 1:
        return scale.reshape((1,) * x.ndim)
    at = axis % x.ndim
    if scale.ndim == 1 and x.ndim > 0 and not (block_size and x.ndim == 1):
        return scale.reshape((-1, *(1,) * (x.ndim - at - 1)))
    if scale.ndim != x.ndim:
        raise ShapeError(f"scales {list(scale.shape)} for {list(x.shape)}")
    block = block_size or -(-x.shape[at] // scale.shape[at])
    stretched = scale.repeat_interleave(block, at)
    return stretched.shrink([(0, s) if i == at else None for i, s in enumerate(x.shape)])


@op("QuantizeLinear", raw=True)
@op("QuantizeLinear", domain=MICROSOFT, raw=True)
def quantize_linear(
    x: Value,
    y_scale: Value,
    y_zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    call: Any,
) -> Value:
    """x over the scale, rounded to even, plus the zero point, within the bounds of the type."""
    data, scale = call.tensor(x), call.tensor(y_scale)
    number = output_dtype or 2
    if y_zero_point is not None:
        number = number_of_value(y_zero_point)
    compute = ASTER.get(precision, dtypes.float32)
    parts = data.cast(compute) / along(data, scale, axis, block_size).cast(compute)
    zero = None
    if y_zero_point is not None:
        zero = along(data, call.tensor(y_zero_point), axis, block_size).cast(compute)
    if number in SHORT:
        _, low, high = SHORT[number]
        values = parts.round() if zero is None else parts.round() + zero
        return call.read(values.clip(low, high)).astype(NUMPY[number])
    if number not in ASTER:
        values = parts if zero is None else parts + zero
        return narrowed(call.read(values), number, bool(saturate))
    dtype = ASTER[number]
    if dtypes.is_float(dtype):
        return cast_to(parts if zero is None else parts + zero, dtype, bool(saturate))
    values = parts.round() if zero is None else parts.round() + zero
    return values.clip(dtypes.min(dtype), dtypes.max(dtype)).cast(dtype)


def number_of_value(value: Value) -> int:
    """The element type of a value, as ONNX counts."""
    return NUMBERS[numpy_type(value.dtype) if isinstance(value, Tensor) else value.dtype]


@op("DequantizeLinear")
@op("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """x less the zero point, times the scale."""
    result = ASTER[output_dtype] if output_dtype else x_scale.dtype
    scale = wide(along(x, x_scale, axis, block_size))
    values = x.cast(scale.dtype)
    if x_zero_point is not None:
        values = values - along(x, x_zero_point, axis, block_size).cast(scale.dtype)
    return (values * scale).cast(result)


@op("DynamicQuantizeLinear")
def dynamic_quantize_linear(x: Tensor) -> Value:
    """x as uint8 with the scale and zero point that its own least and greatest value give."""
    low, high = x.min().minimum(0), x.max().maximum(0)
    scale = (high - low) / 255
    safe = scale.eq(0).where(1, scale)
    zero = (-low / safe).clip(0, 255).round().cast(dtypes.uint8)
    values = ((x / safe).round() + zero.cast(x.dtype)).clip(0, 255).cast(dtypes.uint8)
    return values, scale, zero


def centred(x: Tensor, zero: Tensor | None, is_left: bool = False) -> Tensor:
    """Small integers less their zero point, as int32; of a left factor that has one a row."""
    value = x.cast(dtypes.int32)
    if zero is None:
        return value
    z = zero.cast(dtypes.int32)
    if is_left and z.ndim == 1 and z.shape[0] > 1:
        z = z.unsqueeze(-1)
    return value - z


@op("MatMulInteger")
def matmul_integer(
    a: Tensor,
    b: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
) -> Tensor:
    """A product of matrices of small integers, exact, in int32."""
    left, right = centred(a, a_zero_point, True), centred(b, b_zero_point)
    return left.matmul(right).cast(dtypes.int32)


def requantised(total: Tensor, factor: Tensor, y_zero_point: Tensor, dtype: DType) -> Tensor:
    """Exact sums times a factor, rounded, plus a zero point, within the bounds of a type."""
    values = (total.cast(dtypes.float32) * factor).round() + y_zero_point.cast(dtypes.float32)
    return values.clip(dtypes.min(dtype), dtypes.max(dtype)).cast(dtype)


@op("QLinearMatMul")
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """A product of quantised matrices, quantised again."""
    total = matmul_integer(a, b, a_zero_point, b_zero_point)
    left = wide(a_scale)
    left = left.unsqueeze(-1) if left.ndim == 1 and left.shape[0] > 1 else left
    factor = left * wide(b_scale) / wide(y_scale)
    return requantised(total, factor, y_zero_point, y_zero_point.dtype)


@op("ConvInteger", rest=conv)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    **rest: Any,
) -> Tensor:
    """A convolution of small integers, exact, in int32; what is padded is the zero point."""
    weight = w.cast(dtypes.int32)
    if w_zero_point is not None:
        sizes = (-1, *(1,) * (w.ndim - 1)) if w_zero_point.numel() > 1 else (1,) * w.ndim
        weight = weight - w_zero_point.cast(dtypes.int32).reshape(sizes)
    values = centred(x, None if x_zero_point is None else x_zero_point.reshape(()))
    return conv(values, weight, **rest).cast(dtypes.int32)


@op("QLinearConv", rest=conv)
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
    **rest: Any,
) -> Tensor:
    """A convolution of quantised tensors, quantised again."""
    total = conv_integer(x, w, x_zero_point, w_zero_point, **rest)
    sizes = (1, -1, *(1,) * (x.ndim - 2))
    if b is not None:
        total = total + b.reshape(sizes)
    factor = x_scale.reshape(()) * w_scale.reshape((-1,)) / y_scale.reshape(())
    return requantised(total, factor.reshape(sizes), y_zero_point.reshape(()), y_zero_point.dtype)


@op("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(
    a: Tensor,
    b: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Tensor:
    """A product with a matrix of 4- or 8-bit numbers in blocks along k, two of 4 bits in a byte."""
    if bits not in (4, 8) or g_idx is not None or weight_prepacked:
        named = f"{bits} bits, g_idx {g_idx is not None}, weight_prepacked {weight_prepacked}"
        raise UnsupportedError(f"MatMulNBits with {named}")
    blocks = -(-K // block_size)
    values = nibbles(b.reshape((N, blocks, -1)), bits).cast(scales.dtype)
    zero: Any = float(1 << (bits - 1))
    if zero_points is not None:
        zero = zero_points
        if zero.dtype is dtypes.uint8:
            zero = nibbles(zero.reshape((N, -1)), bits).shrink((None, (0, blocks)))
        zero = zero.cast(scales.dtype).reshape((N, blocks, 1))
    weight = (values - zero) * scales.reshape((N, blocks, 1))
    weight = weight.reshape((N, -1)).shrink((None, (0, K))).cast(a.dtype)
    result = a.matmul(weight.transpose(0, 1))
    return result if bias is None else result + bias


def nibbles(packed: Tensor, bits: int) -> Tensor:
    """The numbers in bytes, the low four bits before the high ones."""
    if bits == 8:
        return packed
    return (packed & 15).stack(packed >> 4, dim=-1).flatten(-2)


@op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """A times a quantised B, A quantised by its own range; floats again."""
    values, scale, zero = dynamic_quantize_linear(a)
    total = matmul_integer(values, b, zero, b_zero_point).cast(dtypes.float32)
    result = total * (scale * b_scale)
    return result if bias is None else result + bias


@op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """A product of quantised matrices as floats."""
    total = matmul_integer(a, b, a_zero_point, b_zero_point).cast(dtypes.float32)
    result = total * (a_scale * b_scale)
    return result if bias is None else result + bias
