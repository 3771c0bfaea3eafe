"""Orders elements: places of the greatest, sorting, the k greatest.

Receives tensors; returns tensors of values and of places (ints). Few elements are sorted by
counting, for each, how many stand before it; more of them by a network (`ops.network`).
"""

from __future__ import annotations

from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.helpers import next_power2, prod
from aster_ml.ops import Self
from aster_ml.ops.index import axis_iota, gather_nodes, is_zero
from aster_ml.ops.join import symbolic_axis
from aster_ml.ops.network import least_words, sorted_words
from aster_ml.uop.infer import max_shape, show_shape

# Counting takes n * n steps in three kernels, the network n * log(n)**2 in many. Up to so many
# steps of counting, for all rows, take less than it costs to make and start those kernels.
MOST_COUNTED = 1 << 20


def argmax(self: Self, axis: int | None = None, keepdim: bool = False) -> Self:
    """Place of the greatest value along `axis`, of the flattened value when None.

    Of equal ones the first; a NaN counts as greatest.

    Shapes: self [n, m], axis=1 -> [n]; self [n, m] -> [].
    Dtype: the default int.
    Raises: ShapeError when there is nothing to choose from.
    """
    if axis is None:
        place = self.flatten().argmax(0)
        return place.reshape((1,) * self.ndim) if keepdim else place
    along = self._resolve_axis(axis, "argmax")
    if not self.shape:
        return self.const_like(0).cast(dtypes.int32)
    size = self.shape[along]
    if is_zero(size):
        raise ShapeError(f"argmax: axis {along} of {show_shape(self.shape)} is empty")
    best = self.eq(self.max(along, keepdim=True))
    if self.dtype.kind == "float":
        best = best | self.isnan()
    # Counted down from the end, the greatest number is that of the first place.
    numbers = (
        self.arange(size, 0, -1, device=self.device)
        if isinstance(size, int)
        else (self.arange(size, device=self.device).sub(size, True))
    )
    numbers = numbers.reshape((size, *(1,) * (self.ndim - along - 1)))
    first = best.where(numbers, numbers._scalar(0)).max(along, keepdim)
    return first.sub(size, True).cast(dtypes.int32)


def argmin(self: Self, axis: int | None = None, keepdim: bool = False) -> Self:
    """Place of the least value along `axis`, of the flattened value when None.

    Of equal ones the first; a NaN counts as least.

    Shapes: self [n, m], axis=1 -> [n]; self [n, m] -> [].
    """
    if axis is not None:
        self._resolve_axis(axis, "argmin")
    reverse = self.logical_not() if self.dtype is dtypes.bool else self._reversed_order()
    return reverse.argmax(axis, keepdim)


