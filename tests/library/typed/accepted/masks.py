"""Chooses between values."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([-1.0, 2.0])
assert_type((x > 0).where(x, 0), Tensor)
assert_type(x.isnan() | x.isinf(), Tensor)
assert_type(Tensor.ones(2, 2).tril(), Tensor)
assert (x > 0).where(x, 0).tolist() == [0.0, 2.0]
