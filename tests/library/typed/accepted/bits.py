"""Works on bits of ints and on bools."""

from typing import assert_type

from aster_ml import Tensor

x = Tensor([5, 6])
assert_type(x & 3, Tensor)
assert_type(x << 1, Tensor)
assert_type(~(x > 5), Tensor)
assert (x ^ 1).tolist() == [4, 7]
