"""Factors a matrix."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([[2.0, 0.0], [0.0, 3.0]])
assert_type(x @ x, Tensor)
assert_type(x.matmul(x), Tensor)
assert_type(x.qr(), tuple[Tensor, Tensor])
assert_type(x.svd(), tuple[Tensor, Tensor, Tensor])
assert (x @ x).tolist() == [[4.0, 0.0], [0.0, 9.0]]
