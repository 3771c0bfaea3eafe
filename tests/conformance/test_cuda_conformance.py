"""DEV=CUDA from tensors to the driver: a part of the suite, on the driver library of the tests.

Kernels are those of the renderer, run by fibers on the CPU; memory, streams, graphs and launches go
through `cuda.bindings` as on a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable
from tests.conformance.test_tensor_conformance import CASES, Case
from tests.shim import cuda_stub

ABSENT = cuda_stub.missing()
pytestmark = [pytest.mark.cc, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]

NAMES = (
    "chain", "compare", "sum rows", "sum all", "max", "softmax, odd", "layernorm", "matmul, odd",
    "linear and relu",
)  # fmt: skip
SHORT = [case for case in CASES if case.name in NAMES]


@pytest.fixture(scope="module")
def driver() -> Iterator[cuda_stub.Stub]:
    """CUDA on the library."""
    with cuda_stub.in_place() as stub:
        yield stub


@pytest.fixture
def stub(driver: cuda_stub.Stub) -> cuda_stub.Stub:
    """The same, without calls counted."""
    driver.reset()
    return driver


@pytest.mark.parametrize("case", SHORT, ids=[case.name for case in SHORT])
def test_tensors(stub: cuda_stub.Stub, case: Case) -> None:
    random = np.random.default_rng(7)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in case.shapes]
    got = case.run(*[Tensor(x, device="CUDA") for x in inputs]).numpy()
    want = (case.want or case.run)(*[x.astype(np.float64) for x in inputs])
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert stub.calls("cuLaunchKernel") > 0


def test_no_case_is_missing() -> None:
    assert {case.name for case in SHORT} == set(NAMES)


def test_a_jitted_function_is_one_graph(stub: cuda_stub.Stub) -> None:
    @TinyJit
    def step(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).relu() - 1).softmax().realize()

    random = np.random.default_rng(8)
    w = random.standard_normal((6, 5)).astype(np.float32)
    weights = Tensor(w, device="CUDA").realize()
    launched = []
    for _ in range(6):
        x = random.standard_normal((4, 6)).astype(np.float32)
        got = step(Tensor(x, device="CUDA").realize(), weights).numpy()
        y = np.exp(np.maximum(x @ w, 0) - 1)
        np.testing.assert_allclose(got, y / y.sum(1, keepdims=True), rtol=1e-5)
        launched.append((stub.calls("cuGraphLaunch"), stub.calls("cuLaunchKernel")))
    graphs = [after[0] - before[0] for before, after in pairwise(launched)]
    kernels = [after[1] - before[1] for before, after in pairwise(launched)]
    assert graphs[-3:] == [1, 1, 1]
    assert kernels[-3:] == [0, 0, 0]


def test_variables_of_a_graph(stub: cuda_stub.Stub) -> None:
    @TinyJit
    def scaled(x: Tensor, n: Variable) -> Tensor:
        return (x * n + 1).realize()

    x = np.arange(7, dtype=np.float32)
    changes = []
    for n in (1, 2, 3, 4, 5, 6):
        bound = Variable("n", 1, 10).bind(n)
        got = scaled(Tensor(x, device="CUDA").realize(), bound).numpy()
        np.testing.assert_array_equal(got, x * n + 1)
        changes.append(stub.calls("cuGraphExecKernelNodeSetParams"))
    # The node changes once, when its kernel begins to look into the table.
    assert changes[-1] == changes[-3] == 1


def test_shards_on_two_devices(stub: cuda_stub.Stub) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    shared = Tensor(x).shard(("CUDA", "CUDA:1"), axis=0)
    np.testing.assert_array_equal((shared * 2).sum(0).numpy(), (x * 2).sum(0))
    assert stub.calls("cuMemcpyPeerAsync") > 0
