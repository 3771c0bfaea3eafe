"""Rounding to narrow floats is one rounding; dtypes survive pickling."""

from __future__ import annotations

import itertools
import pickle
from fractions import Fraction

import numpy as np
import pytest

from aster_ml.dtype import dtypes, round_float, to_numpy_dtype
from aster_ml.uop.evaluate import evaluate
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops


def finite_values(name: str) -> list[float]:
    """Every finite value of a type of 8 or 16 bits, in order."""
    kind = to_numpy_dtype(dtypes.fields()[name])
    unsigned = np.uint8 if kind.itemsize == 1 else np.uint16
    every = np.arange(2 ** (8 * kind.itemsize), dtype=np.uint32).astype(unsigned).view(kind)
    values = every.astype(np.float64)
    return sorted(set(values[np.isfinite(values)].tolist()))


@pytest.mark.parametrize("name", ["bfloat16", "fp8e4m3", "fp8e5m2", "float16"])
def test_a_middle_plus_a_little_rounds_up(name: str) -> None:
    dtype = dtypes.fields()[name]
    values = finite_values(name)
    pairs = list(itertools.pairwise(values))
    for low, high in pairs[:: max(1, len(pairs) // 400)]:
        middle = float((Fraction(low) + Fraction(high)) / 2)
        for nudged, want in (
            (np.nextafter(middle, np.inf), high),
            (np.nextafter(middle, -np.inf), low),
        ):
            assert round_float(float(nudged), dtype) == want, (low, high, nudged)


def test_one_rounding_where_two_would_go_astray() -> None:
    assert round_float(1 + 2**-8 + 2**-40, dtypes.bfloat16) == 1.0078125


@pytest.mark.parametrize("dtype", [*dtypes.all, dtypes.void])
def test_dtypes_and_nodes_are_pickled(dtype) -> None:
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    if dtype is not dtypes.void:
        u = UOp.const(dtype, 1)
        assert pickle.loads(pickle.dumps(u)) is u


def test_an_infinite_addend_outweighs_a_product_that_overflows() -> None:
    f = dtypes.float32
    args = (3e38, 3e38, float("-inf"))
    assert evaluate(Ops.MULACC, f, args, (f, f, f)) == float("-inf")
