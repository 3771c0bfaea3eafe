"""Computes products of matrices, convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import ShapeError, UnsupportedError
from aster_ml.onnx.ops.host import ints
from aster_ml.onnx.ops.math import gelu, wide
from aster_ml.onnx.ops.registry import MICROSOFT, Array, Value, op
from aster_ml.uop.node import smax

Ints = list[int]


@op("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices; the axes before the last two broadcast."""
    return a.matmul(b)


@op("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Tensor:
    """alpha A B + beta C."""
    left, right = (a.transpose(0, 1) if transA else a), (b.transpose(0, 1) if transB else b)
    product = left.matmul(right)
    product = product if alpha == 1 else (product * alpha).cast(a.dtype)
    if c is None or not beta:
        return product
    return product + (c if beta == 1 else (c * beta).cast(a.dtype))


@op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(
    a: Tensor,
    b: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    """alpha A B, either one transposed."""
    if transBatchA or transBatchB:
        raise UnsupportedError("transBatchA and transBatchB")
    left, right = (a.transpose(-1, -2) if transA else a), (b.transpose(-1, -2) if transB else b)
    return left.matmul(right) * alpha


@op("BiasGelu", "FastGelu", domain=MICROSOFT)
def bias_gelu(x: Tensor, bias: Tensor | None = None, *, call: Any) -> Tensor:
    """Gelu of a sum."""
    kind = "tanh" if call.node.kind == "FastGelu" else "none"
    return gelu(x if bias is None else x + bias, approximate=kind)


@op("Einsum")
def einsum(*xs: Tensor, equation: str) -> Tensor:
    """Products and sums as a formula says."""
    return Tensor.einsum(equation.replace(" ", ""), *xs).cast(xs[0].dtype)


class Windows:
    """The attributes of a convolution or pooling, resolved for the sizes of an input."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        kernel: Sequence[int],
        *,
        auto_pad: str = "NOTSET",
        dilations: Ints | None = None,
        kernel_shape: Ints | None = None,
        pads: Ints | None = None,
        strides: Ints | None = None,
    ) -> None:
        rank = len(kernel)
        self.kernel = tuple(kernel)
        self.strides = tuple(strides or [1] * rank)
        self.dilations = tuple(dilations or [1] * rank)
        given = list(pads or [0] * (2 * rank))
        if not len(sizes) == rank == len(self.strides) == len(self.dilations) == len(given) // 2:
            raise ShapeError(
                f"a kernel of {list(kernel)}, strides {list(self.strides)}, dilations "
                f"{list(self.dilations)} and pads {given} for axes of {list(sizes)}"
            )
        if min(*self.strides, *self.dilations, *kernel, 1) < 1:
            raise ShapeError("kernel, strides and dilations are positive")
        self.pairs: list[tuple[Any, Any]] = [(given[i], given[i + rank]) for i in range(rank)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            self.pairs = []
            for size, k, s, d in zip(sizes, kernel, self.strides, self.dilations):
                total = smax((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
                small, large = total // 2, total - total // 2
                self.pairs.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
        elif auto_pad == "VALID":
            self.pairs = [(0, 0)] * rank

    @property
    def flat(self) -> tuple[int, ...]:
        """The pairs as `conv2d` takes them: the last axis first."""
        return tuple([n for pair in reversed(self.pairs) for n in pair])


@op("Conv", rest=Windows)
def conv(x: Tensor, w: Tensor, b: Tensor | None = None, *, group: int = 1, **rest: Any) -> Tensor:
    """A convolution over all axes after the first two."""
    p = Windows(x.shape[2:], w.shape[2:], **rest)
    return x.conv2d(w, b, groups=group, stride=p.strides, dilation=p.dilations, padding=p.flat)


@op("FusedConv", domain=MICROSOFT, rest=conv)
def fused_conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    z: Tensor | None = None,
    *,
    activation: str = "Relu",
    activation_params: list[float] | None = None,
    **rest: Any,
) -> Tensor:
    """A convolution, plus z, and an activation."""
    y = conv(x, w, b, **rest)
    y = y if z is None else y + z
    known = {"Relu": y.relu, "Sigmoid": y.sigmoid, "Tanh": y.tanh}
    if activation not in known:
        raise UnsupportedError(f"activation {activation}")
    return known[activation]()


@op("ConvTranspose", rest=Windows)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    group: int = 1,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    **rest: Any,
) -> Tensor:
    """The transposed convolution, cut or filled to the shape that the attributes give."""
    rank = x.ndim - 2
    p = Windows(x.shape[2:], w.shape[2:], **rest)
    more = output_padding or [0] * rank
    whole = x.conv_transpose2d(w, None, groups=group, stride=p.strides, dilation=p.dilations)
    pairs = list(p.pairs)
    sizes = [size + m - sum(pair) for size, m, pair in zip(whole.shape[2:], more, pairs)]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = list(output_shape or [s * n for s, n in zip(x.shape[2:], p.strides)])
        sizes = sizes[-rank:]
        pairs = []
        for full, m, size in zip(whole.shape[2:], more, sizes):
            total = max(full + m - size, 0)
            small, large = total // 2, total - total // 2
            pairs.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    grown = [(0, max(pair[0] + s - f, 0)) for pair, s, f in zip(pairs, sizes, whole.shape[2:])]
    whole = whole.pad([(0, 0), (0, 0), *grown])
    whole = whole.shrink([None, None, *[(pair[0], pair[0] + s) for pair, s in zip(pairs, sizes)]])
    return whole if b is None else whole + b.reshape((1, -1, *(1,) * rank))


def ceil_pads(x: Tensor, p: Windows, ceil_mode: int) -> list[Any]:
    """Padding that the last window of each axis needs beyond the end, where it may."""
    extra = []
    for size, k, s, d, (b, a) in zip(x.shape[2:], p.kernel, p.strides, p.dilations, p.pairs):
        reach = d * (k - 1) + 1
        room = size + b + a - reach
        if room < 0 and not ceil_mode:
            raise ShapeError(f"a window of {reach} on an axis of {size + b + a}")
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= size + b:
            count -= 1
        # Rounded down, no window goes beyond the end.
        extra.append(smax((count - 1) * s + reach - (size + b + a), 0) if ceil_mode else 0)
    return extra


@op("AveragePool", "LpPool", rest=Windows)
def average_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    p: int = 2,
    call: Any,
    **rest: Any,
) -> Tensor:
    """The mean of each window, or (LpPool) the root of its powers' sum."""
    w = Windows(x.shape[2:], kernel_shape, **rest)
    extra = ceil_pads(x, w, ceil_mode)
    lead = [(0, 0), (0, 0)]
    full = [*lead, *[(b, a + e) for (b, a), e in zip(w.pairs, extra)]]

    def summed(y: Tensor) -> Tensor:
        count = math.prod(kernel_shape)
        return count * y.avg_pool2d(w.kernel, w.strides, w.dilations)

    if call.node.kind == "LpPool":
        powers = wide(x).abs().pow(p)
        return summed(powers.pad(full)).pow(1 / p).cast(x.dtype)
    y = wide(x)
    total = summed(y.pad(full))
    ones = Tensor.ones((1, 1, *x.shape[2:]), dtype=y.dtype, device=x.device)
    if count_include_pad:
        ones = ones.pad([*lead, *w.pairs], value=1.0)
        ones = ones.pad([*lead, *[(0, e) for e in extra]])
    else:
        ones = ones.pad(full)
    if all(pair == (0, 0) for pair in full[2:]) or (count_include_pad and not any(extra)):
        return (total / math.prod(kernel_shape)).cast(x.dtype)
    return (total / summed(ones)).cast(x.dtype)


@op("MaxPool", rest=Windows)
def max_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    ceil_mode: int = 0,
    storage_order: int = 0,
    call: Any,
    **rest: Any,
) -> Value:
    """The greatest of each window, and where it stands in the whole tensor."""
    p = Windows(x.shape[2:], kernel_shape, **rest)
    extra = ceil_pads(x, p, ceil_mode)
    pairs = [(b, a + e) for (b, a), e in zip(p.pairs, extra)]
    flat = tuple([n for pair in reversed(pairs) for n in pair])
    arguments = p.kernel, p.strides, p.dilations, flat
    if not call.wants(1):
        return x.max_pool2d(*arguments)
    values, places = x.max_pool2d(*arguments, return_indices=True)
    sizes, places = x.shape[2:], places.cast(dtypes.int64)
    if storage_order and len(sizes) > 1:
        row, column = places // sizes[-1] % sizes[-2], places % sizes[-1]
        places = places - row * sizes[-1] - column + column * sizes[-2] + row
    planes = Tensor.arange(math.prod(x.shape[:2]), dtype=dtypes.int64, device=x.device)
    planes = planes.reshape((*x.shape[:2], *(1,) * len(sizes)))
    return values, places + planes * math.prod(sizes)


@op("MaxUnpool", host="output_shape", rest=Windows)
def max_unpool(
    x: Tensor,
    places: Tensor,
    output_shape: Array | None = None,
    *,
    kernel_shape: Ints,
    **rest: Any,
) -> Tensor:
    """Each value at the place that it was the greatest at, zeros elsewhere."""
    rank = len(kernel_shape)
    p = Windows(x.shape[2:], kernel_shape, **rest)
    sizes = [
        (n - 1) * s - sum(pair) + k
        for n, s, pair, k in zip(x.shape[2:], p.strides, p.pairs, kernel_shape)
    ]
    whole = (*x.shape[:2], *sizes)
    out = whole if output_shape is None else tuple(ints(output_shape))
    zeros = Tensor.zeros((math.prod(out),), dtype=x.dtype, device=x.device)
    flat = places.reshape((-1,)).cast(dtypes.int32)
    if out != whole:
        # Places count over the smaller shape that the kernel gives.
        inner, plane = math.prod(sizes), math.prod(out[2:])
        row, at = flat // inner, flat % inner
        moved, rest = row * plane, at
        for i in range(rank):
            after = math.prod(sizes[i + 1 :])
            moved = moved + rest // after * math.prod(out[3 + i :])
            rest = rest % after
        flat = moved
    return zeros.scatter(0, flat, x.reshape((-1,))).reshape(out)


@op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(x: Tensor, *, p: int = 2, call: Any) -> Tensor:
    """The mean, the greatest, or the p-norm of each channel."""
    axes = tuple(range(2, x.ndim))
    if call.node.kind == "GlobalMaxPool":
        return x.max(axes, keepdim=True)
    y = wide(x)
    if call.node.kind == "GlobalAveragePool":
        return y.mean(axes, keepdim=True).cast(x.dtype)
    return y.abs().pow(p).sum(axes, keepdim=True).pow(1 / p).cast(x.dtype)


@op("Det")
def determinant(x: Tensor) -> Tensor:
    """Determinants of square matrices, by elimination with the largest pivot of each column."""
    size = x.shape[-1]
    m, total = wide(x).reshape((-1, size, size)), None
    sign = Tensor.ones((m.shape[0],), dtype=m.dtype, device=x.device)
    for i in range(size):
        at = m[:, i:, i].abs().argmax(1, keepdim=True)
        rows = m[:, i:, :]
        numbers = Tensor.arange(size - i, dtype=dtypes.int32, device=x.device).reshape((1, -1))
        chosen = numbers.eq(at).unsqueeze(-1)
        pivot = chosen.where(rows, 0).sum(1, keepdim=True)
        sign = at.squeeze(1).eq(0).where(sign, -sign)
        rows = chosen.where(rows[:, :1, :], rows)[:, 1:, :]
        head = pivot[:, 0, i]
        total = head if total is None else total * head
        safe = head.eq(0).where(1, head).reshape((-1, 1, 1))
        rows = rows - rows[:, :, i : i + 1] / safe * pivot
        m = m[:, : i + 1, :].cat(rows, dim=1)
    assert total is not None
    return (total * sign).reshape(x.shape[:-2]).cast(x.dtype)
