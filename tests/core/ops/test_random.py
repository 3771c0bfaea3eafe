"""Random numbers: known streams, order of computing, distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor, dtypes
from aster_ml.engine import storage
from aster_ml.thread_state import STATE
from tests.core.tensor_checks import check_tensor

# What tinygrad 0.12 gives for manual_seed(42): the same generator, counted in the same order.
KNOWN = [
    ("rand", lambda: Tensor.rand(2, 3), [[0.99703324, 0.58991635, 0.22254801],
                                         [0.75505197, 0.90565038, 0.86488295]]),
    ("second call", lambda: (Tensor.rand(3), Tensor.rand(5))[1],
     [0.19404149, 0.86468697, 0.61617804, 0.6244086, 0.22914922]),
    ("float64", lambda: Tensor.rand(3, dtype="float64"),
     [0.5899163519491053, 0.7550520136073575, 0.8648829632219044]),
    ("bfloat16", lambda: Tensor.rand(3, dtype="bfloat16"), [0.2578125, 0.078125, 0.3671875]),
    ("randn", lambda: Tensor.randn(2, 2), [[-0.51436889, 1.08498335], [0.90889156, -0.08409637]]),
    ("normal", lambda: Tensor.normal(4, mean=2, std=3),
     [0.45689332, 5.25495005, 4.72667456, 1.74771094]),
    ("uniform", lambda: Tensor.uniform(4, low=-1, high=3),
     [0.45800972, 2.40210581, 2.64267397, 2.5245142]),
    ("kaiming_uniform", lambda: Tensor.kaiming_uniform(2, 2),
     [[-0.46935388, 1.21419859], [1.42252624, 1.32020199]]),
    ("kaiming_normal", lambda: Tensor.kaiming_normal(2, 2),
     [[-0.5143432, 1.08492911], [0.90884614, -0.08409217]]),
    ("glorot_uniform", lambda: Tensor.glorot_uniform(2, 2),
     [[-0.33189991, 0.85861093], [1.00592828, 0.93357044]]),
    ("scaled_uniform", lambda: Tensor.scaled_uniform(2, 2),
     [[-0.13549757, 0.35052645], [0.41066849, 0.38112855]]),
    ("randint", lambda: Tensor.randint(5, low=-3, high=4), [3, 1, -2, 2, 3]),
    ("randperm", lambda: Tensor.randperm(6), [2, 1, 3, 5, 4, 0]),
    ("multinomial", lambda: Tensor([0.1, 0.2, 0.7]).multinomial(5, replacement=True),
     [2, 2, 1, 2, 2]),
]  # fmt: skip


@pytest.mark.parametrize("name, make, want", KNOWN, ids=[k[0] for k in KNOWN])
def test_known_numbers(name: str, make: Any, want: Any) -> None:
    Tensor.manual_seed(42)
    check_tensor(make(), want, rtol=2e-6, atol=1e-6)


def test_order_of_computing_does_not_matter() -> None:
    Tensor.manual_seed(5)
    one, two = Tensor.rand(7), Tensor.rand(7)
    late = [two.tolist(), one.tolist()]
    Tensor.manual_seed(5)
    one, two = Tensor.rand(7), Tensor.rand(7)
    early = [one.tolist(), two.tolist()]
    assert late[::-1] == early
    assert early[0] != early[1]


def test_seeds_and_devices_differ() -> None:
    Tensor.manual_seed(1)
    first = Tensor.rand(8).tolist()
    other = Tensor.rand(8, device="CPU:1").tolist()
    Tensor.manual_seed(2)
    assert first != other
    assert Tensor.rand(8).tolist() != first
    Tensor.manual_seed(1)
    assert Tensor.rand(8).tolist() == first


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "fp8e4m3"])
def test_rand_covers_the_unit_interval(dtype: str) -> None:
    x = Tensor.rand(4001, dtype=dtype)
    assert x.dtype.name == dtype
    values = x.numpy().astype(np.float64)
    assert 0 <= values.min() < 0.01
    assert 0.85 < values.max() < 1
    spacing = 2.0 ** -dtypes.finfo(x.dtype)[1]
    assert abs(values.mean() - (0.5 - spacing / 2)) < 0.02
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.06


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_randn_is_normal(dtype: str) -> None:
    values = Tensor.randn(5000, dtype=dtype).numpy().astype(np.float64)
    assert abs(values.mean()) < 0.06
    assert abs(values.std() - 1) < 0.04
    assert abs((values**3).mean()) < 0.2
    assert abs((values**4).mean() - 3) < 0.5


def test_randint_reaches_every_value_equally() -> None:
    values = Tensor.randint(6000, low=-2, high=4).numpy()
    counts = np.bincount(values + 2, minlength=6)
    assert counts.shape == (6,)
    assert (abs(counts - 1000) < 150).all()
    big = Tensor.randint(100, low=0, high=1 << 32, dtype="int64").numpy()
    assert big.max() > 1 << 31


def test_randperm_is_a_permutation() -> None:
    assert sorted(Tensor.randperm(50).tolist()) == list(range(50))
    assert Tensor.randperm(0).shape == (0,)


def test_multinomial_follows_the_weights() -> None:
    weights = Tensor([[1.0, 0.0, 3.0], [0.0, 1.0, 0.0]])
    drawn = weights.multinomial(2000, replacement=True).numpy()
    assert drawn.shape == (2, 2000)
    assert (drawn[1] == 1).all()
    assert (drawn[0] != 1).all()
    assert abs((drawn[0] == 2).mean() - 0.75) < 0.05
    apart = Tensor([0.1, 0.4, 0.2, 0.3]).multinomial(4).tolist()
    assert sorted(apart) == [0, 1, 2, 3]


def test_like_takes_shape_dtype_and_device() -> None:
    x = Tensor.zeros(2, 3, dtype="float16")
    assert (x.rand_like().shape, x.rand_like().dtype) == ((2, 3), dtypes.float16)
    assert x.randn_like(dtype="float32").dtype is dtypes.float32


def test_drawn_numbers_are_drawn_once() -> None:
    x = Tensor.rand(5)
    assert x.tolist() == x.tolist() == (x + 0).tolist()


def test_equal_calls_share_a_schedule() -> None:
    Tensor.rand(9).realize()
    misses = GlobalCounters.schedule_misses
    Tensor.rand(9).realize()
    assert GlobalCounters.schedule_misses == misses


def test_a_recorder_sees_every_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(STATE, "note_draw", lambda *event: seen.append(event))
    Tensor.manual_seed(3)
    Tensor.rand(5)
    Tensor.randn(4)
    assert [count for _, count in seen] == [5, 8]
    states = [storage.buffer_of(state).numpy().tolist() for state, _ in seen]
    assert [state[2:] for state in states] == [[0, 0], [5, 0]]
