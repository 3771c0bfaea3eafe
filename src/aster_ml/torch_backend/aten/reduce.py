"""Computes reductions over axes, running sums, orders."""

from __future__ import annotations

from typing import Any

from aster_ml import Tensor
from aster_ml.torch_backend.aten.registry import aten, expressions
from aster_ml.torch_backend.types import Spec


def axes_of(dim: Any) -> Any:
    """Axes as Aster names them: None for all, which an empty list is here."""
    return tuple(dim) if isinstance(dim, (list, tuple)) and dim else None if dim == [] else dim


@aten("sum", "sum.dim_IntList", wants_out=True)
def total(
    x: Tensor, dim: Any = None, keepdim: bool = False, *, out: Spec, dtype: Any = None
) -> Any:
    """The sum."""
    return x.cast(out.dtype).sum(axes_of(dim), keepdim=keepdim)


@aten("mean", "mean.dim", wants_out=True)
def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, out: Spec, dtype: Any = None) -> Any:
    """The mean."""
    return x.cast(out.dtype).mean(axes_of(dim), keepdim=keepdim)


@aten("prod", "prod.dim_int", wants_out=True)
def prod(x: Tensor, dim: Any = None, keepdim: bool = False, *, out: Spec, dtype: Any = None) -> Any:
    """The product."""
    return x.cast(out.dtype).prod(axes_of(dim), keepdim=keepdim)


@aten("max.dim")
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The greatest along an axis, and where it stands first."""
    return x.max(dim, keepdim=keepdim), x.argmax(dim, keepdim=keepdim)


@aten("min.dim")
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    """The least along an axis, and where it stands first."""
    return x.min(dim, keepdim=keepdim), x.argmin(dim, keepdim=keepdim)


@aten("any", "any.dim", "any.dims")
def any_(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Tests whether any element is not 0."""
    return x.bool().any(axes_of(dim), keepdim=keepdim)


@aten("all", "all.dim", "all.dims")
def all_(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Tests whether no element is 0."""
    return x.bool().all(axes_of(dim), keepdim=keepdim)


@aten("var.correction")
def var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """The variance, its divisor less by `correction`."""
    less = 1 if correction is None else correction
    return x.var(axes_of(dim), keepdim=keepdim, correction=less)


@aten("cumsum", wants_out=True)
def cumsum(x: Tensor, dim: int, *, out: Spec, dtype: Any = None) -> Any:
    """Sum of the elements up to each."""
    return x.cast(out.dtype).cumsum(dim) if x.ndim else x.cast(out.dtype)


@aten("cumprod", wants_out=True)
def cumprod(x: Tensor, dim: int, *, out: Spec, dtype: Any = None) -> Any:
    """Product of the elements up to each."""
    return x.cast(out.dtype).cumprod(dim) if x.ndim else x.cast(out.dtype)


@aten("_softmax", wants_out=True)
def softmax(x: Tensor, dim: int, half_to_float: bool, *, out: Spec) -> Any:
    """Exponentials, divided by their sum."""
    return x.cast(out.dtype).softmax(dim) if x.ndim else x.cast(out.dtype) * 0 + 1


@aten("_log_softmax", wants_out=True)
def log_softmax(x: Tensor, dim: int, half_to_float: bool, *, out: Spec) -> Any:
    """The logarithm of `softmax`."""
    return x.cast(out.dtype).log_softmax(dim) if x.ndim else x.cast(out.dtype) * 0


expressions(
    {
        "amax": lambda x, dim=None, keepdim=False: x.max(axes_of(dim), keepdim=keepdim),
        "amin": lambda x, dim=None, keepdim=False: x.min(axes_of(dim), keepdim=keepdim),
        "max": lambda x: x.max(),
        "min": lambda x: x.min(),
        # Where the greatest or least stands first.
        "argmax": lambda x, dim=None, keepdim=False: x.argmax(dim, keepdim=keepdim),
        "argmin": lambda x, dim=None, keepdim=False: x.argmin(dim, keepdim=keepdim),
        # Equal ones keep their order.
        "sort sort.stable": lambda x, dim=-1, descending=False, *, stable=None: x.sort(
            dim, descending
        ),
        "topk": lambda x, k, dim=-1, largest=True, sorted=True: x.topk(k, dim, largest),
    },
)
