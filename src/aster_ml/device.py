"""Buffers, allocators, programs and the registry of devices.

Receives device names, sizes and dtypes; returns memory and things that can run. What a device is
made of lives in `runtime/<name>.py`, which this module looks up by name and never imports by hand.
Knows nothing of graphs, of what a kernel computes, or of tensors.

A runtime module has three names: `DOC` (one line on what the device is), `missing()` (None when the
device works here, else a sentence that says what is absent and what would bring it), and
`open_backend(name)` (the `Backend` of "NAME" or "NAME:1").
"""

from __future__ import annotations

import abc
import functools
import gc
import importlib
import os
import sys
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from aster_ml.config import DEV
from aster_ml.dtype import DType, to_numpy_dtype
from aster_ml.errors import ArgumentError, DeviceError, InternalError, OutOfMemoryError
from aster_ml.target import Target

# The kinds of device, best first. DISK and NPY hold data and run nothing.
KINDS = ("CPU", "OPENCL", "PYTHON", "NULL", "DISK", "NPY")
STORAGE_KINDS = frozenset({"DISK", "NPY"})

# How many messages books let pile up, and how large a freed block may be to wait among them.
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
    itself, so it must not wait for a lock. It only appends to `inbox`, which is atomic; whoever
    asks for a result, or finds the inbox long, works it off with the lock held.
    """

    def __init__(self) -> None:
        self.inbox: deque[Any] = deque()
        self.lock = threading.Lock()
        DRAINED.add(self)

    def settle(self) -> None:
        """Works the inbox off, unless somebody is at it."""
        if self.lock.acquire(blocking=False):
            try:
                self.drain()
            finally:
                self.lock.release()

    @abc.abstractmethod
    def drain(self) -> None:
        """Works the inbox off; called with the lock held."""


DRAINED: weakref.WeakSet[Drained] = weakref.WeakSet()


def renew_locks_after_fork() -> None:
    """In a forked child: a lock that another thread of the parent held would stay held for ever."""
    for item in list(DRAINED):
        item.lock = threading.Lock()
    Device.lock = threading.RLock()


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
            self.settle()

    def drain(self) -> None:
        """Takes in what was posted."""
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
    """An allocator that keeps freed blocks and hands them out again.

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

    def free(self, handle: Any, nbytes: int) -> None:
        """Puts a block back into the pool."""
        self.inbox.append((size_class(nbytes), handle))
        if nbytes >= LARGE_BYTES or len(self.inbox) >= INBOX_LENGTH:
            self.settle()

    def drain(self) -> None:
        """Takes freed blocks in, then lets the oldest go until the pool is within its limit."""
        while self.inbox:
            nbytes, handle = self.inbox.popleft()
            self.serial += 1
            self.blocks[self.serial] = (nbytes, handle)
            self.classes.setdefault(nbytes, deque()).append(self.serial)
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


class Export(np.ndarray[Any, Any]):
    """Bytes of a buffer as the outside sees them; keeps the buffer, and so the memory, alive."""

    owner: Any = None


