"""Gathers of computed values: one kernel where only what is picked has to be computed."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.uop.ops import Ops

TABLE = np.random.default_rng(0).integers(-9, 10, (6, 5)).astype(np.float32)
PADDED = np.pad(TABLE, ((1, 1), (0, 0)))


def kernels(t: Tensor) -> int:
    """How many kernels a tensor takes; they run as well."""
    items = t.schedule()
    for item in items:
        item.run()
    return sum(item.ast.op is Ops.SINK for item in items)


@pytest.mark.parametrize(
    "make, want",
    [
        (lambda x: Tensor.arange(16).reshape(4, 4)[[1, 2], [-1, 2]], [7, 10]),
        (lambda x: (Tensor.arange(10) + 1)[[0, -1]], [1, 10]),
        (lambda x: x[Tensor(2)][Tensor(1)], TABLE[2, 1]),
        (lambda x: (x * 2 + 1)[Tensor([0, 5])], (TABLE * 2 + 1)[[0, 5]]),
        (lambda x: x.T[Tensor([1, 3])], TABLE.T[[1, 3]]),
        (lambda x: x.flip(0)[Tensor([0, 1])], TABLE[::-1][[0, 1]]),
        (lambda x: x[1:4][Tensor([2, 0])], TABLE[1:4][[2, 0]]),
        (lambda x: x.pad(((1, 1), None))[Tensor([0, 1, 7])], PADDED[[0, 1, 7]]),
        (lambda x: x.reshape(3, 10)[Tensor([2, 1]), Tensor([9, 4])], TABLE.reshape(30)[[29, 14]]),
        (lambda x: (x + x[0])[Tensor([1, 4]), Tensor([0, 2])], (TABLE + TABLE[0])[[1, 4], [0, 2]]),
    ],
)
def test_computed_at_the_index(make, want) -> None:
    t = make(Tensor(TABLE).realize())
    assert kernels(t) == 1
    np.testing.assert_array_equal(t.numpy(), want)


def test_a_list_of_tensors_is_one_index_an_axis() -> None:
    x = Tensor(TABLE).realize()
    t = (x + 1)[[Tensor([2, 0]), Tensor([1, 4])]]
    np.testing.assert_array_equal(t.numpy(), (TABLE + 1)[[2, 0], [1, 4]])
    np.testing.assert_array_equal(x[[2, 0]].numpy(), TABLE[[2, 0]])


def test_a_table_that_is_read_often_is_stored() -> None:
    x = Tensor(TABLE).realize()
    rows = np.random.default_rng(1).integers(0, 6, 40_000)
    t = x.exp().log().sin()[Tensor(rows)]
    assert kernels(t) == 2
    np.testing.assert_allclose(t.numpy(), np.sin(TABLE)[rows], atol=1e-4)


def test_a_reduction_is_stored_and_then_read() -> None:
    x = Tensor(TABLE).realize()
    t = x.sum(1)[Tensor([5, 0, 5])]
    assert kernels(t) == 2
    np.testing.assert_array_equal(t.numpy(), TABLE.sum(1)[[5, 0, 5]])


def test_old_values_are_picked_before_they_are_overwritten() -> None:
    x = Tensor(TABLE.copy()).realize()
    old = (x * 2)[Tensor([3, 1])]
    x.assign(x + 1)
    new = (x * 2)[Tensor([3, 1])]
    Tensor.realize(old, x, new)
    np.testing.assert_array_equal(old.numpy(), (TABLE * 2)[[3, 1]])
    np.testing.assert_array_equal(new.numpy(), (TABLE * 2 + 2)[[3, 1]])
