"""Defines the dtypes of complex tensors: complex64 and complex128, each by the dtype of its parts.

Receives names and dtypes of others; returns dtypes. No kernel knows them: what is computed are real
and imaginary parts, of float32 or float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml import dtypes
from aster_ml.dtype import DType
from aster_ml.errors import DTypeError


class ComplexDType:
    """A dtype of pairs: `part` is the dtype of each. Equal to its name, and to others' dtypes."""

    __slots__ = ("itemsize", "name", "part")
    kind = "complex"

    def __init__(self, name: str, part: DType) -> None:
        self.name, self.part, self.itemsize = name, part, 2 * part.itemsize

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return to_complex_dtype, (self.name,)

    def __eq__(self, other: object) -> bool:
        return self is other or known_complex_dtype(other) is self

    __hash__ = object.__hash__

    @property
    def bits(self) -> int:
        """Width in bits."""
        return self.itemsize * 8

    @property
    def __numpy_dtype__(self) -> Any:
        return np.dtype(self.name)

    # As NumPy asked before 2.4.
    dtype = __numpy_dtype__


complex64 = ComplexDType("complex64", dtypes.float32)
complex128 = ComplexDType("complex128", dtypes.float64)
BY_NAME = {d.name: d for d in (complex64, complex128)}
BY_PART = {d.part: d for d in (complex64, complex128)}


def known_complex_dtype(dtype: Any) -> ComplexDType | None:
    """A complex dtype from itself, its name, or that of Python, NumPy, PyTorch; None of others."""
    if isinstance(dtype, ComplexDType):
        return dtype
    if dtype is complex:
        return BY_PART.get(dtypes.default_float, complex64)
    if isinstance(dtype, np.dtype):
        return BY_NAME.get(dtype.name)
    if isinstance(dtype, type) and issubclass(dtype, np.complexfloating):
        return BY_NAME.get(np.dtype(dtype).name)
    # PyTorch's are written torch.complex64.
    return BY_NAME.get(str(dtype).removeprefix("torch.")) if is_name(dtype) else None


def is_name(dtype: Any) -> bool:
    """Whether the text of something is the name of a dtype."""
    return isinstance(dtype, str) or type(dtype).__module__.partition(".")[0] == "torch"


def to_complex_dtype(dtype: Any) -> ComplexDType:
    """A complex dtype from what names it.

    Raises: DTypeError for what names none.
    """
    found = known_complex_dtype(dtype)
    if found is None:
        raise DTypeError(f"{dtype!r} is no complex dtype; complex64 and complex128 are")
    return found