class Buffer:
    """`size` elements of memory on a device, allocated on demand, freed with the last reference.

    A view (`base` given) shares the memory of its base from byte `offset` on. `opaque` is memory
    that something else holds (a NumPy array, bytes, an mmap): it is kept alive, used in place and
    never pooled.
    """

    __slots__ = (
        "__weakref__", "_base", "_base_handle", "_exports", "_handle", "_owns", "allocator",
        "device", "dtype", "nbytes", "offset", "opaque", "size",
    )  # fmt: skip

    def __init__(
        self,
        device: str,
        size: int,
        dtype: DType,
        opaque: Any = None,
        base: Buffer | None = None,
        offset: int = 0,
    ) -> None:
        self._handle: Any = None
        self._owns = False
        self._base_handle: Any = None
        self._exports: list[weakref.ref[Export]] = []
        self._base: Buffer | None = None
        self.allocator: Allocator | None = None
        self.device = Device.canonicalize(device)
        self.size = size
        self.dtype = dtype
        self.nbytes = size * dtype.itemsize
        self.offset = offset
        self.opaque = opaque
        if size < 0:
            raise ArgumentError(f"buffer: size {size} is negative")
        if base is not None:
            self._base = base.base
            self.offset += base.offset
            if base.device != self.device or opaque is not None:
                raise InternalError(f"a view of {base!r} has its device and no memory of its own")
            if offset < 0 or offset + self.nbytes > base.nbytes:
                raise ArgumentError(
                    f"buffer view: bytes {offset} to {offset + self.nbytes} are not inside a "
                    f"buffer of {base.nbytes} bytes"
                )
        elif offset != 0:
            raise InternalError(f"buffer: offset {offset} without a base")
        if opaque is not None:
            self.allocate()

    def __repr__(self) -> str:
        state = "allocated" if self.is_allocated() else "not allocated"
        place = f" at byte {self.offset} of a buffer" if self._base is not None else ""
        return f"<Buffer {self.device} {self.size} x {self.dtype.name}{place}, {state}>"

    @property
    def base(self) -> Buffer:
        """The buffer that has the memory: itself, unless it is a view."""
        return self if self._base is None else self._base

    @property
    def handle(self) -> Any:
        """The device's handle on the memory.

        Raises: InternalError when there is no memory yet.
        """
        base = self._base
        # A base that was freed and allocated again has another handle.
        if self._handle is None or (base is not None and base._handle is not self._base_handle):
            if base is None or base._handle is None or base.allocator is None:
                raise InternalError(f"{self!r} was used before it was allocated")
            self._base_handle = base._handle
            self._handle = base.allocator.offset(base._handle, self.offset, self.nbytes)
        return self._handle

    def is_allocated(self) -> bool:
        """Whether there is memory behind it."""
        return self.base._handle is not None

    def is_readonly(self) -> bool:
        """Whether the memory must not be written (bytes, a file opened for reading)."""
        base = self.base
        return base.allocator is not None and base.allocator.is_readonly(base.handle)

    def ensure_allocated(self) -> Buffer:
        """Allocates unless that was done; returns itself."""
        if not self.is_allocated():
            self.base.allocate()
        return self

    def allocate(self) -> Buffer:
        """Takes memory from the device; returns itself.

        Raises: InternalError when it has some; OutOfMemoryError; DeviceError.
        """
        if self._base is not None:
            self._base.allocate()
            return self
        if self._handle is not None:
            raise InternalError(f"{self!r} is allocated twice")
        self.allocator = allocator = Device[self.device].allocator
        if self.opaque is not None:
            self._handle = allocator.wrap(self.opaque, self.nbytes)
        else:
            self._handle = allocator.alloc(self.nbytes)
            self._owns = True
            MEMORY.add(self.device, self.nbytes)
        return self

    def deallocate(self) -> None:
        """Gives the memory back. What still sees it from outside keeps it until it is done.

        Raises: InternalError for a view or when there is no memory.
        """
        if self._base is not None or self._handle is None:
            raise InternalError(f"{self!r} has no memory of its own to give back")
        exports = self.live_exports()
        if exports:
            heir = Buffer(self.device, self.size, self.dtype)
            heir._handle, heir._owns, heir.allocator = self._handle, self._owns, self.allocator
            heir.opaque = self.opaque
            for export in exports:
                export.owner = heir
            self._owns = False
        self._release()
        self._exports = []

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        if self._owns and self.allocator is not None:
            self._owns = False
            self.allocator.free(handle, self.nbytes)
            MEMORY.add(self.device, -self.nbytes)

    # Bound here, since at the interpreter's end the names of a module may be gone already.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._owns and not finalizing():
            self._release()

    def view(self, size: int, dtype: DType, offset_bytes: int = 0) -> Buffer:
        """Another buffer on a part of the same memory.

        Raises: ArgumentError when the part is not inside.
        """
        return Buffer(self.device, size, dtype, base=self, offset=offset_bytes)

    def live_exports(self) -> list[Export]:
        """The memoryviews and arrays outside that see this memory without a copy."""
        base = self.base
        live = [export for reference in base._exports if (export := reference()) is not None]
        if len(live) != len(base._exports):
            base._exports = [weakref.ref(export) for export in live]
        return live

    def is_exported(self) -> bool:
        """Whether a memoryview or array outside still sees this memory without a copy."""
        return bool(self.base._exports) and bool(self.live_exports())

    def copyin(self, source: Any) -> Buffer:
        """Fills the memory from a memoryview (or bytes, array, ...) of exactly as many bytes."""
        data = flat_bytes(source)
        if data.nbytes != self.nbytes:
            raise ArgumentError(f"copyin: {data.nbytes} bytes into a buffer of {self.nbytes}")
        self.ensure_allocated()
        if self.nbytes:
            require(self.base.allocator).copyin(self.handle, data)
        return self

    def copyout(self, target: Any) -> Any:
        """Fills a writable memoryview (or bytearray, array, ...) of exactly as many bytes."""
        data = flat_bytes(target)
        if data.nbytes != self.nbytes:
            raise ArgumentError(f"copyout: a buffer of {self.nbytes} bytes into {data.nbytes}")
        if data.readonly:
            raise ArgumentError("copyout: the target is read-only; a bytearray would do")
        if self.nbytes:
            require(self.base.allocator).copyout(data, self.handle)
        return target

    def copy_from(self, source: Buffer) -> Buffer:
        """Fills the memory from another buffer, of any device, of as many bytes."""
        if source.nbytes != self.nbytes:
            raise ArgumentError(f"copy: {source.nbytes} bytes into a buffer of {self.nbytes}")
        self.ensure_allocated()
        if not self.nbytes:
            return self
        source_view = require(source.base.allocator).as_memoryview(source.handle, source.nbytes)
        if source_view is not None:
            require(self.base.allocator).copyin(self.handle, source_view)
            return self
        own_view = require(self.base.allocator).as_memoryview(self.handle, self.nbytes)
        if own_view is not None and not own_view.readonly:
            source.copyout(own_view)
            return self
        return self.copyin(source.copyout(bytearray(self.nbytes)))

    def as_memoryview(self, copy: bool = False) -> memoryview:
        """The bytes: the memory itself where the host can see it and no copy is asked, else a copy.

        The memoryview keeps the memory alive, also past the buffer.
        """
        if not self.nbytes:
            return memoryview(bytearray())
        allocator = require(self.base.allocator if self.is_allocated() else None)
        view = None if copy else allocator.as_memoryview(self.handle, self.nbytes)
        if view is None:
            return memoryview(self.copyout(bytearray(self.nbytes)))
        export = np.frombuffer(view, dtype=np.uint8).view(Export)
        export.owner = self
        self.base._exports.append(weakref.ref(export))
        return export.data

    def numpy(self, copy: bool = False) -> np.ndarray[Any, Any]:
        """The elements as a flat array, under the same terms as `as_memoryview`."""
        if not self.size:
            return np.empty(0, dtype=to_numpy_dtype(self.dtype))
        return np.frombuffer(self.as_memoryview(copy), dtype=to_numpy_dtype(self.dtype))


