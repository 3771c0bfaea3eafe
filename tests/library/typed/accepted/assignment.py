"""Writes to a tensor, as a whole and by index."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor.zeros(4).contiguous().realize()
assert_type(x.assign(Tensor.ones(4)), Tensor)
x[1:3] = 5
x += 1
assert_type(x, Tensor)
assert x.tolist() == [2.0, 6.0, 6.0, 2.0]
