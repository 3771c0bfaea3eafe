"""Sums inside of other sums, and sums of more steps than a device makes, where there are limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Context, GlobalCounters, Tensor
from aster_ml.engine import realize
from aster_ml.engine.caches import CACHES

NESTED, TURNS = 256, 100


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that shares kernels out to work-items and ends loops early."""
    plain = realize.workers_of
    limits = {"number": 4, "nested": NESTED, "turns": TURNS}
    monkeypatch.setattr(realize, "workers_of", lambda d: plain(d)._replace(**limits))
    CACHES.forget_schedules()


def drawn(*shape: int) -> Any:
    """Numbers around 0."""
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def two_layers(n: int) -> tuple[float, int]:
    """How far one number of two layers of n units is from NumPy's, and the kernels it took."""
    x, w, v = drawn(1, n), drawn(n, n), drawn(n)
    given = [Tensor(a).realize() for a in (x, w, v)]
    GlobalCounters.reset()
    found = ((given[0] @ given[1]).tanh() * given[2]).sum().item()
    wanted = float((np.tanh(x.astype(np.float64) @ w) * v).sum())
    return abs(found - wanted), GlobalCounters.kernel_count


@pytest.mark.parametrize("n", [1, 2, 13, 16, 17, 64])
def test_one_result_does_not_wait_for_all_of_a_layer(limited: None, n: int) -> None:
    error, kernels = two_layers(n)
    assert error < 1e-4
    assert kernels == (1 if n * n <= NESTED else 2)


@pytest.mark.parametrize("n", [17, 32])
def test_without_a_limit_small_layers_are_one_kernel(n: int) -> None:
    assert two_layers(n)[1] == 1


def test_all_is_fused_where_that_is_asked_for(limited: None) -> None:
    with Context(FUSE=2):
        assert two_layers(64)[1] == 1


def test_a_mean_that_each_row_has_of_its_own_is_not_inside_of_its_sum(limited: None) -> None:
    x = drawn(3, 200)
    t = Tensor(x[:, :TURNS]).realize()
    GlobalCounters.reset()
    found = (t - t.mean(1, keepdim=True)).square().sum(1).numpy()
    wanted = np.square(x[:, :TURNS] - x[:, :TURNS].mean(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert GlobalCounters.kernel_count == 1


@pytest.mark.parametrize("length", [TURNS, TURNS + 1, 1009, 4096])
@pytest.mark.parametrize("kept", [1, 3, 300])
def test_longer_sums_are_made_in_parts(limited: None, length: int, kept: int) -> None:
    x = drawn(length, kept)
    for axis, array in ((0, x), (1, x.T.copy())):
        t = Tensor(array).realize()
        GlobalCounters.reset()
        np.testing.assert_allclose(t.sum(axis).numpy(), x.sum(0), rtol=1e-4, atol=1e-4)
        assert (GlobalCounters.kernel_count > 1) == (length > TURNS)
        assert t.max(axis).tolist() == x.max(0).tolist()
