"""In-place updates keep program order, whatever is realized when."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.errors import DTypeError, ShapeError


def vector() -> Tensor:
    return Tensor([1.0, 2.0, 3.0, 4.0]).realize()


def test_a_lazy_reader_sees_the_value_from_before_the_assign() -> None:
    a = vector()
    b = a + 1
    a.assign(a * 10)
    a.realize()
    assert b.tolist() == [2, 3, 4, 5]
    assert a.tolist() == [10, 20, 30, 40]


def test_old_and_new_value_in_one_expression() -> None:
    a = vector()
    old = a * 2
    a.assign(a * 10)
    both = old + a
    assert both.tolist() == [12, 24, 36, 48]


@pytest.mark.parametrize("change, want", [
    (lambda a: a.flip(0), [4, 3, 2, 1]),
    (lambda a: a - a.mean(), [-1.5, -0.5, 0.5, 1.5]),
    (lambda a: a.reshape(2, 2).T.reshape(4), [1, 3, 2, 4]),
    (lambda a: a + a.sum(), [11, 12, 13, 14]),
    (lambda a: a.pad(((1, 0),)).shrink(((0, 4),)), [0, 1, 2, 3]),
])
def test_an_assign_that_reads_its_target_elsewhere(change, want) -> None:
    a = vector()
    a.assign(change(a))
    assert a.tolist() == want


def test_two_tensors_change_places() -> None:
    a, b = vector(), Tensor([5.0, 6.0, 7.0, 8.0]).realize()
    old_a, old_b = a * 1, b * 1
    a.assign(old_b)
    b.assign(old_a)
    Tensor.realize(a, b)
    assert a.tolist() == [5, 6, 7, 8]
    assert b.tolist() == [1, 2, 3, 4]


def test_a_chain_of_updates_runs_in_order() -> None:
    a = vector()
    a += 1
    a += 1
    a *= 2
    assert a.tolist() == [6, 8, 10, 12]


def test_reads_between_updates_each_see_their_own_value() -> None:
    a = vector()
    seen = []
    for _ in range(3):
        seen.append(a * 1.5)
        a.assign(a + 1)
    Tensor.realize(*reversed(seen))
    assert [s.tolist() for s in seen] == [
        [1.5, 3, 4.5, 6], [3, 4.5, 6, 7.5], [4.5, 6, 7.5, 9]]
    assert a.tolist() == [4, 5, 6, 7]


def test_slices_are_written_in_place() -> None:
    a = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    want = np.arange(12, dtype=np.float32).reshape(3, 4)
    a[1] = 5
    want[1] = 5
    a[:, 2] = 7
    want[:, 2] = 7
    a[0:2, 1:3] = a[1:3, 0:2]
    want[0:2, 1:3] = want[1:3, 0:2].copy()
    np.testing.assert_array_equal(a.numpy(), want)


def test_overlapping_slice_shifts_old_values() -> None:
    a = Tensor(np.arange(6, dtype=np.float32)).realize()
    a[1:] = a[:-1]
    assert a.tolist() == [0, 0, 1, 2, 3, 4]


def test_the_same_value_assigned_to_two_targets() -> None:
    a, b = vector(), vector()
    value = vector() * 3
    a.assign(value)
    b.assign(value)
    Tensor.realize(a, b)
    assert a.tolist() == b.tolist() == [3, 6, 9, 12]
    a += 1
    assert b.tolist() == [3, 6, 9, 12]


def test_an_equal_expression_does_not_share_later_updates() -> None:
    x = vector()
    a, b = (x + 1).realize(), (x + 1).realize()
    a += 1
    a.realize()
    assert b.tolist() == [2, 3, 4, 5]


def test_wrong_shape_and_dtype_are_named() -> None:
    a = vector()
    with pytest.raises(ShapeError, match=r"\[3\]"):
        a.assign(Tensor([1.0, 2.0, 3.0]))
    with pytest.raises(DTypeError, match="int32"):
        a.assign(Tensor([1, 2, 3, 4]))
