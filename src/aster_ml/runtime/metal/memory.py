"""Allocates Metal memory that the host sees too: pooled buffers of shared storage.

Receives sizes and bytes; returns handles: a buffer and an offset. A copy from or to the host waits
for all earlier launches, and is then done by the host.
"""

from __future__ import annotations

import ctypes

from aster_ml.allocator import PooledAllocator, format_bytes
from aster_ml.runtime.host_memory import as_bytes
from aster_ml.runtime.metal.api import api
from aster_ml.runtime.metal.context import MetalDevice
from aster_ml.runtime.metal.objc import Object

# MTLResourceStorageModeShared.
SHARED = 0


class MetalHandle:
    """`nbytes` bytes from `offset` on in a buffer; the host sees them at `address`."""

    __slots__ = ("address", "buffer", "device", "nbytes", "offset")

    def __init__(
        self, device: MetalDevice, buffer: Object, address: int, offset: int, nbytes: int
    ) -> None:
        self.device = device
        self.buffer = buffer
        self.address = address
        self.offset = offset
        self.nbytes = nbytes


class MetalAllocator(PooledAllocator):
    """Pooled buffers of one device; the pool keeps at most half of the recommended working set."""

    def __init__(self, device: MetalDevice) -> None:
        super().__init__(device.name, api().working_set(device.device.address) // 2)
        self.metal = device
        self.largest = int(api().largest(device.device.address))
        # All buffers in use or in the pool: the garbage collector must not release a buffer before
        # the pool has it back.
        self.live: set[Object] = set()

    def alloc_block(self, nbytes: int) -> MetalHandle:
        """A buffer of its own. Raises: MemoryError."""
        if nbytes > self.largest:
            raise MemoryError(f"the device takes {format_bytes(self.largest)} in one piece")
        buffer = Object(api().new_buffer(self.metal.device.address, nbytes, SHARED))
        if not buffer:
            total = api().working_set(self.metal.device.address)
            raise MemoryError(f"the device can use {format_bytes(total)}")
        self.live.add(buffer)
        address = int(api().contents(buffer.address))
        return MetalHandle(self.metal, buffer, address, 0, nbytes)

    def free_block(self, handle: MetalHandle, nbytes: int) -> None:
        """Releases the buffer with the last reference; commands in flight keep it alive."""
        self.live.discard(handle.buffer)

    def copyin(self, handle: MetalHandle, source: memoryview) -> None:
        """Host to device, after everything launched before."""
        self.metal.finish()
        ctypes.memmove(handle.address, as_bytes(source).ctypes.data, source.nbytes)

    def copyout(self, target: memoryview, handle: MetalHandle) -> None:
        """Device to host, after everything launched before."""
        self.metal.finish()
        ctypes.memmove(as_bytes(target).ctypes.data, handle.address, target.nbytes)

    def offset(self, handle: MetalHandle, byte_offset: int, nbytes: int) -> MetalHandle:
        """A part of the same memory."""
        place, address = handle.offset + byte_offset, handle.address + byte_offset
        return MetalHandle(handle.device, handle.buffer, address, place, nbytes)
