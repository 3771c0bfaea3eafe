"""In-place updates keep program order, whatever is realized when."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Tensor, Variable
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


@pytest.mark.parametrize(
    "change, want",
    [
        (lambda a: a.flip(0), [4, 3, 2, 1]),
        (lambda a: a - a.mean(), [-1.5, -0.5, 0.5, 1.5]),
        (lambda a: a.reshape(2, 2).T.reshape(4), [1, 3, 2, 4]),
        (lambda a: a + a.sum(), [11, 12, 13, 14]),
        (lambda a: a.pad(((1, 0),)).shrink(((0, 4),)), [0, 1, 2, 3]),
    ],
)
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
    assert [s.tolist() for s in seen] == [[1.5, 3, 4.5, 6], [3, 4.5, 6, 7.5], [4.5, 6, 7.5, 9]]
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
    with pytest.raises(DTypeError, match="float64"):
        a.assign(Tensor([1, 2, 3, 4], dtype="float64"))


def test_a_node_means_one_value_for_good() -> None:
    x = vector()
    y = x + 1
    z = y * 2
    y.realize()
    x.assign(x * 10).realize()
    assert (x + 1).tolist() == [11, 21, 31, 41]
    assert z.tolist() == [4, 6, 8, 10]
    assert y.tolist() == [2, 3, 4, 5]


def test_a_value_whose_memory_was_written_is_computed_anew() -> None:
    x = vector()
    x.requires_grad = True
    y = x + 1
    loss = (y * 2).sum()
    assert loss.item() == 28
    y.realize()
    y.assign(y * 0).realize()
    assert (x + 1).tolist() == [2, 3, 4, 5]


def test_a_version_between_two_updates_is_kept() -> None:
    x = vector()
    x += 1
    between = x + 0
    x += 1
    last = x + 0
    last.realize()
    assert between.tolist() == [2, 3, 4, 5]
    assert x.tolist() == [3, 4, 5, 6]


def test_a_gradient_keeps_its_value_past_the_update() -> None:
    w = vector()
    w.requires_grad = True
    (w * w).sum().backward()
    w.assign(w - w.grad * 0.5)
    w.realize()
    assert w.tolist() == [0, 0, 0, 0]
    assert w.grad.tolist() == [2, 4, 6, 8]


def test_several_versions_in_one_expression() -> None:
    x = vector()
    versions = []
    for _ in range(4):
        versions.append(x.flip(0) * 1)
        x.assign(x * 2 + x.flip(0))
    total = versions[0] + versions[1] * 10 + versions[2] * 100 + versions[3] * 1000 + x
    want, a = np.zeros(4), np.array([1.0, 2, 3, 4])
    for i in range(4):
        want += a[::-1] * 10**i
        a = a * 2 + a[::-1]
    np.testing.assert_array_equal(total.numpy(), want + a)


def test_parts_of_a_strided_view_are_written_between_reads() -> None:
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4)).realize()
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    turned = x.T
    before = turned * 1
    turned[1:3] = turned[0:2] * 2
    a.T[1:3] = a.T[0:2].copy() * 2
    gathered = x[Tensor([2, 0])]
    x.assign(x + before.T)
    np.testing.assert_array_equal(gathered.numpy(), a[[2, 0]])
    np.testing.assert_array_equal(x.numpy(), a + np.arange(12).reshape(3, 4))


def test_copies_of_versions_to_another_device() -> None:
    x = vector()
    first = x.to("CPU:1")
    x += 1
    second = x.to("CPU:1")
    x += 1
    x.realize()
    assert (first + second).tolist() == [3, 5, 7, 9]


def test_bits_of_another_width_are_those_of_their_time() -> None:
    x = Tensor([1, 2, 3], dtype="int32").realize()
    before = x.bitcast("int8")
    lows = before.reshape(3, 4)[:, 0] + 0
    x.assign(x * 5)
    x.realize()
    assert lows.tolist() == [1, 2, 3]
    assert x.tolist() == [5, 10, 15]


def test_a_lazy_value_of_symbolic_size_keeps_the_old_content() -> None:
    x = vector()
    n = Variable("n", 1, 4).bind(2)
    lazy = x[:n] * 2
    old = lazy[:2].tolist()
    lazy = x[:n] * 2 + 0
    x.assign(x + 1).realize()
    assert lazy.sum().item() == sum(old)
    assert lazy[:2].tolist() == old
    assert (x[:n] * 2).sum().item() == sum(old) + 4
