"""Folds axes."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([[1.0, 2.0], [3.0, 4.0]])
assert_type(x.sum(axis=1, keepdim=True), Tensor)
assert_type(x.max(), Tensor)
assert_type(x.mean((0, 1)), Tensor)
assert_type(x.std(axis=0), Tensor)
assert_type(x.var_mean(axis=0), tuple[Tensor, Tensor])
assert x.sum(axis=1).tolist() == [3.0, 7.0]
