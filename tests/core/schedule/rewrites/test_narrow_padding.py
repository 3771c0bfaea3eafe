"""Convolutions of 16-bit numbers: padded as narrow as they are, tensor cores multiply them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.passes import lower
from aster_ml.device import Device
from tests.shim import on_cpu
from tests.shim.devices import SHIMS

pytestmark = pytest.mark.skipif(
    on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++"
)
CASES = [
    ((2, 16, 16, 16), (16, 16, 3, 3), 1, 1),
    ((1, 32, 9, 17), (24, 32, 3, 3), 1, 1),
    ((2, 16, 17, 17), (32, 16, 3, 3), 2, 1),
    ((1, 16, 20, 20), (16, 16, 5, 5), 1, 2),
]


def drawn(shape: tuple[int, ...], device: str, dtype: str) -> Tensor:
    """Quarters, which 16 bits hold exactly."""
    x = np.random.default_rng(sum(shape)).integers(-4, 5, shape) / 4
    return Tensor(x.astype(np.float32), device=device).cast(dtype).realize()


def kernels(t: Tensor) -> list[Any]:
    """The kernels that a tensor takes."""
    return [item.ast for item in t.schedule() if item.ast.op.name == "SINK"]


@pytest.mark.parametrize("device, case", [*[(SHIMS[0], c) for c in CASES], (SHIMS[1], CASES[0])])
def test_convolutions_are_right(device: str, case: Any) -> None:
    shape, weights, stride, padding = case
    dtype = "float16"
    results = {}
    for name in (device, "CPU"):
        x, w = drawn(shape, name, dtype), drawn(weights, name, dtype)
        x.requires_grad_(True), w.requires_grad_(True)
        y = x.conv2d(w, stride=stride, padding=padding)
        y.float().square().mean().backward()
        results[name] = [t.float().numpy() for t in (y, x.grad, w.grad)]
    for found, wanted in zip(results[device], results["CPU"], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("size, stride", [(3, 1), (3, 2), (5, 1), (1, 1)])
def test_tensor_cores_multiply_them(size: int, stride: int, dtype: str) -> None:
    target = Device["CUDASHIM"].target
    x = drawn((2, 32, 64, 64), "CUDASHIM", dtype)
    w = drawn((32, 32, size, size), "CUDASHIM", dtype)
    opts = [lower(k, target)[1] for k in kernels(x.conv2d(w, stride=stride, padding=size // 2))]
    assert sum("TC(" in " ".join(map(str, o)) for o in opts) == 1
    assert len(opts) <= 2


def test_transforms_are_for_those_that_ask_and_for_float32() -> None:
    x, w = (
        drawn((2, 64, 32, 32), "CUDASHIM", "float16"),
        drawn((64, 64, 3, 3), "CUDASHIM", "float16"),
    )
    direct = len(kernels(x.conv2d(w, padding=1)))
    with Context(WINO=1):
        assert len(kernels(x.conv2d(w, padding=1))) > direct
    assert len(kernels(x.float().realize().conv2d(w.float().realize(), padding=1))) > direct
