"""Solves least squares by gradients."""

from typing import assert_type

from aster_ml import Tensor

a = Tensor([[1.0, 0.0], [0.0, 2.0]])
b = Tensor([1.0, 4.0])
x = Tensor.zeros(2)
for _ in range(60):
    slope = a.T @ (a @ x - b)
    assert_type(slope, Tensor)
    x = (x - 0.2 * slope).realize()
assert x.allclose(Tensor([1.0, 2.0]), atol=1e-3)
