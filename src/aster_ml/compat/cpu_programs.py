"""Runs C functions on host memory, without tensors, as a tour of the lowest level does.

Receives C source and bytes; returns functions and memory. Kernels of tensors do not come this way
(`runtime/cpu/device`).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

from aster_ml.errors import ArgumentError
from aster_ml.extend import compile_c, load_library


class ClangCompiler:
    """The C compiler of the machine: source to a shared library."""

    def compile(self, src: str) -> bytes:
        """The library. Raises: DeviceError without a compiler; CompileError with its words."""
        return compile_c(src)

    compile_cached = compile


class CPUProgram:
    """The function `name` of a compiled library, called with memory and whole numbers."""

    def __init__(self, name: str, lib: bytes) -> None:
        self.name = name
        self.lib = lib
        self.library = load_library(lib, name)
        self.function = ctypes.CFUNCTYPE(None)(self.library.address(name))

    def __call__(
        self,
        *bufs: Any,
        global_size: Sequence[int] = (1, 1, 1),
        local_size: Sequence[int] = (1, 1, 1),
        vals: Sequence[int] = (),
        wait: bool = False,
    ) -> float | None:
        """Runs; with `wait` returns the seconds that it took.

        Raises: ArgumentError for sizes other than one: a C function has no work-items.
        """
        if any(n != 1 for n in (*global_size, *local_size)):
            raise ArgumentError(f"{self.name}: a C function runs once, asked for {global_size}")
        arguments = [ctypes.c_void_p(ctypes.addressof(b)) for b in bufs]
        start = time.perf_counter()
        self.function(*arguments, *[ctypes.c_int(v) for v in vals])
        return time.perf_counter() - start if wait else None


class HostAllocator:
    """Memory of the host as ctypes arrays of bytes; each lives as long as its array."""

    def alloc(self, size: int, options: Any = None) -> Any:
        """`size` bytes of zeros. Raises: ArgumentError for fewer than one."""
        if size <= 0:
            raise ArgumentError(f"alloc: {size} bytes; at least one is wanted")
        return (ctypes.c_uint8 * size)()

    def free(self, opaque: Any, size: int = 0, options: Any = None) -> None:
        """Nothing: the memory goes with the last reference."""

    def copyin(self, dest: Any, src: memoryview) -> None:
        """Fills the memory from a contiguous memoryview of at most as many bytes."""
        if src.nbytes > ctypes.sizeof(dest):
            raise ArgumentError(f"copyin: {src.nbytes} bytes into {ctypes.sizeof(dest)}")
        ctypes.memmove(dest, bytes(src), src.nbytes)

    def copyout(self, dest: memoryview, src: Any) -> None:
        """Fills a writable memoryview from memory of at least as many bytes."""
        dest.cast("B")[:] = self.as_buffer(src)[: dest.nbytes]

    def as_buffer(self, src: Any) -> memoryview:
        """The memory itself, as bytes."""
        return memoryview(src).cast("B")

    _alloc, _copyin, _copyout, _as_buffer = alloc, copyin, copyout, as_buffer


MallocAllocator = HostAllocator()
