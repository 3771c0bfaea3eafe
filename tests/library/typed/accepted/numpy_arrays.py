"""Passes arrays of NumPy in and out."""

from typing import Any, assert_type

import numpy as np

from aster_ml import Tensor

x = Tensor(np.ones((2, 2), np.float32))
assert_type(x, Tensor)
assert_type(x.numpy(), np.ndarray[Any, Any])
assert_type(x.data(), memoryview)
assert x.numpy().sum() == 4
