"""Dtypes of PyTorch and of Aster, and what is known of a value in a graph of torch.fx.

Receives dtypes, and nodes that fake tensors describe; returns dtypes and `Spec`s. A dtype that
Aster has not is None here: what to do about it is decided in `partition`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aster_ml.dtype import DType, dtypes

# Names of PyTorch where they are not those of Aster.
NAMES = {"float8_e4m3fn": "fp8e4m3", "float8_e5m2": "fp8e5m2"}
ASTER: dict[str, DType] = {
    name: getattr(dtypes, NAMES.get(name, name))
    for name in (
        "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 float64 "
        "float8_e4m3fn float8_e5m2"
    ).split()
}


def aster_dtype(dtype: Any) -> DType | None:
    """The dtype of Aster for a `torch.dtype`, None where there is none."""
    return ASTER.get(str(dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Spec:
    """Shape (None for an axis that changes from call to call) and dtype of a value."""

    shape: tuple[int | None, ...]
    dtype: DType


def spec_of(value: Any) -> Spec | None:
    """Reads shape and dtype of a fake tensor; None for other values and for dtypes Aster lacks."""
    dtype = None if not hasattr(value, "dtype") else aster_dtype(value.dtype)
    if dtype is None:
        return None
    return Spec(tuple([s if isinstance(s, int) else None for s in value.shape]), dtype)
