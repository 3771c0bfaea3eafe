"""Stand-in for `test.unit.test_dtype_spec`: lists of dtypes and one comparison."""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.dtype import DType, dtypes, to_numpy_dtype

FP8E4M3_MAX = 448.0
FP8E5M2_MAX = 57344.0

# float16 and narrower: two results that differ by one unit in the last place are both right.
TOLERANCE = {
    dtypes.fp8e4m3: 1e-1, dtypes.fp8e5m2: 2e-1, dtypes.bfloat16: 1e-2, dtypes.float16: 1e-3,
    dtypes.float32: 1e-6, dtypes.float64: 1e-6,
}  # fmt: skip

core_dtypes = [
    d
    for name, d in sorted(dtypes.fields().items())
    if name == d.name and d not in (dtypes.void, dtypes.index)
]
dtype_ints = [d for d in core_dtypes if dtypes.is_int(d)]
dtype_floats = [d for d in core_dtypes if dtypes.is_float(d)]


def _assert_eq(tensor: Tensor, target_dtype: DType, target: Any, tolerance: float = 0.0) -> None:
    """Checks the dtype of a tensor, of its array, and its values within the dtype's tolerance."""
    if tensor.dtype != target_dtype:
        raise AssertionError(f"dtype is {tensor.dtype}, {target_dtype} is wanted")
    array = tensor.numpy()
    narrow = target_dtype == dtypes.bfloat16 or target_dtype in dtypes.fp8s
    if not narrow and array.dtype != to_numpy_dtype(target_dtype):
        raise AssertionError(f"the array is {array.dtype}, {target_dtype} is wanted")
    allowed = max(tolerance, TOLERANCE.get(target_dtype, 0.0))
    np.testing.assert_allclose(
        array.astype("float64"), np.asarray(target).astype("float64"), rtol=allowed
    )
