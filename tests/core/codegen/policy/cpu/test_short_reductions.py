"""Reductions over short rows and windows come out right at every size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor, dtypes


def floats(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(7).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("rows", "length"), [(9, 3), (64, 10), (1001, 8), (40, 12)])
def test_short_rows_with_what_serves_all_of_them_are_right(rows: int, length: int) -> None:
    a, b = floats(rows, length), floats(length)
    x, y = Tensor(a).realize(), Tensor(b).realize()
    np.testing.assert_array_equal((x + y).max(1).numpy(), (a + b).max(1))
    np.testing.assert_allclose((x @ y).numpy(), a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 7, 8, 9, 31, 257, 3001])
@pytest.mark.parametrize("length", [2, 3, 5, 12, 16, 29, 32, 33])
def test_short_rows_come_out_right(rows: int, length: int) -> None:
    a = floats(rows, length)
    x = Tensor(a).realize()
    np.testing.assert_allclose(x.sum(1).numpy(), a.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(x.max(1).numpy(), a.max(1))
    np.testing.assert_array_equal(x.argmax(1).numpy(), a.argmax(1))


@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float16, dtypes.int32, dtypes.uint8])
def test_short_rows_of_other_dtypes_come_out_right(dtype: dtypes) -> None:  # type: ignore[valid-type]
    a = np.random.default_rng(3).integers(0, 9, (777, 6))
    x = Tensor(a.astype(np.int32)).cast(dtype).contiguous().realize()
    np.testing.assert_array_equal(x.sum(1).numpy(), a.sum(1))
    np.testing.assert_array_equal(x.max(1).numpy(), a.max(1))


def test_nan_and_infinity_in_short_rows() -> None:
    a = floats(203, 5)
    a[7, 2], a[8, 0], a[202, 4] = np.nan, np.inf, np.nan
    np.testing.assert_array_equal(Tensor(a).realize().max(1).numpy(), a.max(1))
    np.testing.assert_allclose(Tensor(a).realize().sum(1).numpy(), a.sum(1), rtol=1e-5)


def test_sums_that_are_assigned_over_what_they_read_have_no_lanes_twice() -> None:
    a = floats(33, 5)
    x = Tensor(a).realize()
    x.assign(x + x.sum(1, keepdim=True)).realize()
    np.testing.assert_allclose(x.numpy(), a + a.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)


POOLS: list[tuple[str, Callable[[Tensor], Tensor], int, int, int]] = [
    ("max", lambda x: x.max_pool2d(2), 2, 2, 0),
    ("max", lambda x: x.max_pool2d(3), 3, 3, 0),
    ("max", lambda x: x.max_pool2d(3, stride=2, padding=1), 3, 2, 1),
    ("sum", lambda x: x.avg_pool2d(3, stride=1, padding=1), 3, 1, 1),
    ("sum", lambda x: x.avg_pool2d(2), 2, 2, 0),
]


@pytest.mark.parametrize("side", [7, 16, 20, 23, 47])
@pytest.mark.parametrize(("kind", "pool", "size", "stride", "padding"), POOLS)
def test_pools_of_every_width_are_right(
    side: int, kind: str, pool: Callable[[Tensor], Tensor], size: int, stride: int, padding: int
) -> None:
    a = floats(3, 5, side, side)
    outside = -np.inf if kind == "max" else 0.0
    edge = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    padded = np.pad(a, edge, constant_values=outside)
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))
    windows = views[:, :, ::stride, ::stride].reshape(
        *views[:, :, ::stride, ::stride].shape[:4], -1
    )
    wanted = windows.max(-1) if kind == "max" else windows.mean(-1)
    np.testing.assert_allclose(pool(Tensor(a)).numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 29), (64, 30), (1001, 17), (12, 500)])
def test_rows_side_by_side_are_right(shape: tuple[int, int]) -> None:
    a = floats(*shape)
    x = Tensor(a).realize()
    np.testing.assert_allclose((x * 2 + x[0]).numpy(), a * 2 + a[0], rtol=1e-6)
    np.testing.assert_allclose(x.cumsum(1).numpy(), a.cumsum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(x.pad(((1, 2), (3, 1))).numpy(), np.pad(a, ((1, 2), (3, 1))))
    np.testing.assert_array_equal(x[:, ::3].contiguous().numpy(), a[:, ::3])
