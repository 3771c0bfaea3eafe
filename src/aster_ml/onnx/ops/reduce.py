"""Computes operators that reduce axes or normalise over them, and losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import UnsupportedError
from aster_ml.onnx.ops.host import ints
from aster_ml.onnx.ops.math import wide
from aster_ml.onnx.ops.registry import MICROSOFT, Array, Value, op
from aster_ml.onnx.ops.types import element_type

Axes = tuple[int, ...]


def log_sum_exp(x: Tensor, axes: Axes) -> Tensor:
    """The logarithm of the sum of exponentials, also of infinities."""
    y = wide(x)
    most = y.max(axes, keepdim=True)
    most = most.isinf().where(0, most)
    return (y - most).exp().sum(axes, keepdim=True).log() + most


REDUCTIONS: dict[str, Callable[[Tensor, Axes], Tensor]] = {
    "ReduceSum": lambda x, a: x.sum(a, keepdim=True),
    "ReduceMean": lambda x, a: wide(x).mean(a, keepdim=True),
    "ReduceProd": lambda x, a: x.prod(a, keepdim=True),
    "ReduceMax": lambda x, a: x.max(a, keepdim=True),
    "ReduceMin": lambda x, a: x.min(a, keepdim=True),
    "ReduceL1": lambda x, a: x.abs().sum(a, keepdim=True),
    "ReduceL2": lambda x, a: real(x).square().sum(a, keepdim=True).sqrt(),
    "ReduceSumSquare": lambda x, a: x.square().sum(a, keepdim=True),
    "ReduceLogSum": lambda x, a: real(x).sum(a, keepdim=True).log(),
    "ReduceLogSumExp": lambda x, a: log_sum_exp(real(x), a),
}


def real(x: Tensor) -> Tensor:
    """A tensor of floats: integers as float32."""
    return wide(x) if dtypes.is_float(x.dtype) else x.cast(dtypes.float32)


@op(*REDUCTIONS, host="axes")
def reduction(
    data: Tensor,
    axes: Array | None = None,
    *,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    call: Any,
) -> Tensor:
    """One of ten functions of the elements along some axes, of all without any."""
    along = tuple([a % data.ndim for a in ints(axes)]) if axes is not None and axes.size else ()
    kind = call.node.kind
    if not along:
        if noop_with_empty_axes:
            # Only what is done to single elements is done.
            return REDUCTIONS[kind](data.unsqueeze(0), (0,)).squeeze(0).cast(data.dtype)
        along = tuple(range(data.ndim))
    if not data.ndim:
        return REDUCTIONS[kind](data.reshape((1,)), (0,)).reshape(()).cast(data.dtype)
    if kind in ("ReduceMax", "ReduceMin") and 0 in [data.shape[a] for a in along]:
        least = kind == "ReduceMax"
        sizes = tuple([1 if i in along else s for i, s in enumerate(data.shape)])
        value = dtypes.min(data.dtype) if least else dtypes.max(data.dtype)
        result = Tensor.full(sizes, value, dtype=data.dtype, device=data.device)
    else:
        result = REDUCTIONS[kind](data, along).cast(data.dtype)
    if keepdims:
        return result
    return result.reshape(tuple([s for i, s in enumerate(data.shape) if i not in along]))


@op("Softmax", "LogSoftmax", since=13)
def softmax(x: Tensor, *, axis: int = -1, call: Any) -> Tensor:
    """Shares along an axis, or their logarithms."""
    y = wide(x)
    log = call.node.kind == "LogSoftmax"
    return (y.log_softmax(axis) if log else y.softmax(axis)).cast(x.dtype)


@op("Softmax", "LogSoftmax")
def softmax_of_rows(x: Tensor, *, axis: int = 1, call: Any) -> Tensor:
    """Shares over all axes from `axis` on, as before version 13."""
    at = axis % x.ndim
    rows = x.reshape((math.prod(x.shape[:at]), -1))
    return softmax(rows, axis=-1, call=call).reshape(x.shape)


@op("BatchNormalization")
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float,
    momentum: float = 0.9,
    training_mode: int = 0,
    spatial: int = 1,
    is_test: int = 0,
    call: Any,
) -> Value:
    """Each channel scaled to mean 0 and variance 1, by statistics given or (training) its own.

    Raises: UnsupportedError for training before version 14, whose statistics are not defined.
    """
    if call.version < 14 and call.results > 1:
        raise UnsupportedError(f"BatchNormalization of version {call.version} that trains")
    if call.version < 7 and not is_test:
        raise UnsupportedError(f"BatchNormalization of version {call.version} without is_test")
    y, sizes = wide(x), (1, -1, *(1,) * (x.ndim - 2))
    if not spatial:
        # Statistics of each element of a sample, as versions before 9 have them.
        sizes = (1, *x.shape[1:])
    used_mean, used_var = mean, var
    if training_mode:
        axes = (0, *range(2, x.ndim))
        used_mean, used_var = y.mean(axes), y.var(axes, correction=0)
    factor = scale.cast(y.dtype) * (used_var.cast(y.dtype) + epsilon).rsqrt()
    offset = bias.cast(y.dtype) - used_mean.cast(y.dtype) * factor
    result = (y * factor.reshape(sizes) + offset.reshape(sizes)).cast(x.dtype)
    if not training_mode:
        return result
    return (
        result,
        (mean * momentum + used_mean * (1 - momentum)).cast(mean.dtype),
        (var * momentum + used_var * (1 - momentum)).cast(var.dtype),
    )


def standardised(x: Tensor, axes: Axes, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """x less its mean over its deviation, the mean, and one over the deviation."""
    mean = x.mean(axes, keepdim=True)
    inverse = ((x - mean).square().mean(axes, keepdim=True) + epsilon).rsqrt()
    return (x - mean) * inverse, mean, inverse


@op("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float) -> Tensor:
    """Each channel of each sample scaled to mean 0 and variance 1."""
    sizes = (1, -1, *(1,) * (x.ndim - 2))
    y, _, _ = standardised(wide(x), tuple(range(2, x.ndim)), epsilon)
    return (y * scale.reshape(sizes) + bias.reshape(sizes)).cast(x.dtype)


@op("LayerNormalization")
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Value:
    """The axes from `axis` on scaled to mean 0 and variance 1."""
    wide_type = element_type(stash_type)
    axes = tuple(range(axis % x.ndim, x.ndim))
    y, mean, inverse = standardised(x.cast(wide_type), axes, epsilon)
    result = y.cast(x.dtype) * scale
    return result if bias is None else result + bias, mean, inverse


@op("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    """The axes from `axis` on over the root of the mean of their squares."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    y = x.cast(element_type(stash_type))
    y = y * (y.square().mean(axes, keepdim=True) + epsilon).rsqrt()
    return (y.cast(scale.dtype) * scale).cast(scale.dtype)


