"""Allocates host memory for buffers of CPU, NPY and other in-process devices.

Receives sizes, or objects that own memory; returns handles with an integer `address`. Blocks are
64-byte aligned and pooled; foreign memory is used in place.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aster_ml.allocator import MEMORY, PooledAllocator, format_bytes, size_class
from aster_ml.errors import ArgumentError, DeviceError
from aster_ml.helpers import kind_of

ALIGNMENT = 64
# A block of at least PAGE_BYTES starts on a page, one of HUGE_PAGE_BYTES on a huge page.
PAGE_BYTES, HUGE_PAGE_BYTES = 4096, 2 << 20
# Blocks from SLAB_FROM on are cut from slabs, whose pages may be huge. glibc maps and unmaps blocks
# of the size of a slab directly.
SLAB_FROM, SLAB_BYTES = 64 << 10, 32 << 20


class HostHandle:
    """`nbytes` bytes from `address` on; `owner` keeps them alive."""

    __slots__ = ("address", "nbytes", "owner", "readonly")

    def __init__(self, address: int, nbytes: int, owner: Any, readonly: bool = False) -> None:
        self.address = address
        self.nbytes = nbytes
        self.owner = owner
        self.readonly = readonly

    def __repr__(self) -> str:
        return f"<HostHandle {self.nbytes} bytes at {self.address:#x}>"

    def memoryview(self, nbytes: int) -> memoryview:
        """The first `nbytes` bytes; keeps the handle's owner alive."""
        array = (ctypes.c_uint8 * nbytes).from_address(self.address)
        array.owner = self.owner  # type: ignore[attr-defined]
        view = memoryview(array).cast("B")
        return view.toreadonly() if self.readonly else view


@functools.cache
def machine_bytes() -> int:
    """Memory of the machine, or of the control group that limits this process; 0 if unknown."""
    total = 0
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    elif sys.platform == "win32":
        kilobytes = ctypes.c_uint64()
        if ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes)):
            total = kilobytes.value << 10
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = read_text(name)
        if text.isdigit():
            total = min(total, int(text)) if total > 0 else int(text)
    return max(total, 0)


def read_text(path: str) -> str:
    """The stripped text of a small system file; "" if there is none."""
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Slab:
    """Memory that consecutive blocks are cut from; freed with the last block.

    why: the weights of a model are many tensors of less than a huge page, and a kernel that reads
    each number once waits for page table walks (TLB misses) of small pages
    """

    def __init__(self) -> None:
        self.owner = np.empty(SLAB_BYTES + HUGE_PAGE_BYTES, dtype=np.uint8)
        start = self.owner.ctypes.data
        self.next = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self.end = self.next + SLAB_BYTES

    def cut(self, nbytes: int) -> HostHandle | None:
        """The next block; None if the slab is full."""
        if self.end - self.next < nbytes:
            return None
        found = HostHandle(self.next, nbytes, self.owner)
        self.next += -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        return found


class HostAllocator(PooledAllocator):
    """Pooled host memory; the pool keeps at most `limit_bytes`, by default a quarter of memory."""

    def __init__(self, device: str, limit_bytes: int | None = None) -> None:
        super().__init__(
            device, (machine_bytes() or 4 << 30) // 4 if limit_bytes is None else limit_bytes
        )
        self.slab: Slab | None = None

    def alloc_zeros(self, nbytes: int) -> HostHandle | None:
        """Fresh zero pages of the system; None for less than whole pages."""
        if nbytes < PAGE_BYTES or self.has_block(nbytes):
            return None
        try:
            return self.alloc_block(size_class(nbytes), np.zeros)
        except MemoryError:
            return None

    def alloc_block(self, nbytes: int, make: Callable[..., Any] = np.empty) -> HostHandle:
        """Fresh memory: unmapped pages, which its first use maps."""
        # Most systems overcommit memory, and kill the process when it is used.
        total = machine_bytes()
        if total and MEMORY.in_use() + nbytes > total:
            raise MemoryError(f"the machine has {format_bytes(total)}")
        if make is np.empty and SLAB_FROM <= nbytes < 2 * HUGE_PAGE_BYTES:
            return self.cut_block(nbytes)
        align = ALIGNMENT
        if nbytes >= PAGE_BYTES:
            align = PAGE_BYTES if nbytes < 2 * HUGE_PAGE_BYTES else HUGE_PAGE_BYTES
        owner = make(nbytes + align - 1, dtype=np.uint8)
        address = -(-owner.ctypes.data // align) * align
        return HostHandle(address, nbytes, owner)

    def cut_block(self, nbytes: int) -> HostHandle:
        """The next block of the slab, or of a new one where it is full."""
        found = self.slab.cut(nbytes) if self.slab else None
        if found is None:
            self.slab = Slab()
            found = self.slab.cut(nbytes)
            assert found is not None, "a slab is larger than what is cut from it"
        return found

    def free_block(self, handle: HostHandle, nbytes: int) -> None:
        """Frees the memory with the last reference to it."""
        handle.owner = None

    def can_wrap(self, owner: Any, alignment: int = 1) -> bool:
        """Whether `owner` has contiguous memory at an aligned address."""
        if isinstance(owner, np.ndarray):
            contiguous = owner.flags.c_contiguous
        else:
            try:
                contiguous = memoryview(owner).c_contiguous
            except (TypeError, ValueError):
                return False
        return bool(contiguous) and as_bytes(owner).ctypes.data % alignment == 0

    def wrap(self, owner: Any, nbytes: int) -> HostHandle:
        """A handle on the memory of a NumPy array, bytes, mmap or other buffer, without a copy.

        Raises: ArgumentError when it has fewer bytes; DeviceError when it is not contiguous.
        """
        if not self.can_wrap(owner):
            raise DeviceError(
                f"memory of {kind_of(owner)} cannot be used in place: contiguous memory "
                f"is wanted; numpy.ascontiguousarray makes a copy that can"
            )
        array = as_bytes(owner)
        if array.nbytes < nbytes:
            raise ArgumentError(f"memory of {array.nbytes} bytes is given, {nbytes} are wanted")
        return HostHandle(array.ctypes.data, nbytes, array, not array.flags.writeable)

    def copyin(self, handle: HostHandle, source: memoryview) -> None:
        """Copies bytes in."""
        if handle.readonly:
            raise DeviceError("this memory is read-only (bytes or a file); clone() would do")
        ctypes.memmove(handle.address, as_bytes(source).ctypes.data, source.nbytes)

    def copyout(self, target: memoryview, handle: HostHandle) -> None:
        """Copies bytes out."""
        ctypes.memmove(as_bytes(target).ctypes.data, handle.address, target.nbytes)

    def offset(self, handle: HostHandle, byte_offset: int, nbytes: int) -> HostHandle:
        """A part of the same memory."""
        return HostHandle(handle.address + byte_offset, nbytes, handle.owner, handle.readonly)

    def as_memoryview(self, handle: HostHandle, nbytes: int) -> memoryview:
        """The memory itself."""
        return handle.memoryview(nbytes)

    def is_readonly(self, handle: HostHandle) -> bool:
        """Whether the owner of the memory forbids writing."""
        return handle.readonly


def as_bytes(owner: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The memory of a contiguous object as a flat array of bytes, without a copy."""
    if isinstance(owner, np.ndarray):
        return owner.reshape(-1).view(np.uint8)
    if not memoryview(owner).nbytes:
        return np.empty(0, dtype=np.uint8)
    return np.frombuffer(owner, dtype=np.uint8)
