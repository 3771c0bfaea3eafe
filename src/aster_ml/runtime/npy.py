"""Opens NPY: memory that NumPy owns; holds data on its way in and out and runs no kernels.

`Buffer("NPY", size, dtype, opaque=array)` is the array itself, without a copy.
"""

from __future__ import annotations

from aster_ml.backend import Backend, Program
from aster_ml.errors import DeviceError
from aster_ml.runtime.host_memory import HostAllocator
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.target import IDLE, Target

DOC = "memory that NumPy owns; holds data, runs nothing"


class NpyBackend(Backend):
    """The host's memory under the name of NumPy."""

    @property
    def target(self) -> Target:
        """Nothing runs here: no ops, no dtypes."""
        return Target("NPY", "null", kind=IDLE, native_dtypes=frozenset(), native_ops=frozenset())

    def compile(self, source: str) -> bytes:
        """Refuses. Raises: DeviceError."""
        raise DeviceError("NPY holds data and runs nothing; copy to a device that computes: CPU")

    def load(self, name: str, binary: bytes) -> Program:
        """Refuses. Raises: DeviceError."""
        raise DeviceError("NPY holds data and runs nothing; copy to a device that computes: CPU")


def missing() -> str | None:
    """NumPy is a requirement, so nothing ever is."""
    return None


def open_backend(name: str) -> Backend:
    """The backend of "NPY"."""
    return NpyBackend(name, HostAllocator(name, limit_bytes=0), HostQueue())
