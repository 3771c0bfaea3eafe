"""What is computed from an expanded tensor alone is computed and stored once, not once a place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor

Make = Callable[[Tensor], Tensor]

EXPANDED: dict[str, Make] = {
    "sum": lambda t: t.expand(64, 500) + t.expand(64, 500),
    "chain": lambda t: (t.expand(64, 500) * 2 - 1).exp().relu(),
    "number first": lambda t: 1 - t.expand(64, 500),
    "turned": lambda t: t.expand(64, 500).T * t.expand(64, 500).T,
    "computed below": lambda t: (t + 1).expand(64, 500) * t.expand(64, 500),
    "movement above": lambda t: (t + 1).expand(64, 500),
    "two sides": lambda t: t.expand(7, 64, 500) * t[3:4].expand(7, 64, 500),
    "choice": lambda t: (t.expand(64, 500) > 0.5).where(t.expand(64, 500), 0),
    "flipped": lambda t: t.expand(64, 500).flip((0, 1)) + 1,
}


@pytest.mark.parametrize("name", EXPANDED)
def test_what_repeats_is_computed_once(name: str) -> None:
    make = EXPANDED[name]
    t = Tensor.rand(64, 1).realize()
    value = make(t)
    GlobalCounters.reset()
    value.realize()
    assert GlobalCounters.global_mem < 2000
    # The same, with each place stored for itself.
    np.testing.assert_allclose(value.numpy(), make(t).contiguous().numpy(), rtol=1e-6)
    assert value.shape == make(t).shape


def test_what_differs_is_computed_whole() -> None:
    t, wide = Tensor.rand(64, 1).realize(), Tensor.rand(64, 500).realize()
    GlobalCounters.reset()
    (t.expand(64, 500) + wide).realize()
    (t.expand(64, 500) + Tensor.arange(500)).realize()
    assert GlobalCounters.global_mem > 3 * 64 * 500 * 4


def test_a_result_that_repeats_is_a_value_of_its_own() -> None:
    t = Tensor([[1.0], [2.0]]).realize()
    value = (t.expand(2, 3) + t.expand(2, 3)).realize()
    row, kept = value[0], (value * 1).realize()
    value[0, 1] = 7
    assert value.tolist() == [[2.0, 7.0, 2.0], [4.0, 4.0, 4.0]]
    assert kept.tolist() == [[2.0] * 3, [4.0] * 3]
    assert t.tolist() == [[1.0], [2.0]]
    value += 1
    assert value.tolist() == [[3.0, 8.0, 3.0], [5.0, 5.0, 5.0]]
    assert row.shape == (3,)


def test_gradients_reach_what_was_expanded() -> None:
    t = Tensor([[1.0], [2.0]], requires_grad=True)
    value = t.expand(2, 3) * t.expand(2, 3)
    (gradient,) = value.sum().gradient(t)
    Tensor.realize(value, gradient)
    assert gradient.tolist() == [[6.0], [12.0]]
    assert value.tolist() == [[1.0] * 3, [4.0] * 3]
