"""Maps element types of ONNX, by number, to dtypes of Aster and NumPy.

Types that Aster does not have (4-bit integers, text, ...) stay NumPy arrays on the host; those
whose values fit a wider type of Aster's become that one where a tensor is wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.dtype import DType, to_dtype
from aster_ml.errors import DTypeError
from aster_ml.onnx.ops.registry import Array, Value
from aster_ml.uop.node import UOp

# The numbers of TensorProto.DataType.
FLOAT, INT32, INT64, STRING, BOOL, FLOAT16, DOUBLE, BFLOAT16 = 1, 6, 7, 8, 9, 10, 11, 16
NUMPY: dict[int, Any] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64,
    8: np.object_, 9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64,
    14: np.complex64, 15: np.complex128, 16: ml_dtypes.bfloat16, 17: ml_dtypes.float8_e4m3fn,
    18: ml_dtypes.float8_e4m3fnuz, 19: ml_dtypes.float8_e5m2, 20: ml_dtypes.float8_e5m2fnuz,
    21: ml_dtypes.uint4, 22: ml_dtypes.int4, 23: ml_dtypes.float4_e2m1fn,
    24: ml_dtypes.float8_e8m0fnu, 25: ml_dtypes.uint2, 26: ml_dtypes.int2,
}  # fmt: skip
ASTER: dict[int, DType] = {
    1: dtypes.float32, 2: dtypes.uint8, 3: dtypes.int8, 4: dtypes.uint16, 5: dtypes.int16,
    6: dtypes.int32, 7: dtypes.int64, 9: dtypes.bool, 10: dtypes.float16, 11: dtypes.float64,
    12: dtypes.uint32, 13: dtypes.uint64, 16: dtypes.bfloat16, 17: dtypes.fp8e4m3,
    19: dtypes.fp8e5m2,
}  # fmt: skip
# The names of TensorProto.DataType that attributes of version 1 have.
DATA_TYPES = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7,
    "STRING": 8, "BOOL": 9, "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13,
}  # fmt: skip
NUMBERS = {np.dtype(kind): number for number, kind in NUMPY.items()}
# Values of the left type are values of the right one.
WIDER: dict[Any, Any] = {
    np.dtype(ml_dtypes.uint4): np.uint8, np.dtype(ml_dtypes.int4): np.int8,
    np.dtype(ml_dtypes.uint2): np.uint8, np.dtype(ml_dtypes.int2): np.int8,
    np.dtype(ml_dtypes.float4_e2m1fn): np.float32,
    np.dtype(ml_dtypes.float8_e4m3fnuz): np.float16,
    np.dtype(ml_dtypes.float8_e5m2fnuz): np.float32,
    np.dtype(ml_dtypes.float8_e8m0fnu): np.float32,
}  # fmt: skip


def element_type(number: int) -> DType:
    """The dtype of Aster for a number of TensorProto.DataType.

    Raises: DTypeError where Aster has none.
    """
    if number not in ASTER:
        kind = NUMPY.get(number)
        name = "unknown" if kind is None else np.dtype(kind).name
        raise DTypeError(f"element type {number} ({name}) of ONNX is none of Aster's")
    return ASTER[number]


def number_of(dtype: DType) -> int:
    """The number of TensorProto.DataType for a dtype of Aster."""
    return next(number for number, other in ASTER.items() if other is dtype)


def numpy_type(dtype: DType) -> Any:
    """The dtype of NumPy with the values of one of Aster's."""
    return np.dtype(NUMPY[number_of(dtype)])


def is_variable(array: Array) -> bool:
    """Whether an array has sizes that are variables, which makes its elements objects."""
    return array.dtype == np.object_ and any(isinstance(item, UOp) for item in array.reshape(-1))


def boxed(value: Any, dtype: Any = None) -> Array:
    """A value as an array; a size that is a variable as an array of one object."""
    if isinstance(value, UOp):
        box = np.empty((), np.object_)
        box[()] = value
        return box
    return np.asarray(value, dtype)


def sizes_array(sizes: Sequence[Any]) -> Array:
    """Sizes as an array of int64, or of objects where one is a variable."""
    if all(isinstance(size, int) for size in sizes):
        return np.asarray(sizes, np.int64)
    array = np.empty(len(sizes), np.object_)
    array[:] = sizes
    return array


def is_ours(array: Array) -> bool:
    """Whether a tensor of Aster can have the dtype of an array."""
    return NUMBERS.get(array.dtype) in ASTER


def to_tensor(value: Value, device: str | None = None) -> Tensor:
    """A value as a tensor.

    Raises: DTypeError for arrays of a dtype that Aster does not have.
    """
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        value = np.asarray(value)
    if is_variable(value):
        parts = [Tensor(item, device=device) for item in value.reshape(-1)]
        whole = parts[0].stack(*parts[1:]) if len(parts) > 1 else parts[0]
        return whole.reshape(value.shape).cast(dtypes.int64)
    if value.dtype in WIDER:
        value = value.astype(WIDER[value.dtype])
    if not is_ours(value):
        raise DTypeError(f"a tensor of {value.dtype} is none that Aster has")
    return Tensor(value, device=device)


def as_dtype(kind: Any) -> DType:
    """A dtype of Aster for one of NumPy's."""
    return to_dtype(element_type(NUMBERS[np.dtype(kind)]))