def require(allocator: Allocator | None) -> Allocator:
    """The allocator of a buffer that has to have memory."""
    if allocator is None:
        raise InternalError("a buffer was read before it was allocated")
    return allocator


def flat_bytes(source: Any) -> memoryview:
    """Any contiguous object with the buffer protocol as a memoryview of bytes."""
    if isinstance(source, np.ndarray) and source.flags.c_contiguous:
        # NumPy refuses the buffer protocol to types it does not know, such as bfloat16.
        source = source.reshape(-1).view(np.uint8)
    data = memoryview(source)
    if not data.nbytes:
        return memoryview(bytearray())
    if not data.c_contiguous:
        raise ArgumentError("a copy to or from a device wants contiguous memory; these are strided")
    return data if data.format == "B" and data.ndim == 1 else data.cast("B")


class Program(abc.ABC):
    """A loaded kernel."""

    name: str

    @abc.abstractmethod
    def __call__(
        self,
        handles: tuple[Any, ...],
        vars: tuple[int, ...] = (),
        global_size: tuple[int, ...] = (1, 1, 1),
        local_size: tuple[int, ...] | None = None,
        wait: bool = False,
    ) -> float | None:
        """Launches on memory and the values of variables; with `wait`, returns the seconds."""


class Call(NamedTuple):
    """One launch in a recorded graph.

    `n` is the size of the range that is split in `parts`; where the target has work-groups both
    are unused. `barrier_after` says that a later call may read or overwrite what this one touches.
    """

    program: Program
    handles: tuple[Any, ...]
    vars: tuple[int, ...] = ()
    n: int = 1
    parts: int = 1
    barrier_after: bool = True


class Graph(abc.ABC):
    """Recorded launches that replay as one."""

    @abc.abstractmethod
    def set_handle(self, call: int, slot: int, handle: Any) -> None:
        """Gives a call other memory."""

    @abc.abstractmethod
    def set_var(self, call: int, slot: int, value: int) -> None:
        """Gives a call another value of its variable number `slot`."""

    @abc.abstractmethod
    def set_size(self, call: int, n: int) -> None:
        """Gives a call another size of the range that is split."""

    @abc.abstractmethod
    def run(self) -> None:
        """Runs all calls in order."""


