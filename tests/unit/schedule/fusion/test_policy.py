"""A reduction read as an index, as a condition and as a value stays one reduction."""

from __future__ import annotations

import pytest

from aster_ml import Context, Tensor


@pytest.mark.parametrize("settings", [{}, {"NOOPT": 1}, {"THREADS": 1}])
def test_reduction_in_an_index_and_beside_it(settings) -> None:
    with Context(**settings):
        i = Tensor([0, 0])
        x = Tensor([0.0, 1, 2, 3]) + 0
        row = i.reshape(1, 2) * 1
        same = row.eq(Tensor.arange(4).reshape(4, 1)) & (row >= 0) & (row < 4)
        last = same.where(Tensor.arange(1, 3), 0).max(1)
        picked = Tensor([10.0, 20])[(last - 1).maximum(0)]
        assert (last > 0).where(picked, x).tolist() == [20, 1, 2, 3]


@pytest.mark.parametrize("settings", [{}, {"NOOPT": 1}])
def test_two_gathers_by_one_argmax(settings) -> None:
    with Context(**settings):
        x = Tensor([[1.0, 5, 2], [7, 0, 3]])
        best = x.argmax(1)
        table = Tensor([10.0, 20, 30])
        assert (table[best] + table[(best + 1) % 3]).tolist() == [50, 30]


def test_a_position_that_is_a_value_too() -> None:
    values = [0, 1] * 9
    order = sorted(range(18), key=lambda i: values[i])
    assert Tensor(values).sort()[1].tolist() == order
