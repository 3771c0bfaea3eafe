"""Reductions as the schedules of CPUs arrange them: edge values wherever they lie, and accuracy."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.transforms.horizontal import fold_together
from aster_ml.config import Context
from aster_ml.dtype import DType, dtypes
from aster_ml.engine.realize import schedule_uops
from aster_ml.schedule.rewrites.split_reduce import parts_of, split_of
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ReduceArg
from tests.core.codegen.test_opts import CPU, kernel_of, memory

NAN, INF = np.nan, np.inf
EDGES = (NAN, -NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45)
# One axis, rows, columns; shorter and longer than SIMD values and tiles, even and odd.
SHAPES = [
    ((n,), 0) for n in (1, 2, 3, 7, 16, 33, 255, 1000, 4099)
] + [((5, n), 1) for n in (3, 16, 42, 51, 130, 700)] + [
    ((n, m), 0) for n, m in ((2, 5), (9, 16), (40, 51), (130, 33), (33, 300))
]  # fmt: skip


def largest(x: Any, axis: int) -> Any:
    """NaN where there is one; +0 above -0."""
    found = x.max(axis)
    plus = ((x == 0) & ~np.signbit(x)).any(axis)
    return np.where(found == 0, np.where(plus, x.dtype.type(0.0), x.dtype.type(-0.0)), found)


def assert_same(got: Any, want: Any) -> None:
    """Equal, NaN where NaN is, with the same signs of zeros."""
    np.testing.assert_array_equal(got, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_a_maximum_is_exact_wherever_the_edge_lies(
    shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    rng = np.random.default_rng(len(shape))
    draws = [
        np.where(rng.random(shape) < 0.5, 0.0, -0.0),
        np.full(shape, -0.0),
        -np.abs(rng.standard_normal(shape)),
        np.full(shape, -INF),
    ]
    for place, edge in itertools.product((0, -1, shape[axis] // 2), (NAN, -NAN, 0.0, INF)):
        x = -np.abs(rng.standard_normal(shape))
        np.moveaxis(x, axis, 0)[place] = edge
        draws.append(x)
    for draw in draws:
        x = draw.astype(dtype)
        assert_same(Tensor(x).max(axis).numpy(), largest(x, axis))
        assert_same(Tensor(x).min(axis).numpy(), -largest(-x, axis))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_larger_of_two_is_exact(dtype: str) -> None:
    # As many pairs as fill SIMD values, and some over.
    pairs = list(itertools.product(EDGES, EDGES)) * 3 + [(1.0, 2.0)]
    x, y = np.array(pairs, dtype=dtype).T
    both = np.stack([x, y])
    assert_same(Tensor(x).maximum(Tensor(y)).numpy(), largest(both, 0))
    assert_same(Tensor(x).abs().numpy(), np.abs(x))
    for edge in EDGES:
        both = np.stack([x, np.full_like(x, edge)])
        assert_same(Tensor(x).maximum(float(edge)).numpy(), largest(both, 0))


def root_mean_square(errors: Any) -> float:
    """What errors are on average."""
    return float(np.sqrt(np.mean(np.square(errors))))


LENGTHS = (100, 300, 700, 1500, 2100, 4000, 9000, 20_000, 65_536, 131_101)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_are_as_accurate_as_those_of_numpy(dtype: str, positive: bool) -> None:
    """Rows, which NumPy adds up pairwise, and columns, which it adds up one after the other.

    The mean error over many sums. That of one length is off by a tenth by chance alone, by more
    where all errors are a few units of the last place.
    """
    rng = np.random.default_rng(5)
    ratios: dict[str, list[float]] = {}
    for n in LENGTHS:
        trials = 200 if n < 10_000 else 60
        x = rng.random((trials, n)) if positive else rng.standard_normal((trials, n))
        x = x.astype(dtype)
        columns = np.ascontiguousarray(x.T)
        exact = np.array([math.fsum(row) for row in x])
        for name, mine, theirs in (
            ("sum of rows", Tensor(x).sum(1).numpy(), x.sum(1)),
            ("mean of rows", Tensor(x).mean(1).numpy() * n, x.mean(1) * n),
            ("sum of columns", Tensor(columns).sum(0).numpy(), columns.sum(0)),
        ):
            ratio = root_mean_square(mine - exact) / root_mean_square(theirs - exact)
            ratios.setdefault(name, []).append(ratio)
    for name, found in ratios.items():
        assert max(found) < 1.5, (name, found)
        assert np.mean(found) < 1.03, (name, found)


def test_sums_of_a_row_have_no_masks_and_stay_in_the_nearest_cache() -> None:
    linear = lower(kernel_of(memory(67, 701).mean(0)), CPU)[0]
    loads = [u for u in linear.uops if u.op is Ops.LOAD]
    assert loads
    assert all(len(u.src) == 1 for u in loads)
    (scratch,) = [u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]
    assert scratch.arg.size == 704
    wide = lower(kernel_of(memory(67, 100_000).sum(0)), CPU)[0]
    (scratch,) = [u for u in wide.uops if u.op is Ops.DEFINE_LOCAL]
    assert 2 * 4 * scratch.arg.size <= CPU.cache_bytes[0]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_are_shared_out_in_long_parts(threads: int) -> None:
    x = memory(700, 1601)
    with Context(THREADS=threads):
        np.testing.assert_array_equal(x.max(0).numpy(), x.numpy().max(0))
        v = memory(1, 700)
        want = v.numpy().astype(np.float64) @ x.numpy()
        np.testing.assert_allclose((v @ x).numpy(), want, atol=1e-4)


@pytest.mark.parametrize("columns", [203, 16_001])
@pytest.mark.parametrize("rows", [16, 64, 67, 103])
def test_sums_over_wide_rows_are_right(rows: int, columns: int) -> None:
    x = memory(3, rows, columns)
    want = x.numpy().astype(np.float64)
    np.testing.assert_allclose(x.sum(1).numpy(), want.sum(1), atol=1e-5)
    np.testing.assert_array_equal(x.max(1).numpy(), want.max(1))
    np.testing.assert_allclose((x * x).mean(1).sqrt().numpy(), (want**2).mean(1) ** 0.5, rtol=1e-6)


def test_long_sums_are_sums_of_sums() -> None:
    kinds = [
        [o.kind for o in schedule_kernel(kernel_of(memory(2, n).sum(1)), CPU).applied]
        for n in (1 << 14, 1 << 10)
    ]
    assert ["KBLOCK wide" in found for found in kinds] == [True, False]


@pytest.mark.parametrize("shape", [(20, 42), (20, 300), (7, 1411), (20, 4, 51)])
def test_terms_of_a_softmax_are_computed_once(shape: tuple[int, ...]) -> None:
    x = memory(*shape)
    for axis in (1, -1):
        linear = lower(kernel_of(x.softmax(axis)), CPU)[0]
        powers = [u for u in linear.uops if u.op is Ops.SHL]
        in_scratch = any(u.op is Ops.DEFINE_LOCAL for u in linear.uops)
        # One for what fills SIMD values, one for what is left of a row.
        assert in_scratch
        assert len(powers) <= 2
        e = np.exp(x.numpy().astype(np.float64))
        np.testing.assert_allclose(
            x.softmax(axis).numpy(), e / e.sum(axis, keepdims=True), atol=1e-6
        )


def test_a_long_reduction_is_split_for_several_workers_alone() -> None:
    def kernels(threads: int) -> int:
        x = memory(1 << 19)
        with Context(THREADS=threads):
            return len([s for s in schedule_uops([x.sum().uop])[0].steps if s.ast is not None])

    assert (kernels(1), kernels(2)) == (1, 2)


def test_parts_of_a_long_reduction_leave_nobody_waiting() -> None:
    assert parts_of(4096, 2) == 16
    assert parts_of(4099, 2) == 0
    # All shares are equal, or there are many of them.
    assert parts_of(3 * 1024, 3) == 24
    assert parts_of(1 << 10, 3) == 32


def test_lengths_that_nothing_divides_are_shared_out_with_a_rest() -> None:
    """The rest is reduced with the parts; long reductions have parts of whole SIMD values."""
    x = memory(1_000_003)
    with Context(THREADS=2):
        steps = [s for s in schedule_uops([x.max().uop])[0].steps if s.ast is not None]
        assert len(steps) == 2
        np.testing.assert_array_equal(x.max().numpy(), x.numpy().max())
        want = math.fsum(x.numpy().tolist())
        np.testing.assert_allclose(x.sum().numpy(), want, rtol=1e-6)
        for place in (0, 124_927, 999_424, -1):
            edge = x.numpy().copy()
            edge[place] = NAN
            assert np.isnan(Tensor(edge).max().numpy())
            edge[place] = 1e9
            assert Tensor(edge).max().item() == np.float32(1e9)


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize(
    "shape",
    [(2239, 115), (131_071, 5), (1021, 3, 331), (3, 100_003), (1009, 1013), (499, 2, 501)],
)
def test_parts_are_long_and_alike_whatever_divides(shape: tuple[int, ...], workers: int) -> None:
    """A factor of a short row makes no parts: 23 of 2,239 pieces of 5 took 9 times as long as 8."""
    axes = [a for a, s in enumerate(shape) if s > 2]
    axis, parts, inner = split_of(shape, axes, workers)
    assert 0 < inner * parts <= shape[axis]
    assert shape[axis] - inner * parts <= shape[axis] // 8
    assert axis == 0 or inner * math.prod(shape[axis + 1 :]) > 1000
    assert -(-parts // workers) * workers < 1.15 * parts
    x = memory(*shape)
    with Context(THREADS=workers):
        got = x.max(tuple(axes)).numpy()
    np.testing.assert_array_equal(got, x.numpy().max(tuple(axes)))


@pytest.mark.parametrize("shape", [(4000, 100), (4001, 100), (40_009, 7)])
def test_sums_of_few_columns_are_shared_out_over_rows(shape: tuple[int, int]) -> None:
    x = memory(*shape)
    want = x.numpy().astype(np.float64).sum(0)
    with Context(THREADS=2):
        assert len([s for s in schedule_uops([x.sum(0).uop])[0].steps if s.ast is not None]) == 2
        np.testing.assert_allclose(x.sum(0).numpy(), want, atol=1e-3)
    with Context(DETERMINISTIC=1):
        found = []
        for threads in (1, 2, 3):
            with Context(THREADS=threads):
                found.append(x.sum(0).numpy())
        for other in found[1:]:
            np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("columns", [19, 27, 32, 60, 63])
def test_short_rows_that_are_summed_side_by_side_are_right(columns: int) -> None:
    x = memory(300, columns)
    np.testing.assert_allclose(x.sum(0).numpy(), x.numpy().sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [24, 45, 64])
def test_a_short_row_whose_results_loops_read_is_right(columns: int) -> None:
    x = memory(1001, columns)
    np.testing.assert_array_equal((x - x.max(0)).numpy(), x.numpy() - x.numpy().max(0))


@pytest.mark.parametrize("shape", [(64, 32, 6, 6), (48, 29, 4, 4), (130, 16, 7, 3), (40, 3, 5, 5)])
def test_sums_of_channels_are_right(shape: tuple[int, ...]) -> None:
    x = Tensor(np.random.default_rng(7).random(shape, np.float32)).realize()
    want = x.numpy().astype(np.float64)
    np.testing.assert_allclose(x.sum((0, 2, 3)).numpy(), want.sum((0, 2, 3)), rtol=2e-7)
    np.testing.assert_allclose(x.var((0, 2, 3)).numpy(), want.var((0, 2, 3), ddof=1), rtol=1e-5)


@pytest.mark.parametrize("shape", [(128, 32, 20, 20), (64, 32, 23, 23), (200, 16, 17, 16)])
def test_sums_of_channels_end_in_one_fold(shape: tuple[int, ...]) -> None:
    """Accumulators are along images."""
    x = Tensor(np.random.default_rng(3).random(shape, np.float32)).realize()
    wide = replace(CPU, vector_bits=512, vector_registers=32, masks=True, broadcasts=True)
    linear = lower(kernel_of(x.sum((0, 2, 3))), wide)[0]
    folds = [u for u in linear.uops if u.op is Ops.REDUCE and u.dtype is dtypes.float64]
    assert [u.src[1].arg.kind for u in folds] == [AxisType.VECTOR]
    want = x.numpy().astype(np.float64).sum((0, 2, 3))
    np.testing.assert_allclose(x.sum((0, 2, 3)).numpy(), want, rtol=2e-7)


@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.int32])
def test_only_floats_that_are_rounded_are_folded_together(dtype: DType) -> None:
    """Of integers the second sum would lose its fraction."""
    lanes = [UOp.range(8, i, AxisType.VECTOR) for i in (0, 1)]
    source = UOp.param(0, 8, dtype), UOp.param(1, 8, dtypes.float32)
    sums = [
        UOp(Ops.REDUCE, p.dtype, (p.index(r).load(), r), ReduceArg(Ops.ADD))
        for p, r in zip(source, lanes, strict=True)
    ]
    total = sums[0].cast(dtypes.float32).alu(Ops.ADD, sums[1])
    kernel = Kernel(UOp(Ops.SINK, dtypes.void, (total,)))
    fold_together(kernel, Target("CPU", "llvm"))
    folds = [u.dtype for u in toposort(kernel.sink) if u.op is Ops.REDUCE]
    want = [dtypes.float64] if dtype is dtypes.float64 else [dtypes.int32, dtypes.float32]
    assert folds == want
