"""Computes operators that draw random numbers, from the generator of Aster."""

from __future__ import annotations

from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.onnx.ops.registry import Value, op
from aster_ml.onnx.ops.types import element_type


def drawn(call: Any, normal: bool, sizes: Any, first: float, second: float, dtype: Any) -> Tensor:
    """Numbers of a normal or uniform distribution."""
    call.draws()
    shape = tuple([int(s) for s in sizes])
    wide = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    if normal:
        numbers = Tensor.randn(*shape, dtype=wide, device=call.device) * second + first
    else:
        numbers = Tensor.rand(*shape, dtype=wide, device=call.device) * (second - first) + first
    return numbers.cast(dtype)


@op("RandomNormal", is_random=True)
def random_normal(
    *,
    shape: list[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    call: Any,
) -> Tensor:
    """Numbers of a normal distribution."""
    return drawn(call, True, shape, mean, scale, element_type(dtype))


@op("RandomNormalLike", is_random=True)
def random_normal_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    call: Any,
) -> Tensor:
    """Numbers of a normal distribution in the shape of a tensor."""
    kind = x.dtype if dtype is None else element_type(dtype)
    return drawn(call, True, x.shape, mean, scale, kind)


@op("RandomUniform", is_random=True)
def random_uniform(
    *,
    shape: list[int],
    dtype: int = 1,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    call: Any,
) -> Tensor:
    """Numbers between two bounds."""
    return drawn(call, False, shape, low, high, element_type(dtype))


@op("RandomUniformLike", is_random=True)
def random_uniform_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    call: Any,
) -> Tensor:
    """Numbers between two bounds in the shape of a tensor."""
    kind = x.dtype if dtype is None else element_type(dtype)
    return drawn(call, False, x.shape, low, high, kind)


@op("Bernoulli", is_random=True)
def bernoulli(
    x: Tensor, *, dtype: int | None = None, seed: float | None = None, call: Any
) -> Tensor:
    """1 with the probability that each element says, else 0."""
    kind = x.dtype if dtype is None else element_type(dtype)
    return (drawn(call, False, x.shape, 0.0, 1.0, dtypes.float32) < x).cast(kind)


@op("Multinomial", is_random=True)
def multinomial(
    x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None, call: Any
) -> Value:
    """Classes drawn by the logarithms of their shares."""
    call.draws()
    return x.softmax(-1).multinomial(sample_size, replacement=True).cast(element_type(dtype))
