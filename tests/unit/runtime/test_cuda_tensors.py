"""Tensors whose boxes kernels copy: forms of the driver's as arguments, exchanged in recordings.

On the driver library of the tests, whose device is a Hopper that runs on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes
from aster_ml.device import Device
from aster_ml.errors import DeviceError
from tests.shim import cuda_stub

ABSENT = cuda_stub.missing()
pytestmark = [pytest.mark.cc, pytest.mark.skipif(ABSENT is not None, reason=str(ABSENT))]
ENCODE, UPDATE = "cuTensorMapEncodeTiled", "cuGraphExecKernelNodeSetParams"


@pytest.fixture(scope="module")
def driver() -> Iterator[cuda_stub.Stub]:
    """The library; after the module its driver has no device, as before."""
    with cuda_stub.in_place() as stub:
        yield stub


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


def test_the_driver_may_refuse_one(driver: cuda_stub.Stub) -> None:
    a, b = numbers(0, 80, 136), numbers(1, 136, 80)
    x, y = Tensor(a, device="CUDA").realize(), Tensor(b, device="CUDA").realize()
    driver.fail(ENCODE, 1)
    with pytest.raises(DeviceError, match="describing Tensor: buf1 float16 from 0, sizes 136 80"):
        x.matmul(y, dtype=dtypes.float32).numpy()


def test_forms_of_few_addresses_are_kept(driver: cuda_stub.Stub) -> None:
    from aster_ml.runtime.cuda_tensors import KEPT, Tensors
    from aster_ml.target.tensor_maps import TensorMap

    backend: Any = Device["CUDA"]
    tensors = Tensors(backend.device, [TensorMap(0, "float16", 8, (64, 64), (1, 64), (64, 64))])
    first = tensors.forms([1 << 20])
    assert tensors.forms([1 << 20])[0] is first[0]
    for i in range(KEPT):
        tensors.forms([(2 << 20) + 2 * i])
    assert len(tensors.known) <= KEPT
