"""Determinants, inverses, systems, eigenvalues, beside NumPy and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.errors import ShapeError

TOLERANCE = {"rtol": 1e-9, "atol": 1e-11}


def matrices(n: int, columns: int | None = None) -> Any:
    rng = np.random.default_rng(n)
    return rng.standard_normal((2, n, n if columns is None else columns))


def ours(array: Any, **kwargs: Any) -> Tensor:
    return Tensor(array, device="PYTHON", **kwargs)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_square_matrices(n: int) -> None:
    a, b = matrices(n), matrices(n, 3)
    s = a + a.swapaxes(-1, -2)
    p = a @ a.swapaxes(-1, -2) + n * np.eye(n)
    t = ours(a)
    sign, log = t.slogdet()
    values, vectors = ours(s).eigh()
    for got, want in (
        (t.det(), np.linalg.det(a)), (sign, np.linalg.slogdet(a)[0]),
        (log, np.linalg.slogdet(a)[1]), (t.inv(), np.linalg.inv(a)),
        (t.solve(ours(b)), np.linalg.solve(a, b)), (ours(p).cholesky(), np.linalg.cholesky(p)),
        (values, np.linalg.eigvalsh(s)), (vectors.mT @ vectors, np.eye(n) + a * 0),
        (ours(s) @ vectors, vectors.numpy() * values.numpy()[:, None]),
        (t.matrix_power(3), np.linalg.matrix_power(a, 3)), (ours(b).pinv(), np.linalg.pinv(b)),
        (t.matrix_power(0), np.eye(n) + a * 0),
    ):  # fmt: skip
        np.testing.assert_allclose(got.numpy(), want, **TOLERANCE)


def test_vectors_and_stacks_of_other_sizes() -> None:
    a, b = matrices(3), np.arange(3.0)
    np.testing.assert_allclose(
        ours(a[0]).solve(ours(b)).numpy(), np.linalg.solve(a[0], b), **TOLERANCE
    )
    lower = ours(a @ a.swapaxes(-1, -2)).cholesky(upper=True).numpy()
    assert np.tril(lower, -1).any() == 0
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    assert ours(singular).det().item() == pytest.approx(0, abs=1e-12)
    assert ours(singular).matrix_rank().item() == 1
    assert not np.isfinite(ours(singular).inv().numpy()).all()
    np.testing.assert_allclose(ours(singular).pinv().numpy(), np.linalg.pinv(singular))
    same = ours(np.eye(3)).eigh()
    np.testing.assert_allclose(same[0].numpy(), np.ones(3))
    opposite = ours(np.array([[0.0, 1.0], [1.0, 0.0]])).eigvalsh()
    np.testing.assert_allclose(opposite.numpy(), [-1, 1], atol=1e-12)


def test_cross_products() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(ours(a).cross(ours(b)).numpy(), np.cross(a, b))
    with pytest.raises(ShapeError, match="size 3 is wanted"):
        ours(a).cross(ours(a), axis=0)


def test_other_shapes_are_refused() -> None:
    for name in ("det", "slogdet", "inv", "cholesky", "eigh"):
        with pytest.raises(ShapeError, match=f"{name}: .*; a square matrix is wanted"):
            getattr(ours(matrices(2, 3)), name)()


CASES: list[tuple[str, Callable[..., Any], int]] = [
    ("det", lambda x, a: x.det(a) if x is not Tensor else a.det(), 1),
    ("slogdet", lambda x, a: (a.slogdet() if x is Tensor else x.slogdet(a))[1], 1),
    ("inv", lambda x, a: (a if x is Tensor else x).inv(*() if x is Tensor else (a,)) ** 2, 1),
    ("solve", lambda x, a, b: a.solve(b) ** 2 if x is Tensor else x.solve(a, b) ** 2, 2),
    ("pinv", lambda x, a: (a.pinv() if x is Tensor else x.pinv(a)) ** 2, 1),
]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "function", "count"), CASES, ids=[c[0] for c in CASES])
def test_gradients_are_torchs(name: str, function: Callable[..., Any], count: int) -> None:
    torch = pytest.importorskip("torch")
    arrays = [matrices(3), matrices(3, 2)][:count]
    mine = [ours(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    function(Tensor, *mine).sum().backward()
    function(torch.linalg, *theirs).sum().backward()
    for t, u in zip(mine, theirs, strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-7, atol=1e-9)


@pytest.mark.torch
def test_gradients_of_symmetric_matrices_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    a, w = matrices(4), matrices(4) ** 2
    t, u = ours(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    values, vectors = (t + t.mT).eigh()
    theirs = torch.linalg.eigh(u + u.mT)
    ((vectors**2 * ours(w)).sum() + (values**3).sum()).backward()
    ((theirs[1] ** 2 * torch.tensor(w)).sum() + (theirs[0] ** 3).sum()).backward()
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-7, atol=1e-9)
    t, u = ours(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    eye = np.eye(4) * 4
    ((t @ t.mT + ours(eye)).cholesky() * ours(w)).sum().backward()
    (torch.linalg.cholesky(u @ u.mT + torch.tensor(eye)) * torch.tensor(w)).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-7, atol=1e-9)
