"""Compares tensors, which gives tensors of bools."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([1, 2, 3])
assert_type(x == 2, Tensor)
assert_type(x != x, Tensor)
assert_type(x >= 2, Tensor)
assert_type((x > 1).all(), Tensor)
assert_type(x.allclose(x), bool)
assert (x >= 2).tolist() == [False, True, True]
