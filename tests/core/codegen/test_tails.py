"""Sums whose last SIMD step is masked: it runs on its own, and the panel of both is filled once."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.engine.compile import render
from aster_ml.uop.ops import Ops
from tests.core.codegen.test_opts import AVX512, CPU
from tests.core.kernel_checks import kernel_of, memory

FUSED = replace(AVX512, fused=True)


def loops_of(value: Tensor) -> list[int]:
    """The steps of each loop of a kernel, in order."""
    linear, _ = lower(kernel_of(value), FUSED)
    loops = [u for u in linear.uops if u.op is Ops.RANGE and not u.arg.kind.is_lane]
    return [u.src[0].arg for u in loops]


def test_only_the_last_step_is_masked() -> None:
    product = memory(33, 165) @ memory(165, 4)
    source = render(lower(kernel_of(product), FUSED)[0], FUSED)
    # Ten whole steps and one of five elements, for the panel and for the sums.
    assert loops_of(product).count(10) == 2
    assert 11 not in loops_of(product)
    loads = re.findall(r"masked\.load.*<16 x i1> <([^>]*)>", source)
    assert loads
    assert {mask.count("true") for mask in loads} == {5}


def test_a_masked_product_is_added_without_a_choice() -> None:
    """Zero times zero is zero: what is beyond the end needs no test of its own."""
    source = render(lower(kernel_of(memory(33, 165) @ memory(165, 4)), FUSED)[0], FUSED)
    assert "fmuladd" in source
    assert not re.findall(r"= select .*float", source)
    # Of one factor alone that is masked, the other one could be infinite.
    rows = memory(33, 165).exp().sum(1)
    assert re.findall(r"= select .*float", render(lower(kernel_of(rows), FUSED)[0], FUSED))


@pytest.mark.parametrize("isa", ["", "avx2"])
@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize(("rows", "k"), [(33, 1637), (15, 47), (852, 177), (7, 33), (40, 16)])
def test_products_of_few_columns_are_right(rows: int, k: int, columns: int, isa: str) -> None:
    a, b = memory(rows, k), memory(k, columns)
    want = a.numpy().astype(np.float64) @ b.numpy().astype(np.float64)
    with Context(ISA=isa):
        np.testing.assert_allclose((a @ b).numpy(), want, atol=2e-4)
        # What follows is computed on each sum.
        biased = (a @ b + memory(columns)).relu().numpy()
    np.testing.assert_allclose(biased, np.maximum(want + memory(columns).numpy(), 0), atol=2e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("shape", [(3, 20, 37, 4), (5, 9, 121, 6), (2, 33, 50, 3)])
def test_batches_of_products_are_right(shape: tuple[int, int, int, int], dtype: str) -> None:
    batch, m, k, n = shape
    drawn = np.random.default_rng(1)
    a = drawn.integers(-9, 9, (batch, m, k)).astype(dtype)
    b = drawn.integers(-9, 9, (batch, k, n)).astype(dtype)
    np.testing.assert_array_equal((Tensor(a) @ Tensor(b)).numpy(), a @ b)


def test_what_lies_beyond_a_row_is_not_read_into_its_sum() -> None:
    a, b = memory(40, 35).numpy(), memory(35, 4).numpy()
    a[1::2] = np.inf
    b[:, 1] = np.nan
    have = (Tensor(a) @ Tensor(b)).numpy()
    np.testing.assert_array_equal(np.isnan(have), np.isnan(a @ b))
    np.testing.assert_allclose(have[::2, 2:], (a @ b)[::2, 2:], rtol=1e-4)


@pytest.mark.parametrize("rows", [2, 3, 5, 8, 20, 37])
@pytest.mark.parametrize("isa", ["", "avx2"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_several_rows_are_added_up_together(rows: int, isa: str, dtype: str) -> None:
    drawn = np.random.default_rng(2)
    x, y = (drawn.integers(-99, 99, (rows, 64)).astype(dtype) for _ in range(2))
    with Context(ISA=isa):
        dots = (Tensor(x) * Tensor(y)).sum(1)
        grid = Tensor(x) @ Tensor(y).T
        np.testing.assert_array_equal(dots.numpy(), (x * y).sum(1))
        np.testing.assert_array_equal(grid.numpy(), x @ y.T)


def test_lanes_of_sums_are_stored_as_one_value() -> None:
    """Sixteen sums of sixteen lanes take fifteen additions, and one store."""
    target = replace(FUSED, threads=1)
    product = memory(32, 64) @ memory(64, 4)
    linear, _ = lower(kernel_of(product), target)
    source = render(linear, target)
    # Four of them fill the panel.
    assert source.count("store <16 x float>") == 4 + 1
    assert "store float" not in source
    assert source.count("fadd <16 x float>") == 15
    # Twenty sums are those of sixteen, and of four.
    linear, _ = lower(kernel_of(memory(64, 64) @ memory(64, 4)), target)
    source = render(linear, target)
    assert source.count("store <16 x float>") == 4 + 1
    assert source.count("store <4 x float>") == 1
    assert "store float" not in source


@pytest.mark.parametrize("isa", ["", "avx2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("inner", [2, 3, 4, 5, 6, 7, 9])
def test_what_is_interleaved_is_stored_in_whole_values(inner: int, dtype: str, isa: str) -> None:
    drawn = np.random.default_rng(3)
    x = drawn.integers(0, 2 if dtype == "bool" else 99, (9, 17, inner)).astype(dtype)
    y = drawn.integers(0, 2 if dtype == "bool" else 9, (9, 1, inner)).astype(dtype)
    with Context(ISA=isa):
        np.testing.assert_array_equal((Tensor(x) * Tensor(y)).numpy(), x * y)
        turned = Tensor(x).permute(2, 0, 1).contiguous().realize()
        np.testing.assert_array_equal((turned.permute(1, 2, 0) * Tensor(y)).numpy(), x * y)


def test_three_values_are_woven_into_three() -> None:
    x, y = memory(100, 32, 3), memory(100, 1, 3)
    linear, _ = lower(kernel_of(x * y), AVX512)
    source = render(linear, AVX512)
    assert source.count("store <16 x float>") == 3
    assert "store <2 x float>" not in source
    assert "store float" not in source
    narrow = render(lower(kernel_of(x * y), CPU)[0], CPU)
    assert narrow.count("store <8 x float>") == 3


@pytest.mark.parametrize(
    ("times", "tests"), [(2.0, False), (float("inf"), True), (float("nan"), True)]
)
def test_a_masked_product_with_a_finite_number_needs_no_test_of_its_own(
    times: float, tests: bool
) -> None:
    """Zero times it is zero, so a product stays one, also for a tensor core."""
    x, y = Tensor.rand(5, 27).realize(), Tensor.rand(27, 6).realize()
    kernel = schedule_kernel(kernel_of((x * times) @ y), FUSED, parse_opts("SPLIT(2,8,mask)"))
    [reduction] = kernel.reduces
    assert (reduction.src[0].op is Ops.WHERE) is tests
