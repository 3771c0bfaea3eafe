"""Casts by name and by dtype."""

from typing import assert_type

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType

x = Tensor([1.5, -1.5])
assert_type(x.int(), Tensor)
assert_type(x.cast("float16"), Tensor)
assert_type(x.cast(dtypes.int8).bool(), Tensor)
assert_type(x.dtype, DType)
assert_type(x.dtype.itemsize, int)
assert x.int().tolist() == [1, -1]
