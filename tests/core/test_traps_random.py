"""Moments of every distribution, and that equal seeds give equal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.dtype import dtypes

COUNT = 40_000
# Name -> how it is drawn, then mean, variance, skewness and excess kurtosis.
DRAWN: dict[str, tuple[Callable[[], Tensor], float, float, float, float]] = {
    "rand": (lambda: Tensor.rand(COUNT), 0.5, 1 / 12, 0, -1.2),
    "rand float64": (lambda: Tensor.rand(COUNT, dtype="float64"), 0.5, 1 / 12, 0, -1.2),
    "rand float16": (lambda: Tensor.rand(COUNT, dtype="float16").float(), 0.5, 1 / 12, 0, -1.2),
    "rand_like": (lambda: Tensor.ones(COUNT).rand_like(), 0.5, 1 / 12, 0, -1.2),
    "randn": (lambda: Tensor.randn(COUNT), 0, 1, 0, 0),
    "randn float64": (lambda: Tensor.randn(COUNT, dtype="float64"), 0, 1, 0, 0),
    "randn_like": (lambda: Tensor.ones(COUNT).randn_like(), 0, 1, 0, 0),
    "normal": (lambda: Tensor.normal(COUNT, mean=-3, std=2.5), -3, 6.25, 0, 0),
    "uniform": (lambda: Tensor.uniform(COUNT, low=-2, high=4), 1, 3, 0, -1.2),
    "randint": (lambda: Tensor.randint(COUNT, low=-3, high=6).float(), 1, 80 / 12, 0, -1.23),
    "randperm": (
        lambda: Tensor.randperm(COUNT).float() / COUNT, 0.5, 1 / 12, 0, -1.2,
    ),
    "scaled_uniform": (lambda: Tensor.scaled_uniform(200, 200) * 200, 0, 1 / 3, 0, -1.2),
    "glorot_uniform": (
        lambda: Tensor.glorot_uniform(100, 400) / math.sqrt(6 / 500), 0, 1 / 3, 0, -1.2,
    ),
    "kaiming_uniform": (
        lambda: Tensor.kaiming_uniform(100, 400, a=1) / math.sqrt(3 / 400), 0, 1 / 3, 0, -1.2,
    ),
    "kaiming_normal": (
        lambda: Tensor.kaiming_normal(100, 400, a=1) * math.sqrt(400), 0, 1, 0, 0,
    ),
    "dropout": (lambda: dropped(0.25), 1, 1 / 3, -1.1547, -2 / 3),
    "multinomial": (
        lambda: Tensor([1.0, 0, 2, 1]).multinomial(COUNT, replacement=True).float(),
        1.75, 1.1875, -0.6884, -1.0637,
    ),
}  # fmt: skip


def dropped(p: float) -> Tensor:
    """What dropout leaves of ones."""
    with Tensor.train():
        return Tensor.ones(COUNT).dropout(p).contiguous()


@pytest.mark.parametrize("name", DRAWN)
def test_moments(name: str) -> None:
    draw, mean, variance, skewness, kurtosis = DRAWN[name]
    Tensor.manual_seed(7)
    x = draw().numpy().astype(np.float64).reshape(-1)
    assert x.size == COUNT
    deviation = math.sqrt(variance)
    z = (x - mean) / deviation
    # Five standard errors of each moment, as far as its spread is that of a normal distribution.
    error = 5 / math.sqrt(COUNT)
    assert abs(z.mean()) < error
    assert abs((z**2).mean() - 1) < 1.5 * error
    assert abs((z**3).mean() - skewness) < 4 * error
    assert abs((z**4).mean() - 3 - kurtosis) < 10 * error
    # Neighbours, and numbers a power of two apart, have nothing to do with each other.
    if name != "randperm":
        for step in (1, 2, 64, COUNT // 2):
            assert abs((z[:-step] * z[step:]).mean()) < error * math.sqrt(2)


@pytest.mark.parametrize("name", DRAWN)
def test_equal_seeds(name: str) -> None:
    Tensor.manual_seed(11)
    first = DRAWN[name][0]().numpy()
    second = DRAWN[name][0]().numpy()
    Tensor.manual_seed(11)
    np.testing.assert_array_equal(DRAWN[name][0]().numpy(), first)
    assert (first != second).any()


def test_ends_of_intervals() -> None:
    Tensor.manual_seed(3)
    for dtype in ("float32", "float16", "bfloat16"):
        x = Tensor.rand(100_000, dtype=dtype).numpy()
        assert x.min() >= 0
        assert x.max() < 1
    drawn = Tensor.randint(10_000, low=-2, high=3)
    assert drawn.dtype is dtypes.int32
    assert np.unique(drawn.numpy()).tolist() == [-2, -1, 0, 1, 2]
    assert sorted(Tensor.randperm(1000).tolist()) == list(range(1000))
    assert np.isfinite(Tensor.randn(100_000).numpy()).all()
