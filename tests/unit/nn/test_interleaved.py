"""Quantised matrices with their rows interleaved, and their products in integers."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.engine.counters import TOTALS
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.nn.interleaved import PARTS, Interleaved, Interleaver, round_blocks
from aster_ml.nn.state import QuantTensor, ggml_quantize

K = 512


def matrix(name: str, m: int, k: int = K) -> tuple[Interleaved, np.ndarray]:
    """A random matrix of a type, and its numbers."""
    packed = ggml_quantize(Tensor.randn(m, k), name)
    return Interleaved(packed), packed.dequantize().numpy()


def rounded(x: np.ndarray) -> np.ndarray:
    """Activations as they are after rounding, exactly."""
    blocks = x.astype(np.float64).reshape(-1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / 16256
    codes = np.round(blocks / np.where(step > 0, step, 1))
    return (codes * step).reshape(x.shape)


@pytest.mark.parametrize("name", PARTS)
def test_numbers_and_rows_are_those_of_the_type(name: str) -> None:
    made, want = matrix(name, 48)
    assert (made.dequantize().numpy() == want).all()
    index = np.array([[47, 0, 3], [16, 15, 3]], np.int32)
    assert (made.rows(Tensor(index)).numpy() == want[index]).all()
    assert made.nbytes() <= ggml_quantize(Tensor(want), name).nbytes() * 1.04


@pytest.mark.parametrize("n", [(), (2, 4)])
@pytest.mark.parametrize("name", PARTS)
def test_products_are_those_of_rounded_activations(name: str, n: tuple[int, ...]) -> None:
    made, want = matrix(name, 32)
    x = np.random.randn(*n, K).astype(np.float32)
    got = made.product(Tensor(x)).numpy()
    assert got.shape == (*n, 32)
    np.testing.assert_allclose(got, rounded(x) @ want.T.astype(np.float64), rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", PARTS)
def test_products_are_nearly_those_of_floats(name: str) -> None:
    made, want = matrix(name, 32)
    x = np.random.randn(5, K).astype(np.float32)
    exact = x.astype(np.float64) @ want.T.astype(np.float64)
    assert np.abs(made.product(Tensor(x)).numpy() - exact).max() < 4e-4 * exact.std()


def test_zeros_and_one_large_number() -> None:
    made, want = matrix("Q4_1", 16)
    x = np.zeros((2, K), np.float32)
    x[1, 40] = 1e30
    got = made.product(Tensor(x)).numpy()
    assert (got[0] == 0).all()
    np.testing.assert_allclose(got[1], want[:, 40] * 1e30, rtol=2e-5)


def test_what_is_not_finite_shows() -> None:
    made, _ = matrix("Q8_0", 16)
    for bad in (np.nan, np.inf):
        x = np.ones((1, K), np.float32)
        x[0, 5] = bad
        assert np.isnan(made.product(Tensor(x)).numpy()).all()


def test_parts_are_rows() -> None:
    made, want = matrix("Q4_0", 64)
    whole = made.part(slice(16, 48))
    assert isinstance(whole, Interleaved)
    assert whole.shape == (32, K)
    assert (whole.dequantize().numpy() == want[16:48]).all()
    some = made.part(slice(3, 20))
    assert isinstance(some, Tensor)
    assert (some.numpy() == want[3:20]).all()


def test_rounding_keeps_the_largest_and_the_sums() -> None:
    x = np.random.randn(3, 64).astype(np.float32)
    high, low, scales, sums = [t.numpy() for t in round_blocks(Tensor(x))]
    assert high.dtype == low.dtype == np.int8
    assert (low >= 0).all()
    codes = high.astype(np.int64) * 128 + low
    assert (np.abs(codes).max(-1) == 16256).all()
    np.testing.assert_allclose(scales * 16256, np.abs(x.reshape(3, 2, 32)).max(-1), rtol=1e-6)
    np.testing.assert_allclose(sums, codes.sum(-1) * scales, rtol=1e-6, atol=1e-6)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ArgumentError, match=r"multiple of 16 rows is wanted, Q4_0 \[17, 512\]"):
        Interleaved(ggml_quantize(Tensor.randn(17, K), "Q4_0"))
    with pytest.raises(ArgumentError, match="Q6_K"):
        Interleaved(ggml_quantize(Tensor.randn(16, K), "Q6_K"))
    with pytest.raises(ArgumentError, match="Q8_0"):
        Interleaved(QuantTensor("Q8_0", Tensor.zeros(2, 16, 1, 34, dtype="uint8")))
    made, _ = matrix("Q4_0", 16)
    with pytest.raises(ShapeError, match="k differs"):
        made.product(Tensor.zeros(2, K + 32))


def test_matrices_of_one_form_share_a_recording() -> None:
    packed = [ggml_quantize(Tensor.randn(32, K), "Q4_1").realize() for _ in range(5)]
    make = Interleaver()
    made = [make(p) for p in packed[:3]]
    assert make(ggml_quantize(Tensor.randn(16, K), "Q4_K").realize()).shape == (16, K)
    planned = TOTALS.schedule_misses
    made += [make(p) for p in packed[3:]]
    assert TOTALS.schedule_misses == planned
    for got, p in zip(made, packed):
        assert (got.dequantize().numpy() == p.dequantize().numpy()).all()
    assert len({id(t.memory()) for m in made for t in m.memory()}) == 3 * len(made)
    with pytest.raises(ArgumentError, match="a multiple of 16 rows"):
        make(ggml_quantize(Tensor.randn(17, K), "Q4_1"))
