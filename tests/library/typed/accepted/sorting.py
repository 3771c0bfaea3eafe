"""Sorts and ranks."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([3, 1, 2])
assert_type(x.sort(), tuple[Tensor, Tensor])
assert_type(x.topk(2), tuple[Tensor, Tensor])
values, order = x.sort(descending=True)
assert_type(order, Tensor)
assert values.tolist() == [3, 2, 1]
