"""Reads tensors as Python's own functions do."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([[1.0, 2.0], [3.0, 4.0]])
assert_type(len(x), int)
assert_type(list(x), list[Tensor])
assert_type(float(x.sum()), float)
assert_type(int(x[0, 0]), int)
assert_type(f"{x.sum():.1f}", str)
assert 4.0 in x
