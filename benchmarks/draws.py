"""Inputs and parameters that are the same in every library: drawn by name from NumPy."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Odd, so that the rows of a large input differ.
LONGEST = (1 << 20) + 1


def generator(name: str) -> np.random.Generator:
    """A generator that depends on the name alone."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def draw_input(name: str, shape: Sequence[int]) -> Array:
    """Standard normal float32; a large input repeats its first million or so of values."""
    values = generator(name).standard_normal(min(math.prod(shape), LONGEST), dtype=np.float32)
    return np.resize(values, tuple(shape))


def draw_labels(name: str, count: int, classes: int) -> Array:
    """Integers below `classes`."""
    return generator(name).integers(0, classes, count, dtype=np.int32)


def draw_parameter(name: str, shape: Sequence[int]) -> Array:
    """A parameter of a network, by the last part of its name."""
    shape = tuple(shape)
    last = name.rsplit(".", 1)[-1]
    if last == "num_batches_tracked":
        return np.zeros(shape, dtype=np.int64)
    if last == "running_mean":
        return np.zeros(shape, dtype=np.float32)
    if last == "running_var":
        return np.ones(shape, dtype=np.float32)
    values = draw_input(name, shape)
    if len(shape) > 1:
        return values * np.float32(math.sqrt(2 / math.prod(shape[1:])))
    return np.float32(0.1) * values + np.float32(last == "weight")


def summary(array: Array) -> list[float]:
    """A few numbers that tell results apart: the mean size, and two weighted sums.

    Of a large result the sums take some values, spread over all of it.
    """
    flat = np.asarray(array).reshape(-1)
    size = float(np.abs(flat).mean(dtype=np.float64))
    some = flat[:: max(1, flat.size // LONGEST) | 1].astype(np.float64)
    weights = np.cos(np.arange(some.size) * 0.37)
    # Weighted sums of many values cancel, so they are stated on top of the mean size.
    return [
        size,
        size + float((some * weights).mean()),
        size + float((some * weights[::-1]).mean()),
    ]
