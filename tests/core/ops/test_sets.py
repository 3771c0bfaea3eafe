"""What differs, and places in an order, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.errors import ArgumentError, ShapeError


def ours(array: Any) -> Tensor:
    return Tensor(array, device="PYTHON")


@pytest.mark.parametrize(
    "array",
    [
        np.array([3, 1, 2, 3, 1, 7]), np.array([[2.5, -1.0], [2.5, 0.0]]), np.array([True, False]),
        np.array([5]), np.zeros((0,), np.float32), np.arange(37)[::-1] % 5,
    ],
)  # fmt: skip
def test_unique_is_numpys(array: Any) -> None:
    got = ours(array).unique_all()
    want = np.unique_all(array)
    for name in ("values", "indices", "inverse_indices", "counts"):
        assert getattr(got, name).tolist() == getattr(want, name).tolist(), name
    assert ours(array).unique().tolist() == want.values.tolist()


def test_each_nan_is_an_element_of_its_own() -> None:
    got = ours(np.array([np.nan, 1.0, np.nan])).unique_all()
    assert got.counts.tolist() == [1, 1, 1]
    assert got.values.tolist()[0] == 1


@pytest.mark.parametrize("size", [0, 1, 2, 7, 16, 31])
@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted_is_numpys(size: int, side: Any) -> None:
    rng = np.random.default_rng(size)
    array = np.sort(rng.integers(0, 9, size)).astype(np.float32)
    values = np.array([[-1, 0, 3, 4], [8, 9, np.inf, np.nan]], np.float32)
    if size == 0:
        assert ours(array).searchsorted(ours(values), side).tolist() == [[0] * 4] * 2
        return
    want = np.searchsorted(array, values, side)
    assert ours(array).searchsorted(ours(values), side).tolist() == want.tolist()


def test_searchsorted_of_what_a_sorter_orders() -> None:
    array, order = ours(np.array([3, 1, 2])), ours(np.array([1, 2, 0]))
    assert array.searchsorted(ours(np.array([2])), sorter=order).tolist() == [1]
    with pytest.raises(ShapeError, match="one axis is wanted"):
        ours(np.zeros((2, 2))).searchsorted(ours(np.zeros(1)))
    with pytest.raises(ArgumentError, match="'left' or 'right'"):
        array.searchsorted(array, "middle")
