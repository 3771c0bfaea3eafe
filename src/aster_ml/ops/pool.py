"""Makes the windows of convolution and pooling; pools, unpools and resizes.

Receives Tensors whose last axes are spatial; returns Tensors. Windows are made by movement alone,
and so that the element `k` of window `o` has the index `o * stride + k * dilation` going forward,
while the gradient finds, for an element p and each k, the window `(p - k * dilation) / stride`:
both without divisions that remain (but for that by the stride).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from aster_ml.dtype import dtypes, least_upper_float
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from aster_ml.helpers import all_int, ceildiv, make_tuple, prod
from aster_ml.ops import Self
from aster_ml.ops.handle import check_tensor
from aster_ml.ops.sizes import same_size
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import smax

Pairs = list[tuple[Any, Any]]


def avg_pool2d(
    self: Self,
    kernel_size: Any = (2, 2),
    stride: Any = None,
    dilation: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Self:
    """The mean of each window of the last axes, as many as `kernel_size` has (of an int, 2).

    `stride` is the kernel's size where it is None; `padding` as in `conv2d`. With `ceil_mode` a
    last window may reach beyond the end, if it begins before it; what lies there is not
    counted, what lies in the padding is unless `count_include_pad` is false.

    Shapes: self [*b, 2 * h, 2 * w] -> [*b, h, w].
    Raises: ShapeError when the kernel is larger than the padded axis.
    Source: torch.nn.functional.avg_pool2d.
    """
    p = Pooling(self.shape, kernel_size, stride, dilation, padding, ceil_mode, "avg_pool")
    axes = tuple(range(-p.dims, 0))
    found = p.windows(pad_last(self, p.pairs))
    counted = p.given if count_include_pad else [(0, 0)] * p.dims
    rest = [(b - b0, a - a0) for (b, a), (b0, a0) in zip(p.pairs, counted)]
    if all(pair == (0, 0) for pair in rest):
        return found.mean(axes)
    # Ones where an element counts, added up over the same windows.
    sizes = tuple([b + s + a for s, (b, a) in zip(self.shape[-p.dims :], counted)])
    ones = self.full(sizes, 1, dtype=least_upper_float(self.dtype), device=self.device)
    return found.sum(axes) / p.windows(pad_last(ones, rest)).sum(axes)


@overload
def max_pool2d(
    self: Self,
    kernel_size: Any = (2, 2),
    stride: Any = None,
    dilation: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Self: ...


@overload
def max_pool2d(
    self: Self,
    kernel_size: Any = (2, 2),
    stride: Any = None,
    dilation: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Self, Self]: ...


def max_pool2d(
    self: Self,
    kernel_size: Any = (2, 2),
    stride: Any = None,
    dilation: Any = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Self | tuple[Self, Self]:
    """The greatest of each window of the last axes, as many as `kernel_size` has (an int: 2).

    `stride` is the kernel's size where it is None; `padding` as in `conv2d`, with the least
    value of the dtype. With `return_indices` also where it stood first, counted over all the
    pooled axes of self.

    Shapes: self [*b, 2 * h, 2 * w] -> [*b, h, w].
    Raises: ShapeError when the kernel is larger than the padded axis.
    Source: torch.nn.functional.max_pool2d.
    """
    p = Pooling(self.shape, kernel_size, stride, dilation, padding, ceil_mode, "max_pool")
    axes = tuple(range(-p.dims, 0))
    found = p.windows(pad_last(self, p.pairs, dtypes.min(self.dtype)))
    best = found.max(axes)
    if not return_indices:
        return best
    sizes = self.shape[-p.dims :]
    count = prod(sizes)
    place = self.arange(count, dtype=dtypes.int32, device=self.device).reshape(sizes)
    place = p.windows(pad_last(place, p.pairs, count))
    reached = found.eq(best.reshape((*best.shape, *(1,) * p.dims)))
    if dtypes.is_float(self.dtype):
        # NaN counts as the greatest, and equals nothing.
        reached = reached | found.ne(found)
    return best, reached.where(place, count).min(axes)


def max_unpool2d(
    self: Self,
    indices: Self,
    kernel_size: Any = (2, 2),
    stride: Any = None,
    dilation: Any = 1,
    padding: Any = 0,
    output_size: Sequence[int] | None = None,
) -> Self:
    """The reverse of `max_pool2d`: each value where `indices` says, zeros elsewhere.

    `output_size` is the shape that was pooled, or its last axes; without it the least that
    pools to the shape of self. Values that meet are added up.

    Shapes: self [*b, h, w], indices int [*b, h, w] -> [*b, 2 * h, 2 * w].
    Raises: ShapeError when the shapes of self and the indices differ.
    Source: torch.nn.functional.max_unpool2d.
    """
    check_tensor(indices, "max_unpool")
    if not dtypes.is_int(indices.dtype):
        raise DTypeError(f"max_unpool: indices are {indices.dtype.name}; ints are wanted")
    if self.shape != indices.shape:
        raise ShapeError(
            f"max_unpool: values {show_shape(self.shape)} and indices "
            f"{show_shape(indices.shape)} differ"
        )
    kernel = make_tuple(kernel_size, 2)
    dims = len(kernel)
    lead, sizes = self.shape[:-dims], self.shape[-dims:]
    if output_size is None:
        steps = kernel if stride is None else make_tuple(stride, dims)
        pads = resolve_padding(padding, dims, "max_unpool")
        out = tuple(
            [
                (o - 1) * s - b - a + d * (k - 1) + 1
                for o, s, (b, a), d, k in zip(
                    sizes, steps, pads, make_tuple(dilation, dims), kernel
                )
            ]
        )
    else:
        out = tuple(output_size)[-dims:]
    count = prod(out)
    here = self.arange(count, dtype=dtypes.int32, device=self.device).reshape((count, 1))
    hit = indices.reshape((*lead, 1, prod(sizes))).eq(here)
    values = self.reshape((*lead, 1, prod(sizes)))
    return hit.where(values, 0).sum(-1).reshape((*lead, *out))


def interpolate(
    self: Self, size: Sequence[int], mode: str = "linear", align_corners: bool = False
) -> Self:
    """The last axes resized to `size`, one axis after the other.

    `mode` is "linear" (between the two nearest), "nearest" or "nearest-exact" (of the middle of
    each element). With `align_corners`, for "linear", the first and last elements keep their
    places. The result of integers is rounded; that of uint8 is PyTorch's, which goes from the
    last axis to the first with weights of 16 bits and rounds after each.

    Shapes: self [n, c, h, w], size=(oh, ow) -> [n, c, oh, ow].
    Raises: ArgumentError for another mode, or `align_corners` with another than linear.
    Source: torch.nn.functional.interpolate.
    """
    if mode not in ("linear", "nearest", "nearest-exact"):
        raise ArgumentError(
            f"interpolate: mode {mode!r}; linear, nearest or nearest-exact would do"
        )
    if align_corners and mode != "linear":
        raise ArgumentError(f"interpolate: align_corners goes with mode linear, not {mode}")
    if not isinstance(size, (tuple, list)) or not 0 < len(size) <= len(self.shape):
        raise ShapeError(
            f"interpolate: size {size!r}; one number for each axis to resize, at "
            f"most {len(self.shape)}"
        )
    if mode == "linear" and self.dtype is dtypes.uint8:
        x = self
        for axis, new in reversed(list(enumerate(size, len(self.shape) - len(size)))):
            x = resize_axis_of_bytes(x, axis, new, align_corners)
        return x
    whole = mode == "linear" and not dtypes.is_float(self.dtype)
    x = self.cast(dtypes.float32) if whole else self
    for axis, new in enumerate(size, len(self.shape) - len(size)):
        if not same_size(x.shape[axis], new):
            x = resize_axis(x, axis, new, mode, align_corners)
    return x.round().cast(self.dtype) if whole else x._own()


def resize_axis(self: Self, axis: int, new: int, mode: str, align_corners: bool) -> Self:
    """One axis resized; places are fractions of whole numbers, so none is off by rounding."""
    old = self.shape[axis]
    lead = (slice(None),) * axis
    if mode != "linear" and new % old == 0:
        return self.repeat_interleave(new // old, axis)
    if mode != "linear" and old % new == 0:
        step = old // new
        return self[(*lead, slice(0 if mode == "nearest" else step // 2, None, step))]
    if mode == "nearest":
        at = self.arange(new, dtype=dtypes.int32, device=self.device)
        return self[(*lead, (at * old).idiv(new))]
    if mode == "nearest-exact":
        at = self.arange(new, dtype=dtypes.int32, device=self.device)
        return self[(*lead, ((at * 2 + 1) * old).idiv(2 * new))]
    low, high, above, below = neighbours(self, old, new, align_corners)
    part = above.cast(self.dtype) / below
    part = part.reshape((new, *(1,) * (len(self.shape) - axis - 1)))
    x: Self = self[(*lead, low)]
    more: Self = (self[(*lead, high)] - x) * part
    return x + more


def neighbours(self: Self, old: int, new: int, align_corners: bool) -> tuple[Self, Self, Self, int]:
    """For each of `new` places: the elements before and behind it, and how far it is from the
    first of them to the second, as a whole number out of the last result.
    """
    at = self.arange(new, dtype=dtypes.int32, device=self.device)
    if align_corners:
        place, out_of = at * (old - 1), max(new - 1, 1)
    else:
        place, out_of = ((at * 2 + 1) * old - new).maximum(0), 2 * new
    low = place.idiv(out_of)
    return low, (low + 1).minimum(old - 1), place - low * out_of, out_of


def resize_axis_of_bytes(self: Self, axis: int, new: int, align_corners: bool) -> Self:
    """One axis of uint8 resized linearly, in integers of as many bits as fit 16.

    Source: the weights of PyTorch and Pillow.
    """
    old = self.shape[axis]
    if old == new:
        return self._own()
    lead, tail = (slice(None),) * axis, (1,) * (len(self.shape) - axis - 1)
    low, high, above, out_of = neighbours(self, old, new, align_corners)
    places = [
        i * (old - 1) if align_corners else max((2 * i + 1) * old - new, 0) for i in range(new)
    ]
    rests = [place % out_of for place in places]
    most = max([max(rest, out_of - rest) for rest in rests]) / out_of
    bits = next(b for b in range(22) if int(0.5 + most * (2 << b)) >= 1 << 15 or b == 21)

    def weight(part: Self) -> Self:
        """`part / out_of` in units of 2**-bits, rounded."""
        whole = part.cast(dtypes.int64) * (2 << bits) + out_of
        return whole.idiv(2 * out_of).cast(dtypes.int32).reshape((new, *tail))

    near: Self = self[(*lead, low)].cast(dtypes.int32) * weight(out_of - above)
    far: Self = self[(*lead, high)].cast(dtypes.int32) * weight(above)
    total = near + far + (1 << (bits - 1))
    return (total >> bits).clip(0, 255).cast(dtypes.uint8)


class Pooling:
    """The arguments of a pooling, resolved: one value for each of the `dims` last axes.

    `given` is the padding that was asked for, as pairs; `pairs` has what `ceil_mode` adds as well.
    """

    def __init__(
        self,
        shape: tuple[Any, ...],
        kernel_size: Any,
        stride: Any,
        dilation: Any,
        padding: Any,
        ceil_mode: bool,
        what: str,
    ) -> None:
        self.what = what
        self.kernel = make_tuple(kernel_size, 2)
        self.dims = len(self.kernel)
        self.stride = self.kernel if stride is None else make_tuple(stride, self.dims)
        self.dilation = make_tuple(dilation, self.dims)
        if len(shape) < self.dims:
            raise ShapeError(
                f"{what}: kernel {show_shape(self.kernel)} on {show_shape(shape)}, "
                "which has fewer axes"
            )
        self.given = resolve_padding(padding, self.dims, what)
        self.pairs = self.given
        if ceil_mode:
            self.pairs = [
                (before, after + self.beyond_end(a, size, before, after))
                for a, (size, (before, after)) in enumerate(zip(shape[-self.dims :], self.given))
            ]

    def beyond_end(self, a: int, size: Any, before: Any, after: Any) -> Any:
        """Distance of the last window of `ceil_mode` beyond the padded end of axis `a`."""
        reach, step = self.dilation[a] * (self.kernel[a] - 1) + 1, self.stride[a]
        count = ceildiv(size + before + after - reach, step) + 1
        if (count - 1) * step >= size + before:
            count -= 1  # it would begin in the padding after the end
        return max((count - 1) * step + reach - (size + before + after), 0)

    def windows(self, x: Self) -> Self:
        """The windows of `x`, which is padded already."""
        return windows_of(x, self.kernel, self.stride, self.dilation, self.what)


def windows_of(
    x: Self, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], what: str
) -> Self:
    """Windows over the last axes, as many as `kernel` has: [*b, *s] -> [*b, *counts, *kernel].

    rewrite: x[*b, p] -> x[*b, o * stride + k * dilation]
    why: each axis is laid out k times, with room behind it; rows cut `dilation` shorter than they
    were laid shift by `dilation` from one k to the next. The room is so wide that neither this cut
    nor its reverse crosses from one row to another, so no division remains.

    Raises: ShapeError when the kernel is larger than the axis.
    """
    check_window(x.shape, kernel, stride, dilation, what)
    dims = len(kernel)
    lead, sizes = x.shape[:-dims], x.shape[-dims:]
    all_of_lead = [None] * len(lead)
    # A window of one element has no next one to be distant from.
    gaps = [d if k > 1 else 0 for k, d in zip(kernel, dilation)]
    if all(k == s == 1 for k, s in zip(kernel, stride)):
        return x.reshape((*x.shape, *kernel))
    counts = [(i - d * (k - 1) - 1) // s + 1 for i, k, s, d in zip(sizes, kernel, stride, gaps)]
    # Two ways through a network to the same size have the same expression for it.
    counts = [n if isinstance(n, int) else n.ssimplify() for n in counts]
    spans = [o * s for o, s in zip(counts, stride)]
    if all_int(sizes) and all(s >= k * d for k, s, d in zip(kernel, stride, gaps)):
        return separate_windows(x, counts, kernel, stride, gaps)
    # Of a symbolic size only a bound is known for how far the last stride goes beyond the end.
    room = [
        k * d + (max(n - i, 0) if isinstance(i, int) else s - 1)
        for i, n, k, s, d in zip(sizes, spans, kernel, stride, gaps)
    ]
    rows = [i + more for i, more in zip(sizes, room)]
    short = [r - d for r, d in zip(rows, gaps)]
    first = [(k - 1) * d for k, d in zip(kernel, gaps)]
    x = pad_last(x, [(0, more) for more in room])
    x = x.reshape((*lead, *interleave([1] * dims, rows)))
    x = x.expand((*lead, *interleave(kernel, rows)))
    x = x.reshape((*lead, *[k * r for k, r in zip(kernel, rows)]))
    x = x.shrink([*all_of_lead, *[(0, k * r) for k, r in zip(kernel, short)]])
    x = x.reshape((*lead, *interleave(kernel, short)))
    used = [(b, b + n) for b, n in zip(first, spans)]
    x = x.shrink([*all_of_lead, *interleave([None] * dims, used)])
    x = take_first(x, lead, kernel, counts, stride)
    # The earlier a row stands, the further it was shifted.
    x = x.flip([len(lead) + 2 * a for a in range(dims)])
    return x.permute(
        (
            *range(len(lead)),
            *range(len(lead) + 1, len(lead) + 2 * dims, 2),
            *range(len(lead), len(lead) + 2 * dims, 2),
        )
    )


def separate_windows(
    x: Self,
    counts: Sequence[Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    gaps: Sequence[int],
) -> Self:
    """Windows that do not overlap: each axis is cut into strides, and these are cut short."""
    dims = len(kernel)
    lead, sizes = x.shape[:-dims], x.shape[-dims:]
    spans = [o * s for o, s in zip(counts, stride)]
    x = pad_last(x, [(0, n - i) for n, i in zip(spans, sizes)])
    x = x.reshape((*lead, *interleave(counts, stride)))
    steps = [max(d, 1) for d in gaps]
    widths = [(0, k * d) for k, d in zip(kernel, steps)]
    x = x.shrink([*[None] * len(lead), *interleave([None] * dims, widths)])
    x = take_first(x, lead, counts, kernel, steps)
    return x.permute(
        (
            *range(len(lead)),
            *range(len(lead), len(lead) + 2 * dims, 2),
            *range(len(lead) + 1, len(lead) + 2 * dims, 2),
        )
    )


def take_first(
    x: Self, lead: Sequence[Any], outer: Sequence[Any], inner: Sequence[Any], steps: Sequence[int]
) -> Self:
    """The first of every `step` elements: axes [outer, inner * step] -> [outer, inner]."""
    dims = len(steps)
    if all(step == 1 for step in steps):
        return x
    x = x.reshape((*lead, *interleave(outer, inner, steps)))
    x = x.shrink([*[None] * len(lead), *interleave([None] * dims, [None] * dims, [(0, 1)] * dims)])
    return x.reshape((*lead, *interleave(outer, inner)))


def pad_last(x: Self, pairs: Sequence[tuple[Any, Any]], value: Any = 0) -> Self:
    """`value` around the last axes, (before, after); negative numbers cut elements off instead."""
    lead = len(x.shape) - len(pairs)
    sizes = x.shape[lead:]
    if any(isinstance(v, int) and v < 0 for pair in pairs for v in pair):
        cut = [(smax(-b, 0), s - smax(-a, 0)) for (b, a), s in zip(pairs, sizes)]
        x = x.shrink([*[None] * lead, *cut])
        pairs = [(smax(b, 0), smax(a, 0)) for b, a in pairs]
    padded = x._pad_zeros([*[(0, 0)] * lead, *pairs])
    if padded is x or value == 0:
        return padded
    inside = x.full(x.shape[lead:], True, dtype=dtypes.bool, device=x.device)._pad_zeros(pairs)
    return inside.where(padded, value)


def interleave(*columns: Sequence[Any]) -> list[Any]:
    """First of each, second of each, ..."""
    return [value for row in zip(*columns) for value in row]


def check_window(
    shape: tuple[Any, ...],
    kernel: Sequence[Any],
    stride: Sequence[Any],
    dilation: Sequence[Any],
    what: str,
) -> None:
    """Raises where windows cannot be cut."""
    dims = len(kernel)
    if not len(stride) == len(dilation) == dims:
        raise ArgumentError(
            f"{what}: stride {tuple(stride)} and dilation {tuple(dilation)}; one "
            f"number, or one for each of the {dims} axes of the kernel"
        )
    for name, values in (("kernel", kernel), ("stride", stride), ("dilation", dilation)):
        if not all(isinstance(v, int) and v > 0 for v in values):
            raise ArgumentError(
                f"{what}: {name} {tuple(values)}; positive whole numbers are wanted"
            )
    for size, k, d in zip(shape[-dims:], kernel, dilation):
        if isinstance(size, int) and size < d * (k - 1) + 1:
            raise ShapeError(
                f"{what}: kernel {show_shape(tuple(kernel))} with dilation "
                f"{tuple(dilation)} is larger than {show_shape(shape[-dims:])}, the "
                "input with its padding"
            )


def resolve_padding(padding: Any, dims: int, what: str) -> Pairs:
    """Padding as users give it, as (before, after) for each of `dims` axes.

    Raises: ArgumentError for another number of values, and for negative ones, which cut elements
    off, where there is no convolution.
    """
    values: list[Any] = [padding] * dims if isinstance(padding, int) else list(padding)
    if len(values) == dims and all(isinstance(v, (tuple, list)) for v in values):
        pairs = [(before, after) for before, after in values]
    elif len(values) == dims:
        pairs = [(v, v) for v in values]
    elif len(values) == 2 * dims:
        pairs = list(zip(values[0::2], values[1::2]))[::-1]
    else:
        raise ArgumentError(
            f"{what}: padding {padding!r}; one number, {dims}, or {2 * dims} "
            "(last axis first) would do"
        )
    if what != "conv" and any(isinstance(v, int) and v < 0 for pair in pairs for v in pair):
        raise ArgumentError(f"{what}: padding {padding!r} is negative; shrink cuts elements off")
    return pairs
