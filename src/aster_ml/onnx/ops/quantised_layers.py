"""Computes onnxruntime's layers of quantised tensors: as floats, which are quantised again.

Each takes small integers with a scale and a zero point, and (but for the last ones) gives such.
Exact sums of small integers are in `quantise`, layers of floats in `nets`, `recurrent` and
`transformer`.

Source: onnxruntime's documentation of contributed operators (com.microsoft, version 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import UnsupportedError
from aster_ml.onnx.ops.math import leaky_relu
from aster_ml.onnx.ops.nets import average_pool, max_pool
from aster_ml.onnx.ops.quantise import (
    along,
    centred,
    dynamic_quantize_linear,
    matmul_integer,
    nibbles,
    qlinear_conv,
    requantised,
)
from aster_ml.onnx.ops.recurrent import LSTM_DEFAULTS, Layer, lstm_outputs
from aster_ml.onnx.ops.registry import MICROSOFT, Value, op
from aster_ml.onnx.ops.shape import transpose
from aster_ml.onnx.ops.transformer import attention_of_packed, embed_layer_normalization


def floats_of(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Small integers as the floats that they stand for."""
    values = x.cast(dtypes.float32)
    if zero is not None:
        values = values - zero.reshape(()).cast(dtypes.float32)
    return values * scale.reshape(())


def quantised(y: Tensor, scale: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    """Floats as small integers of the type of `zero`, or of `like` without one."""
    if zero is None:
        zero = Tensor.zeros((), dtype=like.dtype, device=like.device)
    return requantised(y / scale.reshape(()), y._scalar(1.0), zero.reshape(()), zero.dtype)


@op("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def of_two(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None,
    c_scale: Tensor,
    c_zero: Tensor | None = None,
    *,
    call: Any,
) -> Tensor:
    """A sum or product of quantised tensors that broadcast."""
    left, right = floats_of(a, a_scale, a_zero), floats_of(b, b_scale, b_zero)
    y = left + right if call.node.kind == "QLinearAdd" else left * right
    return quantised(y, c_scale, c_zero, a)


@op("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def of_one(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
    *,
    alpha: float = 0.01,
    call: Any,
) -> Tensor:
    """A function of a quantised tensor."""
    y = floats_of(x, x_scale, x_zero)
    y = y.sigmoid() if call.node.kind == "QLinearSigmoid" else leaky_relu(y, alpha=alpha)
    return quantised(y, y_scale, y_zero, x)


@op("QLinearSoftmax", domain=MICROSOFT)
def softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor,
    *,
    axis: int = -1,
    opset: int,
) -> Tensor:
    """Shares along an axis; over all axes from it on where `opset` is below 13."""
    y = floats_of(x, x_scale, None)
    at = axis % x.ndim
    if opset < 13:
        y = y.flatten(at).softmax(-1).reshape(x.shape)
    else:
        y = y.softmax(at)
    return quantised(y, y_scale, y_zero, x)


@op("QLinearWhere", domain=MICROSOFT)
def where(
    condition: Tensor,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    z_scale: Tensor,
    z_zero: Tensor,
) -> Tensor:
    """Of x where the condition holds, else of y."""
    chosen = condition.where(floats_of(x, x_scale, x_zero), floats_of(y, y_scale, y_zero))
    return quantised(chosen, z_scale, z_zero, x)


@op("QLinearConcat", domain=MICROSOFT, raw=True)
def concat(y_scale: Value, y_zero: Value, *parts: Value, axis: int, call: Any) -> Tensor:
    """Tensors of scales of their own one behind the other."""
    scale, zero = call.tensor(y_scale), call.tensor(y_zero)
    found = []
    for i in range(0, len(parts), 3):
        x, own, own_zero = (call.tensor(value) for value in parts[i : i + 3])
        found.append(quantised(floats_of(x, own, own_zero), scale, zero, x))
    return found[0].cat(*found[1:], dim=axis)


def channels_first(x: Tensor) -> Tensor:
    """[n, *sizes, c] -> [n, c, *sizes]."""
    return transpose(x, perm=[0, x.ndim - 1, *range(1, x.ndim - 1)])


def channels_behind(x: Tensor) -> Tensor:
    """[n, c, *sizes] -> [n, *sizes, c]."""
    return transpose(x, perm=[0, *range(2, x.ndim), 1])


