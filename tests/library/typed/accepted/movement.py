"""Gives the same elements other indices."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor.arange(6).reshape(2, 3)
assert_type(x.permute(1, 0), Tensor)
assert_type(x.T, Tensor)
assert_type(x.flip(0).shrink(((0, 1), None)), Tensor)
assert_type(x.pad((1, 1)), Tensor)
assert_type(x.unsqueeze(0).squeeze(), Tensor)
assert_type(x.ndim, int)
assert_type(x.rearrange("a b -> (b a)"), Tensor)
assert x.T.flatten().tolist() == [0, 3, 1, 4, 2, 5]
