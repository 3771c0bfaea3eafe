"""Picks and places elements by indices or masks: gather, scatter, one_hot, triangles, diagonals.

Receives tensors of ints or bools beside the values; returns tensors. Square brackets stand in
`ops.index`.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, DTypeError, ShapeError, SignatureError
from aster_ml.ops import Self
from aster_ml.ops.handle import Handle
from aster_ml.ops.index import axis_iota, check_inside, gather_nodes, index_node, is_zero
from aster_ml.ops.masks import read_mask
from aster_ml.ops.movement import broadcast_shapes
from aster_ml.ops.reduce import identity_of
from aster_ml.uop.infer import max_shape, show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def gather(self: Self, dim: int, index: Self) -> Self:
    """Along `dim` the elements that `index` names; on other axes those at the same place.

    Indices outside the axis give 0; negative ones count from its end.

    Shapes: self [n, m], dim=0, index int [k, m] -> [k, m].
    Raises: ShapeError where `index` is larger than self on another axis; DTypeError unless it
    holds ints.
    """
    axis = check_index(self, dim, index, "gather")
    shape = index.shape
    node, valid = index_node(index.uop, self.shape[axis])
    nodes = [node if i == axis else axis_iota(shape[i], i, shape) for i in range(self.ndim)]
    return gather_nodes(self, nodes, valid, shape, [index])


def scatter(
    self: Self,
    dim: int,
    index: Self,
    src: Any,
    reduce: Literal["multiply", "add"] | None = None,
) -> Self:
    """Self with `src` at the places along `dim` that `index` names; the last of equal ones.

    With `reduce`, and a number for `src`, what meets at a place is added or multiplied to what
    was there.

    Shapes: self [n, m], dim=0, index int [k, m], src [k, m] -> [n, m].
    Raises: SignatureError for a tensor `src` beside `reduce`; `scatter_reduce` takes both.
    """
    if reduce is not None and isinstance(src, Handle):
        raise SignatureError(
            f"scatter: reduce {reduce!r} with a tensor for src; a number would do, and "
            "scatter_reduce(dim, index, src, 'sum' or 'prod') takes tensors"
        )
    if reduce not in (None, "add", "multiply"):
        raise ArgumentError(f"scatter: reduce {reduce!r}; 'add', 'multiply' or None would do")
    axis = check_index(self, dim, index, "scatter")
    value = source_of(self, index, src, "scatter")
    if reduce == "add":
        return self.add(scattered(self, axis, index, value))
    if reduce == "multiply":
        same = named_places(self, axis, index)
        met = same.where(value.unsqueeze(axis), value._scalar(1)).prod(axis + 1)
        return self.mul(padded_like(met, self, 1))
    numbers = self.arange(1, index.shape[axis] + 1, device=self.device, dtype=dtypes.int32)
    numbers = numbers.reshape((*(1,) * axis, -1, *(1,) * (self.ndim - axis - 1)))
    last = scattered(self, axis, index, numbers._broadcast_to(index.shape), Ops.MAX)
    # On other axes the index may be smaller than self: nothing is written past its end.
    inside = [None if i == axis else (0, size) for i, size in enumerate(index.shape)]
    taken = value.gather(axis, last.shrink(inside).maximum(1) - 1)
    return (last > 0).where(padded_like(taken, self), self)


def scatter_reduce(
    self: Self,
    dim: int,
    index: Self,
    src: Self,
    reduce: Literal["sum", "prod", "mean", "amax", "amin"],
    include_self: bool = True,
) -> Self:
    """Self with what meets at each place that `index` names along `dim` reduced.

    Without `include_self`, what was there before does not count where anything is written.

    Shapes: self [n, m], dim=0, index int [k, m], src [k, m], reduce="sum" -> [n, m].
    """
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise ArgumentError(
            f"scatter_reduce: reduce {reduce!r}; 'sum', 'prod', 'mean', 'amax' or 'amin' would do"
        )
    axis = check_index(self, dim, index, "scatter_reduce")
    value = source_of(self, index, src, "scatter_reduce")
    start = self
    least, greatest = dtypes.min(self.dtype), dtypes.max(self.dtype)
    if not include_self or reduce == "mean":
        ones = self._full_of(index.shape, 1).cast(dtypes.int32)
        count = scattered(self, axis, index, ones)
    if not include_self:
        neutral = {"sum": 0, "mean": 0, "prod": 1, "amax": least, "amin": greatest}[reduce]
        start = count.ne(0).where(self._scalar(neutral), self)
    if reduce == "amax":
        return start.maximum(scattered(self, axis, index, value, Ops.MAX))
    if reduce == "amin":
        turned = scattered(self, axis, index, value._reversed_order(), Ops.MAX)
        return start.minimum(turned._reversed_order())
    if reduce == "prod":
        same = named_places(self, axis, index)
        met = same.where(value.unsqueeze(axis), self._scalar(1)).prod(axis + 1)
        return start * padded_like(met, self, 1)
    total = start + scattered(self, axis, index, value)
    if reduce == "sum":
        return total
    parts = (count + 1 if include_self else count).maximum(1)
    return total.div(parts, rounding_mode=None if self.is_floating_point() else "floor")


def masked_fill(self: Self, mask: Self, value: Any) -> Self:
    """`value` where `mask` holds, self elsewhere.

    Shapes: self [*b, n], mask bool [*b, n], value=0 -> [*b, n]; b broadcasts.
    """
    return mask.where(value, self)


def masked_select(self: Self, mask: Any) -> Self:
    """The elements where `mask` holds, in order, on one axis; computes the mask.

    Raises: DTypeError unless the mask is bool; JitError inside of a jitted function.
    """
    if mask.dtype is not dtypes.bool:
        raise DTypeError(f"masked_select: the mask is {mask.dtype.name}; bool is wanted")
    shape = broadcast_shapes("masked_select", self.shape, mask.shape)
    places = np.flatnonzero(read_mask(mask._broadcast_to(shape), "masked_select"))
    value: Any = self._broadcast_to(shape).flatten()
    return value[places]  # type: ignore[no-any-return]


def nonzero(self: Self) -> Self:
    """The places of the elements that are not 0, a row each, in row-major order; computes self.

    Dtype: the default int.
    Raises: JitError inside of a jitted function, which could not follow how many there are.
    """
    mask: Any = self.ne(0)
    places = np.argwhere(read_mask(mask, "nonzero"))
    make: Any = self.__class__
    return make(places, self.device, dtypes.default_int)  # type: ignore[no-any-return]


def one_hot(self: Self, num_classes: int = -1) -> Self:
    """For each class a 1 where it is the one, else a 0; -1 computes how many there are.

    Shapes: self int [*s], num_classes=n -> [*s, n].
    Dtype: the default int.
    Raises: DTypeError unless self holds ints.
    """
    if self.dtype.kind not in ("int", "uint"):
        raise DTypeError(f"one_hot: classes are {self.dtype.name}; ints are wanted")
    if num_classes == -1:
        num_classes = int(self.max().item()) + 1
    if not isinstance(num_classes, int) or num_classes < 1:
        raise ArgumentError(f"one_hot: {num_classes!r} classes; a positive number is wanted")
    check_inside("one_hot", self, self.ndim, num_classes, (*self.shape, num_classes), True)
    classes = self.arange(num_classes, device=self.device, dtype=self.dtype)
    return self.unsqueeze(-1).eq(classes).cast(dtypes.default_int)


# triangles and diagonals


def triangle_mask(self: Self, diagonal: int, what: str) -> Self:
    """Where the column is at most the row plus `diagonal`."""
    if self.ndim < 2:
        raise ShapeError(
            f"{what}: {show_shape(self.shape)} has {self.ndim} axes; two or more are wanted"
        )
    rows, columns = self.shape[-2:]
    row = self.arange(rows, device=self.device).reshape((rows, 1)) + diagonal
    return row >= self.arange(columns, device=self.device).reshape((1, columns))


def tril(self: Self, diagonal: int = 0) -> Self:
    """Zeros above the diagonal.

    Shapes: self [*b, n, m] -> [*b, n, m].
    """
    return triangle_mask(self, diagonal, "tril").where(self, self._scalar(0))


def triu(self: Self, diagonal: int = 0) -> Self:
    """Zeros below the diagonal.

    Shapes: self [*b, n, m] -> [*b, n, m].
    """
    return triangle_mask(self, diagonal - 1, "triu").where(self._scalar(0), self)


def diag(self: Self) -> Self:
    """A square matrix with self on its diagonal.

    Shapes: self [n] -> [n, n].
    """
    if self.ndim != 1:
        raise ShapeError(f"diag: {show_shape(self.shape)} has {self.ndim} axes; one is wanted")
    n = self.shape[0]
    rows = self.reshape((n, 1))._pad_zeros([(0, 0), (0, n)]).reshape((n * (n + 1),))
    return rows.shrink([(0, n * n)]).reshape((n, n))._own()


def diagonal(self: Self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Self:
    """The diagonal over two axes, which goes to the last; `offset` columns to the right.

    Shapes: self [n, n] -> [n]; self [n, m, k], dim1=1, dim2=2 -> [n, min(m, k)].
    """
    if self.ndim < 2:
        raise ShapeError(
            f"diagonal: {show_shape(self.shape)} has {self.ndim} axes; two or more are wanted"
        )
    one, two = self._resolve_axis(dim1, "diagonal"), self._resolve_axis(dim2, "diagonal")
    if one == two:
        raise ArgumentError(f"diagonal: dim1 and dim2 are both axis {one}")
    rest = [i for i in range(self.ndim) if i not in (one, two)]
    x = self.permute((*rest, one, two))
    *lead, rows, columns = x.shape
    down, right = max(-offset, 0), max(offset, 0)
    size = max(min(rows - down, columns - right), 0)
    cut: list[Any] = [None] * len(lead)
    if size == 0:
        return x._linked(x._full_of((*lead, 0), 0))
    x = x.shrink([*cut, (down, down + size), (right, right + size)])

    def column(x: Any) -> Any:
        # Longer by one than it is wide, each row starts one further: the diagonal is a column.
        flat = x.reshape((*lead, size * size))._pad_zeros([*[(0, 0)] * len(lead), (0, size)])
        rows = flat.reshape((*lead, size, size + 1)).shrink([*cut, None, (0, 1)])
        return rows.reshape((*lead, size))

    return x._seen_as(column)


def check_index(x: Any, dim: int, index: Any, what: str) -> int:
    """The axis, once `index` is known to fit `x`."""
    if not isinstance(index, Handle) or index.dtype.kind not in ("int", "uint"):
        kind = index.dtype.name if isinstance(index, Handle) else type(index).__name__
        raise DTypeError(f"{what}: the index is {kind}; a tensor of ints is wanted")
    axis: int = x._resolve_axis(dim, what)
    if index.ndim != x.ndim:
        raise ShapeError(
            f"{what}: the index {show_shape(index.shape)} has {index.ndim} axes, the "
            f"tensor {show_shape(x.shape)} has {x.ndim}; equally many are wanted"
        )
    for i, (size, own) in enumerate(zip(index.shape, x.shape, strict=True)):
        if i != axis and isinstance(size, int) and isinstance(own, int) and size > own:
            raise ShapeError(
                f"{what}: on axis {i} the index has size {size}, the tensor {own}; "
                "the index may not be larger"
            )
    check_inside(what, index, axis, x.shape[axis], x.shape)
    return axis


def source_of(x: Self, index: Self, src: Any, what: str) -> Self:
    """The values to scatter, of the shape of the index."""
    if not isinstance(src, Handle):
        return x._full_of(index.shape, src)
    if src.dtype is not x.dtype:
        raise DTypeError(
            f"{what}: values are {src.dtype.name}, the tensor is {x.dtype.name}; "
            f".cast({x.dtype.name!r}) makes them fit"
        )
    if src.ndim != index.ndim or any(
        isinstance(s, int) and isinstance(i, int) and s < i
        for s, i in zip(src.shape, index.shape, strict=False)
    ):
        raise ShapeError(
            f"{what}: values of {show_shape(src.shape)} for an index of "
            f"{show_shape(index.shape)}; at least one value an index is wanted"
        )
    return cast(Self, src.shrink([(0, size) for size in index.shape]))


def named_places(x: Self, axis: int, index: Self) -> Self:
    """[.., n, k, ..]: whether index k of the axis names place n; other axes as in the index."""
    size, rank = x.shape[axis], x.ndim
    node, valid = index_node(index.uop, size)
    at = x.from_uop(node._broadcast_to(index.shape).cast(dtypes.int64), False).unsqueeze(axis)
    places = x.arange(size, device=x.device, dtype=dtypes.int64)
    same = at.eq(places.reshape((*(1,) * axis, size, *(1,) * (rank - axis))))
    if valid is None:
        return same
    return same & x.from_uop(valid._broadcast_to(index.shape), False).unsqueeze(axis)


def scattered(x: Self, axis: int, index: Self, value: Self, op: Ops = Ops.ADD) -> Self:
    """At each place of a value like `x` what is there of the values, by the index, folded."""
    shape, least = index.shape, identity_of(op, value.dtype)
    if any(is_zero(s) for s in shape):
        return value._full_of(x.shape, least)
    node, valid = index_node(index.uop, x.shape[axis])
    if valid is not None:
        value = value.from_uop(valid._broadcast_to(shape), False).where(value, value._scalar(least))
    nodes = [
        node._broadcast_to(shape) if i == axis else axis_iota(shape[i], i, shape)
        for i in range(x.ndim)
    ]
    met = value._derive(value.uop.scatter_at(max_shape(x.shape), *nodes, op=op))
    return met if met.shape == x.shape else met.shrink([(0, size) for size in x.shape])


def padded_like(value: Self, x: Self, fill: Any = 0) -> Self:
    """A value that may be smaller than `x` on some axes, with `fill` after its end."""
    pairs = [(0, own - size) for own, size in zip(x.shape, value.shape, strict=True)]
    if all(isinstance(after, int) and after == 0 for _, after in pairs):
        return value
    if fill == 0:
        return value._pad_zeros(pairs)
    inside = value.from_uop(UOp.const(dtypes.bool, True), False)._broadcast_to(value.shape)
    return inside._pad_zeros(pairs).where(value._pad_zeros(pairs), value._scalar(fill))
