"""Rows stored while the next one is computed: when, in which form, and with what values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.pipeline.row_stores import store_later
from aster_ml.errors import KernelOptError
from aster_ml.uop.linear import Linear
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.text import linear_from_text, linear_to_text
from aster_ml.uop.spec.verify import verify
from tests.core.kernel_checks import SMALL_CACHES as CPU
from tests.core.kernel_checks import check_any_part, kernel_of, memory, run_parts

LANES = "STAGE(1,1,row) VECTOR(1,16) VECTOR(2,16) VECTOR(3,16) UPCAST(1,4) NONTEMPORAL(0,0)"


def loops_that_store(linear: Linear) -> list[tuple[int, int]]:
    """For each loop that stores: at which depth, and into how many memories."""
    found, depth, stores = [], 0, set()
    for u in linear.uops:
        if u.op is Ops.RANGE:
            depth, stores = depth + 1, set()
        elif u.op is Ops.STORE:
            stores.add(u.src[0].src[0])
        elif u.op is Ops.END:
            if stores and depth:
                found.append((depth, len(stores)))
            depth, stores = depth - 1, set()
    return found


def test_powers_of_a_row_and_stores_of_the_one_before_share_a_loop() -> None:
    linear, _ = lower(kernel_of(memory(64, 512).softmax()), CPU)
    # Powers of the first row; both; what a row hands on; the stores of the last row.
    assert loops_that_store(linear) == [(2, 1), (2, 2), (1, 3), (1, 1)]
    verify(linear, "linear")
    assert linear_from_text(linear_to_text(linear)) == linear


def test_without_a_row_in_scratch_there_is_nothing_to_store_later() -> None:
    for text in ("PIPELINE(0,0,stores)", "PIPELINE(1,0,stores)"):
        with pytest.raises(KernelOptError, match="keeps a row in scratch"):
            schedule_kernel(kernel_of(memory(64, 512).layernorm()), CPU, parse_opts(text))


def test_other_loops_are_refused() -> None:
    ast = kernel_of(memory(64, 512).softmax())
    linear, _ = lower(ast, CPU, parse_opts("VECTOR(2,16) VECTOR(3,16)"))
    for axis in (0, 99):
        with pytest.raises(KernelOptError, match="other Opts have left none"):
            store_later(linear, axis)


def numbered(x: Tensor) -> Tensor:
    """Results that take more of a row than one number, and the number of the row itself."""
    e = (x - x.max(1, keepdim=True)).exp()
    s = e.sum(1, keepdim=True)
    return e / s + s + Tensor.arange(x.shape[0]).reshape(-1, 1)


ROW_KERNELS = {
    "softmax": lambda x: x.softmax(),
    "numbered": numbered,
    "double": lambda x: x.double().softmax(),
    "half": lambda x: x.softmax().half(),
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
    opts = parse_opts(f"{LANES} PIPELINE(0,0,stores) THREAD(0,0)")
    linear, _ = lower(ast, replace(CPU, threads=2), opts)
    assert [found for found in loops_that_store(linear) if found == (2, 2)]
    wanted = made.numpy()
    with Context(**settings):
        check_any_part(ast, opts, x, wanted, 1e-3 if name == "half" else 1e-6, 1e-7)


def test_rows_with_infinities_and_nan_keep_to_themselves() -> None:
    x = np.random.default_rng(1).standard_normal((5, 256)).astype(np.float32)
    x[1, 3], x[2, 5], x[3] = np.nan, np.inf, -np.inf
    t = Tensor(x).realize()
    ast = kernel_of(t.softmax())
    [out] = run_parts(ast, parse_opts(f"{LANES} PIPELINE(0,0,stores)"), t, x, [(0, 1)])
    with np.errstate(invalid="ignore"):
        wanted = np.exp(x - x.max(1, keepdims=True))
        wanted /= wanted.sum(1, keepdims=True)
    np.testing.assert_allclose(out, wanted, rtol=2e-6, atol=1e-9)
    assert np.isnan(out[1:4]).all()
    assert np.isfinite(out[[0, 4]]).all()
