"""Elements that differ, and where one would stand among others in order.

Receives tensors; returns tensors. How many elements differ is known only when they are computed, so
the functions on sets compute; inside of a jitted function they raise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.ops import Self
from aster_ml.ops.masks import read_mask
from aster_ml.uop.infer import show_shape


class Unique(NamedTuple):
    """Distinct elements, rising; the first place of each, each element's number, the counts."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


def unique_all(self: Self) -> Unique:
    """The elements that differ, with all that is known of them; NaN differ from one another.

    Dtype: that of self for values, int64 for the rest.
    Raises: JitError inside of a jitted function.
    Source: Array API 2024.12, unique_all.
    """
    flat: Any = self.flatten()
    count = flat.shape[0]
    if count == 0:
        empty = flat.cast(dtypes.int64)
        return Unique(flat, empty, empty.reshape(self.shape), empty)
    ordered, order = flat.sort(0)
    ordered, order = ordered.contiguous(), order.contiguous()
    new = ordered.shrink([(1, count)]).ne(ordered.shrink([(0, count - 1)]))
    new = new.pad(((1, 0),), value=1)
    starts = np.flatnonzero(read_mask(new, "unique"))
    number = new.cast(dtypes.int64).cumsum(0) - 1
    inverse = number[order.argsort(0)].reshape(self.shape)
    counts = np.diff(starts, append=count).astype(np.int64)
    make: Any = self.__class__
    return Unique(
        ordered[starts],
        order[starts].cast(dtypes.int64),
        inverse,
        make(counts, device=self.device),
    )


def unique(self: Self) -> Self:
    """The elements that differ, rising; NaN differ from one another.

    Raises: JitError inside of a jitted function.
    """
    return self.unique_all().values  # type: ignore[no-any-return]


def searchsorted(self: Self, values: Any, side: str = "left", sorter: Any = None) -> Self:
    """Where each of `values` would be put in to keep self in order; self is rising, one axis.

    Before equal elements with `side` "left", after them with "right". `sorter` is what brings
    self in order.

    Shapes: self [n], values [*s] -> [*s].
    Dtype: int64.
    Raises: ShapeError unless self has one axis; ArgumentError for another side.
    """
    if self.ndim != 1:
        raise ShapeError(f"searchsorted: in {show_shape(self.shape)}; one axis is wanted")
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side {side!r}; 'left' or 'right' is wanted")
    own: Any = self
    x: Any = self if sorter is None else own[sorter]
    x, wanted = x.contiguous(), values.contiguous()
    size = x.shape[0]
    found = wanted.full_like(0, dtype=dtypes.int64)
    # From the highest bit of a place to the lowest: as far on as elements stand before.
    for bit in reversed(range(size.bit_length())):
        tried = found + (1 << bit)
        here = x[(tried - 1).minimum(size - 1)]
        before = here < wanted if side == "left" else here <= wanted
        if x.dtype.kind == "float":
            # NaN stands behind all numbers.
            before = before | (wanted.isnan() & (here.isnan().logical_not() | (side != "left")))
        found = ((tried <= size) & before).where(tried, found).contiguous()
    return found  # type: ignore[no-any-return]
