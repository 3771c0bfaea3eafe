"""Sums of several products become products, and keep their values."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Tensor:
    """A realized tensor of normal numbers."""
    return Tensor(RNG.standard_normal(shape).astype(np.float32)).realize()


def kernels_of(gradient: Tensor) -> int:
    """Kernels that realizing a value takes."""
    GlobalCounters.reset()
    gradient.realize()
    return int(GlobalCounters.kernel_count)


def test_gradient_by_a_shared_weight_is_a_product_for_each_use() -> None:
    x, y, z = normal(192, 40), normal(192, 40), normal(192, 40)
    w = normal(40, 48)
    gx, gy, gz = normal(192, 48), normal(192, 48), normal(192, 48)
    w.requires_grad = True
    loss = (x @ w * gx).sum() + (y @ w * gy).sum() + (z @ w * gz).sum()
    (gradient,) = loss.gradient(w)
    assert kernels_of(gradient) == 3
    pairs = [(x, gx), (y, gy), (z, gz)]
    wanted = sum(a.numpy().astype(np.float64).T @ g.numpy() for a, g in pairs)
    np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [16, 100])
def test_short_sums_stay_one_kernel(rows: int) -> None:
    x, y, w = normal(rows, 40), normal(rows, 40), normal(40, 48)
    gx, gy = normal(rows, 48), normal(rows, 48)
    w.requires_grad = True
    (gradient,) = ((x @ w * gx).sum() + (y @ w * gy).sum()).gradient(w)
    assert kernels_of(gradient) == 1
    wanted = x.numpy().T @ gx.numpy() + y.numpy().T @ gy.numpy()
    np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_sums_of_what_is_used_once_stay_one_kernel() -> None:
    a, b, c, d = (normal(64, 512) for _ in range(4))
    total = (a * b + c * d).sum(1)
    assert kernels_of(total) == 1
    wanted = (a.numpy() * b.numpy() + c.numpy() * d.numpy()).sum(1)
    np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-3, atol=1e-3)
