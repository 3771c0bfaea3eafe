"""Opens NULL: compiles kernels and runs none; its memory holds no data.

For measuring and testing the compiler alone. Reading a result raises an error.
"""

from __future__ import annotations

from typing import Any

from aster_ml.allocator import Allocator
from aster_ml.backend import ONCE, Backend, Launch, Program
from aster_ml.errors import DeviceError
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.target import IDLE, Target

DOC = "compiles kernels and does not run them"


class NullHandle:
    """Memory without content."""

    __slots__ = ("address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.address = 0
        self.nbytes = nbytes


class NullAllocator(Allocator):
    """Allocates no memory; writes are discarded, reads raise."""

    def alloc(self, nbytes: int) -> NullHandle:
        """A handle on nothing."""
        return NullHandle(nbytes)

    def free(self, handle: NullHandle, nbytes: int) -> None:
        """There is nothing to free."""
        handle.nbytes = 0

    def copyin(self, handle: NullHandle, source: memoryview) -> None:
        """Discards the bytes."""
        return

    def copyout(self, target: memoryview, handle: NullHandle) -> None:
        """Refuses. Raises: DeviceError."""
        raise DeviceError(
            "NULL keeps no data: kernels are compiled and not run, so there is no result to read; "
            "DEV=CPU computes one"
        )

    def offset(self, handle: NullHandle, byte_offset: int, nbytes: int) -> NullHandle:
        """A part of nothing."""
        return NullHandle(nbytes)

    def can_wrap(self, owner: Any, alignment: int = 1) -> bool:
        """Accepts any memory."""
        return True

    def wrap(self, owner: Any, nbytes: int) -> NullHandle:
        """A handle on nothing."""
        return NullHandle(nbytes)


class NullProgram(Program):
    """A kernel that does nothing; `source` is what it was compiled from."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source

    def __call__(
        self, handles: tuple[Any, ...], vars: tuple[int, ...] = (), launch: Launch = ONCE
    ) -> None:
        """Takes no time."""
        return


class NullBackend(Backend):
    """A plain SIMD machine with eight threads, which does not exist."""

    @property
    def target(self) -> Target:
        """The same on every machine, so that what is compiled can be compared."""
        return Target("NULL", "null", kind=IDLE, vector_bits=256, vector_registers=16, threads=8)

    def compile(self, source: str) -> bytes:
        """The source is its own binary."""
        return source.encode()

    def load(self, name: str, binary: bytes) -> Program:
        """A program that does nothing."""
        return NullProgram(name, binary.decode())


def no_copy(target: NullHandle, source: NullHandle, nbytes: int) -> bool:
    """Copies nothing."""
    return True


def missing() -> str | None:
    """Nothing is needed, so nothing is missing."""
    return None


def open_backend(name: str) -> Backend:
    """The backend of "NULL" or "NULL:1"."""
    return NullBackend(name, NullAllocator(), HostQueue(no_copy))
