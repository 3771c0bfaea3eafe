"""Slices that move share a schedule from the third place on, and are right wherever they begin."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import GlobalCounters, Tensor, TinyJit, nn
from aster_ml.engine.counters import TOTALS
from aster_ml.schedule.capture import Captured, capture
from aster_ml.schedule.slice_offsets import WITH_NUMBERS, with_variables
from aster_ml.uop.node import UOp


def planned() -> int:
    """How many bodies have been planned so far."""
    return TOTALS.schedule_misses


def test_a_loop_over_batches_plans_three_times() -> None:
    x, data = Tensor.rand(96, 5).realize(), None
    data = x.numpy()
    before = planned()
    for i in range(0, 96, 8):
        got = (x[i : i + 8] * 2 + 1).sum(0).numpy()
        np.testing.assert_allclose(got, (data[i : i + 8] * 2 + 1).sum(0), rtol=1e-5)
    assert planned() - before == WITH_NUMBERS + 1


def test_a_place_that_has_numbers_keeps_them_when_it_is_planned_again() -> None:
    x = Tensor.arange(60).reshape(20, 3).contiguous().realize()
    planned: dict[UOp, list[dict[str, int]]] = {}
    buffer = x.uop.base

    def body(start: int) -> Captured:
        value = x.uop.base.reshape((20, 3)).shrink(((start, start + 4), (0, 3))) * 2
        place = UOp.new_buffer("CPU", 12, buffer.dtype).reshape((4, 3))
        return capture([place.store(value)], [], lambda u: None)

    def planned_of(body: UOp, count: int) -> list[dict[str, int]]:
        assert count > 5
        return planned.setdefault(body, [])

    first, second, third = body(0), body(5), body(9)
    for _ in range(3):
        assert with_variables(first, planned_of) is first
        assert with_variables(second, planned_of) is second
        assert sorted(with_variables(third, planned_of).values.values()) == [9]
    assert [len(offsets) for offsets in planned.values()] == [WITH_NUMBERS]


def test_training_on_slices_compiles_no_kernel_for_each() -> None:
    x, y = Tensor.rand(64, 7).realize(), Tensor.randint(64, high=3).realize()
    layer = nn.Linear(7, 3)
    optimizer = nn.optim.SGD(nn.state.get_parameters(layer), lr=0.1)
    compiled, losses = [], []
    with Tensor.train():
        for i in range(0, 64, 8):
            GlobalCounters.reset()
            loss = layer(x[i : i + 8]).sparse_categorical_crossentropy(y[i : i + 8])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            compiled.append(GlobalCounters.compiled_kernels)
    assert compiled[WITH_NUMBERS + 2 :] == [0] * len(compiled[WITH_NUMBERS + 2 :])
    assert np.isfinite(losses).all()


def test_what_is_written_is_not_taken_for_a_slice_that_moves() -> None:
    x = Tensor.zeros(12, 3).contiguous().realize()
    want = np.zeros((12, 3), np.float32)
    for i in range(11):
        x[i + 1] = x[i] + i
        want[i + 1] = want[i] + i
    np.testing.assert_array_equal(x.numpy(), want)


def test_results_of_one_place_stay_when_another_is_asked_for() -> None:
    x = Tensor.arange(30).reshape(10, 3).contiguous().realize()
    parts = [(x[i] + 1).realize() for i in range(10)]
    np.testing.assert_array_equal([p.tolist() for p in parts], x.numpy() + 1)


def test_recordings_keep_their_own_place() -> None:
    x = Tensor.arange(40).reshape(10, 4).float().contiguous().realize()
    for i in range(8):
        jitted = TinyJit(lambda y, i=i: (x[i : i + 2] + y).realize())
        for k in range(4):
            got = jitted(Tensor.full((2, 4), float(k)).contiguous().realize()).numpy()
            np.testing.assert_array_equal(got, x.numpy()[i : i + 2] + k)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_columns_and_rows_move_on_their_own(device: str) -> None:
    x = Tensor.arange(99, device=device).reshape(9, 11).contiguous().realize()
    data = x.numpy()
    for i, j in [(0, 0), (5, 1), (1, 7), (4, 4), (5, 7)]:
        got = (x[i : i + 4, j : j + 3].T * 3).tolist()
        assert got == (data[i : i + 4, j : j + 3].T * 3).tolist()
