"""CUDASHIM: a device whose kernels are CUDA C++ that runs on the CPU, block after block.

`Device.register("CUDASHIM", cuda_shim)` makes it known. Memory is the host's, with guards
(`guarded`); what runs is what the renderer wrote, through `on_cpu`. Its Target is that of an A100.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from aster_ml.backend import ONCE, Backend, Grid, Launch, Program
from aster_ml.errors import InternalError
from aster_ml.runtime.host_memory import HostHandle
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.target import Target
from aster_ml.target.cuda import cuda_target, dynamic_nbytes
from tests.shim import on_cpu
from tests.shim.guarded import GuardedAllocator, refuse_overlap, written_slots

DOC = "CUDA C++ on the CPU, for tests"


class ShimProgram(Program):
    """A kernel of a library."""

    def __init__(self, kernel: on_cpu.KernelOnCpu, shared: int, written: int) -> None:
        self.name = kernel.name
        self.written = written
        self.kernel = kernel
        self.shared = shared

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Runs all blocks."""
        if not isinstance(launch, Grid):
            raise InternalError(f"{self.name}: blocks of threads are wanted, given {launch}")
        if 0 not in launch.blocks:
            refuse_overlap(self.name, handles, self.written)
            addresses = tuple([h.address for h in handles])
            self.kernel(addresses, vars, launch.blocks, launch.items, self.shared)


class ShimBackend(Backend):
    """An A100 that is not there."""

    tries_schedules = True

    @property
    def target(self) -> Target:
        """The same on every machine."""
        return cuda_target("sm_80", "CUDASHIM")

    def compile(self, source: str) -> bytes:
        """The path of the library. Raises: CompileError."""
        numbers = f"{dynamic_nbytes(source)} {written_slots(source)}"
        return f"{numbers} {on_cpu.compile_kernel(source)}".encode()

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel `name`, ready to launch. Raises: CompileError."""
        shared, written, path = binary.decode().split(" ", 2)
        return ShimProgram(on_cpu.load(Path(path), name), int(shared), int(written))


def missing() -> str | None:
    """A C++ compiler, where none is on PATH."""
    return None if on_cpu.find_compiler() else "no C++ compiler: g++ is not on PATH"


def move(target: HostHandle, source: HostHandle, nbytes: int) -> bool:
    """Between two pieces of the host's memory."""
    ctypes.memmove(target.address, source.address, nbytes)
    return True


def open_backend(name: str) -> Backend:
    """The backend of "CUDASHIM" or "CUDASHIM:1"."""
    return ShimBackend(name, GuardedAllocator(name), HostQueue(move))
