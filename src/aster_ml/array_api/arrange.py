"""Defines the functions of shapes, places and order: joining, searching, sorting, sets, reductions.

Receives arrays; returns arrays.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aster_ml import dtypes
from aster_ml.array_api.array import (
    INDEX,
    Array,
    as_array,
    as_complex,
    as_pair,
    by_parts,
    common_dtype,
    dtype_of,
    truth,
)
from aster_ml.complex import ComplexTensor
from aster_ml.complex.dtype import ComplexDType

__all__ = [
    "all", "any", "argmax", "argmin", "argsort", "concat", "count_nonzero", "cumulative_prod",
    "cumulative_sum", "diff", "expand_dims", "flip", "matmul", "matrix_transpose", "max", "mean",
    "min", "moveaxis", "nonzero", "permute_dims", "prod", "repeat", "reshape", "roll",
    "searchsorted", "sort", "squeeze", "stack", "std", "sum", "take", "take_along_axis",
    "tensordot", "tile", "unique_all", "unique_counts", "unique_inverse", "unique_values",
    "unstack", "var", "vecdot", "where",
]  # fmt: skip

# moving


def concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    """Arrays one behind the other; of axis None, all elements."""
    found = of_one_dtype([as_array(a) for a in arrays])
    first, *rest = [a if axis is not None else a.flatten() for a in found]
    if isinstance(first, ComplexTensor):
        return ComplexTensor.cat([first, *rest], dim=axis or 0)
    return first.cat(*rest, dim=axis or 0)


def stack(arrays: Any, /, *, axis: int = 0) -> Any:
    """Arrays beside one another along a new axis."""
    first, *rest = of_one_dtype([as_array(a) for a in arrays])
    if isinstance(first, ComplexTensor):
        return ComplexTensor.stack([first, *rest], dim=axis)
    return first.stack(*rest, dim=axis)


def of_one_dtype(arrays: list[Any]) -> list[Any]:
    """The arrays, all complex where one is."""
    common = common_dtype(*arrays)
    return arrays if common is None else [as_complex(a, common) for a in arrays]


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The parts along an axis, which goes."""
    moved = moveaxis(as_array(x), axis, 0)
    return tuple([moved[i] for i in range(moved.shape[0])])


def expand_dims(x: Any, /, axis: int) -> Any:
    """A new axis of size 1."""
    return as_array(x).unsqueeze(axis)


@by_parts
def squeeze(x: Any, /, axis: Any) -> Any:
    """The array without axes of size 1. Raises: ValueError for an axis of another size."""
    x = as_array(x)
    axes = x._resolve_axes(axis, "squeeze")
    if builtins.any([x.shape[a] != 1 for a in axes]):
        raise ValueError(f"squeeze: axes {axes} of {x.shape}; sizes of 1 are wanted")
    return x.reshape(tuple([s for i, s in enumerate(x.shape) if i not in axes]))


@by_parts
def flip(x: Any, /, *, axis: Any = None) -> Any:
    """The elements in reverse along axes, or along all."""
    x = as_array(x)
    axes = tuple(range(x.ndim)) if axis is None else axis
    return x.flip(axes) if x.ndim else x


@by_parts
def moveaxis(x: Any, source: Any, destination: Any, /) -> Any:
    """Axes at other places, the others in their order."""
    x = as_array(x)
    np.moveaxis(np.empty((1,) * x.ndim), source, destination)  # raises for what are no axes
    if isinstance(source, int):
        source, destination = (source,), (destination,)
    moved = [s % x.ndim for s in source], [d % x.ndim for d in destination]
    order = [i for i in range(x.ndim) if i not in moved[0]]
    for d, s in sorted(zip(moved[1], moved[0], strict=True)):
        order.insert(d, s)
    return x.permute(tuple(order)) if x.ndim else x


def permute_dims(x: Any, /, axes: Sequence[int]) -> Any:
    """Axes in another order."""
    return as_array(x).permute(tuple(axes)) if as_array(x).ndim else as_array(x)


def matrix_transpose(x: Any, /) -> Any:
    """The last two axes exchanged."""
    return as_array(x).transpose(-2, -1)


@by_parts
def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Any:
    """The elements in another shape."""
    found = as_array(x).reshape(tuple(shape))
    return found.clone() if copy else found


