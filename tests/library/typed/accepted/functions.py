"""Applies functions by element."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([0.0, 1.0])
assert_type(x.exp().log().sin().sqrt(), Tensor)
assert_type(x.tanh() + x.erf() + x.atanh(), Tensor)
assert_type(x.clip(0, 0.5), Tensor)
assert_type(x.lerp(x + 1, 0.5), Tensor)
assert x.exp2().tolist() == [1.0, 2.0]
