"""Indexes by ints, slices, None, tensors and masks."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor.arange(12).reshape(3, 4)
assert_type(x[0], Tensor)
assert_type(x[:, None, ::2], Tensor)
assert_type(x[Tensor([0, 2])], Tensor)
assert_type(x[..., -1], Tensor)
assert_type(x.masked_select(x > 8), Tensor)
assert x[Tensor([0, 2]), 1].tolist() == [1, 9]
