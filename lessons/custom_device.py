"""A device in one file: memory, compiler, programs. Lesson 07 walks through it.

Kernels are C, compiled by `cc` into shared libraries and called through ctypes. Memory is plain
bytes with a name of its own, so that nothing else of the framework can reach into it by accident.
Nothing here is imported by the package: `Device.register("LESSON", custom_device)` makes it known.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from aster_ml.allocator import Allocator
from aster_ml.backend import ONCE, Backend, Event, Launch, Program, Queue, ThreadParts
from aster_ml.errors import CompileError
from aster_ml.target import Target

DOC = "the device of lesson 07: C through cc, one thread"
# Everything that was launched, as (kernel, seconds): part of what a backend can tell.
LOG: list[tuple[str, float]] = []


class Memory:
    """A piece of memory: bytes somewhere, from an address on."""

    def __init__(self, nbytes: int, owner: Memory | None = None, offset: int = 0) -> None:
        self.nbytes = nbytes
        self.owner = owner
        # 64 bytes more, so that there is an address in it that SIMD registers load quickly.
        self.block = None if owner else ctypes.create_string_buffer(nbytes + 64)
        self.address = owner.address + offset if owner else self.aligned()

    def aligned(self) -> int:
        """The first address of the block that 64 divides."""
        return -(-ctypes.addressof(self.block) // 64) * 64


class MemoryOfBytes(Allocator):
    """Hands out memory, and copies to and from it."""

    def alloc(self, nbytes: int) -> Memory:
        """New memory of any content."""
        return Memory(nbytes)

    def free(self, handle: Memory, nbytes: int) -> None:
        """Drops the block; Python's own memory management does the rest."""
        handle.block = None

    def copyin(self, handle: Memory, source: memoryview) -> None:
        """From the host to the device."""
        ctypes.memmove(handle.address, bytes(source), source.nbytes)

    def copyout(self, target: memoryview, handle: Memory) -> None:
        """From the device to the host."""
        target[:] = ctypes.string_at(handle.address, target.nbytes)

    def offset(self, handle: Memory, byte_offset: int, nbytes: int) -> Memory:
        """A part of other memory, which lives as long as the part."""
        return Memory(nbytes, handle, byte_offset)


class Moment(Event):
    """Launches are done when they return, so an event is a time."""

    def __init__(self) -> None:
        self.time = time.perf_counter()

    def wait(self) -> None:
        """There is nothing to wait for."""

    def seconds_since(self, earlier: Moment) -> float:
        """The time between."""
        return self.time - earlier.time


class NoQueue(Queue):
    """What is put in is done at once."""

    def signal(self) -> Moment:
        """Now."""
        return Moment()


class Function(Program):
    """One kernel: a function of a shared library."""

    def __init__(self, name: str, library: ctypes.CDLL) -> None:
        self.name = name
        self.function = getattr(library, name)
        self.function.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        self.function.restype = None

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Addresses first, then variables, as one row of 64-bit words; then the range to run."""
        assert isinstance(launch, ThreadParts)
        words = [handle.address for handle in handles] + [value % 2**64 for value in vars]
        row = (ctypes.c_uint64 * max(1, len(words)))(*words)
        start = time.perf_counter()
        self.function(ctypes.addressof(row), 0, launch.n)
        LOG.append((self.name, time.perf_counter() - start))


class LessonBackend(Backend):
    """Puts the parts together."""

    @property
    def target(self) -> Target:
        """What the machine can do: here 128 bits of SIMD, which every 64-bit processor has."""
        return Target("LESSON", "c", arch="lesson", vector_bits=128, vector_registers=16, threads=1)

    def compile(self, source: str) -> bytes:
        """C as a shared library. Raises: CompileError with the compiler's words."""
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "kernel.so"
            command = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library), "-lm"]
            done = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
            if done.returncode:
                raise CompileError(f"cc refused a kernel:\n{done.stderr.decode()}")
            return library.read_bytes()

    def load(self, name: str, binary: bytes) -> Program:
        """A library has to be a file for the time of loading it."""
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(binary)
            file.flush()
            return Function(name, ctypes.CDLL(file.name))


def missing() -> str | None:
    """What is not here, and what would bring it."""
    return None if shutil.which("cc") else "cc is not on PATH; install gcc or clang"


def open_backend(name: str) -> Backend:
    """The backend of "LESSON" or "LESSON:1"."""
    return LessonBackend(name, MemoryOfBytes(), NoQueue())
