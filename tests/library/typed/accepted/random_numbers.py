"""Draws numbers, twice the same."""

from typing import assert_type

from aster_ml import Tensor

Tensor.manual_seed(7)
first = Tensor.rand(3)
assert_type(first, Tensor)
assert_type(Tensor.randn(2, 2), Tensor)
assert_type(Tensor.randint(3, low=0, high=9), Tensor)
assert_type(Tensor.uniform(2, low=-1, high=1), Tensor)
values = first.tolist()
Tensor.manual_seed(7)
assert Tensor.rand(3).tolist() == values
