"""Computes operators that draw numbers, by a key that the caller draws from PyTorch's own
generator.

So `torch.manual_seed` decides what they give, and two seeds or two calls give other numbers; they
are as likely as those of PyTorch's generator, and not the same ones.
"""

from __future__ import annotations

import math
from typing import Any

from aster_ml import Tensor
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv, prod
from aster_ml.torch_backend.aten.registry import DEVICE, aten
from aster_ml.torch_backend.types import Spec


class Key:
    """Random words of one operator of a graph: the `number`-th that draws, by the key of a call."""

    def __init__(self, words: Tensor, number: int) -> None:
        self.words = words
        self.number = number

    def bits(self, count: int) -> Tensor:
        """[count] random uint32."""
        half = ceildiv(count, 2)
        place = Tensor.arange(half, dtype=dtypes.uint32, device=DEVICE)
        stream = Tensor.full((half,), self.number, dtype=dtypes.uint32, device=DEVICE)
        bits: Tensor = Tensor._threefry_random_bits(self.words, place, stream)[:count]
        return bits

    def uniform(self, shape: Any) -> Tensor:
        """Equally likely float32 from 0 to below 1, of 24 bits."""
        drawn = self.bits(prod(shape)).rshift(8).cast(dtypes.float32) * 2.0**-24
        floats: Tensor = drawn.reshape(tuple(shape))
        return floats


@aten("native_dropout", draws=True)
def dropout(x: Tensor, p: float, train: Any = None, *, key: Key) -> Any:
    """x with elements set to 0 with probability p, the others made larger; and which are left."""
    if not train and train is not None:
        return x, Tensor.full(x.shape, True, dtype=dtypes.bool, device=DEVICE)
    kept = key.uniform(x.shape) >= p
    return kept.where(x * (1 / (1 - p) if p < 1 else 0.0), 0).cast(x.dtype), kept


@aten("rand", wants_out=True, draws=True)
def rand(size: Any, *, out: Spec, key: Key, dtype: Any = None) -> Any:
    """Equally likely from 0 to below 1."""
    return below_one(key.uniform(size), out)


@aten("rand_like", wants_out=True, draws=True)
def rand_like(x: Tensor, *, out: Spec, key: Key, dtype: Any = None) -> Any:
    """`rand` in the shape of x."""
    return below_one(key.uniform(x.shape), out)


def below_one(drawn: Tensor, out: Spec) -> Any:
    """In the dtype of the result, rounded down: 1 is not among the numbers."""
    bits = {dtypes.float16: 11, dtypes.bfloat16: 8}.get(out.dtype, 24)
    return ((drawn * 2**bits).floor() * 2.0**-bits).cast(out.dtype)


@aten("randn", wants_out=True, draws=True)
def randn(size: Any, *, out: Spec, key: Key, dtype: Any = None) -> Any:
    """Normally distributed (Box and Muller's method)."""
    count = prod(size)
    both = key.uniform((2, count))
    radius = ((1 - both[0]).log() * -2).sqrt()
    return (radius * (both[1] * (2 * math.pi)).cos()).reshape(tuple(size)).cast(out.dtype)


@aten("randn_like", wants_out=True, draws=True)
def randn_like(x: Tensor, *, out: Spec, key: Key, dtype: Any = None) -> Any:
    """`randn` in the shape of x."""
    return randn(x.shape, out=out, key=key)


@aten("bernoulli", draws=True)
def bernoulli(p: Tensor, *, key: Key) -> Any:
    """1 with the probability that p says, else 0."""
    return (key.uniform(p.shape) < p).cast(p.dtype)


@aten("bernoulli.p", draws=True)
def bernoulli_number(x: Tensor, p: float = 0.5, *, key: Key) -> Any:
    """1 with one probability, else 0, in the shape of x."""
    return (key.uniform(x.shape) < p).cast(x.dtype)
