"""Allocates memory of NVIDIA devices from a pool, and copies through pinned host memory.

Receives sizes and bytes of the host; returns handles with an `address` of the device. All accesses
are in one stream, so a block may be reused while kernels still read it: accesses of its next owner
come after them. The queue copies between devices.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from aster_ml.allocator import PooledAllocator
from aster_ml.errors import OutOfMemoryError
from aster_ml.runtime.cuda.context import OUT_OF_MEMORY, CudaDevice
from aster_ml.runtime.host_memory import as_bytes

# Bytes of a pinned piece, and the number of pieces in flight.
PIECE_NBYTES, PIECES = 4 << 20, 4


class CudaHandle:
    """`nbytes` bytes of a device from `address` on."""

    __slots__ = ("address", "device", "nbytes")

    def __init__(self, address: int, nbytes: int, device: CudaDevice) -> None:
        self.address = address
        self.nbytes = nbytes
        self.device = device

    def __repr__(self) -> str:
        return f"<CudaHandle {self.nbytes} bytes of {self.device.name} at {self.address:#x}>"


class Piece:
    """Pinned memory of the host, and an event after the last copy from or to it."""

    def __init__(self, device: CudaDevice) -> None:
        cu = device.cu
        self.device = device
        made = cu.cuMemAllocHost(PIECE_NBYTES)
        if int(made[0]) == OUT_OF_MEMORY:
            raise OutOfMemoryError(
                f"the host has no room for {PIECE_NBYTES >> 20} MB of pinned memory, which copies "
                f"to and from {device.name} go through; other programs may hold it"
            )
        self.address = int(device.check(made, "pinned memory"))
        flags = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self.event = device.check(cu.cuEventCreate(flags), "making an event")
        self.is_used = False

    def wait(self) -> None:
        """Returns when the last copy is done."""
        if self.is_used:
            self.device.check(self.device.cu.cuEventSynchronize(self.event), "a copy")
            self.is_used = False

    def mark(self) -> None:
        """Records the event after a copy that was just enqueued."""
        device = self.device
        device.check(device.cu.cuEventRecord(self.event, device.stream), "a copy")
        self.is_used = True

    def free(self) -> None:
        """Frees the memory, once the last copy is done."""
        if self.is_used:
            self.device.cu.cuEventSynchronize(self.event)
        self.device.cu.cuMemFreeHost(self.address)
        self.device.cu.cuEventDestroy(self.event)


class Staging:
    """Copies between host and device through a ring of pinned pieces, allocated on demand."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self.lock = threading.Lock()
        self.pieces: list[Piece] = []
        self.turn = 0

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            self.free()

    def free(self) -> None:
        """Frees all pieces; the next copy allocates new ones."""
        pieces, self.pieces = self.pieces, []
        if pieces and self.device.may_free():
            for piece in pieces:
                piece.free()

    def next_piece(self) -> Piece:
        """The next piece of the ring; its last copy may be in flight."""
        self.turn = (self.turn + 1) % PIECES
        if len(self.pieces) <= self.turn:
            self.pieces.append(Piece(self.device))
            self.turn = len(self.pieces) - 1
        return self.pieces[self.turn]

    def copyin(self, address: int, source: int, nbytes: int) -> None:
        """Host to device, after all work in the stream; the source may change on return."""
        device = self.device
        device.enter()
        with self.lock:
            for start in range(0, nbytes, PIECE_NBYTES):
                count = min(PIECE_NBYTES, nbytes - start)
                piece = self.next_piece()
                piece.wait()
                ctypes.memmove(piece.address, source + start, count)
                copy = device.cu.cuMemcpyHtoDAsync(
                    address + start, piece.address, count, device.stream
                )
                device.check(copy, "a copy to the device")
                piece.mark()

    def copyout(self, target: int, address: int, nbytes: int) -> None:
        """Device to host, after all work in the stream; the bytes are there on return."""
        device = self.device
        device.enter()
        with self.lock:
            on_the_way: deque[tuple[Piece, int, int]] = deque()
            for start in range(0, nbytes, PIECE_NBYTES):
                if len(on_the_way) == PIECES:
                    land(target, *on_the_way.popleft())
                count = min(PIECE_NBYTES, nbytes - start)
                piece = self.next_piece()
                piece.wait()
                copy = device.cu.cuMemcpyDtoHAsync(
                    piece.address, address + start, count, device.stream
                )
                device.check(copy, "a copy to the host")
                piece.mark()
                on_the_way.append((piece, start, count))
            for one in on_the_way:
                land(target, *one)


def land(target: int, piece: Piece, start: int, count: int) -> None:
    """Copies a pinned piece to the target."""
    piece.wait()
    ctypes.memmove(target + start, piece.address, count)


class CudaAllocator(PooledAllocator):
    """Pooled memory of one device; the pool keeps at most three quarters of it."""

    def __init__(self, device: CudaDevice) -> None:
        total = device.check(device.cu.cuDeviceTotalMem(device.number), "asking for its memory")
        super().__init__(device.name, total * 3 // 4)
        self.cuda = device
        self.staging = Staging(device)
        # Loaded programs keep the device alive, which must not keep the pool alive.
        pool = weakref.ref(self)
        device.spare = lambda: 0 if (found := pool()) is None else found.free_cache()

    def alloc_block(self, nbytes: int) -> CudaHandle:
        """Fresh memory of the device. Raises: MemoryError; DeviceError."""
        device = self.cuda
        device.enter()
        result = device.cu.cuMemAlloc(nbytes)
        if int(result[0]) == OUT_OF_MEMORY:
            raise MemoryError(device.room())
        address = device.check(result, f"an allocation of {nbytes} bytes")
        return CudaHandle(int(address), nbytes, device)

    def free_block(self, handle: CudaHandle, nbytes: int) -> None:
        """Frees memory by the driver, which waits for work that uses it."""
        if self.cuda.may_free():
            self.cuda.cu.cuMemFree(handle.address)

    def copyin(self, handle: CudaHandle, source: memoryview) -> None:
        """Host to device, after everything launched before."""
        self.staging.copyin(handle.address, as_bytes(source).ctypes.data, source.nbytes)

    def copyout(self, target: memoryview, handle: CudaHandle) -> None:
        """Device to host, after everything launched before."""
        self.staging.copyout(as_bytes(target).ctypes.data, handle.address, target.nbytes)

    def offset(self, handle: CudaHandle, byte_offset: int, nbytes: int) -> CudaHandle:
        """A part of the same memory."""
        return CudaHandle(handle.address + byte_offset, nbytes, handle.device)


def overlap(a: Any, b: Any, nbytes: int) -> bool:
    """Whether `nbytes` bytes of two handles overlap."""
    return bool(abs(a.address - b.address) < nbytes)
