"""Matrices of Metal: what the renderer writes is run on the CPU and gives what NumPy gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.dtype import to_dtype, to_numpy_dtype
from aster_ml.errors import InternalError
from aster_ml.renderer.metal.renderer import MetalRenderer
from aster_ml.target.metal import metal_target
from aster_ml.target.tensor_cores import ROWS
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

METAL = metal_target()
METAL_ROWS = [i for i, row in enumerate(ROWS) if row.name in METAL.tensor_cores]
pytestmark = [
    pytest.mark.cc,
    pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"),
]


def check(sizes: tuple[int, int, int], dtype: Any, opts: str | None, dtype_of_sum: Any) -> str:
    """The source of a product, once it has given what NumPy gives."""
    n, k, m = sizes
    left, right = Tensor.empty(n, k, dtype=dtype), Tensor.empty(k, m, dtype=dtype)
    kernel = kernel_of(left.matmul(right, dtype=dtype_of_sum))
    linear, _ = lower(kernel, METAL, None if opts is None else parse_opts(opts))
    source = MetalRenderer(METAL).render(linear)
    rng = np.random.default_rng(n + k + m)
    a, b = (rng.integers(-8, 9, s).astype(to_numpy_dtype(dtype)) for s in ((n, k), (k, m)))
    out = np.full(n * m, np.nan, to_numpy_dtype(dtype_of_sum))
    on_cpu.run(source, linear, [out, a.reshape(-1), b.reshape(-1)])
    np.testing.assert_array_equal(
        out.reshape(n, m).astype(np.float32), a.astype(np.float32) @ b.astype(np.float32)
    )
    return source


@pytest.mark.parametrize("number", METAL_ROWS, ids=lambda i: ROWS[i].name)
def test_a_product_of_each_core(number: int) -> None:
    dtype = to_dtype(ROWS[number].dtype)
    source = check((16, 16, 16), dtype, f"TC(r2,{number})", dtypes.float32)
    assert "simdgroup_multiply_accumulate" in source


@pytest.mark.parametrize("sizes", [(64, 32, 64), (13, 11, 19), (8, 8, 8), (97, 24, 31)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
def test_products_go_to_them_by_default(sizes: tuple[int, int, int], dtype: Any) -> None:
    source = check(sizes, dtype, None, dtypes.float32)
    assert "aster_mma_m8n8k8_" in source


def test_those_of_cuda_have_no_words_in_metal() -> None:
    number = next(i for i, row in enumerate(ROWS) if row.name == "cuda_m16n8k8_float32")
    card = replace(METAL, tensor_cores=frozenset([ROWS[number].name]))
    linear, _ = lower(
        kernel_of(Tensor.empty(16, 8).matmul(Tensor.empty(8, 8))),
        card,
        parse_opts(f"TC(r2,{number})"),
    )
    with pytest.raises(InternalError, match="no function for the tensor core"):
        MetalRenderer(card).render(linear)
