"""Applies operators, with numbers on either side."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([1.0, 2.0])
assert_type(x + x, Tensor)
assert_type(2 - x, Tensor)
assert_type(x * 2.5, Tensor)
assert_type(1 / x, Tensor)
assert_type(x**2, Tensor)
assert_type(-x, Tensor)
assert_type(abs(x), Tensor)
assert_type(divmod(x, 2), tuple[Tensor, Tensor])
assert (x**2 - 1).tolist() == [0.0, 3.0]
