"""Allocates and frees device memory, pools freed blocks, and counts the bytes in use.

Receives sizes; returns handles: whatever a device uses to name a block of memory. Buffers, devices
and kernels do not belong here.
"""

from __future__ import annotations

import abc
import gc
import threading
from collections import defaultdict, deque
from typing import Any

from aster_ml.errors import DeviceError, OutOfMemoryError
from aster_ml.thread_state import SharedWeakSet

# Messages that may wait in an inbox, and the largest freed block that may wait there.
INBOX_LENGTH, LARGE_BYTES = 64, 1 << 20


def format_bytes(nbytes: int) -> str:
    """`1536` -> `1.5 KB`, in powers of 1024."""
    size = float(nbytes)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


class Drained(abc.ABC):
    """Bookkeeping that finalisers may change.

    A finaliser can run between any two steps of any thread, also in the middle of the bookkeeping
    itself, so it must not wait for a lock. It only appends to `inbox`, which is atomic. A thread
    that asks for a result, or finds the inbox long, drains the inbox with the lock held.
    """

    def __init__(self) -> None:
        self.inbox: deque[Any] = deque()
        self.lock = threading.Lock()
        DRAINED.add(self)

    def try_drain(self) -> None:
        """Drains the inbox, unless another thread holds the lock."""
        if self.lock.acquire(blocking=False):
            try:
                self.drain()
            finally:
                self.lock.release()

    @abc.abstractmethod
    def drain(self) -> None:
        """Drains the inbox; called with the lock held."""


DRAINED: SharedWeakSet[Drained] = SharedWeakSet()


class MemoryCounter(Drained):
    """Bytes that buffers hold, and the most they ever held, by device."""

    def __init__(self) -> None:
        super().__init__()
        self.held: defaultdict[str, int] = defaultdict(int)
        self.most: defaultdict[str, int] = defaultdict(int)

    def add(self, device: str, nbytes: int) -> None:
        """Counts `nbytes` more on `device`, fewer when negative."""
        self.inbox.append((device, nbytes))
        if len(self.inbox) >= INBOX_LENGTH:
            self.try_drain()

    def drain(self) -> None:
        """Applies the changes in the inbox."""
        while self.inbox:
            device, nbytes = self.inbox.popleft()
            for key in (device, ""):
                self.held[key] += nbytes
                if self.held[key] > self.most[key]:
                    self.most[key] = self.held[key]

    def in_use(self, device: str = "") -> int:
        """Bytes held on `device` now; on all devices when none is named."""
        with self.lock:
            self.drain()
            return self.held[device]

    def peak(self, device: str = "") -> int:
        """The most bytes that were held at once since the last `reset_peak`."""
        with self.lock:
            self.drain()
            return self.most[device]

    def reset_peak(self) -> None:
        """Starts the peaks again from what is held now."""
        with self.lock:
            self.drain()
            self.most = self.held.copy()


MEMORY = MemoryCounter()


class Allocator(abc.ABC):
    """Memory of one device. A handle is whatever the device calls a piece of memory.

    Copies return when the data is there: a later change of the host's side does no harm.
    """

    @abc.abstractmethod
    def alloc(self, nbytes: int) -> Any:
        """A handle on at least `nbytes` bytes with no particular content."""

    def alloc_zeros(self, nbytes: int) -> Any:
        """A handle on at least `nbytes` bytes of zeros whose pages are mapped at first use.

        None where the device has no such memory, or its pool has a used block that fits.
        """
        return None

    @abc.abstractmethod
    def free(self, handle: Any, nbytes: int) -> None:
        """Gives back what `alloc(nbytes)` returned. May run in a finaliser: waits for nothing."""

    @abc.abstractmethod
    def copyin(self, handle: Any, source: memoryview) -> None:
        """Host to device, all bytes of `source` (contiguous, format "B")."""

    @abc.abstractmethod
    def copyout(self, target: memoryview, handle: Any) -> None:
        """Device to host, as many bytes as `target` (contiguous, writable, format "B") has."""

    @abc.abstractmethod
    def offset(self, handle: Any, byte_offset: int, nbytes: int) -> Any:
        """A handle on a part of the memory of another."""

    def as_memoryview(self, handle: Any, nbytes: int) -> memoryview | None:
        """The memory itself as seen from the host, or None where the host cannot see it."""
        return None

    def can_wrap(self, owner: Any, alignment: int = 1) -> bool:
        """Whether `wrap` takes `owner` and an address of it at this alignment."""
        return False

    def wrap(self, owner: Any, nbytes: int) -> Any:
        """A handle on memory that `owner` (NumPy array, bytes, mmap, ...) holds; no copy."""
        raise DeviceError(f"{type(self).__name__} cannot take over memory of the host; copy it in")

    def is_readonly(self, handle: Any) -> bool:
        """Whether kernels must not write there (bytes, a file opened for reading)."""
        return False

    def free_cache(self) -> int:
        """Gives memory that is kept for reuse back to the system; returns how many bytes."""
        return 0


