"""Computes operators of networks: products of matrices, convolutions, pools, norms, attention."""

from __future__ import annotations

import math
from typing import Any

from aster_ml import Tensor
from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.torch_backend.aten.registry import DEVICE, aten


@aten("mm", "bmm")
def mm(x: Tensor, y: Tensor) -> Any:
    """The product of matrices."""
    return x.matmul(y)


@aten("addmm", "baddbmm")
def addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """beta * bias + alpha * x @ y."""
    product = x.matmul(y)
    product = product if alpha == 1 else product * alpha
    # Nothing of `bias` counts where beta is 0, NaN neither.
    return product if beta == 0 else product + (bias if beta == 1 else bias * beta)


def numbers(value: Any, count: int) -> tuple[int, ...]:
    """One number an axis."""
    given = [value] if isinstance(value, int) else list(value)
    return tuple(given * count if len(given) == 1 else given)


def pairs(value: Any, count: int) -> tuple[int, ...]:
    """Padding as Aster writes it: before and after, the last axis first."""
    return tuple([n for size in reversed(numbers(value, count)) for n in (size, size)])


@aten("convolution")
def convolution(
    x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    """Cross-correlation over the last axes, or its transpose."""
    n = weight.ndim - 2
    steps, holes, around = numbers(stride, n), numbers(dilation, n), pairs(padding, n)
    if transposed:
        return x.conv_transpose2d(
            weight, bias, groups, steps, holes, around, numbers(output_padding, n)
        )
    return x.conv2d(weight, bias, groups, steps, holes, around)


@aten("convolution_backward")
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> Any:  # fmt: skip
    """The gradients for x, weight and bias, of those that `mask` names."""
    y = convolution(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)
    wanted = [t for t, is_wanted in zip((x, weight), mask) if is_wanted]
    found = iter(y.gradient(*wanted, gradient=grad) if wanted else [])
    of_bias = grad.sum((0, *range(2, grad.ndim))) if mask[2] else None
    return next(found) if mask[0] else None, next(found) if mask[1] else None, of_bias


@aten("max_pool2d_with_indices")
def max_pool(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The greatest of each window, and where it stands first."""
    sizes = numbers(kernel, 2)
    return x.max_pool2d(
        sizes, numbers(stride, 2) if stride else sizes, numbers(dilation, 2),
        pairs(padding, 2), ceil_mode, return_indices=True,
    )  # fmt: skip


@aten("max_pool2d_with_indices_backward")
def max_pool_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, places: Tensor,
) -> Any:  # fmt: skip
    """Adds up the gradient of each element of x: of the windows in which it is the greatest."""
    lead, count = prod(x.shape[:-2]), prod(x.shape[-2:])
    found = prod(grad.shape[-2:])
    zeros = Tensor.zeros(lead, count, dtype=grad.dtype, device=DEVICE)
    where = places.cast(dtypes.int32).reshape((lead, found))
    return zeros.scatter_reduce(1, where, grad.reshape((lead, found)), "sum").reshape(x.shape)


def has_divisor_at(node: Any, place: int) -> str | None:
    """A divisor, the argument at this place, that is neither count of elements."""
    given = node.args[place] if len(node.args) > place else None
    return None if given is None else "a divisor of its own"


@aten("avg_pool2d", refuses=lambda node: has_divisor_at(node, 6))
def avg_pool(
    x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor: Any = None,
) -> Any:  # fmt: skip
    """The mean of each window."""
    sizes = numbers(kernel, 2)
    return x.avg_pool2d(
        sizes, numbers(stride, 2) if stride else sizes, 1, pairs(padding, 2), ceil_mode,
        count_include_pad,
    )  # fmt: skip


@aten("avg_pool2d_backward", refuses=lambda node: has_divisor_at(node, 7))
def avg_pool_backward(
    grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor: Any = None,
) -> Any:  # fmt: skip
    """Adds up the gradient of each element of x: its shares of the windows that it is in."""
    y = avg_pool(x, kernel, stride, padding, ceil_mode, count_include_pad)
    return y.gradient(x, gradient=grad)[0]


def shares(size: int, parts: int, like: Tensor) -> Tensor:
    """[parts, size]: what each element of an axis counts for in each part of it."""
    element = Tensor.arange(size, device=DEVICE).reshape((1, size))
    part = Tensor.arange(parts, device=DEVICE).reshape((parts, 1))
    start, end = part * size // parts, ((part + 1) * size + parts - 1) // parts
    inside = (element >= start) & (element < end)
    return (inside.cast(like.dtype) / (end - start).cast(like.dtype)).cast(like.dtype)


@aten("_adaptive_avg_pool2d")
def adaptive_avg_pool(x: Tensor, size: Any) -> Any:
    """Means over equal parts of the last two axes, which may overlap by one."""
    rows, columns = shares(x.shape[-2], size[0], x), shares(x.shape[-1], size[1], x)
    return rows.matmul(x).matmul(columns.transpose(0, 1))


@aten("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Any:
    """Adds up the gradient of each element of x: its shares of the parts that it is in."""
    rows = shares(x.shape[-2], grad.shape[-2], grad)
    columns = shares(x.shape[-1], grad.shape[-1], grad)
    return rows.transpose(0, 1).matmul(grad).matmul(columns)


def wide(x: Tensor) -> Tensor:
    """In at least float32, in which statistics are computed."""
    return x if x.dtype is dtypes.float64 else x.cast(dtypes.float32)


def normal(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x with mean 0 and variance 1 over some axes, that mean, and the root of 1 / variance."""
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    rstd = ((centred * centred).mean(axes, keepdim=True) + eps).rsqrt()
    return centred * rstd, mean, rstd


@aten("native_layer_norm")
def layer_norm(x: Tensor, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    """Mean 0 and variance 1 over the last axes."""
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    y, mean, rstd = normal(wide(x), axes, eps)
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias).cast(x.dtype), mean, rstd


@aten("native_group_norm")
def group_norm(
    x: Tensor, weight: Any, bias: Any, n: int, channels: int, inner: int, groups: int, eps: float
) -> Any:
    """Mean 0 and variance 1 over the channels of each group and what lies in them."""
    flat = wide(x).reshape((n, groups, channels // groups * inner))
    y, mean, rstd = normal(flat, (2,), eps)
    y = y.reshape(x.shape)
    along = (1, channels, *(1,) * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(along)
    y = y if bias is None else y + bias.reshape(along)
    return y.cast(x.dtype), mean.reshape((n, groups)), rstd.reshape((n, groups))


def by_channel(t: Any, x: Tensor) -> Any:
    """Numbers of channels against a value of which they are axis 1."""
    return t.reshape((1, -1, *(1,) * (x.ndim - 2)))


@aten("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    x: Tensor, weight: Any, bias: Any, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> Any:
    """By the statistics that are given."""
    scale = (wide(var) + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    y = (x - by_channel(mean, x)) * by_channel(scale, x)
    y = y if bias is None else y + by_channel(bias, x)
    nothing = Tensor.zeros(0, dtype=dtypes.float32, device=DEVICE)
    return y.cast(x.dtype), nothing, nothing


@aten("_native_batch_norm_legit_functional")
def batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """By the statistics of the batch, which move those that are given; or by these."""
    if not training:
        y, nothing, _ = batch_norm_inference(x, weight, bias, mean, var, momentum, eps)
        return y, nothing, nothing, mean, var
    axes = (0, *range(2, x.ndim))
    y, batch_mean, rstd = normal(wide(x), axes, eps)
    count = prod([x.shape[i] for i in axes])
    y = y if weight is None else y * by_channel(weight, x)
    y = y if bias is None else y + by_channel(bias, x)
    found_mean, found_rstd = batch_mean.reshape((-1,)), rstd.reshape((-1,))
    centred = wide(x) - batch_mean
    found_var = (centred * centred).mean(axes) * (count / max(count - 1, 1))
    new_mean = (found_mean * momentum + mean * (1 - momentum)).cast(mean.dtype)
    new_var = (found_var * momentum + var * (1 - momentum)).cast(var.dtype)
    return y.cast(x.dtype), found_mean, found_rstd, new_mean, new_var


def attention_scores(q: Tensor, k: Tensor, causal: bool, mask: Any, scale: Any) -> Tensor:
    """Scaled products of queries and keys, -inf where a key is not to be seen."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores: Tensor = wide(q).matmul(wide(k).transpose(-2, -1)) * factor
    if causal:
        shape = scores.shape[-2:]
        seen = Tensor.full(shape, True, dtype=dtypes.bool, device=DEVICE).tril()
        scores = seen.where(scores, -math.inf)
    if mask is not None:
        scores = mask.where(scores, -math.inf) if mask.dtype is dtypes.bool else scores + mask
    return scores


@aten("_scaled_dot_product_flash_attention_for_cpu")
def attention(
    q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """Values weighted by how well their keys fit, and the logarithm of the sum of the weights."""
    scores = attention_scores(q, k, is_causal, attn_mask, scale)
    y = scores.softmax(-1).matmul(wide(v)).cast(q.dtype)
    return y, scores.logsumexp(-1)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, total: Tensor, dropout: float,
    is_causal: bool, *, attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """The gradients for queries, keys and values."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    wide_grad = wide(grad)
    weights = (attention_scores(q, k, is_causal, attn_mask, scale) - total.unsqueeze(-1)).exp()
    of_v = weights.transpose(-2, -1).matmul(wide_grad)
    of_weights = wide_grad.matmul(wide(v).transpose(-2, -1))
    share = (wide_grad * y).sum(-1, keepdim=True)
    of_scores = weights * (of_weights - share) * factor
    of_q, of_k = of_scores.matmul(wide(k)), of_scores.transpose(-2, -1).matmul(wide(q))
    return of_q.cast(q.dtype), of_k.cast(k.dtype), of_v.cast(v.dtype)