def by_channels(x: Tensor, last: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of images, whose channels are the last axis where `last` is true."""
    return channels_behind(function(channels_first(x))) if last else function(x)


@op("QLinearGlobalAveragePool", domain=MICROSOFT)
def global_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    *,
    channels_last: int = 0,
) -> Tensor:
    """The mean of each channel."""

    def mean(image: Tensor) -> Tensor:
        y = floats_of(image, x_scale, x_zero).mean(tuple(range(2, image.ndim)), keepdim=True)
        return quantised(y, y_scale, y_zero, x)

    return by_channels(x, channels_last, mean)


@op("QLinearAveragePool", domain=MICROSOFT, rest=average_pool)
def quantised_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
    *,
    channels_last: int = 0,
    **rest: Any,
) -> Tensor:
    """The mean of each window."""

    def mean(image: Tensor) -> Tensor:
        y = average_pool(floats_of(image, x_scale, x_zero), **rest)
        return quantised(y, y_scale, y_zero, x)

    return by_channels(x, channels_last, mean)


@op("NhwcMaxPool", domain=MICROSOFT, rest=max_pool)
def max_pool_behind(x: Tensor, **rest: Any) -> Tensor:
    """The greatest of each window, channels last."""
    return by_channels(x, 1, lambda image: max_pool(image, **rest))


@op("QLinearConv", domain=MICROSOFT, rest=qlinear_conv)
def conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    b: Tensor | None = None,
    *,
    channels_last: int = 0,
    **rest: Any,
) -> Tensor:
    """As the standard operator, with channels last where that is said."""
    given = x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b
    return by_channels(x, channels_last, lambda image: qlinear_conv(image, *given, **rest))


@op("QGemm", domain=MICROSOFT)
def gemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """alpha A B + C, the bias C in int32; floats where no scale of the result is given."""
    left = a.transpose(0, 1) if transA else a
    right = b.transpose(0, 1) if transB else b
    total = matmul_integer(left, right, a_zero.reshape(()), b_zero)
    total = total if c is None else total + c
    factor = a_scale.reshape(()) * b_scale * alpha
    if y_scale is None or y_zero is None:
        return total.cast(dtypes.float32) * factor
    return requantised(total, factor / y_scale.reshape(()), y_zero.reshape(()), y_zero.dtype)


@op("QAttention", domain=MICROSOFT, rest=attention_of_packed)
def attention(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    x_zero: Tensor | None = None,
    weight_zero: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
    **rest: Any,
) -> Value:
    """Attention whose product for queries, keys and values is of small integers; floats."""
    if past is not None or do_rotary or past_present_share_buffer:
        raise UnsupportedError("QAttention with past or do_rotary")
    total = matmul_integer(x, weight, None if x_zero is None else x_zero.reshape(()), weight_zero)
    packed = total.cast(dtypes.float32) * (x_scale.reshape(()) * weight_scale)
    return attention_of_packed(packed + bias, mask_index, None, **rest)


@op("QEmbedLayerNormalization", domain=MICROSOFT)
def embeddings(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    words: Tensor,
    places: Tensor,
    segments: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    word_scale: Tensor,
    place_scale: Tensor,
    segment_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_zero: Tensor,
    place_zero: Tensor,
    segment_zero: Tensor | None,
    gamma_zero: Tensor,
    beta_zero: Tensor,
    *,
    epsilon: float = 1e-12,
) -> Value:
    """The sum of quantised embeddings, normalised; floats."""
    kinds = None
    if segments is not None and segment_scale is not None:
        kinds = floats_of(segments, segment_scale, segment_zero)
    return embed_layer_normalization(
        input_ids, segment_ids, floats_of(words, word_scale, word_zero),
        floats_of(places, place_scale, place_zero), kinds,
        floats_of(gamma, gamma_scale, gamma_zero), floats_of(beta, beta_scale, beta_zero),
        mask, epsilon=epsilon,
    )[:2]  # fmt: skip


@op("GatherBlockQuantized", domain=MICROSOFT)
def gather_blocks(
    data: Tensor,
    indices: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """Parts along an axis of numbers with a scale for each block of another axis."""
    packed = data.dtype is dtypes.uint8 and bits == 4
    if bits not in (4, 8) or (packed and quantize_axis % data.ndim != data.ndim - 1):
        raise UnsupportedError(f"GatherBlockQuantized of {bits} bits along axis {quantize_axis}")
    axis = quantize_axis % data.ndim
    values = nibbles(data, bits) if packed else data
    zero: Any = float(1 << (bits - 1)) if data.dtype is dtypes.uint8 else 0.0
    if zero_points is not None:
        zero = nibbles(zero_points, bits) if packed else zero_points
        zero = zero.shrink([(0, n) for n in scales.shape])
        zero = along(values, zero, axis, block_size).cast(dtypes.float32)
    scale = along(values, scales, axis, block_size).cast(dtypes.float32)
    whole = ((values.cast(dtypes.float32) - zero) * scale).cast(scales.dtype)
    return whole[(*(slice(None),) * (gather_axis % data.ndim), indices)]


@op("DynamicQuantizeLSTM", domain=MICROSOFT, rest=Layer)
def quantised_lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    p: Tensor | None,
    w_scale: Tensor,
    w_zero: Tensor,
    r_scale: Tensor,
    r_zero: Tensor,
    *,
    input_forget: int = 0,
    **rest: Any,
) -> Value:
    """An LSTM of quantised weights [directions, inputs, 4 * size]; inputs and states are quantised
    by the range that they have in each product.
    """
    products = Product(w, w_scale, w_zero), Product(r, r_scale, r_zero)
    # The standard layer has the rows of weights where these have columns.
    weights = w.transpose(1, 2), r.transpose(1, 2), b
    states = [initial_h, initial_c]
    layer = Layer(x, weights, sequence_lens, states, 4, LSTM_DEFAULTS, products, **rest)
    return lstm_outputs(layer, p, input_forget)


class Product:
    """Products of floats, quantised as they come, with quantised weights."""

    def __init__(self, weight: Tensor, scale: Tensor, zero: Tensor) -> None:
        self.weight, self.scale, self.zero = weight, scale, zero

    def __call__(self, x: Tensor, number: int) -> Tensor:
        """[*b, k] -> [*b, m], by the weights of one direction."""
        values, scale, zero = dynamic_quantize_linear(x)
        weight = centred(self.weight[number], self.zero[number].reshape((-1,)))
        total = centred(values, zero).matmul(weight).cast(dtypes.float32)
        return total * (scale * self.scale[number])
