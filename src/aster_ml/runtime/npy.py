"""Opens NPY: memory that NumPy owns; holds data on its way in and out and runs no kernels.

`Buffer("NPY", size, dtype, opaque=array)` is the array itself, without a copy.
"""

from __future__ import annotations

from aster_ml.backend import Backend, StorageBackend
from aster_ml.runtime.host_memory import HostAllocator
from aster_ml.runtime.host_queue import HostQueue

DOC = "memory that NumPy owns; holds data, runs nothing"


def missing() -> str | None:
    """None: NumPy is a requirement."""
    return None


def open_backend(name: str) -> Backend:
    """The backend of "NPY"."""
    return StorageBackend(name, HostAllocator(name, limit_bytes=0), HostQueue())
