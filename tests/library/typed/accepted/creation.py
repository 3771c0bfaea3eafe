"""Makes tensors of nothing."""

from typing import assert_type

from aster_ml import Tensor

assert_type(Tensor.zeros(2, 3), Tensor)
assert_type(Tensor.full((2,), 7, dtype="int32"), Tensor)
assert_type(Tensor.eye(2), Tensor)
assert_type(Tensor.linspace(0, 1, 5), Tensor)
assert_type(Tensor.ones(2).zeros_like(), Tensor)
assert Tensor.arange(1, 7, 2).tolist() == [1, 3, 5]
