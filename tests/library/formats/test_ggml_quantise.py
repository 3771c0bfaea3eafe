"""Quantising: the bytes of ggml's reference, or an error that is no larger than its own."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError
from aster_ml.formats.ggml.quantise import ENCODERS
from aster_ml.nn.state import QuantTensor, ggml_quantize


def values(kind: str, *shape: int) -> np.ndarray:
    """Numbers of several distributions; whole blocks of one number among them."""
    rng = np.random.default_rng(5)
    x = {"normal": rng.normal, "laplace": rng.laplace, "uniform": rng.uniform}[kind](size=shape)
    return x.astype(np.float32)


def odd_values() -> np.ndarray:
    """Zeros, constants, both signs alike, whole steps, small and large numbers."""
    x = values("normal", 16, 256)
    x[0] = 0
    x[1], x[2] = 2.5, -2.5
    x[3, ::2] = -x[3, 1::2]
    x[4] = np.arange(256) - 128
    x[5] *= 1e-2
    x[6] *= 1e4
    x[7, 1:] = 0
    x[8] = np.abs(x[8]) + 3
    x[9] = -np.abs(x[9]) - 3
    x[10] = np.resize([1, -1], 256)
    return x


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1", "BF16", "F16", "F32"])
def test_the_bytes_are_those_of_the_gguf_package(name: str) -> None:
    quants = pytest.importorskip("gguf.quants")
    kinds = pytest.importorskip("gguf.constants").GGMLQuantizationType
    for x in (odd_values(), values("laplace", 5, 3, 64), values("uniform", 1, 32)):
        want = quants.quantize(x, kinds[name])
        got = ggml_quantize(Tensor(x), name).blocks.numpy()
        np.testing.assert_array_equal(got.reshape(-1), want.reshape(-1).view(np.uint8))


# The error of llama.cpp's own (ggml_quantize_chunk) over the standard deviation, on `values` of
# 64 x 512; tests/programs/models/test_llama_cpp.py compares with it where it is installed.
REFERENCE = {
    ("Q4_K", "normal"): 0.0711, ("Q4_K", "laplace"): 0.0847, ("Q4_K", "uniform"): 0.0585,
    ("Q6_K", "normal"): 0.01771, ("Q6_K", "laplace"): 0.02166, ("Q6_K", "uniform"): 0.02634,
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), REFERENCE)
def test_the_error_is_within_that_of_the_reference(name: str, kind: str) -> None:
    x = values(kind, 64, 512)
    back = ggml_quantize(Tensor(x), name).dequantize().numpy().astype(np.float64)
    assert np.sqrt(np.mean((back - x) ** 2)) / x.std() <= REFERENCE[name, kind]


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_odd_blocks_are_near(name: str) -> None:
    x = odd_values()
    back = ggml_quantize(Tensor(x), name).dequantize().numpy()
    span = np.abs(x).max(1, keepdims=True)
    assert (np.abs(back - x) <= span * {"Q4_K": 0.11, "Q6_K": 0.04}[name] + 1e-6).all()
    np.testing.assert_array_equal(back[0], 0)


@pytest.mark.parametrize("name", [*ENCODERS, "F16", "BF16"])
@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 0, 256), (3, 5, 768)])
def test_shapes_and_dtypes(name: str, shape: tuple[int, ...]) -> None:
    for dtype in (dtypes.float32, dtypes.float16):
        found = ggml_quantize(Tensor.randn(*shape).cast(dtype), name)
        assert isinstance(found, QuantTensor)
        assert (found.type, found.shape) == (name, shape)
        assert found.dequantize().shape == shape
        assert found.dequantize().numpy().shape == shape


def test_quantising_twice_changes_nothing() -> None:
    for name in ("Q8_0", "Q4_0", "F16"):
        once = ggml_quantize(Tensor(values("normal", 8, 256)), name).dequantize()
        twice = ggml_quantize(once, name).dequantize()
        np.testing.assert_allclose(twice.numpy(), once.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("t", "name", "message"),
    [
        (Tensor.ones(2, 33), "Q8_0", r"the last axis of \[2, 33\] is no multiple of 32"),
        (Tensor.ones(2, 128), "Q6_K", r"the last axis of \[2, 128\] is no multiple of 256"),
        (Tensor(1.0), "Q8_0", r"the last axis of \[\] is no multiple"),
        (Tensor.ones(32), "IQ4_NL", "IQ4_NL is read and not written; written are Q8_0"),
        (Tensor.ones(32), "q8", "'q8' is no type known here; known are F32"),
        (Tensor.ones(32, dtype=dtypes.int32), "Q8_0", "Q8_0 takes floating point"),
    ],
    ids=str,
)
def test_mistakes(t: Tensor, name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ggml_quantize(t, name)
