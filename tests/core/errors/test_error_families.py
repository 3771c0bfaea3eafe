"""Mistakes that programs written for tinygrad catch: each error is of the class that they know.

The classes are those that tinygrad 0.12 raises for the same call, where it checks the argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, Variable, dtypes, errors, nn
from aster_ml.compat.dtypes import float_to_fp8
from tests.core.errors.mistakes import ones

CALLS: list[tuple[Callable[[], Any], type[Exception]]] = [
    (lambda: ones(2).item(), AssertionError),
    (lambda: ones(2, 3).stack(ones(3, 2)), AssertionError),
    (lambda: ones(2, 3).cat(ones(2)), AssertionError),
    (lambda: ones(2, 3).split(0), AssertionError),
    (lambda: ones(2, 3).split([1, 2]), AssertionError),
    (lambda: ones(2, 3).chunk(-1), AssertionError),
    (lambda: ones(2, 3).gather(0, Tensor([0])), AssertionError),
    (lambda: ones(2, 3).gather(0, Tensor([[0, 0, 0, 0]])), AssertionError),
    (lambda: ones(2, 3).scatter(0, Tensor([0]), Tensor([1.0])), AssertionError),
    (lambda: ones(2, 3).interpolate((2, 2, 2)), AssertionError),
    (lambda: ones(1, 1, 3).interpolate((2,), mode="no"), AssertionError),
    (lambda: ones(1, 1, 3, 3).max_pool2d(4), AssertionError),
    (lambda: ones(1, 1, 3, 3).avg_pool2d(2, stride=(1, 1, 1)), AssertionError),
    (lambda: ones(1, 2, 3, 3).conv2d(ones(1, 3, 2, 2)), AssertionError),
    (lambda: ones(1, 2, 3, 3).conv2d(ones(2, 2, 2)), AssertionError),
    (lambda: ones(1, 2, 3, 3).conv2d(ones(2, 2, 4, 4)), AssertionError),
    (lambda: ones(1, 2, 3, 3).conv_transpose2d(ones(3, 2, 2, 2)), AssertionError),
    (lambda: ones(3) + None, AssertionError),
    (lambda: ones(3) + [1, 2, 3], AssertionError),
    (lambda: ones(3) ** "a", AssertionError),
    (lambda: ones(3) << 1, AssertionError),
    (lambda: Tensor([1]) << -1, AssertionError),
    (lambda: Tensor([1.0], requires_grad=True).sum().backward(ones(2)), AssertionError),
    (lambda: ones(3).backward(), AssertionError),
    (lambda: ones(3).rearrange("a"), AssertionError),
    (lambda: ones(3).rearrange("a -> b"), AssertionError),
    (lambda: ones(4).rearrange("((a b) -> a b", a=2), AssertionError),
    (lambda: ones(4).rearrange("... a ... -> a ..."), AssertionError),
    (lambda: ones(2, 3).cross_entropy(Tensor([0, 1]), label_smoothing=2), AssertionError),
    (
        lambda: ones(2, 3).sparse_categorical_crossentropy(Tensor([0, 1]), reduction="x"),
        AssertionError,
    ),
    (lambda: ones(2, 3).cross_entropy(Tensor([0, 1]), reduction="x"), ValueError),
    (lambda: ones(3).qr(), AssertionError),
    (lambda: ones(3).svd(), AssertionError),
    (lambda: ones(3).newton_schulz(1, (1,)), AssertionError),
    (lambda: ones(2).bfloat16().data(), AssertionError),
    (lambda: nn.LayerNorm(4)(ones(2, 3)), AssertionError),
    (lambda: nn.optim.SGD([]), AssertionError),
    (lambda: dtypes.float.vec(2).vec(3), AssertionError),
    (lambda: float_to_fp8(1.0, dtypes.float), AssertionError),
    (lambda: dtypes.finfo(dtypes.int), ValueError),
    (lambda: Tensor.rand(2, dtype=dtypes.int), ValueError),
    (lambda: int(Variable("a", 0, 3)), AssertionError),
    (lambda: Variable("a", 0, 3).bind(4), AssertionError),
    (lambda: ones(3)[3], IndexError),
    (lambda: ones(3).reshape(2), ValueError),
    (lambda: Tensor(np.zeros((2, 3))).permute(0, 0), ValueError),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_the_class_is_the_one_that_programs_catch(number: int) -> None:
    call, kind = CALLS[number]
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, errors.AsterError), inspect.getsource(call)
    assert str(caught.value)


@pytest.mark.parametrize("kind", [errors.ShapeError, errors.DTypeError, errors.ArgumentError])
def test_what_refuses_an_argument_is_a_failed_assertion_and_no_internal_error(kind: Any) -> None:
    assert issubclass(kind, AssertionError)
    assert not issubclass(kind, errors.InternalError)