def sort(self: Self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
    """Values in order along `dim`, and the place that each came from.

    Equal values keep their order; NaN counts as greatest.

    Shapes: self [n, m], dim=0 -> [n, m], [n, m].
    Dtype: that of self; the default int.
    """
    axis = self._resolve_axis(dim, "sort")
    if not self.shape or is_zero(self.shape[axis]) or self.shape[axis] == 1:
        return self._own(), self.const_like(0).cast(dtypes.int32)
    size = self.shape[axis]
    if not isinstance(size, int):
        raise symbolic_axis("sort", axis, self.shape)
    return in_order(self, axis, size, descending)


def argsort(self: Self, dim: int = -1, descending: bool = False) -> Self:
    """Places of the values in order along `dim`.

    Shapes: self [n, m], dim=0 -> [n, m].
    """
    return self.sort(dim, descending)[1]


def topk(
    self: Self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
) -> tuple[Self, Self]:
    """The `k` greatest (or least) values along `dim` in order, and their places.

    Shapes: self [n, m], k=m, dim=1 -> [n, m], [n, m].
    Raises: ArgumentError when the axis has fewer elements.
    """
    axis = self._resolve_axis(dim, "topk")
    size = self.shape[axis] if self.shape else 1
    if not isinstance(size, int):
        raise symbolic_axis("topk", axis, self.shape)
    if not isinstance(k, int) or not 0 <= k <= size:
        raise ArgumentError(
            f"topk: k = {k!r}, axis {axis} of {show_shape(self.shape)} has {size} elements"
        )
    if self.shape and size > 1 and k:
        return in_order(self, axis, k, largest)
    values, places = self.sort(axis, largest)
    if not self.shape:
        return values, places
    cut: list[Any] = [None] * self.ndim
    cut[axis] = (0, k)
    return values.shrink(cut), places.shrink(cut)


def in_order(x: Self, axis: int, count: int, descending: bool) -> tuple[Self, Self]:
    """The first `count` values of an axis in order, and the place that each came from."""
    last = x.transpose(axis, -1)
    *lead, size = last.shape
    if prod(max_shape(tuple(lead))) * size * size <= MOST_COUNTED:
        places = counted_places(last, descending)
        places = places.shrink([*[None] * len(lead), (0, count)])
    else:
        places = network_places(last, count, descending)
    values = gather_last(last, places)
    return values.transpose(axis, -1), places.cast(dtypes.int32).transpose(axis, -1)


def gather_last(x: Self, places: Self) -> Self:
    """The elements of the last axis at places known to be inside it."""
    shape = places.shape
    nodes = [axis_iota(size, i, shape) for i, size in enumerate(shape[:-1])]
    return gather_nodes(x, [*nodes, places.uop.cast(dtypes.index)], None, shape, [places])


def sort_key(x: Self, descending: bool) -> Self:
    """A value whose ascending order, compared by <, is the one wanted; NaN aside."""
    if not descending:
        return x.cast(dtypes.int32) if x.dtype is dtypes.bool else x
    return x.logical_not().cast(dtypes.int32) if x.dtype is dtypes.bool else x._reversed_order()


def counted_places(x: Self, descending: bool) -> Self:
    """Places of the last axis in order: each element's rank is counted, then ranks are inverted."""
    size = x.shape[-1]
    key = sort_key(x, descending)
    one, other = key.unsqueeze(-1), key.unsqueeze(-2)
    place = x.arange(size, device=x.device)
    earlier = place.reshape((1, size)) < place.reshape((size, 1))
    before = (other < one) | (other.eq(one) & earlier)
    if x.dtype.kind == "float":
        # NaN is equal to itself and above the rest (below it, where the order is reversed).
        nan, nan_other = one.isnan(), other.isnan()
        plain = nan_other.logical_not() & nan if not descending else (nan.logical_not() & nan_other)
        before = before | plain | (nan & nan_other & earlier)
    rank = before.cast(dtypes.int32).sum(-1).contiguous()
    hit = rank.unsqueeze(-2).eq(place.reshape((size, 1)))
    return hit.where(place.reshape((1, size)), place._scalar(0)).sum(-1)


def network_places(x: Self, count: int, descending: bool) -> Self:
    """The first `count` places of the last axis in order, by a network.

    What is exchanged are whole numbers whose order is the one wanted: the key above, the place
    below, in one word where both fit.
    """
    *lead, size = x.shape
    width = next_power2(size)
    key = ordered_bits(x)
    if descending:
        key = key.bitwise_not()
    pairs = [*[(0, 0)] * len(lead), (0, width - size)]
    place = x.arange(width, device=x.device, dtype=dtypes.uint64)
    # What fills up the row comes after everything: its places are the greatest.
    key = (place < size).where(key.pad(pairs), key._scalar(dtypes.max(key.dtype)))
    place = place._broadcast_to(key.shape)
    words: list[Self]
    if key.dtype is dtypes.uint32:
        words = [(key.cast(dtypes.uint64) << 32) | place]
    else:
        words = [key, place]
    block = next_power2(count)
    words = least_words(words, block) if block < width else sorted_words(words)
    places = words[-1].bitwise_and(0xFFFFFFFF).cast(dtypes.int32)
    return places.shrink([*[None] * len(lead), (0, count)])


def ordered_bits(x: Self) -> Self:
    """Unsigned ints of 32 or 64 bits in the order of `x`; NaN is above all, the zeros are equal."""
    if x.dtype.kind in ("uint", "bool"):
        return x.cast(dtypes.uint64 if x.dtype is dtypes.uint64 else dtypes.uint32)
    wide = x.dtype.itemsize == 8
    unsigned, bits = (dtypes.uint64, 64) if wide else (dtypes.uint32, 32)
    sign = 1 << (bits - 1)
    if x.dtype.kind == "int":
        return x.cast(dtypes.int64 if wide else dtypes.int32).bitcast(unsigned) ^ sign
    value = x.detach() if wide else x.detach().cast(dtypes.float32)
    raw = value.eq(0).where(value._scalar(0), value).bitcast(unsigned)
    # Negative floats grow downwards: all their bits are turned over, of others the sign alone.
    turned = (raw >> (bits - 1)).ne(0).where(raw.bitwise_not(), raw ^ sign)
    return value.isnan().where(turned._scalar(dtypes.max(unsigned)), turned)
