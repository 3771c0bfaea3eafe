"""Normalises rows."""

from typing import assert_type

from aster_ml import Tensor, nn

x = Tensor([[1.0, 3.0]])
assert_type(x.layernorm(), Tensor)
assert_type(x.softmax(), Tensor)
assert_type(nn.LayerNorm(2)(x), Tensor)
assert_type(nn.RMSNorm(2)(x), Tensor)
assert abs(float(x.softmax().sum()) - 1) < 1e-6
