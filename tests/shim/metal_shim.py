"""METALSHIM: a device whose kernels are Metal's language, run on the CPU as `cuda_shim` does it.

`Device.register("METALSHIM", metal_shim)` makes it known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aster_ml.backend import ONCE, Backend, Launch, Program
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.target import Target
from aster_ml.target.metal import metal_target
from tests.shim import cuda_shim, on_cpu
from tests.shim.cuda_shim import ShimProgram, missing
from tests.shim.guarded import GuardedAllocator, written_slots

__all__ = ["DOC", "missing", "open_backend"]

DOC = "Metal's language on the CPU, for tests"


class MetalProgram(ShimProgram):
    """A kernel of a library, which is told how many arguments it has."""

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Runs all threadgroups."""
        self.shared = len(handles) + len(vars)
        super().__call__(handles, vars, launch)


class MetalShim(Backend):
    """A processor of Apple's that is not there."""

    @property
    def target(self) -> Target:
        """The same on every machine."""
        return metal_target("METALSHIM")

    def compile(self, source: str) -> bytes:
        """The path of the library. Raises: CompileError."""
        return f"{written_slots(source)} {on_cpu.compile_kernel(source)}".encode()

    def load(self, name: str, binary: bytes) -> Program:
        """The kernel `name`, ready to launch. Raises: CompileError."""
        written, _, path = binary.decode().partition(" ")
        return MetalProgram(on_cpu.load(Path(path), name), 0, int(written))


def open_backend(name: str) -> Backend:
    """The backend of "METALSHIM" or "METALSHIM:1"."""
    return MetalShim(name, GuardedAllocator(name), HostQueue(cuda_shim.move))