class Backend(abc.ABC):
    """What the rest of Aster needs of one device."""

    name: str
    allocator: Allocator

    def __init__(self, name: str, allocator: Allocator) -> None:
        self.name = name
        self.allocator = allocator

    @property
    @abc.abstractmethod
    def target(self) -> Target:
        """What the device can do, under the settings of now."""

    @abc.abstractmethod
    def compile(self, source: str) -> bytes:
        """Source text in the target's language as a binary. Raises: CompileError."""

    @abc.abstractmethod
    def load(self, name: str, binary: bytes) -> Program:
        """The function `name` of a compiled binary, ready to launch."""

    def make_graph(self, calls: Sequence[Call]) -> Graph | None:
        """The launches as one replayable object, or None where the device has no such thing."""
        return None

    def disassemble(self, source: str) -> str:
        """What the source becomes, for DEBUG=7."""
        return f"({self.name} has no disassembly)"

    def synchronize(self) -> None:
        """Waits until everything launched is done."""
        return


class DeviceRow(NamedTuple):
    """A line of `Device.describe()`: `note` is what the device is, or what would make it work."""

    name: str
    works: bool
    note: str


@functools.cache
def load_runtime(kind: str) -> ModuleType | str:
    """The module of a kind of device, or why there is none."""
    name = f"aster_ml.runtime.{kind.lower()}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return f"this installation has no module {name}"


def missing(kind: str) -> str | None:
    """Why the kind of device does not work here and what would help; None when it works."""
    module = load_runtime(kind)
    if isinstance(module, str):
        return module
    reason: str | None = module.missing()
    return reason


@functools.cache
def canonicalize(name: str) -> str:
    """The one spelling of a device's name."""
    kind, colon, rest = name.partition(":")
    kind = kind.upper()
    if kind not in KINDS:
        known = ", ".join("DISK:path" if k == "DISK" else k for k in KINDS)
        raise DeviceError(f"device {name!r} is unknown; there are {known}, and CPU:1 and so on")
    if kind == "DISK":
        if not rest:
            raise DeviceError(f"device {name!r} names no file; DISK:path/to/file does")
        return f"DISK:{rest}"
    if colon and not (rest.isascii() and rest.isdigit()):
        raise DeviceError(f"device {name!r}: {rest!r} is no number; {kind} or {kind}:1 would do")
    return kind if not colon or int(rest) == 0 else f"{kind}:{int(rest)}"


class DeviceRegistry:
    """All devices by name; each opens when it is first asked for."""

    def __init__(self) -> None:
        self.opened: dict[str, Backend] = {}
        self.lock = threading.RLock()

    def canonicalize(self, name: str | None) -> str:
        """The one spelling of a name: "cpu:0" -> "CPU"; None is the default device.

        Raises: DeviceError for a name that is no device, with those there are.
        """
        return self.DEFAULT if name is None else canonicalize(name)

    def __getitem__(self, name: str | None) -> Backend:
        """The backend of a device.

        Raises: DeviceError when it is unknown or does not work here.
        """
        found = self.opened.get(name) if name is not None else None
        return found if found is not None else self.open(self.canonicalize(name))

    def open(self, name: str) -> Backend:
        """Opens the device with this canonical name, or returns it when it is open."""
        with self.lock:
            if name in self.opened:
                return self.opened[name]
            kind = name.partition(":")[0]
            reason = missing(kind)
            if reason is not None:
                works = ", ".join(self.get_available_devices())
                raise DeviceError(f"device {kind} does not work here: {reason}. Working: {works}")
            module = load_runtime(kind)
            if isinstance(module, str):
                raise InternalError(module)
            backend: Backend = module.open_backend(name)
            # There is one DISK device for each file, and a program may read any number of files.
            if kind != "DISK":
                self.opened[name] = backend
            return backend

    @property
    def DEFAULT(self) -> str:
        """The device of tensors that name none: the setting DEV, else CPU."""
        return canonicalize(DEV.value or "CPU")

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        DEV.value = canonicalize(name)

    @property
    def default(self) -> Backend:
        """The backend of the default device."""
        return self[self.DEFAULT]

    def get_available_devices(self) -> list[str]:
        """The kinds of device that work here and can compute, best first."""
        return [k for k in KINDS if k not in STORAGE_KINDS and missing(k) is None]

    def describe(self) -> list[DeviceRow]:
        """One row for each kind of device: whether it works, what it is or what it lacks."""
        rows = []
        for kind in KINDS:
            reason = missing(kind)
            module = load_runtime(kind)
            note = module.DOC if isinstance(module, ModuleType) and reason is None else reason
            rows.append(DeviceRow(kind, reason is None, str(note)))
        return rows


Device = DeviceRegistry()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_locks_after_fork)
