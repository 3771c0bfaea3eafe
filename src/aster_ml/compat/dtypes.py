"""Dtypes of NumPy and PyTorch for ours and back, and floats as the bits that store them.

`aster_ml.dtype` passes these names on. A dtype that NumPy lacks stands as float32 there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aster_ml.dtype import (
    ConstType,
    DType,
    PtrDType,
    dtypes,
    from_numpy_dtype,
    to_numpy_dtype,
    truncate,
)
from aster_ml.errors import DTypeError

__all__ = [
    "DTYPES_DICT",
    "INVERSE_DTYPES_DICT",
    "ConstType",
    "PtrDType",
    "_from_np_dtype",
    "_from_torch_dtype",
    "_to_np_dtype",
    "_to_torch_dtype",
    "float_to_bf16",
    "float_to_fp8",
    "float_to_fp16",
    "fp8_to_float",
]  # fmt: skip

DTYPES_DICT: dict[str, DType] = dtypes.fields()
INVERSE_DTYPES_DICT: dict[str, str] = {d.name: name for name, d in reversed(DTYPES_DICT.items())}
WITHOUT_NUMPY = frozenset({dtypes.bfloat16, *dtypes.fp8s})
# PyTorch's names where they are not ours.
TORCH_NAMES = {"float8_e4m3fn": dtypes.fp8e4m3, "float8_e5m2": dtypes.fp8e5m2}
FP8_LIMITS = {dtypes.fp8e4m3: 448.0, dtypes.fp8e5m2: 57344.0}


def _to_np_dtype(dtype: DType) -> Any:
    """NumPy's type of elements; float32 for a float that it has not, None for what has none."""
    if dtype in (dtypes.void, dtypes.index):
        return None
    return np.float32 if dtype in WITHOUT_NUMPY else to_numpy_dtype(dtype).type


def _from_np_dtype(npdtype: Any) -> DType:
    """Our dtype for one of NumPy's. Raises: DTypeError where there is none."""
    return from_numpy_dtype(npdtype)


def torch_names() -> dict[str, DType]:
    """PyTorch's names of dtypes and ours."""
    numbers = (*dtypes.ints, dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
    return {"bool": dtypes.bool, **{d.name: d for d in numbers}, **TORCH_NAMES}


def _to_torch_dtype(dtype: DType) -> Any:
    """PyTorch's dtype; None where it has none."""
    import torch

    name = next((n for n, d in torch_names().items() if d == dtype), "")
    return getattr(torch, name, None)


def _from_torch_dtype(torchdtype: Any) -> DType:
    """Our dtype for one of PyTorch's. Raises: KeyError where there is none."""
    return torch_names()[str(torchdtype).removeprefix("torch.")]


def float_to_fp8(x: float, dtype: DType) -> int:
    """The byte of the fp8 number next to `x`; finite values saturate.

    Raises: DTypeError for a dtype that is not fp8.
    """
    if dtype not in FP8_LIMITS:
        raise DTypeError(f"float_to_fp8: {dtype.name}; one of fp8e4m3 and fp8e5m2 is wanted")
    if math.isfinite(x):
        x = min(max(x, -FP8_LIMITS[dtype]), FP8_LIMITS[dtype])
    return int(np.array(x, dtype=to_numpy_dtype(dtype)).view("uint8"))


def fp8_to_float(x: int, dtype: DType) -> float:
    """The number that a byte means in an fp8 dtype."""
    return float(np.array(x, dtype="uint8").view(to_numpy_dtype(dtype)))


def float_to_fp16(x: float) -> float:
    """The half-precision number next to `x`; infinity beyond the greatest."""
    return float(truncate(x, dtypes.float16))


def float_to_bf16(x: float) -> float:
    """The bfloat16 number next to `x`."""
    return float(truncate(x, dtypes.bfloat16))
