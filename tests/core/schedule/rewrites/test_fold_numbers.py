"""Numbers and neutral operands are folded: no kernel, and the values of NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit, Variable, dtypes
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import Ops


def kernels(t: Tensor) -> int:
    """How many kernels a tensor takes; they run as well."""
    items = t.schedule()
    for item in items:
        item.run()
    return sum(item.ast.op is Ops.SINK for item in items)


def memory_of_zeros() -> Tensor:
    return Tensor(np.zeros(len(X), np.float32)).realize()


def test_a_stated_zero_makes_zero_of_anything_as_in_the_reference() -> None:
    assert (Tensor(X) * 0).tolist() == [0.0] * len(X)
    assert len((Tensor(X) * 0).schedule()) == 0


@pytest.mark.parametrize(
    "make, want",
    [
        (lambda: Tensor.ones(4).exp(), np.full(4, np.exp(np.float32(1)))),
        (lambda: Tensor.ones(4) + Tensor.full((4,), 2.5), np.full(4, 3.5)),
        (lambda: Tensor.full((4,), -1).cast("uint16"), np.full(4, 65535)),
        (lambda: Tensor.full((3, 4), 300).cast("int8"), np.full((3, 4), 44)),
        (lambda: Tensor.ones(4, 5, 6).sum(), np.float32(120)),
        (lambda: Tensor.ones(4, 5, 6).sum(1), np.full((4, 6), 5)),
        (lambda: Tensor.full((2, 3), 2).prod(), np.int32(64)),
        (lambda: Tensor.full((40,), 2).prod(), np.int32(0)),
        (lambda: Tensor.full((2, 3), 2.0).prod(0), np.full(3, 4.0)),
        (lambda: Tensor.full((5,), -7).max(), np.int32(-7)),
        (lambda: Tensor.full((300,), 1, dtype="uint8").sum(), 300),
        (lambda: Tensor.ones(4).pad(((1, 2),)).sum(), np.float32(4)),
        (lambda: Tensor.zeros(4).pad(((1, 2),)) + 3, np.full(7, 3)),
        (lambda: (Tensor.full((3,), 2.0) < 3).where(1.0, 5.0), np.ones(3)),
        (lambda: Tensor.full((3,), math.nan) * 2, np.full(3, math.nan)),
    ],
)
def test_numbers_take_no_kernel(make, want) -> None:
    t = make()
    assert kernels(t) == 0
    np.testing.assert_allclose(t.numpy(), want, rtol=1e-6)


X = [-2.5, -1.0, 0.0, 1.5, math.inf, math.nan]
WHOLE = [-3, -1, 0, 1, 7]


@pytest.mark.parametrize(
    "data, make",
    [
        (X, lambda t: t + 0),
        (X, lambda t: 0 + t),
        (X, lambda t: t - Tensor.zeros(6)),
        (X, lambda t: t * Tensor.ones(8).shrink(((1, 7),))),
        (X, lambda t: t / 1),
        (X, lambda t: t ** Tensor.ones(6)),
        (X, lambda t: t.neg().neg()),
        (X, lambda t: (t * -1).neg()),
        (X, lambda t: t.cast("float32")),
        (WHOLE, lambda t: t // 1),
        (WHOLE, lambda t: t | 0),
        (WHOLE, lambda t: t & -1),
        (WHOLE, lambda t: (t.neg() * -1) ^ 0),
        ([True, False], lambda t: t * True),
        ([True, False], lambda t: t & True),
    ],
)
def test_neutral_operands_take_no_kernel(data, make) -> None:
    t = Tensor(data)
    out = make(t)
    assert kernels(out) == 0
    np.testing.assert_array_equal(out.numpy(), np.array(data, t.numpy().dtype))


@pytest.mark.parametrize(
    "data, make, want",
    [
        (WHOLE, lambda t: t * 0, 0),
        (WHOLE, lambda t: t & 0, 0),
        (WHOLE, lambda t: t - t, 0),
        (X, lambda t: t ** Tensor.zeros(6), 1),
        (X, lambda t: 1**t, 1),
    ],
)
def test_operands_that_decide(data, make, want) -> None:
    out = make(Tensor(data))
    assert kernels(out) == 0
    np.testing.assert_array_equal(out.numpy(), np.full(len(data), want))


@pytest.mark.parametrize(
    "make, want",
    [
        (lambda t: t * memory_of_zeros(), np.array(X, np.float32) * np.float32(0)),
        (lambda t: t - t, np.array(X, np.float32) - np.array(X, np.float32)),
        (lambda t: t / t, np.divide(*[np.array(X, np.float32)] * 2)),
        (lambda t: t + Tensor.ones(4).pad(((1, 1),)), np.array(X) + [0, 1, 1, 1, 1, 0]),
    ],
)
def test_what_nan_and_infinity_change_is_computed(make, want) -> None:
    np.testing.assert_array_equal(make(Tensor(X)).numpy(), want.astype(np.float32))


@pytest.mark.parametrize("exponent", [2, 4, 8])
def test_small_powers_are_products(exponent) -> None:
    x = Tensor([-1.5, 0.0, 2.0, math.inf, math.nan])
    (item,) = (x ** Tensor(float(exponent))).schedule()
    assert not any(u.op is Ops.POW for u in toposort(item.ast))
    want = x.numpy() ** np.float32(exponent)
    np.testing.assert_array_equal((x ** Tensor(float(exponent))).numpy(), want)


def test_a_sum_does_not_load_padding() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    t = Tensor(array).realize().pad(((1, 2), (3, 0)))
    np.testing.assert_array_equal(t.sum(1).numpy(), np.pad(array, ((1, 2), (3, 0))).sum(1))
    np.testing.assert_array_equal(t.sum().numpy(), array.sum())
    np.testing.assert_array_equal(t.max(1).numpy(), np.pad(array, ((1, 2), (3, 0))).max(1))


def test_folding_shares_no_memory() -> None:
    x = Tensor([1.0, 2.0]).realize()
    lazy, same, other = x + 0, (x * 1).realize(), (x * 1).realize()
    x.assign(Tensor([5.0, 6.0])).realize()
    same += 1
    assert [t.tolist() for t in (x, lazy, same, other)] == [[5, 6], [1, 2], [2, 3], [1, 2]]


def test_an_assign_happens_though_what_reads_it_is_a_number() -> None:
    x = Tensor([1, 2]).realize()
    zero = x.assign(x + 5) * 0
    assert zero.tolist() == [0, 0]
    assert x.tolist() == [6, 7]
    y = Tensor([1, 2]).realize()
    results = y.assign(y * 3) * 0 + 1, y + 1
    Tensor.realize(*results)
    assert [t.tolist() for t in (*results, y)] == [[1, 1], [4, 7], [3, 6]]


def test_a_folded_number_can_be_written_to() -> None:
    one, other = (Tensor.ones(3) * 2).realize(), (Tensor.ones(3) * 2).realize()
    one += 1
    one[0] = 9
    assert [one.tolist(), other.tolist()] == [[9, 3, 3], [2, 2, 2]]


def test_a_folded_number_keeps_its_device_and_shape() -> None:
    a = (Tensor.arange(4, device="PYTHON") + 0).contiguous()
    assert a.device == "PYTHON"
    assert (a[1] + 0).item() == 1
    b = (Tensor.ones(2, device="PYTHON") * 3).realize()
    assert (b.device, b.tolist()) == ("PYTHON", [3, 3])
    assert (Tensor(2.0) + Tensor.zeros(3)).numpy().tolist() == [2, 2, 2]


def test_gradients_pass_through_what_is_folded() -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = ((x * 1 + 0) * (x ** Tensor.ones(3)) + x * 0 + (x - x)).sum()
    loss.backward()
    assert loss.item() == 14
    assert x.grad.tolist() == [2, 4, 6]


def test_gradients_of_numbers_do_not_meet() -> None:
    a = Tensor.ones(3, requires_grad=True)
    b = Tensor.ones(3, requires_grad=True)
    Tensor.realize(a * 1, b * 1)
    (a * 2 + b * 5).sum().backward()
    assert [a.grad.tolist(), b.grad.tolist()] == [[2, 2, 2], [5, 5, 5]]


def test_a_recording_with_folded_results() -> None:
    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (x + 0).realize(), (Tensor.ones(2) * 3).realize(), (x * 2).realize()

    for i in range(4):
        same, number, twice = step(Tensor([i, i + 1.0]).realize())
        assert same.tolist() == [i, i + 1]
        assert number.tolist() == [3, 3]
        assert twice.tolist() == [2 * i, 2 * i + 2]


def test_symbolic_sizes_are_left_to_the_kernel() -> None:
    n = Variable("n", 1, 8)
    x = Tensor.ones(8).contiguous().realize()
    for size in (3, 5):
        part = x.shrink(((0, n.bind(size)),))
        assert (part + 0).sum().item() == size
        assert ((part * 0).cast(dtypes.int) * 0 + 1).sum().item() == size
