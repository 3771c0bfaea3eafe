"""Manages buffers of device memory, and the registry of devices.

Receives device names, sizes and dtypes; returns memory and backends. `runtime/` implements the
devices, each imported by name at its first use. Graphs, kernels and tensors do not belong here.

A runtime module has three names: `DOC` (one line on what the device is), `missing()` (None when the
device works here, else a sentence that says what is absent and what would bring it), and
`open_backend(name)` (the `Backend` of "NAME" or "NAME:1").
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from aster_ml.allocator import DRAINED, MEMORY, Allocator
from aster_ml.backend import Backend
from aster_ml.config import DEV
from aster_ml.dtype import DType, to_numpy_dtype
from aster_ml.errors import ArgumentError, DeviceError, DTypeError, InternalError
from aster_ml.plugins import open_module
from aster_ml.uop.sharding import MULTI_SEEN

# Kinds of device, best first, and the module of each below `aster_ml.runtime`.
KINDS = {
    "CPU": "cpu.device",
    "CUDA": "cuda.device",
    "METAL": "metal.device",
    "OPENCL": "opencl",
    "WEBGPU": "webgpu.device",
    "PYTHON": "python",
    "NULL": "null",
    "DISK": "disk",
    "NPY": "npy",
}
# Those that hold data and run nothing.
STORAGE_KINDS = frozenset({"DISK", "NPY"})
# Kinds that other packages have registered (`DeviceRegistry.register`).
BROUGHT: dict[str, Any] = {}
# Group of entry points by which installed packages name such kinds, each a module for `register`.
GROUP = "aster_ml.devices"
# Other names of kinds: as other frameworks of this family call them.
ALSO_KNOWN = {"CL": "OPENCL", "LLVM": "CPU", "NV": "CUDA"}
# Files that exist where a GPU may be present; best kind first.
SIGNS = {
    "CUDA": ("/dev/nvidiactl", "/dev/dxg", "C:/Windows/System32/nvcuda.dll"),
    "METAL": ("/System/Library/Frameworks/Metal.framework",),
}
# Kinds that those frameworks have and Aster lacks, for the error message.
NOT_HERE = ("GPU", "AMD", "HIP", "QCOM", "DSP")


def renew_locks_after_fork() -> None:
    """Renews locks in a forked child, where a lock held by another thread would never be free."""
    for item in list(DRAINED):
        item.lock = threading.Lock()
    Device.lock = threading.RLock()


class Export(np.ndarray[Any, Any]):
    """Bytes of a buffer exported without a copy; keeps the buffer and its memory alive."""

    owner: Any = None


class Lent(np.ndarray[Any, Any]):
    """Memory shared with another package: either side may write at any time."""


new_object = object.__new__
# Replaces the base's handle in a view that was deallocated, until the view is allocated again.
RELEASED = object()
# Functions that count references to a buffer from layers above; those layers add them.
NAMES_OF: list[Callable[[Buffer], int]] = []


class Buffer:
    """`size` elements of memory on a device, allocated on demand, freed with the last reference.

    A view (`base` given) shares the memory of its base from byte `offset` on. `opaque` is memory
    that another object owns (a NumPy array, bytes, an mmap): it is kept alive, used in place and
    never pooled. `initial_value` are the first content, `uop_refcount` the first references.
    """

    __slots__ = (
        "__weakref__", "_base", "_base_handle", "_exports", "_handle", "_owns", "_references",
        "allocator", "device", "dtype", "nbytes", "offset", "opaque", "size", "written_at",
    )  # fmt: skip

    def __init__(
        self,
        device: str,
        size: int,
        dtype: DType,
        opaque: Any = None,
        base: Buffer | None = None,
        offset: int = 0,
        initial_value: bytes | None = None,
        uop_refcount: int = 0,
        preallocate: bool = False,
    ) -> None:
        self._references = uop_refcount
        # When it was last overwritten (`engine.storage.WRITES`); a view asks its base.
        self.written_at = 0
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
            raise ArgumentError(f"buffer: size {size} is negative; 0 or more is wanted")
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
        if opaque is not None or preallocate:
            self.allocate()
        if initial_value is not None:
            self.copyin(initial_value)

    @staticmethod
    def fresh(device: str, size: int, dtype: DType, allocator: Allocator) -> Buffer:
        """New memory of a device, under its canonical name, with no particular content."""
        self = new_object(Buffer)
        self._references = self.written_at = self.offset = 0
        self._base = self._base_handle = self.opaque = None
        self._exports = []
        self._owns = False
        self.allocator = allocator
        self.device, self.size, self.dtype = device, size, dtype
        nbytes = self.nbytes = size * dtype.itemsize
        self._handle = allocator.alloc(nbytes)
        self._owns = True
        MEMORY.add(device, nbytes)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._base is not None:
            return rebuild_view, (self._base, self.size, self.dtype, self.offset)
        content = bytes(self.as_memoryview(copy=True)) if self.is_allocated() else None
        return rebuild_buffer, (self.device, self.size, self.dtype, content)

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
            released = self._base_handle is RELEASED
            if base is None or base._handle is None or base.allocator is None or released:
                raise InternalError(f"{self!r} was used before it was allocated")
            self._base_handle = base._handle
            self._handle = base.allocator.offset(base._handle, self.offset, self.nbytes)
        return self._handle

    def is_allocated(self) -> bool:
        """Whether there is memory behind it."""
        return self.base._handle is not None

    def is_initialized(self) -> bool:
        """Whether it is allocated and, for a view, has a handle of its own on the memory."""
        base = self._base
        if base is None:
            return self._handle is not None
        return base._handle is not None and base._handle is self._base_handle

    @property
    def uop_refcount(self) -> int:
        """Number of nodes that name this memory, and of what `ref` has counted."""
        return self._references + sum([count(self) for count in NAMES_OF])

    def ref(self, count: int) -> Buffer:
        """Counts `count` more references, fewer when negative; returns itself."""
        self._references += count
        return self

    def is_readonly(self) -> bool:
        """Whether the memory must not be written (bytes, a file opened for reading)."""
        base = self.base
        return base.allocator is not None and base.allocator.is_readonly(base.handle)

    def ensure_allocated(self) -> Buffer:
        """Allocates memory if there is none; returns itself."""
        if self._base is None:
            if self._handle is None:
                self.allocate()
        elif not self.is_initialized():
            self.allocate()
        return self

    def allocate(self) -> Buffer:
        """Allocates memory of the device, or, for a view, of its base; returns itself.

        Raises: InternalError if it is allocated; OutOfMemoryError; DeviceError.
        """
        if self.is_initialized():
            raise InternalError(f"{self!r} is allocated twice")
        if self._base is not None:
            base = self._base.ensure_allocated()
            self._base_handle = base._handle
            self._handle = require(base.allocator).offset(base._handle, self.offset, self.nbytes)
            return self
        self.allocator = allocator = Device[self.device].allocator
        if self.opaque is not None:
            self._handle = allocator.wrap(self.opaque, self.nbytes)
        else:
            self._handle = allocator.alloc(self.nbytes)
            self._owns = True
            MEMORY.add(self.device, self.nbytes)
        return self

    def allocate_zeros(self) -> bool:
        """Allocates zero pages without writing them; False where the device has none."""
        if self._base is not None or self._handle is not None or self.opaque is not None:
            return False
        allocator = Device[self.device].allocator
        handle = allocator.alloc_zeros(self.nbytes)
        if handle is None:
            return False
        self.allocator, self._handle, self._owns = allocator, handle, True
        MEMORY.add(self.device, self.nbytes)
        return True

    def deallocate(self) -> None:
        """Frees the memory, once no export refers to it. A view only drops its base's memory.

        Raises: InternalError when there is no memory.
        """
        if self._handle is None:
            raise InternalError(f"{self!r} has no memory of its own to give back")
        if self._base is not None:
            self._handle, self._base_handle = None, RELEASED
            return
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

    def take_own_memory(self) -> Buffer:
        """Copies foreign memory to memory of its own; returns itself.

        Memory that another package lent for writing stays shared. Exports of the foreign memory
        keep it, with its present content.
        """
        if self.opaque is not None and not self.is_lent():
            copy = Buffer(self.device, self.size, self.dtype).copy_from(self)
            self.deallocate()
            self.opaque = None
            self.allocator, self._handle, self._owns = copy.allocator, copy._handle, copy._owns
            copy._handle, copy._owns = None, False
        return self

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        if self._owns and self.allocator is not None:
            self._owns = False
            self.allocator.free(handle, self.nbytes)
            MEMORY.add(self.device, -self.nbytes)

    # Bound here, since at the interpreter's end the names of a module may be gone already.
    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Without it, Ctrl-C has ended the making of self.
        if getattr(self, "_owns", False) and not finalizing():
            self._release()

    def view(self, size: int, dtype: DType, offset: int = 0) -> Buffer:
        """Another buffer on a part of the same memory, from byte `offset` of this one on.

        Raises: ArgumentError when the part is not inside.
        """
        return Buffer(self.device, size, dtype, base=self, offset=offset)

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

    def is_lent(self) -> bool:
        """Whether this memory is shared with another package for writing."""
        opaque = self.base.opaque
        return opaque.__class__ is Lent and bool(opaque.flags.writeable)

    def is_seen_by_host(self) -> bool:
        """Whether `as_memoryview` shows the memory itself."""
        base = self.base
        if base.allocator is None or not self.nbytes:
            return False
        return base.allocator.as_memoryview(self.handle, self.nbytes) is not None

    def copyin(self, source: Any) -> Buffer:
        """Fills the memory from a memoryview (or bytes, array, ...) of exactly as many bytes."""
        data = flat_bytes(source)
        if data.nbytes != self.nbytes:
            raise ArgumentError(f"copyin: given {data.nbytes} bytes, {self.nbytes} are wanted")
        self.ensure_allocated()
        if self.nbytes:
            require(self.base.allocator).copyin(self.handle, data)
        return self

    def copyout(self, target: Any) -> Any:
        """Fills a writable memoryview (or bytearray, array, ...) of exactly as many bytes."""
        data = flat_bytes(target)
        if data.nbytes != self.nbytes:
            raise ArgumentError(f"copyout: given {data.nbytes} bytes, {self.nbytes} are wanted")
        if data.readonly:
            raise ArgumentError("copyout: the target is read-only; a bytearray would do")
        if self.nbytes:
            require(self.base.allocator).copyout(data, self.handle)
        return target

    def copy_from(self, source: Buffer) -> Buffer:
        """Fills the memory from another buffer, of any device, of as many bytes."""
        if source.nbytes != self.nbytes:
            raise ArgumentError(f"copy: given {source.nbytes} bytes, {self.nbytes} are wanted")
        self.ensure_allocated()
        if not self.nbytes:
            return self
        source_view = require(source.base.allocator).as_memoryview(source.handle, source.nbytes)
        if source_view is not None:
            require(self.base.allocator).copyin(self.handle, source_view)
            return self
        own = require(self.base.allocator)
        if type(own) is type(source.base.allocator) and self.copy_on_device(source):
            return self
        own_view = own.as_memoryview(self.handle, self.nbytes)
        if own_view is not None and not own_view.readonly:
            source.copyout(own_view)
            return self
        return self.copyin(source.copyout(bytearray(self.nbytes)))

    def copy_on_device(self, source: Buffer) -> bool:
        """`copy_from` for a buffer of this kind of device, past the host; False if it cannot."""
        queue, other = Device[self.device].queue, Device[source.device].queue
        if queue is not other:
            queue.wait(other.signal())
        return queue.copy(self.handle, source.handle, self.nbytes)

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

    def as_buffer(self, allow_zero_copy: bool = False, force_zero_copy: bool = False) -> memoryview:
        """The bytes as a memoryview: a copy, or the memory itself if `allow_zero_copy`.

        Raises: DeviceError for `force_zero_copy` where the host cannot see the memory.
        """
        require(self.base.allocator if self.is_allocated() else None)
        if force_zero_copy and self.nbytes:
            seen = require(self.base.allocator).as_memoryview(self.handle, self.nbytes)
            if seen is None:
                raise DeviceError(
                    f"as_buffer: the host does not see the memory of {self.device}; "
                    "allow_zero_copy=True copies where that is so"
                )
        return self.as_memoryview(copy=not (allow_zero_copy or force_zero_copy))

    def as_typed_buffer(
        self,
        shape: tuple[int, ...] | None = None,
        allow_zero_copy: bool = False,
        force_zero_copy: bool = False,
    ) -> memoryview:
        """`as_buffer` with elements of our dtype, in this shape.

        Raises: DTypeError for dtypes that memoryviews do not know (bfloat16, fp8).
        """
        fmt = self.dtype.fmt
        if fmt is None:
            raise DTypeError(f"memoryviews have no {self.dtype.name}; .numpy() gives the elements")
        data: Any = self.as_buffer(allow_zero_copy, force_zero_copy)
        typed: memoryview = data.cast(fmt) if shape is None else data.cast(fmt, shape)
        return typed

    def numpy(self, copy: bool = False) -> np.ndarray[Any, Any]:
        """The elements as a flat array, under the same terms as `as_memoryview`."""
        if not self.size:
            return np.empty(0, dtype=to_numpy_dtype(self.dtype))
        return np.frombuffer(self.as_memoryview(copy), dtype=to_numpy_dtype(self.dtype))


def rebuild_buffer(device: str, size: int, dtype: DType, content: bytes | None) -> Buffer:
    """A buffer from what pickling wrote."""
    return Buffer(device, size, dtype, initial_value=content)


def rebuild_view(base: Buffer, size: int, dtype: DType, offset: int) -> Buffer:
    """A view from what pickling wrote."""
    return base.view(size, dtype, offset)


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
        raise ArgumentError("a copy to or from a device wants contiguous memory, given strided")
    return data if data.format == "B" and data.ndim == 1 else data.cast("B")


class DeviceRow(NamedTuple):
    """A line of `Device.describe()`: `note` is what the device is, or what would make it work."""

    name: str
    works: bool
    note: str


@functools.cache
def load_runtime(kind: str) -> ModuleType | str:
    """The module of a kind of device, or why there is none."""
    if kind in BROUGHT:
        brought: ModuleType = BROUGHT[kind]
        return brought
    name = f"aster_ml.runtime.{KINDS[kind]}"
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


def kinds() -> tuple[str, ...]:
    """All kinds of device, best first; registered ones last."""
    return (*KINDS, *BROUGHT)


def bring(kind: str) -> bool:
    """Registers a kind of device that an installed package names; False if none does."""
    import importlib.metadata  # it takes ten milliseconds, and nearly no program needs it

    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name.upper() == kind:
            Device.register(kind, point.load())
            return True
    return False


@functools.cache
def canonicalize(name: str) -> str:
    """The one spelling of a device's name."""
    kind, colon, rest = name.partition(":")
    kind = ALSO_KNOWN.get(kind.upper(), kind.upper())
    if kind not in kinds() and not bring(kind):
        known = ", ".join("DISK:path" if k == "DISK" else k for k in kinds())
        raise DeviceError(f"device {name!r} is unknown; there are {known}, and CPU:1 and so on")
    if kind == "DISK":
        if not rest:
            raise DeviceError(f"device {name!r} names no file; DISK:path/to/file does")
        return f"DISK:{rest}"
    if colon and not (rest.isascii() and rest.isdigit()):
        raise DeviceError(f"device {name!r}: {rest!r} is no number; {kind} or {kind}:1 would do")
    return kind if not colon or int(rest) == 0 else f"{kind}:{int(rest)}"