def size_class(nbytes: int) -> int:
    """The size that a pooled block of `nbytes` has: at most a sixteenth more, at least 64."""
    step = 64 if nbytes <= 2048 else 1 << ((nbytes - 1).bit_length() - 5)
    return (nbytes + step - 1) & -step or 64


class PooledAllocator(Drained, Allocator):
    """An allocator that keeps freed blocks for reuse.

    Fresh memory costs a page fault every 4 KB, more than many kernels take, so blocks are reused by
    size class. Past `limit_bytes` of unused blocks the oldest go back to the system. Subclasses
    give `alloc_block` (raises MemoryError when there is no room) and `free_block`.
    """

    def __init__(self, device: str, limit_bytes: int) -> None:
        Drained.__init__(self)
        self.device = device
        self.limit_bytes = limit_bytes
        self.pool_bytes = 0
        self.serial = 0
        # Every unused block by the order in which it came, and the orders of each size class.
        self.blocks: dict[int, tuple[int, Any]] = {}
        self.classes: dict[int, deque[int]] = {}

    @abc.abstractmethod
    def alloc_block(self, nbytes: int) -> Any:
        """Fresh memory. Raises: MemoryError when there is no room."""

    @abc.abstractmethod
    def free_block(self, handle: Any, nbytes: int) -> None:
        """Gives fresh memory back to the system."""

    def alloc(self, nbytes: int) -> Any:
        """A block of the pool where one fits, else a fresh one.

        Raises: OutOfMemoryError when there is no room even with the pool emptied.
        """
        wanted = size_class(nbytes)
        with self.lock:
            if self.inbox:
                self.drain()
            serials = self.classes.get(wanted)
            if serials:
                self.pool_bytes -= wanted
                # The youngest block of the class is the likeliest to be in the processor's cache.
                return self.blocks.pop(serials.pop())[1]
        try:
            return self.alloc_block(wanted)
        except MemoryError as error:
            reason = str(error)
        gc.collect()
        self.free_cache()
        try:
            return self.alloc_block(wanted)
        except MemoryError:
            used = format_bytes(MEMORY.in_use(self.device))
            raise OutOfMemoryError(
                f"{self.device} has no room for {format_bytes(nbytes)}: {used} in use by live "
                f"buffers, {format_bytes(self.pool_bytes)} kept for reuse"
                + (f" ({reason})" if reason else "")
                + "; smaller batches, or dropping tensors that are no longer needed, would help"
            ) from None

    def has_block(self, nbytes: int) -> bool:
        """Whether the pool has a block for so many bytes."""
        with self.lock:
            self.drain()
            return bool(self.classes.get(size_class(nbytes)))

    def free(self, handle: Any, nbytes: int) -> None:
        """Puts a block back into the pool."""
        self.inbox.append((size_class(nbytes), handle))
        if nbytes >= LARGE_BYTES or len(self.inbox) >= INBOX_LENGTH:
            self.try_drain()

    def drain(self) -> None:
        """Adds freed blocks to the pool, then frees the oldest ones beyond the pool's limit."""
        while self.inbox:
            nbytes, handle = self.inbox.popleft()
            self.serial += 1
            self.blocks[self.serial] = (nbytes, handle)
            serials = self.classes.get(nbytes)
            if serials is None:
                serials = self.classes[nbytes] = deque()
            serials.append(self.serial)
            self.pool_bytes += nbytes
        if self.pool_bytes > self.limit_bytes:
            self.shrink_to(self.limit_bytes)

    def shrink_to(self, limit_bytes: int) -> None:
        """Frees unused blocks, oldest first, until at most `limit_bytes` are kept."""
        while self.pool_bytes > limit_bytes:
            serial = next(iter(self.blocks))
            nbytes, handle = self.blocks.pop(serial)
            # Serials of a class ascend, so the oldest block of all is the first of its class.
            self.classes[nbytes].popleft()
            self.pool_bytes -= nbytes
            self.free_block(handle, nbytes)

    def free_cache(self) -> int:
        """Frees all unused blocks; returns how many bytes they had."""
        with self.lock:
            self.drain()
            before = self.pool_bytes
            self.shrink_to(0)
            return before
