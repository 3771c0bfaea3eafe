"""CUDA C++: every hand-built program computes what NumPy computes, run by fibers on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType, to_numpy_dtype
from aster_ml.errors import CompileError, DeviceError, InternalError
from aster_ml.renderer.cuda.renderer import CudaRenderer
from aster_ml.target.cuda import cuda_target, dynamic_nbytes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.linear_builder import GLOBAL, LOCAL, VECTOR, Builder, at
from tests.core.linear_programs import CASES, check_outputs
from tests.shim import on_cpu
from tests.shim.devices import SHIMS

A100 = cuda_target("sm_80")
GPU_CASES = [name for name, make in CASES.items() if make().linear.thread is None]
needs_compiler = pytest.mark.skipif(
    on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"
)


@pytest.fixture(scope="module")
def library() -> Path:
    """All programs in one library."""
    sources = [CudaRenderer(A100).render(CASES[name]().linear) for name in GPU_CASES]
    return on_cpu.compile_kernel(on_cpu.together(sources))


@needs_compiler
@pytest.mark.cc
@pytest.mark.parametrize("name", GPU_CASES)
def test_cuda_computes(name: str, library: Path) -> None:
    case = CASES[name]()
    found = [x.copy() for x in case.buffers]
    grid = tuple([int(n) for n in case.linear.global_size])
    addresses = tuple([x.ctypes.data for x in found])
    on_cpu.load(library, name)(addresses, case.variables, grid, case.linear.local_size)
    check_outputs(found, case)


@pytest.mark.parametrize(
    "name", ["elementwise", "masked_tail", "group_sum", "group_transpose", "symbolic_size"]
)
def test_golden_cuda(name: str, golden: Callable[[str, str], None]) -> None:
    source = CudaRenderer(A100).render(CASES[name]().linear)
    golden(f"sources/{name}.cu", source)
    assert f"\n{name}(" in source


def test_no_header_is_needed() -> None:
    assert not any("#include" in CudaRenderer(A100).render(CASES[n]().linear) for n in GPU_CASES)


def test_a_fourth_dimension_is_refused() -> None:
    b = Builder("four")
    for _ in range(4):
        b.axis(2, GLOBAL)
    with pytest.raises(InternalError, match="fourth dimension"):
        CudaRenderer(A100).render(b.build())


def neighbours(dtype: DType, offset: int) -> str:
    """The source of a copy of neighbours, from an offset on."""
    b = Builder("copies")
    out, x = b.param(64, dtype), b.param(80, dtype)
    item, v = b.axis(8, LOCAL), b.axis(8, VECTOR)
    eight = b.add(item * 8)
    b.store(at(out, eight, v), b.load(at(x, eight, v + offset)))
    return CudaRenderer(A100).render(b.build())


@pytest.mark.parametrize(
    "dtype, offset, nbytes",
    [
        (dtypes.float32, 0, 16), (dtypes.float32, 4, 16), (dtypes.float32, 6, 8),
        (dtypes.float32, 3, 4), (dtypes.int8, 0, 8), (dtypes.float16, 0, 16),
    ],
)  # fmt: skip
def test_neighbours_move_in_pieces_that_their_place_allows(
    dtype: DType, offset: int, nbytes: int
) -> None:
    assert f", {nbytes}>(buf1 + " in neighbours(dtype, offset)


@needs_compiler
@pytest.mark.cc
@pytest.mark.parametrize("shift", [0, 1, 2, 4])
def test_a_view_may_start_at_any_element(shift: int) -> None:
    kernel = on_cpu.load(on_cpu.compile_kernel(neighbours(dtypes.float32, 4)), "copies")
    x, out = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    places = (out[shift:].ctypes.data, x[shift:].ctypes.data)
    kernel(places, (), (1, 1, 1), (8, 1, 1))
    np.testing.assert_array_equal(out[shift : shift + 64], x[shift + 4 : shift + 68])


@needs_compiler
@pytest.mark.cc
def test_much_shared_memory_is_asked_for_by_the_launch() -> None:
    b = Builder("much")
    n = 1 << 14
    out, x = b.param(64), b.param(64)
    first, second = b.local(n), b.local(64, dtypes.int32)
    item = b.axis(64, LOCAL)
    b.store(at(first, b.add(item * 256)), b.load(at(x, item)))
    b.store(at(second, item), b.add(item * 2))
    b.add(UOp(Ops.BARRIER, dtypes.void, ()))
    turned = b.add(63 - item)
    value = b.load(at(first, b.add(turned * 256))) + b.load(at(second, turned)).cast(dtypes.float32)
    b.store(at(out, item), b.add(value))
    source = CudaRenderer(A100).render(b.build())
    assert dynamic_nbytes(source) == 4 * n + 256
    found = [np.zeros(64, np.float32), np.arange(64, dtype=np.float32)]
    on_cpu.run(source, b.build(), found)
    np.testing.assert_array_equal(found[0], 3 * np.arange(64)[::-1])


# What the shim has to notice

KERNEL = 'extern "C" __global__ void wrong(int *x) {{ {} }}'


def run_wrong(body: str, threads: int = 64) -> np.ndarray:
    """Runs a kernel by hand on as many integers as it has threads."""
    x = np.zeros(threads, np.int32)
    program = on_cpu.load(on_cpu.compile_kernel(KERNEL.format(body)), "wrong")
    program((x.ctypes.data,), (), (1, 1, 1), (threads, 1, 1))
    return x


@needs_compiler
@pytest.mark.cc
@pytest.mark.parametrize(
    "body, words",
    [
        ("if (threadIdx.x < 40) __syncthreads();", "threads part.*waits for its block.*has ended"),
        ("if (threadIdx.x < 3) __syncwarp();", "threads part"),
        (
            "if (threadIdx.x & 1) { __syncthreads();\n } else {\n __syncthreads(); }",
            "wait at different places",
        ),
    ],
)
def test_threads_that_part_are_reported(body: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        run_wrong(body)


@needs_compiler
@pytest.mark.cc
def test_shared_memory_holds_nothing_useful_at_first() -> None:
    before = "__shared__ int s[64]; int i = threadIdx.x; "
    after = "s[i] = i; __syncthreads(); x[i] += s[63 - i];"
    assert run_wrong(before + after).tolist() == [63 - i for i in range(64)]
    assert run_wrong(before + "x[i] = s[i]; " + after)[0] == 63 - 1


@needs_compiler
@pytest.mark.cc
def test_a_barrier_that_is_missing_shows() -> None:
    body = "__shared__ int s[64]; int i = threadIdx.x; s[i] = i; x[i] = s[63 - i];"
    assert run_wrong(body).tolist() != [63 - i for i in range(64)]


@needs_compiler
@pytest.mark.cc
def test_lanes_of_a_warp_exchange_values() -> None:
    body = (
        "int v = threadIdx.x; for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);"
        " x[threadIdx.x] = v;"
    )
    found = run_wrong(body)
    assert found[:32].tolist() == [sum(range(32))] * 32
    assert found[32:].tolist() == [sum(range(32, 64))] * 32


@needs_compiler
@pytest.mark.cc
def test_what_the_compiler_refuses_is_told() -> None:
    with pytest.raises(CompileError, match="nonsense"):
        on_cpu.compile_kernel(KERNEL.format("x[0] = nonsense;"))


# Whole tensors, a few in `make test`; all of tests/conformance by `make test-gpu`.


@needs_compiler
@pytest.mark.cc
@pytest.mark.parametrize(
    ("device", "wide", "narrow"),
    [
        ("CUDASHIM", dtypes.float64, dtypes.float32), ("CUDASHIM", dtypes.float32, dtypes.float16),
        ("METALSHIM", dtypes.float32, dtypes.float16),
    ],
)  # fmt: skip
def test_a_function_of_two_dtypes_in_one_kernel(device: str, wide: DType, narrow: DType) -> None:
    x = np.random.default_rng(4).integers(-9, 9, 256)
    t = Tensor(x.astype(to_numpy_dtype(wide)), device=device).realize()
    found = (t.abs().exp2().cast(narrow) - 20).abs().exp2().clip(0, 9).numpy()
    wanted = np.exp2(np.abs(np.exp2(np.abs(x)) - 20.0)).clip(0, 9)
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=1e-3)


@needs_compiler
@pytest.mark.cc
def test_a_softmax_and_a_product() -> None:
    assert "CUDASHIM" in SHIMS
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(2, 64, 64)).astype(np.float32)
    product = (Tensor(a, device="CUDASHIM") @ Tensor(b, device="CUDASHIM")).softmax(1)
    e = np.exp(a @ b - (a @ b).max(1, keepdims=True))
    np.testing.assert_allclose(product.numpy(), e / e.sum(1, keepdims=True), atol=1e-5)


@needs_compiler
@pytest.mark.cc
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=lambda d: d.name)
def test_narrow_floats_round_as_on_the_interpreter(dtype: DType) -> None:
    rng = np.random.default_rng(6)
    scale = 10.0 ** rng.integers(-6, 6, 999)
    a, b = (rng.normal(size=(2, 999)) * scale).astype(to_numpy_dtype(dtype))
    whole = rng.integers(-(1 << 62), 1 << 62, 999) >> rng.integers(0, 60, 999)

    def compute(device: str) -> list[np.ndarray]:
        x, y = Tensor(a, device=device), Tensor(b, device=device)
        n = Tensor(whole, device=device)
        results = [x + y, x * y, x - y, x / y, x.maximum(y), (x * 3).cast(dtypes.int32)]
        results += [n.cast(dtype), n.cast(dtypes.float64).cast(dtype), x.cast(dtypes.float64)]
        return [r.numpy() for r in results]

    for found, want in zip(compute("CUDASHIM"), compute("PYTHON")):
        np.testing.assert_array_equal(found, want)
