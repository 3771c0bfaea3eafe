"""Quantised matrices with their rows interleaved, and their products in integers."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.engine.counters import TOTALS
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.interleaved import INTERLEAVED, Interleaved, Interleaver, round_blocks
from aster_ml.nn.state import QuantTensor, ggml_quantize
from tests.programs.llm.random_models import quantised

K = 512


def matrix(name: str, m: int, k: int = K) -> tuple[Interleaved, np.ndarray]:
    """A random matrix of a type, and its numbers."""
    packed = quantised(np.random.default_rng(0), Tensor.randn(m, k), name)
    return Interleaved(packed), packed.dequantize().numpy()


def rounded(x: np.ndarray) -> np.ndarray:
    """Activations as they are after rounding, exactly."""
    blocks = x.astype(np.float64).reshape(-1, 32)
    step = np.abs(blocks).max(-1, keepdims=True) / 16256
    codes = np.round(blocks / np.where(step > 0, step, 1))
    result: np.ndarray = (codes * step).reshape(x.shape)
    return result


@pytest.mark.parametrize("name", INTERLEAVED)
def test_numbers_and_rows_are_those_of_the_type(name: str) -> None:
    made, want = matrix(name, 48)
    packed = NAMED[name]
    assert (made.dequantize().numpy() == want).all()
    index = np.array([[47, 0, 3], [16, 15, 3]], np.int32)
    assert (made.rows(Tensor(index)).numpy() == want[index]).all()
    # Digits of base 3 become fields of two bits.
    most = 1.23 if name == "TQ1_0" else 1.04
    assert made.nbytes() <= want.size // packed.elements * packed.nbytes * most


@pytest.mark.parametrize(
    ("name", "n"), [*[(name, (2, 1)) for name in INTERLEAVED], ("Q4_0", ()), ("Q3_K", (2, 4))]
)
def test_products_are_those_of_rounded_activations(name: str, n: tuple[int, ...]) -> None:
    made, want = matrix(name, 32)
    x = np.random.randn(*n, K).astype(np.float32)
    got = made.product(Tensor(x)).numpy()
    assert got.shape == (*n, 32)
    np.testing.assert_allclose(got, rounded(x) @ want.T.astype(np.float64), rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_rows_that_fill_no_sixteen(name: str) -> None:
    for m in (1, 17):
        made, want = matrix(name, m, 256)
        assert (made.dequantize().numpy() == want).all()
        assert (made.rows(Tensor([m - 1], dtype="int32")).numpy() == want[-1:]).all()
        x = np.random.randn(3, 256).astype(np.float32)
        got = made.product(Tensor(x)).numpy()
        np.testing.assert_allclose(got, rounded(x) @ want.T.astype(np.float64), rtol=0, atol=2e-4)
    part = made.part(slice(16, 17))
    assert isinstance(part, Interleaved)
    np.testing.assert_allclose(part.product(Tensor(x)).numpy(), got[:, 16:], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["Q4_1", "Q2_K"])
def test_experts_that_are_chosen(name: str) -> None:
    packed = quantised(np.random.default_rng(0), Tensor.randn(5, 23, 256), name)
    made, want = Interleaved(packed), packed.dequantize().numpy().astype(np.float64)
    Tensor.realize(*made.memory())
    assert (made.dequantize().numpy() == want).all()
    index = np.array([[4, 0], [2, 2], [1, 4]], np.int32)
    for each in (1, 2):
        x = np.random.randn(3, each, 256).astype(np.float32)
        got = made.chosen(Tensor(x), Tensor(index)).numpy()
        exact = (rounded(x)[:, :, None] * want[index]).sum(-1)
        np.testing.assert_allclose(got, exact, rtol=0, atol=2e-4)
    with pytest.raises(ShapeError, match="k differs"):
        made.chosen(Tensor.zeros(3, 1, 32), Tensor(index))


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
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
    high, low, scales, sums = [t.numpy() for t in round_blocks(Tensor(x), 16)]
    assert high.dtype == low.dtype == np.int8
    assert (low >= 0).all()
    codes = high.astype(np.int64) * 128 + low
    assert (np.abs(codes).max(-1) == 16256).all()
    np.testing.assert_allclose(scales * 16256, np.abs(x.reshape(3, 2, 32)).max(-1), rtol=1e-6)
    whole = codes.reshape(3, 2, 2, 16).sum(-1) * scales[..., None]
    np.testing.assert_allclose(sums, whole, rtol=1e-6, atol=1e-6)


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(ArgumentError, match=r"are wanted, F16 \[16, 512\]"):
        Interleaved(ggml_quantize(Tensor.randn(16, K), "F16"))
    with pytest.raises(ArgumentError, match="Q8_0"):
        Interleaved(QuantTensor("Q8_0", Tensor.zeros(2, 3, 16, 1, 34, dtype="uint8")))
    with pytest.raises(ArgumentError, match="Q8_0"):
        Interleaved(QuantTensor("Q8_0", Tensor.zeros(0, 1, 34, dtype="uint8")))
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
    assert len({id(t._memory()) for m in made for t in m.memory()}) == 3 * len(made)
    with pytest.raises(ArgumentError, match="are wanted, F16"):
        make(ggml_quantize(Tensor.randn(16, K), "F16"))


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
@pytest.mark.parametrize("rows", [1, 33, 160])
def test_a_matrix_that_is_made_in_parts(name: str, rows: int, tmp_path: pathlib.Path) -> None:
    packed = ggml_quantize(Tensor.randn(rows, K), name).realize()
    blocks = packed.blocks.numpy()
    blocks.tofile(tmp_path / "x")
    mapped = Tensor.from_file(tmp_path / "x").reshape(*blocks.shape)
    for given in (packed, QuantTensor(name, mapped)):
        for nbytes in (1, packed.nbytes() // 3, packed.nbytes()):
            calls: list[int] = []
            made = Interleaver().by_parts(given, nbytes, lambda c=calls: c.append(1))
            some = max(nbytes * rows // packed.nbytes() // 16, 1) * 16
            assert len(calls) == -(-rows // some)
            assert made.shape == (rows, K)
            assert (made.dequantize().numpy() == packed.dequantize().numpy()).all()


def test_experts_are_made_at_once() -> None:
    blocks = ggml_quantize(Tensor.randn(64, K), "Q4_0").blocks
    packed = QuantTensor("Q4_0", blocks.reshape(2, 32, -1, 18))
    calls: list[int] = []
    made = Interleaver().by_parts(packed.to("CPU").realize(), 1, lambda: calls.append(1))
    assert (made.dequantize().numpy() == packed.dequantize().numpy()).all()
    assert len(calls) == 1
