"""QR, singular values and Newton-Schulz against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from tests.core.numerics import tensor, value, values

SIZES = [(4, 4), (5, 3), (3, 5), (1, 3), (3, 1), (1, 1), (2, 2)]


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers."""
    return np.random.RandomState(seed).randn(*shape)


def check_orthogonal(q: Any) -> None:
    """Columns are at right angles, and of length one."""
    eye = np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1]))
    np.testing.assert_allclose(q.swapaxes(-1, -2) @ q, eye, atol=1e-10)


@pytest.mark.parametrize("m, n", SIZES)
def test_qr_is_that_of_numpy(m: int, n: int) -> None:
    a = random(2, m, n)
    q, r = values(*tensor(a).qr())
    assert (np.tril(r, -1) == 0).all()
    check_orthogonal(q)
    for i in range(2):
        want_q, want_r = np.linalg.qr(a[i], mode="complete")
        np.testing.assert_allclose(q[i], want_q, atol=1e-12)
        np.testing.assert_allclose(r[i], want_r, atol=1e-12)


def test_qr_of_columns_without_length() -> None:
    a = np.array([[0.0, 1, 2], [0, 3, 4], [0, 5, 6]])
    q, r = values(*tensor(a).qr())
    check_orthogonal(q)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)


def test_qr_of_ints_is_in_floats() -> None:
    q, r = tensor(np.arange(6).reshape(2, 3)).qr()
    assert q.dtype is r.dtype is dtypes.float32


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("rank", [None, 1])
@pytest.mark.parametrize("m, n", SIZES)
def test_svd(m: int, n: int, rank: int | None, full: bool) -> None:
    a = random(2, m, n) if rank is None else random(2, m, 1) @ random(2, 1, n, seed=1)
    u, s, vt = values(*tensor(a).svd(full))
    k = min(m, n)
    assert u.shape == (2, m, m if full else k)
    assert vt.shape == (2, n if full else k, n)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-10)
    np.testing.assert_allclose((u[..., :k] * s[:, None]) @ vt[:, :k], a, atol=1e-10)
    check_orthogonal(u)
    check_orthogonal(vt.swapaxes(-1, -2))


def test_svd_of_one_matrix_and_of_zeros() -> None:
    u, s, vt = values(*tensor(np.zeros((3, 2))).svd())
    assert s.tolist() == [0, 0]
    check_orthogonal(u)
    check_orthogonal(vt)


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (2, 4, 3)])
def test_newton_schulz(shape: tuple[int, ...]) -> None:
    a = random(*shape)
    params = (3.4445, -4.7750, 2.0315)
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    # On singular values it is the polynomial itself.
    s = s / np.sqrt((a * a).sum((-2, -1)))[..., None]
    for _ in range(3):
        s = params[0] * s + params[1] * s**3 + params[2] * s**5
    have = value(tensor(a).newton_schulz(3, params))
    np.testing.assert_allclose(have, (u * s[..., None, :]) @ vt, atol=1e-6)


@pytest.mark.parametrize("name", ["qr", "svd"])
def test_vectors_are_refused(name: str) -> None:
    with pytest.raises(ShapeError, match=rf"{name}: \[3\]; \[..., rows, columns\] is wanted"):
        getattr(tensor(np.zeros(3)), name)()


def test_newton_schulz_refuses_no_params() -> None:
    with pytest.raises(ArgumentError, match="params is empty"):
        tensor(np.zeros((2, 2))).newton_schulz(2, ())
