"""Tensor cores of CUDA: what the renderer writes is run on the CPU and gives what NumPy gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.codegen.opts import parse_opts
from aster_ml.codegen.passes import lower
from aster_ml.dtype import to_dtype, to_numpy_dtype
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.target.cuda import cuda_target
from aster_ml.target.tensor_cores import ROWS, TENSOR_CORES
from aster_ml.uop.ops import Ops
from tests.core.kernel_checks import kernel_of
from tests.shim import on_cpu

CARD = replace(cuda_target("sm_90a"), tensor_cores=frozenset(TENSOR_CORES))
CUDA_ROWS = [i for i, row in enumerate(ROWS) if row.name.startswith("cuda_m")]
STAGED = (
    "UPCAST(r0,2) UPCAST(r1,2) UPCAST(r1,2) LOCAL(r0,2) STAGE(r2,2,local) PIPELINE(r2,3,copies)"
)
SIDES = ("a @ b", "a.T @ b", "a @ b.T", "a.T @ b.T")


def in_memory(*arrays: np.ndarray) -> list[np.ndarray]:
    """Arrays as buffers; of one byte, their codes."""
    flat = [np.ascontiguousarray(x).reshape(-1) for x in arrays]
    return [x.view(np.uint8) if x.dtype.itemsize == 1 else x for x in flat]


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
    on_cpu.run(source, linear, [out, *in_memory(a, b)])
    np.testing.assert_array_equal(out.reshape(n, m), a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
@pytest.mark.parametrize("sides", range(4), ids=SIDES.__getitem__)
@pytest.mark.parametrize("number", CUDA_ROWS, ids=lambda i: ROWS[i].name)
def test_staged_operands_in_any_order(number: int, sides: int) -> None:
    """Operands go through stages in an XOR layout, and by ldmatrix where rows are those of one."""
    core = ROWS[number]
    dtype = to_dtype(core.dtype)
    n, k, m = 64, 8 * core.size("k"), 64
    turned = sides & 1, sides >> 1
    shapes = [(k, n) if turned[0] else (n, k), (m, k) if turned[1] else (k, m)]
    left, right = (Tensor.empty(*s, dtype=dtype) for s in shapes)
    x, y = left.T if turned[0] else left, right.T if turned[1] else right
    kernel = kernel_of(x.matmul(y, dtype=dtypes.float32))
    linear, _ = lower(kernel, CARD, parse_opts(f"TC(r2,{number}) {STAGED}"))
    source = CudaRenderer(CARD).render(linear)
    along = [not turned[0], bool(turned[1])]
    loads = [along[i] or core.dtype in ("float16", "bfloat16") for i in range(2)]
    assert sum(1 for u in linear.uops if u.op is Ops.LDMATRIX) == sum(loads)
    assert source.count("aster_ldmatrix_trans(w") == 0 or not all(along)
    rng = np.random.default_rng(number)
    a, b = (rng.integers(-8, 9, s).astype(to_numpy_dtype(dtype)) for s in shapes)
    out = np.full(n * m, np.nan, np.float32)
    on_cpu.run(source, linear, [out, *in_memory(a, b)])
    p, q = a.T if turned[0] else a, b.T if turned[1] else b
    np.testing.assert_array_equal(out.reshape(n, m), p.astype(np.float32) @ q.astype(np.float32))
