"""Joins and splits tensors."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([1, 2])
assert_type(x.cat(x), Tensor)
assert_type(Tensor.stack(x, x), Tensor)
assert_type(x.split(1), tuple[Tensor, ...])
assert_type(x.repeat(2), Tensor)
assert x.cat(x).tolist() == [1, 2, 1, 2]
