"""Memory that ends where nobody may read or write, and whether launches write what is their own.

What a kernel touches behind a buffer, and more than fifteen bytes away from it, is a fault of the
processor, which `cuda_on_cpu.h` tells as an error of the launch; so is what it touches of memory
that was given back. On a device only the first byte of another allocation's page would be.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from aster_ml.errors import InternalError
from aster_ml.runtime.host_memory import HostAllocator, HostHandle

# Where memory of a device begins, at the least.
ALIGNMENT = 16
PAGE = mmap.PAGESIZE
NOTHING, READ_AND_WRITE = 0, 3
BUFFER = re.compile(r"(const )?[\w ]+\*\s*(?:__restrict__ )?buf(\d+)")

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Pages:
    """Pages between two that nobody may touch; they go with the last reference."""

    def __init__(self, nbytes: int) -> None:
        self.size = -(-nbytes // PAGE) * PAGE + 2 * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.start = LIBC.mmap(None, self.size, NOTHING, flags, -1, 0)
        if self.start in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"no {self.size} bytes of pages")
        self.end = self.start + self.size - PAGE
        inner = self.size - 2 * PAGE
        if inner and LIBC.mprotect(self.start + PAGE, inner, READ_AND_WRITE):
            raise MemoryError("pages cannot be opened")
        # No particular content: each four bytes are a NaN.
        ctypes.memset(self.start + PAGE, 0xFF, inner)

    def __del__(self) -> None:
        LIBC.munmap(self.start, self.size)


class Guarded:
    """An array's bytes in guarded memory, as far from a multiple of ALIGNMENT as they lie there."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        before = array.ctypes.data % ALIGNMENT
        whole = -(-(array.nbytes + before) // ALIGNMENT) * ALIGNMENT
        self.pages = Pages(whole)
        self.address = self.pages.end - whole + before
        ctypes.memmove(self.address, array.ctypes.data, array.nbytes)

    def copy_back(self) -> None:
        """What is there now becomes the array's content, where that may change."""
        if self.array.flags.writeable:
            ctypes.memmove(self.array.ctypes.data, self.address, self.array.nbytes)


class GuardedAllocator(HostAllocator):
    """Memory of the host, each piece on pages of its own, at their end; nothing is pooled."""

    def alloc(self, nbytes: int) -> HostHandle:
        """So many bytes."""
        whole = max(-(-nbytes // ALIGNMENT), 1) * ALIGNMENT
        pages = Pages(whole)
        return HostHandle(pages.end - whole, nbytes, pages)

    def alloc_zeros(self, nbytes: int) -> None:
        """There are no zeros without writing them."""

    def free(self, handle: HostHandle, nbytes: int) -> None:
        """Nobody may touch it any more, unless somebody still sees it."""
        handle.owner = None


def written_slots(source: str) -> int:
    """The buffers that a kernel's source may write, as bits."""
    start = max(source.rfind("__global__ void"), source.rfind("kernel void"))
    head = source[start : source.find("{", start)]
    return sum([1 << int(slot) for const, slot in BUFFER.findall(head) if not const])


def refuse_overlap(name: str, handles: Sequence[HostHandle], written: int) -> None:
    """What a launch writes has to be memory of its own, as `__restrict__` tells the compiler.

    Raises: InternalError.
    """
    for i, a in enumerate(handles):
        for k, b in enumerate(handles):
            together = a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
            if i != k and written >> i & 1 and together:
                raise InternalError(f"{name}: it writes buffer {i}, and {k} is the same memory")
