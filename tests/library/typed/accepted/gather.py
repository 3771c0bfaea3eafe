"""Gathers and scatters along an axis."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([[1, 2], [3, 4]])
at = Tensor([[1], [0]])
assert_type(x.gather(1, at), Tensor)
assert_type(x.scatter(1, at, 0), Tensor)
assert x.gather(1, at).tolist() == [[2], [3]]
