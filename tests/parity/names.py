"""Names that the reference's tests import and Aster has no such thing for: adapters, not answers.

Each stands between a test and the part of Aster that does the work. What Aster does not have at all
is an `Absent`: it can be imported, so that the other tests of a file run, and it raises when used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aster_ml.compat import dtypes as product_dtypes
from aster_ml.dtype import DType, dtypes, to_numpy_dtype, truncate


class NotProvidedError(NotImplementedError):
    """A test used a name that Aster does not have."""


class AbsentMeta(type):
    """A class without instances: `isinstance` is False, and any other use raises."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotProvidedError(f"{cls.__qualname__} is not provided by Aster")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotProvidedError(f"{cls.__qualname__}.{name} is not provided by Aster")

    def __iter__(cls) -> Iterator[Any]:
        raise NotProvidedError(f"{cls.__qualname__} is not provided by Aster")


def absent(qualname: str) -> AbsentMeta:
    """The placeholder for one name."""
    made = AbsentMeta(qualname.rsplit(".", 1)[-1], (), {"__module__": "absent"})
    made.__qualname__ = qualname
    return made


def is_dtype_supported(dtype: DType, device: str | None = None) -> bool:
    """What the reference computes on a CPU: all but fp8, which it cannot cast there.

    Aster computes fp8 everywhere, but these tests hold it to the reference's ways on GPUs: arrays
    of bytes, and bit casts that start from float32.
    """
    return dtype in (*dtypes.floats, *dtypes.ints, dtypes.bool) and dtype not in dtypes.fp8s


def _to_torch_dtype(dtype: DType) -> Any:
    """PyTorch's dtype; None where it has none. The reference has the bytes of fp8 there."""
    import torch

    if dtype in dtypes.fp8s:
        return torch.uint8
    return product_dtypes._to_torch_dtype(dtype)


def from_storage_scalar(value: int, dtype: DType) -> float:
    """The number that stored bits mean, for floats that Python has no format for."""
    return float(np.array(value, dtype=f"uint{dtype.bits}").view(to_numpy_dtype(dtype)))


class Truncations(dict[DType, Any]):
    """`truncate[dtype](x)` for each dtype."""

    def __missing__(self, dtype: DType) -> Any:
        return lambda value: truncate(value, dtype)


truncate_table = Truncations()
