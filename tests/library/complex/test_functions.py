"""Elementary functions of complex tensors, at zeros, infinities, NaN and in between, as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml.complex import ComplexTensor

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 1e-5, 3.0, 25.0, -30.0, np.inf, -np.inf, np.nan, 1e30]
# NumPy's names where they differ from ours.
THEIRS = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
    "atanh": "arctanh",
}  # fmt: skip
NAMES = (
    "acos acosh asin asinh atan atanh cos cosh exp log log10 log2 sin sinh sqrt square tan tanh"
).split()


def grid(dtype: str) -> Any:
    x, y = np.meshgrid(EDGES, EDGES)
    z = np.empty(x.shape, dtype)
    z.real, z.imag = x, y
    return z.ravel()


def same(got: Any, want: Any, scale: Any, eps: float) -> Any:
    """Whether parts agree; the sign of infinities beside NaN is left open, as in C."""
    with np.errstate(invalid="ignore"):
        near = np.abs(got - want) <= eps * scale
    odd = (np.isnan(got) & np.isnan(want)) | (np.isinf(got) & np.isinf(want))
    return near | odd


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", NAMES)
def test_functions_are_those_of_numpy(name: str, dtype: str) -> None:
    z = grid(dtype)
    with np.errstate(all="ignore"):
        want = getattr(np, THEIRS.get(name, name))(z.astype(np.complex128)).astype(dtype)
    got = getattr(ComplexTensor(z, device="PYTHON"), name)().numpy()
    assert got.dtype == want.dtype
    eps = 2e-5 if dtype == "complex64" else 1e-12
    size = np.maximum(*(np.where(np.isfinite(p), abs(p), 0) for p in (want.real, want.imag)))
    ok = same(got.real, want.real, size, eps) & same(got.imag, want.imag, size, eps)
    if name == "square":
        # What overflows in float32 is infinite there, and may be beside something infinite.
        ok |= (np.abs(z.real) > 1e20) | (np.abs(z.imag) > 1e20)
    assert ok.all(), [(z[i], got[i], want[i]) for i in np.nonzero(~ok)[0][:5]]
    # Signs of zeros beside numbers.
    both = np.isfinite(z) & np.isfinite(want)
    for mine, theirs in ((got.real, want.real), (got.imag, want.imag)):
        zero = both & (mine == 0) & (theirs == 0)
        assert (np.signbit(mine) == np.signbit(theirs))[zero].all()


def test_small_numbers_keep_their_digits() -> None:
    z = np.array([1e-5 + 1e-5j, 1e-12 - 2e-12j, -1e-7j, 0.3 + 0.2j, 3 - 4j])
    wide = z.astype(np.clongdouble)
    cases = {"log1p": np.log(1 + wide), "expm1": np.exp(wide) - 1}
    for name, wanted in cases.items():
        got = getattr(ComplexTensor(z), name)().numpy()
        np.testing.assert_allclose(got, wanted.astype(np.complex128), rtol=1e-6)
    assert ComplexTensor(z).log1p().numpy()[0].real == pytest.approx(1e-5, rel=1e-9)
    got = ComplexTensor(np.array([complex(-np.inf, np.inf)])).expm1().numpy()[0]
    assert got.real == -1


def test_logarithms_near_the_circle() -> None:
    z = np.exp(1j * np.linspace(-3, 3, 7)) * (1 + 1e-9)
    got = ComplexTensor(z).log().numpy()
    np.testing.assert_allclose(got, np.log(z), rtol=1e-9, atol=1e-17)


def test_roots_neither_overflow_nor_vanish() -> None:
    z = np.array([3e38 + 3e38j, 1e-40 + 1e-40j, -1e-38j, -3e38 + 1j], np.complex64)
    wanted = np.sqrt(z.astype(np.complex128))
    np.testing.assert_allclose(ComplexTensor(z).sqrt().numpy(), wanted, rtol=1e-6, atol=1e-25)


def test_signs() -> None:
    z = np.array([0, 3 + 4j, complex(np.inf, 1), complex(1, -np.inf), -2])
    got = ComplexTensor(z).sign().numpy()
    np.testing.assert_allclose(got, [0, 0.6 + 0.8j, 1, -1j, -1])
    assert np.isnan(ComplexTensor(np.array([np.nan + 1j])).sign().numpy()).all()
    got = ComplexTensor(np.array([2.5 - 3.5j])).round().numpy()
    assert got.tolist() == [2 - 4j]
