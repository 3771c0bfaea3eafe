"""Rows that are first folded beside the row before: when, in which form, and with what values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.pipeline.row_folds import fold_early
from aster_ml.errors import KernelOptError
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.verify import verify
from tests.core.kernel_checks import (
    SMALL_CACHES,
    check_any_part,
    kernel_of,
    memory,
    run_parts,
)

CPU = replace(SMALL_CACHES, cache_bytes=(32 << 10, 1 << 20, 32 << 20))
# Of the reductions, which come last.
LANES = "VECTOR(1,16) VECTOR(2,16) UPCAST(2,4) UPCAST(1,4)"


def folds_in_loops(linear: Linear) -> list[tuple[int, int]]:
    """For each loop that folds by itself: at which depth, and into how many registers."""
    found, counts = [], list[int]()
    for u in linear.uops:
        if u.op is Ops.RANGE:
            counts.append(0)
        elif u.op is Ops.ACCUMULATE:
            counts[-1] += 1
        elif u.op is Ops.END:
            if counts[-1]:
                found.append((len(counts), counts[-1]))
            counts.pop()
    return found


def test_the_maximum_of_the_next_row_shares_the_loops_of_a_sum() -> None:
    ast = kernel_of(memory(64, 512).log_softmax())
    linear, applied = lower(ast, CPU)
    # The maximum of the first row, in a loop that only this one enters; then both.
    assert folds_in_loops(linear) == [(3, 1), (2, 2)]
    apart, _ = lower(ast, CPU, tuple([o for o in applied if o.kind != "PIPELINE folds"]))
    assert folds_in_loops(apart) == [(2, 1), (2, 1)]
    verify(linear, "linear")
    assert linear_from_text(linear_to_text(linear)) == linear


def test_sums_of_sums_share_both_loops_and_one_loop_the_turns_of_two() -> None:
    """Long sums are sums of sums in float64, and maxima of as many numbers are not."""
    large = replace(CPU, cache_bytes=(64 << 10, 1 << 20, 32 << 20))
    linear, _ = lower(kernel_of(memory(64, 4096).std(1)), large)
    assert folds_in_loops(linear) == [(4, 1), (3, 1), (3, 2), (2, 2)]
    verify(linear, "linear")
    linear, _ = lower(kernel_of(memory(64, 4096).logsumexp(1)), CPU)
    assert folds_in_loops(linear) == [(3, 1), (3, 2), (2, 1)]
    verify(linear, "linear")


def test_an_axis_without_two_folds_is_refused() -> None:
    for t, text in (
        (memory(64, 512).sum(1), "PIPELINE(0,0,folds)"),
        (memory(64, 512).std(1), "PIPELINE(1,0,folds)"),
    ):
        with pytest.raises(KernelOptError, match=r"folds twice|no axis 1 of outputs, but r0 of 64"):
            schedule_kernel(kernel_of(t), CPU, parse_opts(text))


def test_other_loops_are_refused() -> None:
    x = memory(64, 512)
    # Other iterations; lanes of results, which share no number; no such loop.
    for t, text, axis in (
        (x.std(1), "VECTOR(1,16) VECTOR(2,8)", 0),
        (x.std(0), "VECTOR(0,16)", 0),
        (x.std(1), LANES, 99),
    ):
        linear, _ = lower(kernel_of(t), CPU, parse_opts(text))
        with pytest.raises(KernelOptError, match="folds of as many iterations"):
            fold_early(linear, axis)


def test_rows_that_are_stored_over_stay_right() -> None:
    x = memory(8, 512)
    found = x.assign(x.softmax()).numpy()
    a = np.random.default_rng(0).standard_normal((8, 512))
    e = np.exp(a - a.max(1, keepdims=True))
    np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), rtol=2e-6)


def numbered(x: Tensor) -> Tensor:
    """Folds of two memories, and results that take the number of the row as well."""
    y = x + Tensor.arange(x.shape[0]).reshape(-1, 1)
    return (y - y.mean(1, keepdim=True)) / (y * y).sum(1, keepdim=True)


ROW_KERNELS: dict[str, Callable[[Tensor], Tensor]] = {
    "log_softmax": lambda x: x.log_softmax(),
    "layernorm": lambda x: x.layernorm(),
    "std": lambda x: x.std(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "numbered": numbered,
    "double": lambda x: x.double().log_softmax(),
    "half": lambda x: x.half().std(1),
}


@pytest.mark.parametrize("settings", [{"CLANG": 0}, {"CLANG": 1}])
@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("name", ROW_KERNELS)
def test_any_number_of_rows_and_any_part_of_them(
    name: str, rows: int, settings: dict[str, Any]
) -> None:
    x = memory(rows, 256)
    made = ROW_KERNELS[name](x)
    ast = kernel_of(made)
    opts = (*schedule_kernel(ast, CPU).applied, *parse_opts("THREAD(0,0)"))
    linear, _ = lower(ast, replace(CPU, threads=2), opts)
    assert (2, 2) in folds_in_loops(linear)
    with Context(NOOPT=1):
        wanted = made.numpy()
    with Context(**settings):
        check_any_part(ast, opts, x, wanted, 1e-3 if name == "half" else 3e-6, 1e-6)


def test_rows_with_infinities_and_nan_keep_to_themselves() -> None:
    x = np.random.default_rng(1).standard_normal((6, 256)).astype(np.float32)
    x[1, 3], x[2, 5], x[4] = np.nan, np.inf, -np.inf
    made = Tensor(x).realize().softmax()
    with np.errstate(invalid="ignore"):
        wanted = np.exp(x - x.max(1, keepdims=True))
        wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_same_sums_in_the_same_order(threads: int) -> None:
    """Early or not, and whatever a thread has, a row is folded alike: to the last bit."""
    x = memory(30, 512)
    lanes = "VECTOR(1,16) VECTOR(2,16) VECTOR(3,16) UPCAST(2,8) UPCAST(3,8)"
    found = []
    for text, count in (("", 1), ("PIPELINE(0,0,folds)", threads)):
        opts = parse_opts(f"{lanes} {text} THREAD(0,0)")
        share = 30 // count
        parts = [(i * share, (i + 1) * share) for i in range(count)]
        like = np.zeros((30, 512), np.float32)
        made = run_parts(kernel_of(x.layernorm()), opts, x, like, parts)
        found.append(np.concatenate([out[i:j] for (i, j), out in zip(parts, made, strict=True)]))
    np.testing.assert_array_equal(*found)
