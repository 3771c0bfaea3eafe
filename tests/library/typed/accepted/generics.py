"""Keeps the type of a tensor through functions of one's own."""

from collections.abc import Callable
from typing import assert_type

from aster_ml import Tensor


def compose(*functions: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        return x.sequential(list(functions))

    return run


out = compose(Tensor.relu, Tensor.square, lambda t: t + 1)(Tensor([-1.0, 2.0]))
assert_type(out, Tensor)
assert out.tolist() == [1.0, 5.0]
