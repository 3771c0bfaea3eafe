"""Metal's language: every hand-built program computes what NumPy computes, run on the CPU.

No compiler of Apple's has seen it; a C++ compiler checks syntax and types.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aster_ml import Device, Tensor, dtypes
from aster_ml.codegen.passes import lower
from aster_ml.dtype import DType, to_numpy_dtype
from aster_ml.errors import AsterError, InternalError
from aster_ml.renderer.metal.renderer import MetalRenderer
from aster_ml.target.metal import metal_target
from tests.core.kernel_checks import kernel_of
from tests.core.linear_builder import GLOBAL, Builder
from tests.core.linear_programs import CASES, check_outputs
from tests.shim import on_cpu
from tests.shim.devices import SHIMS

M1 = metal_target()
GPU_CASES = [name for name, make in CASES.items() if make().linear.thread is None]
needs_compiler = pytest.mark.skipif(
    on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"
)


@pytest.fixture(scope="module")
def library() -> Path:
    """All programs in one library."""
    sources = [MetalRenderer(M1).render(CASES[name]().linear) for name in GPU_CASES]
    return on_cpu.compile_kernel(on_cpu.together(sources))


@needs_compiler
@pytest.mark.cc
@pytest.mark.parametrize("name", GPU_CASES)
def test_metal_computes(name: str, library: Path) -> None:
    case = CASES[name]()
    found = [x.copy() for x in case.buffers]
    grid = tuple([int(n) for n in case.linear.global_size])
    addresses = tuple([x.ctypes.data for x in found])
    count = len(found) + len(case.variables)
    on_cpu.load(library, name)(addresses, case.variables, grid, case.linear.local_size, count)
    check_outputs(found, case)


@pytest.mark.parametrize("name", ["masked_tail", "group_sum", "symbolic_size"])
def test_golden_metal(name: str, golden: Callable[[str, str], None]) -> None:
    source = MetalRenderer(M1).render(CASES[name]().linear)
    golden(f"sources/{name}.metal", source)
    assert f"kernel void {name}(" in source


def test_a_fourth_dimension_is_refused() -> None:
    b = Builder("four")
    for _ in range(4):
        b.axis(2, GLOBAL)
    with pytest.raises(InternalError, match="fourth dimension"):
        MetalRenderer(M1).render(b.build())


@pytest.mark.parametrize(
    ("dtype", "packed"),
    [
        (dtypes.float32, "device_float4"), (dtypes.float16, "device_half4"),
        (dtypes.int32, "device_int4"), (dtypes.uint32, "device_uint4"), (dtypes.uint8, "any"),
    ],
)  # fmt: skip
def test_neighbours_are_packed_vectors(dtype: DType, packed: str) -> None:
    x, y = Tensor.empty(4096, dtype=dtype), Tensor.empty(4096, dtype=dtype)
    source = MetalRenderer(M1).render(lower(kernel_of(x + y), M1)[0])
    assert source.count(f" aster_load_{packed}<") == 2
    assert source.count(f" aster_store_{packed}<") == 1


@needs_compiler
@pytest.mark.cc
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.int32])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_packed_vectors_begin_at_any_element(dtype: DType, start: int) -> None:
    x = np.random.default_rng(6).integers(-9, 9, 514).astype(to_numpy_dtype(dtype))
    t = Tensor(x, device="METALSHIM").realize()
    t[start : start + 512] = Tensor(x[:512][::-1].copy(), device="METALSHIM").realize() + 1
    want = x.copy()
    want[start : start + 512] = x[:512][::-1] + np.ones(1, x.dtype)
    np.testing.assert_array_equal(t.numpy(), want)


@needs_compiler
@pytest.mark.cc
def test_a_softmax_of_halves_and_a_product() -> None:
    assert "METALSHIM" in SHIMS
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, 64, 64)).astype(np.float32)
    product = (Tensor(a, device="METALSHIM") @ Tensor(b, device="METALSHIM")).softmax(1)
    e = np.exp(a @ b - (a @ b).max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(product.numpy(), want, atol=1e-5)
    half = product.cast(dtypes.float16) + 1
    np.testing.assert_allclose(half.numpy(), want.astype(np.float16) + 1, atol=2e-3)


@needs_compiler
@pytest.mark.cc
def test_there_is_no_float64() -> None:
    assert not Device["METALSHIM"].target.has_dtype("float64")
    with pytest.raises(AsterError, match="float64"):
        (Tensor([1.0, 2.0], dtype=dtypes.float64, device="METALSHIM") + 1).realize()