@op("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT, raw=True)
def skip_layer_normalization(
    x: Value, skip: Value, gamma: Value, *rest: Value, epsilon: float = 1e-12, call: Any
) -> Value:
    """The sum of two tensors (and a bias), normalised; the sum is the fourth output."""
    simple = call.node.kind == "SkipSimplifiedLayerNormalization"
    x, skip, gamma = call.tensor(x), call.tensor(skip), call.tensor(gamma)
    beta, bias = ([*([None] if simple else []), *rest, None, None])[:2]
    total = x + skip if bias is None else x + skip + call.tensor(bias)
    if simple:
        return rms_normalization(total, gamma, epsilon=epsilon), None, None, total
    shift = None if beta is None else call.tensor(beta)
    result, mean, inverse = layer_normalization(total, gamma, shift, epsilon=epsilon)
    return result, mean, inverse, total


@op("GroupNormalization", since=21)
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    """Groups of channels of each sample scaled to mean 0 and variance 1."""
    y = x.cast(element_type(stash_type)).reshape((x.shape[0], num_groups, -1))
    y = standardised(y, (2,), epsilon)[0].reshape(x.shape).cast(x.dtype)
    sizes = (1, -1, *(1,) * (x.ndim - 2))
    return y * scale.reshape(sizes) + bias.reshape(sizes)


@op("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: list[int]) -> Tensor:
    """Scaled to mean 0 and deviation 1 over some axes."""
    along = tuple([a % x.ndim for a in axes])
    y = wide(x)
    mean = y.mean(along, keepdim=True)
    deviation = (y.square().mean(along, keepdim=True) - mean.square()).sqrt()
    return ((y - mean) / (deviation + 1e-9)).cast(x.dtype)


@op("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """Over the length along an axis; 0 where that is 0."""
    length = (
        x.abs().sum(axis, keepdim=True) if p == 1 else x.square().sum(axis, keepdim=True).sqrt()
    )
    return length.eq(0).where(0, x / length.eq(0).where(1, length)).cast(x.dtype)


@op("LRN")
def local_response_normalization(
    x: Tensor, *, alpha: float, beta: float, bias: float, size: int
) -> Tensor:
    """Over a power of the squares of the channels near by."""
    y = wide(x)
    before = (size - 1) // 2
    pairs = [(0, 0)] * x.ndim
    pairs[1] = before, size - 1 - before
    squares = y.square().pad(pairs).unfold(1, size, 1).sum(-1)
    return (y / (bias + alpha / size * squares).pow(beta)).cast(x.dtype)


def picked(values: Tensor, labels: Tensor) -> Tensor:
    """Of the classes on axis 1 the one that each label names."""
    return values.gather(1, labels.unsqueeze(1)).squeeze(1)


def weighted_loss(
    losses: Tensor, labels: Tensor, weight: Tensor | None, ignore: int | None, reduction: str
) -> Tensor:
    """Losses of single places, weighted by class, and reduced."""
    shares = None
    if weight is not None:
        known = labels.clip(0, weight.shape[0] - 1)
        shares = weight.gather(0, known.flatten().cast(dtypes.int32)).reshape(labels.shape)
    if ignore is not None:
        kept = labels.ne(ignore)
        shares = kept.cast(losses.dtype) if shares is None else kept.where(shares, 0)
        losses = kept.where(losses, 0)
    weighted = losses if shares is None else losses * shares
    if reduction == "none":
        return weighted
    if reduction == "sum" or shares is None:
        return weighted.sum() if reduction == "sum" else weighted.mean()
    return weighted.sum() / shares.sum()


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Minus the score of each label, averaged or added up."""
    known = target.clip(0, x.shape[1] - 1)
    return weighted_loss(-picked(x, known), target, weight, ignore_index, reduction)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Value:
    """Minus the logarithm of each label's share, averaged or added up; and all logarithms."""
    log = scores.log_softmax(1)
    known = labels.clip(0, scores.shape[1] - 1)
    return weighted_loss(-picked(log, known), labels, weights, ignore_index, reduction), log
