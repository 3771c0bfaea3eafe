"""Functions as graphs over parameters: values, gradients, misuse."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, TinyJit
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from aster_ml.uop.node import UOp
from tests.core.tensor_checks import check_tensor

A = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
B = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32)


def operands() -> tuple[Tensor, Tensor]:
    """Two matrices that require gradients."""
    return Tensor(A, requires_grad=True), Tensor(B, requires_grad=True)


def test_value_and_gradients() -> None:
    a, b = operands()
    c = Tensor.call(a, b, fxn=a.as_param(0) @ b.as_param(1))
    check_tensor(c, A @ B, rtol=1e-5, atol=1e-6)
    Tensor.call(a, b, fxn=a.as_param(0) @ b.as_param(1)).sum().backward()
    check_tensor(a.grad, np.broadcast_to(B.sum(1), A.shape), rtol=1e-5, atol=1e-6)
    check_tensor(b.grad, np.broadcast_to(A.sum(0)[:, None], B.shape), rtol=1e-5, atol=1e-6)


def test_one_function_for_several_tensors() -> None:
    a = Tensor(A)
    function = (a.as_param(0) * 2 + a.as_param(1)).relu()
    for x, y in ((A, -A), (-A, A), (A.T.copy().reshape(4, 3), A)):
        got = Tensor.call(Tensor(x), Tensor(y), fxn=function)
        check_tensor(got, np.maximum(x * 2 + y, 0))


def test_values_that_are_no_memory() -> None:
    a = Tensor(A)
    got = Tensor.call(a.T + 1, Tensor.ones(3, 4), fxn=a.T.as_param(0) * a.T.as_param(1) - 1)
    check_tensor(got, A.T)


def test_a_gradient_of_its_own() -> None:
    seen: list[UOp] = []

    def gradients(gradient: UOp, call: UOp) -> tuple[Any, Any]:
        seen.append(call)
        return gradient * 2, None

    a, b = operands()
    c = Tensor.call(a, b, fxn=a.as_param(0) @ b.as_param(1), grad_fxn=gradients)
    np.testing.assert_allclose(c.numpy(), A @ B, rtol=1e-5, atol=1e-6)
    x = Tensor(A, requires_grad=True)
    y = Tensor.call(x, x * 1, fxn=x.as_param(0) + x.as_param(1), grad_fxn=gradients)
    (y * 3).sum().backward()
    check_tensor(x.grad, np.full_like(A, 6))
    assert seen[0].src[1] is x.uop
    # A function that keeps nodes above its own keeps itself.
    seen.clear()


def test_a_gradient_of_its_own_is_asked_once_and_forgotten() -> None:
    """Also where the last source wants none: its CALL would be pending for ever."""
    answers: list[weakref.ref[UOp]] = []

    def gradients(gradient: UOp, call: UOp) -> tuple[Any, ...]:
        answers.append(weakref.ref(call))
        return gradient * 2, gradient * 3, None

    x, y = Tensor(A, requires_grad=True), Tensor(B[:, :4].T.copy(), requires_grad=True)
    z = Tensor.call(x, y, x.detach() * 1, fxn=x.as_param(0) + x.as_param(2), grad_fxn=gradients)
    for _ in range(2):
        z.sum().backward()
    del z
    gc.collect()
    assert [ref() for ref in answers] == [None, None]


def test_in_a_jit() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return Tensor.call(x, y, fxn=x.as_param(0) * y.as_param(1) + 1)

    jitted = TinyJit(function)
    for i in range(4):
        got = jitted(Tensor(A * i).realize(), Tensor(A).realize())
        check_tensor(got, A * i * A + 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda a: Tensor.call(a, fxn=a.as_param(1) + 1), ArgumentError,
            "parameter 1 of 1 tensors; there is none",
        ),
        (
            lambda a: Tensor.call(a[:2], fxn=a.as_param(0) + 1), ShapeError,
            r"parameter 0 has 12 elements, the tensor \[2,3\]",
        ),
        (
            lambda a: Tensor.call(a.int(), fxn=a.as_param(0) + 1), DTypeError,
            "parameter 0 is float32, the tensor int32; cast it",
        ),
        (lambda a: Tensor.call(a, fxn=3), ArgumentError, r"fxn is 3; a tensor of as_param"),
        (
            lambda a: (a.as_param(0) + 1).numpy(), ArgumentError,
            r"made of parameter 0 \(as_param\) has none of its own; give it to Tensor.call",
        ),
    ],
)  # fmt: skip
def test_misuse(call: Callable[[Tensor], Any], error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        call(Tensor(A))
