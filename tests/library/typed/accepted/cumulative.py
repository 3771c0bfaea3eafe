"""Adds up along an axis."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([1, 2, 3])
assert_type(x.cumsum(), Tensor)
assert x.cumsum().tolist() == [1, 3, 6]