@by_parts
def roll(x: Any, /, shift: Any, *, axis: Any = None) -> Any:
    """The elements moved along axes, those that fall out in at the other end."""
    x = as_array(x)
    if axis is None:
        return x.flatten().roll(shift, 0).reshape(x.shape)
    return x.roll(shift, axis)


@by_parts
def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Any:
    """Each element so many times."""
    x = as_array(x)
    x, axis = (x.flatten(), 0) if axis is None else (x, axis)
    if isinstance(repeats, int):
        return x.repeat_interleave(repeats, axis)
    places = np.repeat(np.arange(x.shape[axis]), np.asarray(repeats))
    return take(x, places, axis=axis)


@by_parts
def tile(x: Any, repetitions: Sequence[int], /) -> Any:
    """The array so many times along each axis."""
    x = as_array(x)
    counts = (1,) * (x.ndim - len(repetitions)) + tuple(repetitions)
    return x.reshape((1,) * (len(counts) - x.ndim) + x.shape).repeat(counts)


# searching


def argmax(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Where the first greatest element stands."""
    return placed(as_array(x), "argmax", axis, keepdims)


def argmin(x: Any, /, *, axis: int | None = None, keepdims: bool = False) -> Any:
    """Where the first least element stands."""
    return placed(as_array(x), "argmin", axis, keepdims)


def placed(x: Any, name: str, axis: int | None, keepdims: bool) -> Any:
    """A place along an axis, or among all elements."""
    if axis is None:
        found = getattr(x.flatten(), name)(0)
        return (found.reshape((1,) * x.ndim) if keepdims else found).cast(INDEX)
    return getattr(x, name)(axis, keepdims).cast(INDEX)


def count_nonzero(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Counts the elements that are not 0."""
    return truth(x).cast(INDEX).sum(axis, keepdims)


def nonzero(x: Any, /) -> tuple[Any, ...]:
    """Where elements are not 0, an array for each axis; computes `x`."""
    x = as_array(x)
    if not x.ndim:
        raise ValueError("nonzero: of an array without axes")
    return tuple([Array(places) for places in np.nonzero(truth(x).numpy())])


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
    """Where `x2` would be put into `x1` to keep it in order."""
    one, two = as_pair(x1, x2)
    return one.searchsorted(two, side, sorter)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """Elements of `x1` where the condition holds, else of `x2`."""
    one, two = as_pair(x1, x2)
    choice = as_array(condition)
    if not isinstance(one, ComplexTensor):
        return choice.where(one, two)
    return ComplexTensor(choice.where(one.real, two.real), choice.where(one.imag, two.imag))


@by_parts
def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Any:
    """The parts at these places along an axis."""
    x = as_array(x)
    axis = 0 if axis is None else axis % x.ndim
    return x[(*[slice(None)] * axis, indices)]


@by_parts
def take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    """The elements at these places along an axis, for each line of it."""
    x, places = as_array(x), as_array(indices)
    axis = axis % x.ndim
    size = x.shape[axis]
    shape = [s if i != axis else places.shape[axis] for i, s in enumerate(x.shape)]
    places = places.expand(tuple(shape))
    return x.gather(axis, (places < 0).where(places + size, places))


# order and sets


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The elements in order along an axis."""
    return as_array(x).sort(axis, descending)[0]


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The places of the elements in order along an axis."""
    return as_array(x).sort(axis, descending)[1].cast(INDEX)


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any, /) -> UniqueAll:
    """The elements that differ, and all that is known of them."""
    x = as_array(x)
    if isinstance(x, ComplexTensor):
        return UniqueAll(*unique_complex(x))
    return UniqueAll(*x.unique_all())


def unique_complex(x: Any) -> list[Any]:
    """Computes `unique_all` of complex numbers, ordered by real part, then imaginary part."""
    found = np.unique(x.numpy(), True, True, True, equal_nan=False)
    values, first, inverse, counts = found
    places = [Array(p, device=x.device) for p in (first, inverse.reshape(x.shape), counts)]
    return [as_array(ComplexTensor(values, device=x.device)), *places]


def unique_counts(x: Any, /) -> UniqueCounts:
    """The elements that differ, and how often each is there."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The elements that differ, and which of them each element is."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Any:
    """The elements that differ."""
    x = as_array(x)
    return unique_complex(x)[0] if isinstance(x, ComplexTensor) else x.unique()


# reductions


def all(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Tests whether all elements are other than 0."""
    return truth(x).all(axis, keepdims)


