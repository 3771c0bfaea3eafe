"""Stand-in for `test.helpers`: marks, random numbers of a dtype, and what a recording holds."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from aster_ml import Device, TinyJit
from aster_ml.compat import listing
from aster_ml.dtype import DType, dtypes, to_numpy_dtype

T = TypeVar("T", bound=Callable[..., Any])

# On which kind of device a suite runs in earnest, where the default is a simulation of it.
REAL_DEV = Device.DEFAULT.split(":")[0]


def slow(item: T) -> T:
    """Skips a test or a class unless RUN_SLOW is set."""
    return unittest.skipUnless(os.environ.get("RUN_SLOW"), "slow; RUN_SLOW=1 runs it")(item)


def not_support_multi_device() -> bool:
    """Whether the default device has no second one of its kind."""
    try:
        Device[f"{REAL_DEV}:1"]
    except RuntimeError:
        return True
    return False


def needs_second_gpu(item: T) -> T:
    """Skips a test where the default device has no second one of its kind."""
    return unittest.skipIf(not_support_multi_device(), "there is one device of this kind")(item)


def rand_for_dtype(dtype: DType, count: int) -> np.ndarray[Any, Any]:
    """`count` numbers that the dtype can tell apart: over the range of ints, normal for floats."""
    if dtypes.is_bool(dtype):
        return np.random.choice([True, False], size=count)
    if dtypes.is_unsigned(dtype):
        return np.random.randint(0, 100, size=count).astype(dtype.name)
    if dtypes.is_int(dtype):
        return np.random.randint(-100, 100, size=count).astype(dtype.name)
    # Of floats that NumPy has not, the nearest ones, as float32.
    drawn = np.random.uniform(-10, 10, size=count).astype(to_numpy_dtype(dtype))
    return drawn.astype("float32") if dtype.fmt is None else drawn


def assert_jit_cache_len(function: TinyJit[Any], expected: int) -> None:
    """Checks how many kernels a recording has; fewer than stated is as good, more is a failure.

    A recording that holds nothing at all where something is stated is none, so that fails too.
    """
    recording = function.captured
    count = 0 if recording is None else len(recording.jit_cache)
    if (expected == 0) != (count == 0) or count > expected:
        raise AssertionError(f"the recording has {count} kernels, {expected} are stated")


def get_uops(ast: Any, renderer: Any = None) -> list[Any]:
    """The late nodes of a kernel that is given as a graph of the reference's ops."""
    return listing.get_uops(ast, renderer)
