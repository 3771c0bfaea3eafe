"""CUDASTUB: the CUDA runtime on the driver library of the tests, as a device from outside.

`Device.register("CUDASTUB", stub_device)` makes it known, also to processes that a search starts.
Kernels run on the CPU as on `CUDASHIM`; contexts, modules, events and errors are the runtime's own.
Where `CUDASTUB_LOSE` names a file, the device is lost at the first kernel that runs while there is
one, and the file goes: a later process finds the device well. Where that is a folder, it stays.
"""

from __future__ import annotations

import os
from pathlib import Path

from aster_ml.backend import Backend, Program
from aster_ml.runtime.cuda import compiler as cuda_compiler
from aster_ml.runtime.cuda.compiler import Binary
from aster_ml.runtime.cuda.context import CudaDevice, binding
from aster_ml.runtime.cuda.device import CudaBackend
from aster_ml.target.cuda import dynamic_nbytes
from aster_ml.target.tensor_maps import tensor_maps
from tests.shim import cuda_stub

DOC = "the CUDA runtime on a driver of the tests"
# What the driver calls a device that does nothing any more: an illegal address.
ILLEGAL_ADDRESS = 700


class StubBackend(CudaBackend):
    """The runtime of CUDA, whose kernels a C++ compiler compiles."""

    def compile(self, source: str) -> bytes:
        """The library of a source, in place of a cubin."""
        library = cuda_stub.library_of(source)
        return cuda_compiler.pack(Binary(library, dynamic_nbytes(source), "", tensor_maps(source)))

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel, or one that ends the device."""
        place = Path(os.environ.get("CUDASTUB_LOSE") or os.devnull)
        if place.is_dir() or place.is_file():
            cuda_stub.load().lose(ILLEGAL_ADDRESS)
            if place.is_file():
                place.unlink()
        return super().load(name, binary)


def missing() -> str | None:
    """C compilers and cuda-bindings, where they are not there."""
    return cuda_stub.missing()


def open_backend(name: str) -> Backend:
    """The first device of the driver."""
    cuda_stub.load().reset()
    binding().cuInit(0)
    return StubBackend(CudaDevice(name, 0))
