"""Activations and softmax against PyTorch, at the far ends of the line, at second order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.gradient import compute_gradient
from aster_ml.tensor import Tensor
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.numerics import check_slopes, check_torch, tensor, value, values

X = np.random.RandomState(1).randn(4, 6) * 5
# Where exponentials overflow, vanish, or lose what stands beside them.
FAR = np.array(
    [
        -math.inf,
        -1e4,
        -200,
        -104,
        -89,
        -60,
        -30,
        -20,
        -10,
        -1,
        -1e-3,
        0,
        1e-3,
        1,
        10,
        20,
        30,
        60,
        89,
        104,
        200,
        1e4,
        math.inf,
    ],
    np.float32,
)

# Ours by name, with arguments, and PyTorch's.
ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "relu": (lambda x: x.relu(), lambda F, x: F.relu(x)),
    "relu6": (lambda x: x.relu6(), lambda F, x: F.relu6(x)),
    "hardtanh": (lambda x: x.hardtanh(), lambda F, x: F.hardtanh(x)),
    "hardtanh(-2, 3)": (lambda x: x.hardtanh(-2, 3), lambda F, x: F.hardtanh(x, -2, 3)),
    "hardswish": (lambda x: x.hardswish(), lambda F, x: F.hardswish(x)),
    "hardsigmoid": (lambda x: x.hardsigmoid(), lambda F, x: F.hardsigmoid(x)),
    "sigmoid": (lambda x: x.sigmoid(), lambda F, x: F.sigmoid(x)),
    "swish": (lambda x: x.swish(), lambda F, x: F.silu(x)),
    "silu": (lambda x: x.silu(), lambda F, x: F.silu(x)),
    "softplus": (lambda x: x.softplus(), lambda F, x: F.softplus(x)),
    "softplus(2)": (lambda x: x.softplus(2.0), lambda F, x: F.softplus(x, 2.0)),
    "logsigmoid": (lambda x: x.logsigmoid(), lambda F, x: F.logsigmoid(x)),
    "softsign": (lambda x: x.softsign(), lambda F, x: F.softsign(x)),
    "gelu": (lambda x: x.gelu(), lambda F, x: F.gelu(x, approximate="tanh")),
    "quick_gelu": (lambda x: x.quick_gelu(), lambda F, x: x * F.sigmoid(1.702 * x)),
    "elu": (lambda x: x.elu(), lambda F, x: F.elu(x)),
    "elu(0.5)": (lambda x: x.elu(0.5), lambda F, x: F.elu(x, 0.5)),
    "celu": (lambda x: x.celu(), lambda F, x: F.celu(x)),
    "celu(2)": (lambda x: x.celu(2.0), lambda F, x: F.celu(x, 2.0)),
    "selu": (lambda x: x.selu(), lambda F, x: 1.0507 * F.elu(x, 1.67326)),
    "leaky_relu": (lambda x: x.leaky_relu(), lambda F, x: F.leaky_relu(x)),
    "leaky_relu(0.2)": (lambda x: x.leaky_relu(0.2), lambda F, x: F.leaky_relu(x, 0.2)),
    "mish": (lambda x: x.mish(), lambda F, x: F.mish(x)),
}
EACH = pytest.mark.parametrize("name", list(ACTIVATIONS))


@EACH
@pytest.mark.torch
def test_activation_and_its_gradient(name: str) -> None:
    functional = pytest.importorskip("torch.nn.functional")
    ours, theirs = ACTIVATIONS[name]
    # PyTorch has 1/6 in float32 in hardsigmoid's gradient, also for float64.
    check_torch(ours, lambda x: theirs(functional, x), X, tolerance=1e-7)


@EACH
@pytest.mark.torch
def test_activation_far_out(name: str) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = ACTIVATIONS[name]
    points = FAR[1:-1]
    x, t = tensor(points), torch.tensor(points, requires_grad=True)
    y, want = ours(x), theirs(torch.nn.functional, t)
    want.sum().backward()
    g = compute_gradient(y.uop, UOp.const(dtypes.float32, 1), {x.uop})[x.uop]
    have, have_g = values(y, g)
    np.testing.assert_allclose(have, want.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(have_g, t.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["sigmoid", "softplus", "logsigmoid", "elu", "relu", "softsign"])
def test_tails_keep_their_digits(name: str) -> None:
    have = value(getattr(tensor(FAR[1:-1]), name)()).astype(np.float64)
    x = FAR[1:-1].astype(np.float64)
    want = {
        "sigmoid": np.exp(-np.logaddexp(0, -x)),
        "softplus": np.logaddexp(0, x),
        "logsigmoid": -np.logaddexp(0, -x),
        "elu": np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
        "relu": np.maximum(x, 0),
        "softsign": x / (1 + np.abs(x)),
    }[name]
    # exp loses |x| / 2 ULP; below the least float there is nothing to keep.
    np.testing.assert_allclose(have, want, rtol=2e-5, atol=1e-6 if name == "elu" else 1e-37)


@pytest.mark.parametrize(
    "name", ["sigmoid", "relu", "relu6", "hardtanh", "elu", "softplus", "leaky_relu", "hardsigmoid"]
)
def test_infinities_have_values_and_slopes(name: str) -> None:
    x = tensor(FAR[[0, -1]])
    y = getattr(x, name)()
    g = compute_gradient(y.uop, UOp.const(dtypes.float32, 1), {x.uop})[x.uop]
    low, high = value(y)
    assert not np.isnan([low, high, *value(g)]).any()
    assert (low, high) == {
        "sigmoid": (0, 1),
        "relu": (0, math.inf),
        "relu6": (0, 6),
        "hardtanh": (-1, 1),
        "elu": (-1, math.inf),
        "softplus": (0, math.inf),
        "leaky_relu": (-math.inf, math.inf),
        "hardsigmoid": (0, 1),
    }[name]


def test_slopes_at_zero() -> None:
    x = tensor(np.zeros(1))
    slope = {}
    for name in ("relu", "relu6", "sigmoid", "softplus", "elu", "leaky_relu", "gelu", "softsign"):
        y = getattr(x, name)()
        slope[name] = value(compute_gradient(y.uop, UOp.const(dtypes.float64, 1), {x.uop})[x.uop])
    assert {k: round(v.item(), 6) for k, v in slope.items()} == {
        "relu": 0,
        "relu6": 0,
        "sigmoid": 0.25,
        "softplus": 0.5,
        "elu": 1,
        "leaky_relu": 0.01,
        "gelu": 0.5,
        "softsign": 1,
    }


@pytest.mark.parametrize(
    "name",
    [
        "sigmoid",
        "softplus",
        "silu",
        "gelu",
        "elu",
        "mish",
        "softsign",
        "softmax",
        "log_softmax",
        "logsumexp",
        "layernorm",
    ],
)
def test_second_order(name: str) -> None:
    check_slopes(lambda x: getattr(Tensor.from_uop(x), name)().uop, X[:2, :4] / 3)


@pytest.mark.parametrize("name", ["sigmoid", "gelu", "softplus", "softmax", "elu"])
def test_ints_count_as_floats_and_halves_stay(name: str) -> None:
    assert getattr(tensor(np.arange(3)), name)().dtype is dtypes.float32
    assert getattr(tensor(np.arange(3, dtype=np.float16)), name)().dtype is dtypes.float16


# the softmax family


@pytest.mark.torch
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax(axis: int) -> None:
    pytest.importorskip("torch")
    check_torch(lambda x: x.softmax(axis), lambda x: x.softmax(axis), X)
    check_torch(lambda x: x.log_softmax(axis), lambda x: x.log_softmax(axis), X)
    check_torch(lambda x: x.logsumexp(axis), lambda x: x.logsumexp(axis), X)


@pytest.mark.torch
def test_logsumexp_over_all_and_with_axes_kept() -> None:
    pytest.importorskip("torch")
    check_torch(lambda x: x.logsumexp(), lambda x: x.logsumexp((0, 1)), X)
    check_torch(lambda x: x.logsumexp((0, 2)), lambda x: x.logsumexp((0, 2)), X.reshape(2, 4, 3))
    check_torch(lambda x: x.logsumexp(1, keepdim=True), lambda x: x.logsumexp(1, keepdim=True), X)


def test_softmax_does_not_overflow() -> None:
    x = tensor(np.array([[1e4, 1e4 - 1, -1e4], [-1e30, 1e30, 0]], np.float32))
    e = math.exp(-1)
    soft, log, total = values(x.softmax(), x.log_softmax(), x.logsumexp(1))
    np.testing.assert_allclose(soft, [[1 / (1 + e), e / (1 + e), 0], [0, 1, 0]], rtol=1e-6)
    np.testing.assert_allclose(log[0, :2], [-math.log(1 + e), -1 - math.log(1 + e)], rtol=1e-6)
    np.testing.assert_allclose(total, [1e4 + math.log(1 + e), 1e30], rtol=1e-6)


def test_logsumexp_of_infinities() -> None:
    x = tensor(np.array([[1, -math.inf], [-math.inf, -math.inf], [math.inf, 1]]))
    assert value(x.logsumexp(1)).tolist() == [1, -math.inf, math.inf]
    assert value(x.softmax(1))[0].tolist() == [1, 0]


def test_softmax_of_halves_is_computed_in_float32() -> None:
    x = tensor(np.zeros((1, 70000), np.float16))
    soft, log = x.softmax(), x.log_softmax()
    assert soft.dtype is log.dtype is dtypes.float16
    # A sum of 70000 is no float16.
    np.testing.assert_allclose(value(log)[0, 0], -math.log(70000), rtol=1e-3)
    np.testing.assert_allclose(value(soft)[0, 0], np.float16(1 / 70000))


def test_softmax_takes_a_dtype() -> None:
    x = tensor(np.zeros((1, 4), np.float16))
    assert x.softmax(dtype="float64").dtype is dtypes.float64
    assert x.log_softmax(dtype=dtypes.float32).dtype is dtypes.float32


def test_no_gradient_goes_through_the_maximum() -> None:
    # Shifting all elements changes nothing, also where the greatest is met twice.
    x = tensor(np.array([[2.0, 2.0, 1.0]]))
    weight = UOp.const(dtypes.float64, 1)
    g = compute_gradient(x.softmax().uop, weight, {x.uop})[x.uop]
    np.testing.assert_allclose(value(g), np.zeros((1, 3)), atol=1e-15)


@pytest.mark.parametrize("name", ["relu", "relu6", "hardtanh"])
def test_what_is_held_is_asked_of_the_result(name: str) -> None:
    """So its operand need not be stored for the gradient; and infinite ones stop there too."""
    x = tensor(FAR)
    y = getattr(x, name)()
    gradient = compute_gradient(y.uop, UOp.const(x.dtype, math.inf), {x.uop})[x.uop]
    choice = [u for u in toposort(gradient) if u.op is Ops.WHERE][-1]
    assert y.uop.src[0] in toposort(choice.src[0])
    slope = value(gradient)
    assert set(slope.tolist()) == {0, math.inf}
    low, high = {"relu": (0, math.inf), "relu6": (0, 6), "hardtanh": (-1, 1)}[name]
    passes = (FAR > low) & ((FAR < high) | (high == math.inf))
    np.testing.assert_array_equal(slope == math.inf, passes)


def test_signs_and_nan_go_through_a_rectifier() -> None:
    x = np.array([-0.0, 0.0, np.nan, -np.inf, np.inf, -1e-45, 1e-45], np.float32)
    found = value(tensor(x).relu())
    np.testing.assert_array_equal(found, [0, 0, np.nan, 0, np.inf, 0, x[-1]])
    assert np.signbit(found[:2]).tolist() == [True, False], "as PyTorch has it"
