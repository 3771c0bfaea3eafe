"""Computes transposed convolutions: each input element adds a scaled kernel to the output.

Receives Tensors that fit together; returns Tensors. Of each input and each element of the kernel
there is one product, summed over channels: together a matrix product. The products of neighbouring
inputs stand `stride` apart, those of neighbouring elements of the kernel `dilation` apart, and
where they meet they are added: the reverse of `pool.windows_of`. Checks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aster_ml.dtype import DType
from aster_ml.ops import Self
from aster_ml.ops.pool import interleave, pad_last


class Axis(NamedTuple):
    """One axis: sizes of input and kernel, and what is wanted of the result."""

    size: Any
    kernel: int
    stride: int
    dilation: int
    padding: tuple[Any, Any]
    more: int

    @property
    def gap(self) -> int:
        """From one element of the kernel to the next; of a single one there is no next."""
        return self.dilation if self.kernel > 1 else 0

    @property
    def span(self) -> Any:
        """The products of one element of the kernel."""
        return self.size * self.stride

    @property
    def beyond(self) -> int:
        """Distance by which the products of all kernel elements reach beyond, or fall short."""
        return self.gap * (self.kernel - 1) + 1 - self.stride

    @property
    def length(self) -> Any:
        """Size of the result."""
        return self.span + self.beyond - self.padding[0] - self.padding[1] + self.more


def transposed(x: Self, weight: Self, groups: int, axes: Sequence[Axis], dtype: DType) -> Self:
    """Shapes: x [n, c, *s], weight [c, o // groups, *k] -> [n, o, *lengths]."""
    if all(a.stride == 1 for a in axes):
        return as_convolution(x, weight, groups, axes)
    dims, (n, c), o = len(axes), x.shape[:2], weight.shape[1]
    w = weight.reshape((groups, c // groups, o, *[a.kernel for a in axes], *[1] * dims))
    x = x.reshape((n, groups, c // groups, *[1] * (1 + dims), *[a.size for a in axes]))
    y = (x * w).sum(2, dtype=dtype).flatten(1, 2)
    # [n, o, *kernel, *s] -> [n, o, k, s, k, s, ...]
    y = y.permute((0, 1, *interleave(range(2, 2 + dims), range(2 + dims, 2 + 2 * dims))))
    if all(a.stride >= a.kernel * a.gap for a in axes):
        y, sizes = put_side_by_side(y, axes)
    else:
        y, sizes = add_up(y, axes)
    return pad_last(y, [(-a.padding[0], a.padding[0] + a.length - n) for a, n in zip(axes, sizes)])


def as_convolution(x: Self, weight: Self, groups: int, axes: Sequence[Axis]) -> Self:
    """Without strides: results meet as many inputs as the kernel has elements, in reverse."""
    reach = [a.gap * (a.kernel - 1) for a in axes]
    x = pad_last(x, [(r - a.padding[0], r - a.padding[1] + a.more) for r, a in zip(reach, axes)])
    # [c, o // groups, *kernel] -> [o, c / groups, *kernel], kernel reversed.
    w = weight.flip(tuple(range(2, 2 + len(axes)))).unflatten(0, (groups, -1)).transpose(1, 2)
    return x.conv2d(w.flatten(0, 1), None, groups, 1, [a.dilation for a in axes])


def put_side_by_side(y: Self, axes: Sequence[Axis]) -> tuple[Self, list[Any]]:
    """Products that never meet: [n, o, k, s, k, s, ...] -> [n, o, *spans]."""
    lead, dims = y.shape[:2], len(axes)
    y = y.permute((0, 1, *[p for a in range(dims) for p in (3 + 2 * a, 2 + 2 * a)]))
    gaps, sizes = [max(a.gap, 1) for a in axes], [a.span for a in axes]
    y = spread(y, [v for a in axes for v in (a.size, a.kernel)], interleave([1] * dims, gaps))
    rest = [(0, a.stride - a.kernel * gap) for a, gap in zip(axes, gaps)]
    y = pad_last(y, interleave([(0, 0)] * dims, rest))
    return y.reshape((*lead, *sizes)), sizes


def add_up(y: Self, axes: Sequence[Axis]) -> tuple[Self, list[Any]]:
    """Products that meet: [n, o, k, s, k, s, ...] -> [n, o, *rows].

    rewrite: y[k, i] -> the sum of all with i * stride + k * dilation = place
    why: each row of products has room around it; rows laid `dilation` shorter than they are read
    shift by `dilation` from one element of the kernel to the next, the last one least.
    """
    lead, dims = y.shape[:2], len(axes)
    rows = [a.span + max(a.beyond, 0) + a.kernel * a.gap for a in axes]
    short = [r - a.gap for r, a in zip(rows, axes)]
    first = [(a.kernel - 1) * a.gap for a in axes]
    y = y.flip([2 + 2 * a for a in range(dims)])
    strides = interleave([1] * dims, [a.stride for a in axes])
    y = spread(y, [v for a in axes for v in (a.kernel, a.size)], strides)
    room = [(f, s - f - a.span) for f, s, a in zip(first, short, axes)]
    y = pad_last(y, interleave([(0, 0)] * dims, room))
    y = y.reshape((*lead, *[a.kernel * s for a, s in zip(axes, short)]))
    y = pad_last(y, [(0, a.kernel * a.gap) for a in axes])
    y = y.reshape((*lead, *interleave([a.kernel for a in axes], rows)))
    return y.sum([2 + 2 * a for a in range(dims)]), rows


def spread(y: Self, sizes: Sequence[Any], steps: Sequence[int]) -> Self:
    """`step - 1` zeros behind each element of the last axes."""
    if all(step == 1 for step in steps):
        return y
    lead = y.shape[: len(y.shape) - len(sizes)]
    y = y.reshape((*lead, *interleave(sizes, [1] * len(sizes))))
    y = pad_last(y, interleave([(0, 0)] * len(sizes), [(0, step - 1) for step in steps]))
    return y.reshape((*lead, *[n * step for n, step in zip(sizes, steps)]))
