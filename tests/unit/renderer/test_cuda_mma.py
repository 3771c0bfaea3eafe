"""Tensor cores of CUDA: what the renderer writes is run on the CPU and gives what NumPy gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.dtype import to_dtype, to_numpy_dtype
from aster_ml.errors import InternalError
from aster_ml.renderer.cuda import CudaRenderer
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS, TENSOR_CORES
from tests.shim import on_cpu
from tests.unit.kernel_checks import kernel_of

CARD = replace(cuda_target("sm_90a"), tensor_cores=frozenset(TENSOR_CORES))
CUDA_ROWS = [
    i for i, row in enumerate(ROWS) if row.name.startswith("cuda_m") and "fp8" not in row.name
]


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize("number", CUDA_ROWS, ids=lambda i: ROWS[i].name)
def test_a_product_of_each_core(number: int) -> None:
    core = ROWS[number]
    dtype = to_dtype(core.dtype)
    n, k, m = 2 * core.size("m"), 2 * core.size("k"), 2 * core.size("n")
    left, right = Tensor.empty(n, k, dtype=dtype), Tensor.empty(k, m, dtype=dtype)
    kernel = kernel_of(left.matmul(right, dtype=dtypes.float32))
    linear, _ = lower(kernel, CARD, parse_opts(f"TC(r2,{number})"))
    source = CudaRenderer(CARD).render(linear)
    assert f"mma.sync.aligned.{core.name.split('_')[1]}" in source
    rng = np.random.default_rng(number)
    a, b = (rng.integers(-8, 9, s).astype(to_numpy_dtype(dtype)) for s in ((n, k), (k, m)))
    out = np.full(n * m, np.nan, np.float32)
    on_cpu.run(source, linear, [out, a.reshape(-1), b.reshape(-1)])
    np.testing.assert_array_equal(out.reshape(n, m), a.astype(np.float32) @ b.astype(np.float32))


def test_fp8_is_refused_where_it_arrives_as_float() -> None:
    number = next(i for i, row in enumerate(ROWS) if row.name == "cuda_m16n8k32_fp8e4m3")
    left, right = (Tensor.empty(32, 32, dtype=dtypes.fp8e4m3) for _ in range(2))
    kernel = kernel_of(left.matmul(right, dtype=dtypes.float32))
    linear, _ = lower(kernel, CARD, parse_opts(f"TC(r2,{number})"))
    with pytest.raises(InternalError, match="no function for the tensor core"):
        CudaRenderer(CARD).render(linear)
