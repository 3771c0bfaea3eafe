"""Order: where the greatest stands, sorting, the k greatest.

Receives tensors; returns tensors of values and of places (ints). Short rows are sorted by counting,
for each element, how many stand before it; long ones by a bitonic network.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.mixin.create import CreateMixin
from aster_ml.mixin.index import axis_iota, gather_nodes, is_zero
from aster_ml.mixin.join import JoinMixin
from aster_ml.mixin.math import MathMixin
from aster_ml.uop.infer import show_shape

S = TypeVar("S", bound="OrderMixin")

# Counting takes n * n steps in a few kernels, the network n * log(n)**2 in many.
LONGEST_COUNTED = 2048


class OrderMixin(JoinMixin, MathMixin, CreateMixin):
    """Places in an order."""

    __slots__ = ()

    def argmax(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Place of the greatest value along `axis`, of the flattened value when None.

        Of equal ones the first; a NaN counts as greatest.

        Shapes: self [n, m], axis=1 -> [n]; self [n, m] -> [].
        Dtype: the default int.
        Raises: ShapeError when there is nothing to choose from.
        """
        if axis is None:
            place = self.flatten().argmax(0)
            return place.reshape((1,) * self.ndim) if keepdim else place
        along = self.resolve_axis(axis, "argmax")
        if not self.shape:
            return self.const_like(0).cast(dtypes.default_int)
        size = self.shape[along]
        if is_zero(size):
            raise ShapeError(f"argmax: axis {along} of {show_shape(self.shape)} is empty")
        best = self.eq(self.max(along, keepdim=True))
        if self.dtype.kind == "float":
            best = best | self.isnan()
        # Counted down from the end, the greatest number is that of the first place.
        numbers = self.arange(size, 0, -1, device=self.device) if isinstance(size, int) else (
            self.arange(size, device=self.device).sub(size, True))
        numbers = numbers.reshape((size, *(1,) * (self.ndim - along - 1)))
        first = best.where(numbers, numbers.scalar(0)).max(along, keepdim)
        return first.sub(size, True).cast(dtypes.default_int)

    def argmin(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """Place of the least value along `axis`, of the flattened value when None.

        Of equal ones the first; a NaN counts as least.

        Shapes: self [n, m], axis=1 -> [n]; self [n, m] -> [].
        """
        reverse = self.logical_not() if self.dtype is dtypes.bool else self.reversed_order()
        return reverse.argmax(axis, keepdim)

    def sort(self, dim: int = -1, descending: bool = False) -> tuple[Self, Self]:
        """Values in order along `dim`, and the place that each came from.

        Equal values keep their order; NaN counts as greatest.

        Shapes: self [n, m], dim=0 -> [n, m], [n, m].
        Dtype: that of self; the default int.
        """
        axis = self.resolve_axis(dim, "sort")
        if not self.shape or is_zero(self.shape[axis]) or self.shape[axis] == 1:
            return self, self.const_like(0).cast(dtypes.default_int)
        size = self.shape[axis]
        if not isinstance(size, int):
            raise ShapeError(f"sort: axis {axis} has a symbolic size; a fixed one is wanted")
        last = self.transpose(axis, -1)
        if size <= LONGEST_COUNTED:
            places = counted_places(last, descending)
        else:
            places = network_places(last, descending)
        values = gather_last(last, places)
        places = places.cast(dtypes.default_int)
        return values.transpose(axis, -1), places.transpose(axis, -1)

    def argsort(self, dim: int = -1, descending: bool = False) -> Self:
        """Places of the values in order along `dim`.

        Shapes: self [n, m], dim=0 -> [n, m].
        """
        return self.sort(dim, descending)[1]

    def topk(
        self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
    ) -> tuple[Self, Self]:
        """The `k` greatest (or least) values along `dim` in order, and their places.

        Shapes: self [n, m], k=m, dim=1 -> [n, m], [n, m].
        Raises: ArgumentError when the axis has fewer elements.
        """
        axis = self.resolve_axis(dim, "topk")
        size = self.shape[axis] if self.shape else 1
        if not isinstance(k, int) or not 0 <= k <= size:
            raise ArgumentError(f"topk: k = {k!r}, axis {axis} of {show_shape(self.shape)} has "
                                f"{size} elements")
        values, places = self.sort(axis, largest)
        if not self.shape:
            return values, places
        cut: list[Any] = [None] * self.ndim
        cut[axis] = (0, k)
        return values.shrink(cut), places.shrink(cut)


def gather_last(x: S, places: S) -> S:
    """The elements of the last axis at places known to be inside it."""
    shape = places.shape
    nodes = [axis_iota(size, i, shape) for i, size in enumerate(shape[:-1])]
    return gather_nodes(x, [*nodes, places.uop.cast(dtypes.index)], None, shape, [places])


def sort_key(x: S, descending: bool) -> S:
    """A value whose ascending order, compared by <, is the one wanted; NaN aside."""
    if not descending:
        return x.cast(dtypes.int32) if x.dtype is dtypes.bool else x
    return x.logical_not().cast(dtypes.int32) if x.dtype is dtypes.bool else x.reversed_order()


def counted_places(x: S, descending: bool) -> S:
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
        plain = nan_other.logical_not() & nan if not descending else (
            nan.logical_not() & nan_other)
        before = before | plain | (nan & nan_other & earlier)
    rank = before.cast(dtypes.int32).sum(-1).contiguous()
    hit = rank.unsqueeze(-2).eq(place.reshape((size, 1)))
    return hit.where(place.reshape((1, size)), place.scalar(0)).sum(-1)


def network_places(x: S, descending: bool) -> S:
    """Places of the last axis in order, by a bitonic network over (key, place) pairs.

    Every step has the same form: neighbours at a power of two are compared and exchanged.
    """
    *lead, size = x.shape
    width = 1 << (size - 1).bit_length()
    key = sort_key(x, descending)
    nan = key.isnan() if key.dtype.kind == "float" else None
    place = x.arange(width, device=x.device).broadcast_to((*lead, width))
    pairs = [*[(0, 0)] * len(lead), (0, width - size)]
    # Classes order what comparison cannot: NaN, and what was only added to fill up the row.
    group = x.arange(width, device=x.device).cast(dtypes.int32) >= size
    group = (group.cast(dtypes.int32) * 2).broadcast_to((*lead, width))
    if nan is not None:
        sign = -1 if descending else 1
        group = group + nan.cast(dtypes.int32).pad(pairs) * sign
        key = nan.where(key.scalar(0), key)
    key = key.pad(pairs)
    parts: list[S] = [group.contiguous(), key.contiguous(), place.contiguous()]
    block = 2
    while block <= width:
        step = block // 2
        while step >= 1:
            parts = exchange(parts, lead, width, block, step)
            step //= 2
        block *= 2
    return parts[2].shrink([*[None] * len(lead), (0, size)])


def exchange(parts: list[S], lead: list[Any], width: int, block: int, step: int) -> list[S]:
    """One step of the network: elements `step` apart are put in order, block by block reversed."""
    rank = len(lead)
    split = (*lead, width // (2 * step), 2, step)
    low, high = [], []
    for part in parts:
        halves = part.reshape(split)
        cut: list[Any] = [None] * (rank + 3)
        cut[rank + 1] = (0, 1)
        low.append(halves.shrink(cut))
        cut[rank + 1] = (1, 2)
        high.append(halves.shrink(cut))
    (g0, k0, p0), (g1, k1, p1) = low, high
    same_group = g0.eq(g1)
    after = (g1 < g0) | (same_group & ((k1 < k0) | (k1.eq(k0) & (p1 < p0))))
    pair = parts[0].arange(width // (2 * step), device=parts[0].device)
    down = ((pair * (2 * step)) // block % 2).ne(0).reshape((width // (2 * step), 1, 1))
    swap = after.ne(down)
    result = []
    for a, b in zip(low, high, strict=True):
        first, second = swap.where(b, a), swap.where(a, b)
        joined = first.cat(second, dim=rank + 1).reshape((*lead, width))
        result.append(joined.contiguous())
    return result
