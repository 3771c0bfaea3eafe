"""The walk: which nodes it visits, how parts add up, dtypes, devices, and how short results are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import GradientError
from aster_ml.gradient import compute_gradient
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import DeviceArg, Ops
from tests.core.numerics import added_nodes, leaf, tensor, value

ONE = UOp.const(dtypes.float64, 1)


def number(x: float) -> UOp:
    """A float64 number."""
    return UOp.const(dtypes.float64, x)


def ops_below(u: UOp) -> list[Ops]:
    """The ops of a graph."""
    return [v.op for v in toposort(u)]


def test_parts_of_all_ways_add_up() -> None:
    x = leaf(np.array([2.0, 3.0]))
    square = x * x
    root = square * x + square - x
    found = compute_gradient(root, ONE, {x})
    np.testing.assert_allclose(value(found[x]), [3 * 4 + 4 - 1, 27 + 6 - 1])


def test_target_below_and_above() -> None:
    x = leaf(np.array([2.0, 3.0]))
    middle = x * x
    found = compute_gradient(middle * number(5), ONE, {x, middle})
    np.testing.assert_array_equal(value(found[middle]), [5, 5])
    np.testing.assert_array_equal(value(found[x]), [20, 30])


def test_root_is_its_own_target() -> None:
    x, g = leaf(np.ones(3)), leaf(np.arange(3.0))
    assert compute_gradient(x, g, {x}) == {x: g}


def test_target_that_is_not_below_is_absent() -> None:
    x, y = leaf(np.ones(3)), leaf(np.ones(3))
    assert set(compute_gradient(x * x, ONE, {x, y})) == {x}
    assert compute_gradient(x * x, ONE, {y}) == {}


def test_only_the_way_to_targets_is_differentiated() -> None:
    # The other factor contains a LOAD, which has no gradient; it is not on the way.
    x, other = leaf(np.ones(3)), UOp(Ops.LOAD, dtypes.float64, (leaf(np.ones(3)),))
    assert set(compute_gradient(x * other, ONE, {x})) == {x}


def test_long_chain() -> None:
    length = 20_000
    x, w = leaf(np.array([0.5, -0.25])), leaf(np.array([1.0, 1.0]))
    y = x
    for _ in range(length):
        y = y * w + x
    found = compute_gradient(y, ONE, {x, w})
    assert len(toposort(found[w])) > length
    np.testing.assert_allclose(value(found[x]), [length + 1] * 2)
    terms = length * (length + 1) / 2
    np.testing.assert_allclose(value(found[w]), [0.5 * terms, -0.25 * terms])


def test_source_without_axes_takes_the_sum() -> None:
    x, s = leaf(np.arange(6.0).reshape(2, 3)), leaf(np.array(2.0))
    found = compute_gradient(x * s, ONE, {x, s})
    assert found[s].shape == ()
    assert value(found[s]) == 15
    np.testing.assert_array_equal(value(found[x]), np.full((2, 3), 2.0))


@pytest.mark.parametrize("narrow", [np.float16, np.float32])
def test_gradient_has_the_dtype_of_its_target(narrow: type) -> None:
    x, y = leaf(np.array([1.5, 2.0], narrow)), leaf(np.array([3.0, 0.5]))
    found = compute_gradient((x.cast(dtypes.float64) * y).sum(), ONE, {x, y})
    assert found[x].dtype is x.dtype
    assert found[y].dtype is y.dtype
    np.testing.assert_array_equal(value(found[x]), np.array([3.0, 0.5], narrow))


def test_root_gradient_of_another_dtype_is_cast() -> None:
    x = leaf(np.ones(3, np.float16))
    found = compute_gradient(x * x, leaf(np.ones(3, np.float32)), {x})
    assert found[x].dtype is dtypes.float16


def test_halves_are_added_up_in_float32() -> None:
    x = leaf(np.ones((1, 4), np.float16))
    weight = leaf(np.ones((3000, 4), np.float16))
    found = compute_gradient(x.expand((3000, 4)) * weight, UOp.const(dtypes.float16, 1), {x})
    sums = [u for u in toposort(found[x]) if u.op is Ops.REDUCE]
    assert [u.dtype for u in sums] == [dtypes.float32]
    np.testing.assert_array_equal(value(found[x]), np.full((1, 4), 3000, np.float16))


def test_gathered_halves_are_added_up_in_float32() -> None:
    x = leaf(np.ones(1, np.float16))
    zeros = leaf(np.zeros(3000, np.int32)).cast(dtypes.index)
    found = compute_gradient(x.gather_at(zeros), UOp.const(dtypes.float16, 1), {x})
    assert value(found[x]) == np.array([3000], np.float16)


def test_devices() -> None:
    x = leaf(np.ones(3), "CPU:1")
    found = compute_gradient(x * number(2), ONE, {x})
    assert found[x].device == "CPU:1"
    copied = compute_gradient(x.copy_to("CPU") * leaf(np.ones(3), "CPU"), ONE, {x})
    assert copied[x].device == "CPU:1"
    assert copied[x].op is Ops.COPY


def test_stored_gradient_where_asked_for() -> None:
    x = leaf(np.ones(3))
    marked = UOp(Ops.CONTIGUOUS_BACKWARD, x.dtype, (x,))
    found = compute_gradient(marked * leaf(np.ones(3)), ONE, {x})
    assert found[x].op is Ops.CONTIGUOUS
    assert Ops.CONTIGUOUS not in ops_below(marked)


def test_constant_tensor_is_a_target_at_every_order() -> None:
    # With a device it is a tensor, not a number: nothing may be folded into it.
    place = UOp(Ops.DEVICE, dtypes.void, (), DeviceArg("CPU"))
    c = UOp(Ops.CONST, dtypes.float64, (place,), 3.0).reshape((1,)).expand((2,))
    cube = c * c * c
    first = compute_gradient(cube, ONE, {c})[c]
    second = compute_gradient(first, ONE, {c})[c]
    np.testing.assert_array_equal(value(first), [27, 27])
    np.testing.assert_array_equal(value(second), [18, 18])


# errors


def test_ints_have_no_gradient() -> None:
    x, i = leaf(np.ones(3)), leaf(np.ones(3, np.int32))
    with pytest.raises(GradientError, match="the root is int32; only floats"):
        compute_gradient(i, ONE, {x})
    with pytest.raises(GradientError, match="a target is int32; only floats"):
        compute_gradient(x * x, ONE, {x, i})


def test_gradient_of_another_shape_is_refused() -> None:
    x = leaf(np.ones((2, 3)))
    with pytest.raises(GradientError, match=r"that of the root is \[3,2\], the root is \[2,3\]"):
        compute_gradient(x * x, leaf(np.ones((3, 2))), {x})


# as short as a person writes it


def test_mean_has_a_number_as_gradient() -> None:
    x = leaf(np.ones((4, 5)))
    found = compute_gradient(x.mean(), ONE, {x})[x]
    assert ops_below(found) == [Ops.DEVICE, Ops.CONST, Ops.RESHAPE, Ops.EXPAND]
    np.testing.assert_allclose(value(found), np.full((4, 5), 1 / 20))


def test_relu_adds_one_choice() -> None:
    x, g = tensor(np.ones(3)), leaf(np.ones(3))
    y = x.relu()
    found = compute_gradient(y.uop, g, {x.uop})
    assert added_nodes([y.uop, g], [found[x.uop]]) == ["WHERE"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exponential_and_logarithm_keep_no_factor(dtype: type) -> None:
    x, g = tensor(np.ones(3, dtype)), leaf(np.ones(3, dtype))
    y = x.exp()
    found = compute_gradient(y.uop, g, {x.uop})
    assert added_nodes([y.uop, g], [found[x.uop]]) == ["MUL"]
    y = x.log()
    found = compute_gradient(y.uop, g, {x.uop})
    assert added_nodes([y.uop, g], [found[x.uop]]) == ["FDIV"]


def test_factors_and_signs_leave_sums() -> None:
    x, row = leaf(np.ones((3, 4))), leaf(np.ones((1, 4)))
    root = ((x - row.expand((3, 4))) * number(0.5)).alu(Ops.NEG)
    found = compute_gradient(root * x, ONE, {row})[row]
    # The sum over x itself; the factor of a half comes after it.
    total = next(u for u in toposort(found) if u.op is Ops.REDUCE)
    assert total.src[0] is x
    np.testing.assert_allclose(value(found), np.full((1, 4), 1.5))


def test_square_doubles_the_smaller_side() -> None:
    x = leaf(np.array([[1.0, 2], [3, 4]]))
    found = compute_gradient((x * x).sum(1) * leaf(np.array([1.0, 2])), ONE, {x})[x]
    assert ops_below(found).count(Ops.ADD) == 0
    np.testing.assert_array_equal(value(found), [[2, 4], [12, 16]])


def test_factors_are_not_gathered_past_what_a_dtype_holds() -> None:
    x = leaf(np.array([1e-30], np.float32))
    y = (x * UOp.const(dtypes.float32, 1e30)) * UOp.const(dtypes.float32, 1e30)
    g = leaf(np.array([1e-30], np.float32))
    np.testing.assert_allclose(value(compute_gradient(y, g, {x})[x]), [1e30], rtol=1e-5)


def test_cross_entropy_adds_few_nodes() -> None:
    x, labels = tensor(np.ones((4, 10), np.float32)), tensor(np.zeros(4, np.int32))
    loss = x.cross_entropy(labels)
    found = compute_gradient(loss.uop, UOp.const(dtypes.float32, 1), {x.uop})
    # softmax * g - where(hit, g, 0), with g = where(known, 1/4, 0): nothing is summed again.
    added = added_nodes([loss.uop], [found[x.uop]])
    assert "REDUCE" not in added
    assert len([op for op in added if op not in ("RESHAPE", "EXPAND")]) <= 6


def test_layernorm_adds_two_sums() -> None:
    x, g = tensor(np.ones((4, 10))), leaf(np.ones((4, 10)))
    y = x.layernorm()
    found = compute_gradient(y.uop, g, {x.uop})
    added = added_nodes([y.uop, g], [found[x.uop]])
    assert added.count("REDUCE") == 2
    assert len(added) <= 20


def test_batchnorm_adds_three_sums() -> None:
    x, g = tensor(np.ones((4, 3, 5))), leaf(np.ones((4, 3, 5)))
    weight, bias = tensor(np.ones(3)), tensor(np.zeros(3))
    mean = x.mean((0, 2))
    centred = x - mean.reshape(1, 3, 1)
    y = x.batchnorm(weight, bias, mean, ((centred * centred).mean((0, 2)) + 1e-5).rsqrt())
    found = compute_gradient(y.uop, g, {t.uop for t in (x, weight, bias)})
    added = added_nodes([y.uop, g], list(found.values()))
    assert added.count("REDUCE") == 3
    assert math.isfinite(value(found[x.uop]).sum())


def test_gradient_through_a_symbolic_size() -> None:
    x, n = leaf(np.ones((6, 4))), UOp.variable("n", 1, 6).bind(4)
    part = x.shrink(((0, n), (0, 4)))
    found = compute_gradient((part * part).sum(), ONE, {x})[x]
    assert found.shape == (6, 4)
    np.testing.assert_array_equal(value(found), np.repeat([2.0, 0], [4, 2])[:, None] * np.ones(4))
    padded = part._pad_zeros(((0, 6 - n), (1, 1)))
    found = compute_gradient((padded * number(3)).sum(0), ONE, {x})[x]
    np.testing.assert_array_equal(value(found), np.repeat([3.0, 0], [4, 2])[:, None] * np.ones(4))


def test_what_has_no_influence_has_a_gradient_of_zeros() -> None:
    for function in (
        lambda t: t[0:0].sum(),
        lambda t: t[0:0].max(),
        lambda t: (t**0).sum(),
        lambda t: (t[0:0] * 2).mean(),
        lambda t: t[Tensor([], dtype="int32")].sum(),
    ):
        t = Tensor([0.5, 1.5], requires_grad=True)
        function(t).backward()
        assert t.grad is not None
        assert t.grad.tolist() == [0, 0]


def test_a_way_without_influence_leaves_a_gradient_as_it_is() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    before = x.grad.uop
    y = Tensor([3.0, 4.0], requires_grad=True)
    ((x * 2).detach() * y).sum().backward()
    assert x.grad.uop is before
    assert y.grad.tolist() == [2.0, 4.0]
    assert x.grad.tolist() == [2.0, 4.0]


def test_tensors_of_one_memory_have_each_their_own_gradient() -> None:
    x = Tensor([1.0, 2.0]).realize()
    a, b = Tensor(x, requires_grad=True), Tensor(x, requires_grad=True)
    c = x.detach().requires_grad_()
    for _ in range(2):
        (a * 2 + b * 3 + c * a).sum().backward()
        assert (a.grad.tolist(), b.grad.tolist(), c.grad.tolist()) == ([3, 4], [3, 3], [1, 2])
        a.grad = b.grad = c.grad = None
        Tensor.realize(a, b, c)
    x.assign(x * 2).realize()
    assert a.tolist() == b.tolist() == c.tolist() == [2, 4]


def test_a_realized_view_of_memory_keeps_its_name_in_graphs() -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    y = x.detach().requires_grad_()
    loss = (y * y).sum()
    y.realize()
    loss.backward()
    assert y.grad.tolist() == [2, 4, 6]
