"""Tensors whose boxes kernels copy: forms of the driver's as arguments, exchanged in recordings.

On the driver library of the tests, whose device is a Hopper that runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes
from aster_ml.backend import Call, Grid
from aster_ml.codegen.passes import lower
from aster_ml.config import Context
from aster_ml.device import Device
from aster_ml.engine.caches import CACHES
from aster_ml.errors import DeviceError
from aster_ml.runtime import verdicts
from aster_ml.runtime.cuda import device as cuda
from aster_ml.target import UNTRIED
from tests.core.kernel_checks import kernel_of
from tests.shim import cuda_stub

ABSENT = cuda_stub.missing()
pytestmark = [pytest.mark.cc, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]
ENCODE, UPDATE = "cuTensorMapEncodeTiled", "cuGraphExecKernelNodeSetParams"


@pytest.fixture(scope="module")
def driver() -> Iterator[cuda_stub.Stub]:
    """The library; after the module its driver has no device, as before."""
    with cuda_stub.in_place() as stub:
        yield stub


@pytest.fixture(autouse=True)
def boxes() -> Iterator[None]:
    """Products are of boxes, though no self-test has shown that they work here."""
    with Context(BOXES=1):
        yield


def numbers(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    """Small integers of 16 bits."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float16)


def product(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As float32."""
    return a.astype(np.float32) @ b.astype(np.float32)


def test_a_product_of_boxes(driver: cuda_stub.Stub) -> None:
    before = driver.calls(ENCODE)
    a, b = numbers(0, 72, 136), numbers(1, 136, 64)
    x, y = Tensor(a, device="CUDA").realize(), Tensor(b, device="CUDA").realize()
    found = x.matmul(y, dtype=dtypes.float32).numpy()
    np.testing.assert_array_equal(found, product(a, b))
    assert driver.calls(ENCODE) == before + 2
    again = x.matmul(y, dtype=dtypes.float32).numpy()
    np.testing.assert_array_equal(again, found)
    assert driver.calls(ENCODE) == before + 2


def test_a_view_may_begin_at_any_element(driver: cuda_stub.Stub) -> None:
    whole, b = numbers(2, 64 * 136 + 5), numbers(3, 136, 64)
    memory, y = Tensor(whole, device="CUDA").realize(), Tensor(b, device="CUDA").realize()
    for start in (1, 5):
        part = memory[start : start + 64 * 136].reshape(64, 136)
        found = part.matmul(y, dtype=dtypes.float32).numpy()
        wanted = product(whole[start : start + 64 * 136].reshape(64, 136), b)
        np.testing.assert_array_equal(found, wanted)


def test_recordings_are_given_other_tensors(driver: cuda_stub.Stub) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return (x.matmul(y, dtype=dtypes.float32) + 1).realize()

    y = numbers(4, 128, 64)
    right = Tensor(y, device="CUDA").realize()
    for i in range(5):
        a = numbers(10 + i, 64, 128)
        x = Tensor(a, device="CUDA").realize()
        before = driver.calls(UPDATE)
        np.testing.assert_array_equal(step(x, right).numpy(), product(a, y) + 1)
        # Another address is another form, and the node has it as an argument.
        assert driver.calls(UPDATE) - before <= 2
    assert driver.calls(UPDATE) > 0
    before = driver.calls(UPDATE), driver.calls(ENCODE)
    np.testing.assert_array_equal(step(x, right).numpy(), product(a, y) + 1)
    assert (driver.calls(UPDATE), driver.calls(ENCODE)) == before


def test_clusters_are_launched_and_recorded(driver: cuda_stub.Stub) -> None:
    """The driver of the tests has four processors: two clusters of two blocks."""
    y = numbers(4, 136, 128)
    right = Tensor(y, device="CUDA").realize()
    left, shape = Tensor.empty(520, 136, dtype="half"), Tensor.empty(136, 128, dtype="half")
    with Context(BOXES=2):
        ast = kernel_of(left.matmul(shape, dtype=dtypes.float32))
        linear, _ = lower(ast, Device["CUDA"].target)
    assert linear.global_size == (2, 2)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return (x.matmul(right, dtype=dtypes.float32) + 1).realize()

    with Context(BOXES=2):
        for i in range(4):
            a = numbers(20 + i, 520, 136)
            x = Tensor(a, device="CUDA").realize()
            np.testing.assert_array_equal(step(x).numpy(), product(a, y) + 1)
    assert driver.calls("cuGraphLaunch") > 0


def test_what_is_no_cluster_is_refused(driver: cuda_stub.Stub) -> None:
    source = """
        extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(32, 1)
        in_pairs(float *out, const unsigned long long *table) { out[0] = 1; }
    """
    backend: Any = Device["CUDA"]
    program = backend.load("in_pairs", backend.compile(source))
    handle = backend.allocator.alloc(16)
    program((handle,), (), Grid((4, 1, 1), (32, 1, 1)))
    three = Grid((3, 1, 1), (32, 1, 1))
    said = "clusters of 2 blocks, of which its first dimension has to be a multiple"
    with pytest.raises(DeviceError, match=said):
        program((handle,), (), three)
    graph = backend.make_graph([Call(program, (handle,), (), Grid((2, 1, 1), (32, 1, 1)))])
    graph.run()
    with pytest.raises(DeviceError, match=said):
        graph.set_launch(0, three)
    with pytest.raises(DeviceError, match=said):
        backend.make_graph([Call(program, (handle,), (), three)])
    del graph
    backend.allocator.free(handle, 16)


def test_results_of_16_bits_are_boxes_too(driver: cuda_stub.Stub) -> None:
    before = driver.calls(ENCODE)
    a, b = numbers(5, 72, 136), numbers(6, 136, 72)
    x, y = Tensor(a, device="CUDA").realize(), Tensor(b, device="CUDA").realize()
    found = x.matmul(y, dtype=dtypes.float32).half().numpy()
    np.testing.assert_array_equal(found, product(a, b).astype(np.float16))
    assert driver.calls(ENCODE) == before + 3


def test_recordings_store_boxes_of_other_results(driver: cuda_stub.Stub) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        return (x.matmul(y, dtype=dtypes.float32) + 1).half().realize()

    y = numbers(7, 128, 64)
    right = Tensor(y, device="CUDA").realize()
    kept, wanted = [], []
    for i in range(6):
        a = numbers(20 + i, 64, 128)
        # Whoever keeps a result has the next one in other memory.
        kept.append(step(Tensor(a, device="CUDA").realize(), right))
        wanted.append((product(a, y) + 1).astype(np.float16))
    for found, right_one in zip(kept, wanted, strict=True):
        np.testing.assert_array_equal(found.numpy(), right_one)


def test_the_driver_may_refuse_one(driver: cuda_stub.Stub) -> None:
    a, b = numbers(0, 80, 136), numbers(1, 136, 80)
    x, y = Tensor(a, device="CUDA").realize(), Tensor(b, device="CUDA").realize()
    driver.fail(ENCODE, 1)
    with pytest.raises(DeviceError, match="describing Tensor: buf1 float16 from 0, sizes 136 80"):
        x.matmul(y, dtype=dtypes.float32).numpy()


def test_forms_of_few_addresses_are_kept(driver: cuda_stub.Stub) -> None:
    from aster_ml.runtime.cuda.tensor_maps import KEPT, Tensors
    from aster_ml.target.tensor_maps import TensorMap

    backend: Any = Device["CUDA"]
    tensors = Tensors(backend.device, [TensorMap(0, "float16", 8, (64, 64), (1, 64), (64, 64))])
    first = tensors.forms([1 << 20])
    assert tensors.forms([1 << 20])[0] is first[0]
    for i in range(KEPT):
        tensors.forms([(2 << 20) + 2 * i])
    assert len(tensors.known) <= KEPT


def test_boxes_wait_for_a_self_test(driver: cuda_stub.Stub, tmp_path: Path) -> None:
    """A device on which nobody has seen them work goes without; one that has passed does not."""
    a, b = numbers(8, 72, 136), numbers(9, 136, 64)

    def encoded(device: str) -> int:
        # The target of a device that is open does not change but here.
        CACHES.forget_schedules()
        before = driver.calls(ENCODE)
        x, y = Tensor(a, device=device).realize(), Tensor(b, device=device).realize()
        found = x.matmul(y, dtype=dtypes.float32).numpy()
        np.testing.assert_array_equal(found, product(a, b))
        return driver.calls(ENCODE) - before

    with Context(BOXES=-1, CACHEDIR=str(tmp_path)):
        backend = Device["CUDA"]
        assert UNTRIED in backend.target.features
        assert encoded("CUDA") == 0
        verdicts.keep_verdicts(backend.tested_as, {"boxes": False})
        assert cuda.marked(backend.target) == backend.target
        verdicts.keep_verdicts(backend.tested_as, {"boxes": True})
        known = cuda.marked(cuda.probe(backend.device))
        assert known.features == backend.target.features - {UNTRIED}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backend, "probed", known)
            assert backend.tested_as == cuda.tested_as(known)
            assert encoded("CUDA") == 2
            with Context(BOXES=0):
                assert encoded("CUDA") == 0
