"""Reductions over short rows and windows are written out, and come out right at every size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops

TARGET = Target("CPU", "llvm", arch="example", vector_bits=256, vector_registers=16, threads=1)


def opts_of(value: Tensor) -> str:
    ast = [s.ast for s in value.schedule() if s.ast is not None][-1]
    return " ".join(map(repr, schedule_kernel(ast, TARGET).applied))


def floats(*shape: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(7).standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize("rows", [9, 64, 1001])
@pytest.mark.parametrize("length", [2, 3, 5, 7, 8])
def test_short_rows_are_written_out_without_masks(rows: int, length: int) -> None:
    found = opts_of(Tensor(floats(rows, length)).realize().sum(1))
    assert "VECTOR(0,8)" in found
    assert f"UNROLL(0,{length})" in found
    assert ",mask)" not in found


@pytest.mark.parametrize(("rows", "length"), [(9, 3), (64, 10), (1001, 8), (40, 12)])
def test_short_rows_may_share_what_serves_all_of_them(rows: int, length: int) -> None:
    a, b, c = floats(rows, length), floats(length), floats(length, 3)
    x, y = Tensor(a).realize(), Tensor(b).realize()
    found = opts_of((x + y).max(1))
    assert found.startswith(f"VECTOR(0,8) UNROLL(0,{length})")
    np.testing.assert_array_equal((x + y).max(1).numpy(), (a + b).max(1))
    np.testing.assert_allclose((x @ y).numpy(), a @ b, rtol=1e-5, atol=1e-5)
    # Rows that serve several results are a product's.
    assert f"VECTOR(0,8) UNROLL(0,{length})" not in opts_of(x @ Tensor(c).realize())


@pytest.mark.parametrize("shape", [(100, 64), (300, 33)])
def test_longer_rows_have_lanes_along_the_reduction(shape: tuple[int, int]) -> None:
    assert "VECTOR(0," not in opts_of(Tensor(floats(*shape)).realize().sum(1))


def test_short_parts_of_long_rows_are_not_gathered() -> None:
    assert "UNROLL" not in opts_of(Tensor(floats(300, 64)).realize()[:, :3].sum(1))


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


def test_overlapping_windows_are_written_out_along_the_lanes() -> None:
    found = opts_of(Tensor(floats(2, 3, 24, 24)).realize().avg_pool2d(3, stride=1, padding=1))
    assert "UPCAST(2,3)" in found
    assert "UNROLL(1,3)" in found


def test_masks_of_a_row_serve_several_rows() -> None:
    padded = (Tensor(floats(8, 16, 14, 14)).realize() + 1).pad((1, 1, 1, 1)).contiguous()
    assert "UPCAST(0,4)" in opts_of(padded)


@pytest.mark.parametrize("shape", [(5, 29), (64, 30), (1001, 17), (12, 500)])
def test_rows_side_by_side_are_right(shape: tuple[int, int]) -> None:
    a = floats(*shape)
    x = Tensor(a).realize()
    np.testing.assert_allclose((x * 2 + x[0]).numpy(), a * 2 + a[0], rtol=1e-6)
    np.testing.assert_allclose(x.cumsum(1).numpy(), a.cumsum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(x.pad(((1, 2), (3, 1))).numpy(), np.pad(a, ((1, 2), (3, 1))))
    np.testing.assert_array_equal(x[:, ::3].contiguous().numpy(), a[:, ::3])


def test_random_numbers_have_lanes_of_their_words() -> None:
    drawn = Tensor.randn(4096)
    asts = [s.ast for s in drawn.schedule() if s.ast is not None]
    threefry = [a for a in asts if any(u.op is Ops.THREEFRY for u in toposort(a))]
    assert threefry
    for ast in threefry:
        assert any(opt.arg == 8 for opt in schedule_kernel(ast, TARGET).applied)
