"""Fourier transforms beside NumPy's in float64, their gradients beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, dtypes, fft
from aster_ml.complex import ComplexTensor
from aster_ml.errors import ArgumentError, DTypeError, ShapeError

SIZES = (1, 2, 3, 5, 7, 12, 31, 32, 37, 100, 101, 1009, 1024, 4096)
BOUNDS = {"complex64": 1e-5, "complex128": 1e-12}


def drawn(*shape: int, dtype: str = "complex128") -> Any:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


def close(got: Any, wanted: Any, bound: float) -> bool:
    """Whether the error is small beside the norm, and the shape is the same."""
    array = got.numpy()
    error = np.linalg.norm((array - wanted).ravel())
    return array.shape == wanted.shape and bool(error <= bound * np.linalg.norm(wanted.ravel()))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("n", SIZES)
def test_sizes(n: int, dtype: str) -> None:
    x = drawn(2, n, dtype=dtype)
    wide = x.astype(np.complex128)
    there, real = fft.fft(x), fft.rfft(x.real)
    assert there.dtype == real.dtype == dtype
    assert close(there, np.fft.fft(wide), BOUNDS[dtype])
    assert close(real, np.fft.rfft(wide.real), BOUNDS[dtype])
    assert close(fft.ifft(there), wide, BOUNDS[dtype])
    assert close(fft.irfft(real, n), wide.real, BOUNDS[dtype])


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward", None])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_norms_lengths_and_axes(name: str, norm: Any) -> None:
    x = drawn(4, 6)
    x = x.real if name in ("rfft", "ihfft") else x
    for n, axis in ((None, -1), (9, 0), (3, 1)):
        got = getattr(fft, name)(x, n, axis, norm)
        assert close(got, getattr(np.fft, name)(x, n, axis, norm), 1e-12), (n, axis)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(name: str) -> None:
    x = drawn(3, 4, 6)
    x = x.real if name == "rfftn" else x
    for s, axes in ((None, None), ((4, 5), (0, 2)), (None, (1, 0)), ((2, -1), (1, 2))):
        got = getattr(fft, name)(x, s, axes, "ortho")
        assert close(got, getattr(np.fft, name)(x, s, axes, "ortho"), 1e-12), (s, axes)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2"])
def test_the_last_two_axes(name: str) -> None:
    x = drawn(2, 4, 5)
    x = x.real if name == "rfft2" else x
    assert close(getattr(fft, name)(x), getattr(np.fft, name)(x), 1e-12)


def test_frequencies_and_shifts() -> None:
    for n in (1, 2, 5, 8):
        got = fft.fftfreq(n, 0.5, dtype=dtypes.float64)
        assert np.array_equal(got.numpy(), np.fft.fftfreq(n, 0.5))
        assert np.array_equal(fft.rfftfreq(n, dtype="float64").numpy(), np.fft.rfftfreq(n))
    x = drawn(3, 4, dtype="complex64")
    for axes in (None, 0, (1,), (-1, 0)):
        assert np.array_equal(fft.fftshift(x, axes).numpy(), np.fft.fftshift(x, axes))
        assert np.array_equal(fft.ifftshift(x, axes).numpy(), np.fft.ifftshift(x, axes))
    assert fft.fftfreq(3).dtype is dtypes.default_float


def test_dtypes() -> None:
    assert fft.fft(Tensor([1, 2, 3])).dtype == "complex64"
    assert fft.fft(Tensor([1.0, 2.0], dtype=dtypes.float16)).dtype == "complex64"
    assert fft.fft(np.arange(3)).dtype == "complex128"
    assert fft.irfft(ComplexTensor([1j, 2, 3])).dtype is dtypes.float32


def test_no_rows() -> None:
    assert fft.fft(np.zeros((0, 5))).numpy().shape == (0, 5)
    assert fft.irfft(np.zeros((0, 5))).numpy().shape == (0, 8)
    assert np.array_equal(fft.fft(np.zeros((2, 0)), 3).numpy(), np.zeros((2, 3)))


@pytest.mark.parametrize("n", [6, 37, 100])
def test_gradients_are_those_of_pytorch(n: int) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch: `pip install torch`")
    x = drawn(2, n).real.copy()
    weights = drawn(2, n // 2 + 1).real.copy()
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    z = fft.rfft(ours)
    back = fft.irfft(z * Tensor(weights), n)
    ((z.abs() ** 2).sum() + (back**3).sum()).backward()
    w = torch.fft.rfft(theirs)
    other = torch.fft.irfft(w * torch.tensor(weights), n)
    ((w.abs() ** 2).sum() + (other**3).sum()).backward()
    assert ours.grad is not None
    assert close(ours.grad, theirs.grad.numpy(), 1e-12)


def test_jitted() -> None:
    @TinyJit
    def low_pass(x: Tensor) -> Any:
        z = fft.rfft(x)
        return fft.irfft(z * (fft.rfftfreq(30) < 0.2), 30)

    for i in range(4):
        x = np.random.default_rng(i).standard_normal((2, 30)).astype(np.float32)
        wanted = np.fft.irfft(np.fft.rfft(x) * (np.fft.rfftfreq(30) < 0.2), 30)
        assert close(low_pass(Tensor(x).realize()), wanted, 1e-5)


def test_what_makes_no_sense_is_refused() -> None:
    x = Tensor.ones(2, 4)
    for call in (
        lambda: fft.fft(x, 0), lambda: fft.fft(x, axis=2), lambda: fft.fft(Tensor(1.0)),
        lambda: fft.irfft(Tensor.ones(1)), lambda: fft.fftn(x, (1, 2), (0,)),
        lambda: fft.rfftn(x, axes=()), lambda: fft.fft(x, -1), lambda: fft.fftfreq(0),
    ):  # fmt: skip
        with pytest.raises(ShapeError):
            call()
    with pytest.raises(ArgumentError, match="ortho"):
        fft.fft(x, norm="both")
    with pytest.raises(DTypeError, match="real ones are wanted"):
        fft.rfft(ComplexTensor(x))
