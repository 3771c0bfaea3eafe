"""Represents complex numbers as pairs of tensors: `ComplexTensor`, and its dtypes.

Hands on what programs import. Fourier transforms stand in `aster_ml.fft`.
"""

from __future__ import annotations

from aster_ml.complex.dtype import ComplexDType, complex64, complex128
from aster_ml.complex.tensor import ComplexTensor

__all__ = ["ComplexDType", "ComplexTensor", "complex64", "complex128"]
