"""Defines a model as a class."""

from typing import assert_type

from aster_ml import Tensor, nn


class Model:
    def __init__(self) -> None:
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 2)

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).relu())


model = Model()
assert_type(model(Tensor.ones(3, 4)), Tensor)
assert_type(model.first.weight, Tensor)
assert_type(model.last.bias, Tensor | None)
assert model(Tensor.ones(3, 4)).shape == (3, 2)