class DeviceRegistry:
    """All devices by name; each opens at its first use."""

    def __init__(self) -> None:
        self.opened: dict[str, Backend] = {}
        self.lock = threading.RLock()

    def register(self, kind: str, runtime: Any) -> None:
        """Registers a kind of device of another package.

        `runtime` is a module, its name, or any object, with what those of `aster_ml.runtime` have:
        `DOC`, a line on what it is; `missing()`, what it lacks here or None; and
        `open_backend(name)`, a `Backend`. An installed package can name it as an entry point of
        the group `aster_ml.devices` instead. Registered again, the kind is opened anew.

        Raises: ArgumentError for a name that is taken or no word, or a runtime that lacks one.
        """
        kind = kind.upper()
        if isinstance(runtime, str):
            runtime = importlib.import_module(runtime)
        if kind in KINDS or kind in ALSO_KNOWN or not kind.isalnum():
            raise ArgumentError(f"register: {kind!r} is taken, or no word; another is wanted")
        lacking = [n for n in ("DOC", "missing", "open_backend") if not hasattr(runtime, n)]
        if lacking:
            raise ArgumentError(f"register: the runtime of {kind} has no {', '.join(lacking)}")
        with self.lock:
            BROUGHT[kind] = runtime
            for name in [n for n in self.opened if n.partition(":")[0] == kind]:
                del self.opened[name]
            load_runtime.cache_clear()
            canonicalize.cache_clear()

    def canonicalize(self, name: Any) -> Any:
        """The one spelling of a name: "cpu:0" -> "CPU"; None is the default device.

        Of several names, a tuple of theirs; of a tuple of one, that one.

        Raises: DeviceError for a name that is no device, with those there are.
        """
        if isinstance(name, (tuple, list)):
            places = tuple([canonicalize(n) for n in name])
            if len(places) > 1 and not MULTI_SEEN:
                MULTI_SEEN.append(True)
            return places if len(places) > 1 else places[0]
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
        """The device of tensors that name none: the setting DEV, else `automatic`."""
        name = DEV.value
        return canonicalize(name) if name else self.automatic

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        DEV.set_for_all(canonicalize(name))

    @functools.cached_property
    def automatic(self) -> str:
        """The best GPU that works, else CPU; found once, at the first use."""
        for kind, signs in SIGNS.items():
            if any([os.path.exists(sign) for sign in signs]) and missing(kind) is None:
                return kind
        return "CPU"

    @property
    def default(self) -> Backend:
        """The backend of the default device."""
        return self[self.DEFAULT]

    def get_available_devices(self) -> list[str]:
        """The kinds of device that work here and can compute, best first."""
        return [k for k in kinds() if k not in STORAGE_KINDS and missing(k) is None]

    def describe(self) -> list[DeviceRow]:
        """One row for each kind of device: whether it works, what it is or what it lacks."""
        rows = []
        for kind in kinds():
            reason = missing(kind)
            module = load_runtime(kind)
            note = reason if isinstance(module, str) or reason is not None else module.DOC
            rows.append(DeviceRow(kind, reason is None, str(note)))
        return rows


def asked_by_environment() -> str:
    """The kind of device whose name is set in the environment, as `CPU=1` sets it; "" for none."""
    for kind in (*[k for k in KINDS if k not in STORAGE_KINDS], *ALSO_KNOWN, *NOT_HERE):
        text = os.environ.get(kind, "")
        if text.isdecimal() and int(text):
            return kind
    return ""


Device = DeviceRegistry()
if not DEV.value:
    DEV.set_for_all(asked_by_environment())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renew_locks_after_fork)

open_module(__name__)