def any(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """Tests whether any element is other than 0."""
    return truth(x).any(axis, keepdims)


def max(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The greatest element."""
    return as_array(x).max(axis, keepdims)


def min(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The least element."""
    return as_array(x).min(axis, keepdims)


def mean(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean."""
    return as_array(x).mean(axis, keepdims)


def std(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The standard deviation."""
    return as_array(x).std(axis, keepdims, correction)


def var(x: Any, /, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The variance."""
    return as_array(x).var(axis, keepdims, correction)


def accumulated(x: Any, dtype: Any) -> Any:
    """An array as what its elements are added up in: ints no narrower than the default int."""
    wanted = dtype_of(dtype)
    if isinstance(wanted, ComplexDType):
        return as_complex(x, wanted)
    if wanted is None:
        x = as_array(x)
        wanted = x.dtype
        if wanted.kind in ("bool", "int", "uint") and wanted.itemsize < 4:
            wanted = dtypes.uint32 if wanted.kind == "uint" else dtypes.default_int
    return as_array(x).cast(wanted)


def sum(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum."""
    x = accumulated(x, dtype)
    return x.sum(axis, keepdims).cast(x.dtype)


def prod(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The product."""
    x = accumulated(x, dtype)
    return x.prod(axis, keepdims).cast(x.dtype)


def running(x: Any, name: str, axis: int | None, dtype: Any, first: int | None) -> Any:
    """Sums or products of all elements up to each; after `first`, which stands before, if given."""
    x = accumulated(x, dtype)
    if axis is None:
        if x.ndim != 1:
            raise ValueError(f"{name}: an array of {x.ndim} axes; which one is wanted as axis=")
        axis = 0
    found = getattr(x, name)(axis).cast(x.dtype)
    if first is None:
        return found
    shape = tuple([1 if i == axis % x.ndim else s for i, s in enumerate(x.shape)])
    if isinstance(x, ComplexTensor):
        start = as_complex(Array.full(shape, first, device=x.device), x.dtype)
        return ComplexTensor.cat([start, found], dim=axis)
    return x.full(shape, first, dtype=x.dtype, device=x.device).cat(found, dim=axis)


def cumulative_sum(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The sum of all elements up to each; after a 0 where that is included."""
    return running(x, "cumsum", axis, dtype, 0 if include_initial else None)


def cumulative_prod(
    x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The product of all elements up to each; after a 1 where that is included."""
    return running(x, "cumprod", axis, dtype, 1 if include_initial else None)


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours."""
    x = as_array(x)
    if not isinstance(x, ComplexTensor):
        return x.diff(n, axis, prepend, append)
    whole = [a for a in (prepend, x, append) if a is not None]
    return (concat(whole, axis=axis) if len(whole) > 1 else x).each(lambda p: p.diff(n, axis))


# products


def matmul(x1: Any, x2: Any, /) -> Any:
    """The product of matrices."""
    one, two = as_pair(x1, x2)
    return (one @ two).cast(one.dtype)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The product of vectors along an axis."""
    one, two = as_pair(x1, x2)
    one = one.conj() if isinstance(one, ComplexTensor) else one
    return (one * two).sum(axis).cast(one.dtype)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """The sum of products over axes of both."""
    one, two = as_pair(x1, x2)
    if isinstance(axes, int):
        axes = (range(one.ndim - axes, one.ndim), range(axes))
    left, right = ([a % x.ndim for a in side] for x, side in zip((one, two), axes, strict=True))
    rest = [i for i in range(one.ndim) if i not in left]
    others = [i for i in range(two.ndim) if i not in right]
    shape = tuple([one.shape[i] for i in rest] + [two.shape[i] for i in others])
    inner = math.prod([one.shape[i] for i in left])
    a = one.permute(tuple(rest + left)) if one.ndim else one
    b = two.permute(tuple(right + others)) if two.ndim else two
    rows = math.prod([one.shape[i] for i in rest])
    columns = math.prod([two.shape[i] for i in others])
    product = a.reshape((rows, inner)) @ b.reshape((inner, columns))
    return product.cast(one.dtype).reshape(shape)
