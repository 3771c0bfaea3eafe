"""Implements the Python array API standard, version 2024.12: `import aster_ml.array_api as xp`.

Functions take arrays and give arrays (`Array`, a Tensor whose `size` is a number and whose one
element has a truth); `t.__array_namespace__()` is this module. Complex arrays are ComplexTensors.
Errors of dtypes that the standard leaves open are not here.
"""

from __future__ import annotations

from math import e, inf, nan, pi
from typing import Any

from aster_ml import Device, dtypes
from aster_ml.array_api import arrange, creation, elementwise, fft, linalg
from aster_ml.array_api.arrange import *  # noqa: F403
from aster_ml.array_api.array import INDEX, Array
from aster_ml.array_api.creation import *  # noqa: F403
from aster_ml.array_api.elementwise import *  # noqa: F403
from aster_ml.complex import complex64, complex128

__array_api_version__ = "2024.12"
VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
newaxis = None
bool = dtypes.bool
int8, int16, int32, int64 = dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64
uint8, uint16, uint32, uint64 = dtypes.uint8, dtypes.uint16, dtypes.uint32, dtypes.uint64
float32, float64 = dtypes.float32, dtypes.float64


DTYPES = (bool, *creation.KINDS["integral"], float32, float64, complex64, complex128)


class Info:
    """Capabilities of this namespace, as `__array_namespace_info__` returns them."""

    def capabilities(self) -> dict[str, Any]:
        """Returns which optional features of the standard work."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """The device of arrays that name none."""
        return Device.DEFAULT

    def devices(self) -> list[str]:
        """Devices that work here."""
        return Device.get_available_devices()

    def default_dtypes(self, *, device: str | None = None) -> dict[str, Any]:
        """Returns the dtypes that numbers without a dtype become."""
        return {
            "real floating": dtypes.default_float,
            "complex floating": complex128 if dtypes.default_float is float64 else complex64,
            "integral": dtypes.default_int,
            "indexing": INDEX,
        }

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, Any]:
        """The dtypes of a kind, by name."""
        known = {d.name: d for d in DTYPES}
        if isinstance(kind, tuple) and not kind:
            return {}
        return {n: d for n, d in known.items() if kind is None or creation.isdtype(d, kind)}


# The standard calls it so; it gives what there is: devices, dtypes, what works.
__array_namespace_info__ = Info


__all__ = [
    "Array", "bool", "complex64", "complex128", "e", "fft", "float32", "float64", "inf", "int8",
    "int16", "int32", "int64", "linalg", "nan", "newaxis", "pi", "uint8", "uint16", "uint32",
    "uint64",
]  # fmt: skip
__all__ += arrange.__all__
__all__ += creation.__all__
__all__ += elementwise.__all__
