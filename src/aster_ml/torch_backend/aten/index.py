"""Computes operators that read and write elements at places that tensors name."""

from __future__ import annotations

from typing import Any

from aster_ml import Tensor
from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.torch_backend.aten.registry import aten


def names_by_mask(node: Any) -> str | None:
    """Says that the elements a mask names are counted only once it has been computed."""
    indices = [i for i in node.args[1] if i is not None]
    return "a mask" if any(not i.meta["val"].dtype.is_signed for i in indices) else None


def parts_of(x: Tensor, indices: Any) -> tuple[Any, ...]:
    """The indices of an operator as those between brackets."""
    return tuple([slice(None) if i is None else i for i in indices])


@aten("index.Tensor", "_unsafe_index.Tensor", refuses=names_by_mask)
def index(x: Tensor, indices: Any) -> Any:
    """The elements at places that tensors name, each along an axis."""
    return x[parts_of(x, indices)]


@aten("index_put", "_unsafe_index_put", refuses=names_by_mask)
def index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """x with values put, or added, at places that tensors name."""
    axes = [i for i, place in enumerate(indices) if place is not None]
    order = [*axes, *[i for i in range(x.ndim) if i not in axes]]
    sizes = [x.shape[i] for i in axes]
    rest = [x.shape[i] for i in order[len(axes) :]]
    # The values as the operator's result would lie, with the named axes brought to the front.
    found = x[parts_of(x, indices)]
    values = values.cast(x.dtype).expand(found.shape)
    places = Tensor.zeros(1, dtype=dtypes.int32, device=x.device).reshape(())
    for axis, size in zip(axes, sizes):
        named = indices[axis].cast(dtypes.int32)
        places = places * size + (named < 0).where(named + size, named)
    count = places.ndim
    # Where axes are named side by side theirs stay there, else they come first.
    at = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    moved = [*range(at, at + count), *[i for i in range(values.ndim) if not at <= i < at + count]]
    flat = values.permute(tuple(moved)).reshape((prod(places.shape), prod(rest)))
    rows = x.permute(tuple(order)).reshape((prod(sizes), prod(rest)))
    where = places.reshape((-1, 1)).expand(flat.shape)
    if accumulate:
        put = rows.scatter_reduce(0, where, flat, "sum")
    else:
        put = rows.scatter(0, where, flat)
    back = [order.index(i) for i in range(x.ndim)]
    return put.reshape(tuple([x.shape[i] for i in order])).permute(tuple(back))


@aten("index_select")
def index_select(x: Tensor, dim: int, places: Tensor) -> Any:
    """Places of one axis."""
    if not x.ndim:
        return x
    axis = dim % x.ndim
    return x[tuple([slice(None)] * axis + [places.reshape((-1,))])]


@aten("embedding")
def embedding(
    weight: Tensor, places: Tensor, padding: int = -1, scaled: bool = False, sparse: bool = False
) -> Any:
    """Rows of the weight."""
    return weight[places]


@aten("embedding_dense_backward")
def embedding_backward(grad: Tensor, places: Tensor, count: int, padding: int, scaled: bool) -> Any:
    """Adds up the gradient of each row of the weight; that of `padding` is 0."""
    width = grad.shape[-1]
    if padding >= 0:
        grad = places.eq(padding).unsqueeze(-1).where(0, grad)
    rows = Tensor.zeros(count, width, dtype=grad.dtype, device=grad.device)
    where = places.cast(dtypes.int32).reshape((-1, 1)).expand((prod(places.shape), width))
    return rows.scatter_reduce(0, where, grad.reshape((-1, width)), "sum")


@aten("gather")
def gather(x: Tensor, dim: int, places: Tensor, sparse_grad: bool = False) -> Any:
    """Along one axis the elements that `places` names."""
    return x.gather(dim, places) if x.ndim else x.expand(places.shape)


def has_no_axis(node: Any) -> str | None:
    """A tensor of no axis has no places."""
    return None if node.args[0].meta["val"].ndim else "a tensor without axes"


@aten("scatter.src", "scatter.value", refuses=has_no_axis)
def scatter(x: Tensor, dim: int, places: Tensor, source: Any) -> Any:
    """x with `source` at places along one axis."""
    if not isinstance(source, Tensor):
        source = Tensor.full(places.shape, source, dtype=x.dtype, device=x.device)
    return x.scatter(dim, places, source.cast(x.dtype))


@aten("scatter_add", refuses=has_no_axis)
def scatter_add(x: Tensor, dim: int, places: Tensor, source: Tensor) -> Any:
    """x with `source` added at places along one axis."""
    return x.scatter_reduce(dim, places, source.cast(x.dtype), "sum")


@aten("scatter_reduce.two", refuses=has_no_axis)
def scatter_reduce(
    x: Tensor, dim: int, places: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """x with what meets at places along one axis reduced."""
    found: Any = x.scatter_reduce(dim, places, source, reduce, include_self)  # type: ignore[arg-type]
    return found
