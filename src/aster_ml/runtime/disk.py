"""DISK: files as buffers. `DISK:path` is one file; runs nothing.

A buffer that is read maps the file, so nothing is read before it is looked at and slices cost
nothing. A buffer that is written (copyin) makes the file, or makes it longer. Handles open their
file on the first use, because only that tells reading from writing.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from aster_ml.allocator import Allocator
from aster_ml.backend import Backend, Program
from aster_ml.errors import DeviceError, OutOfMemoryError
from aster_ml.target import Target

DOC = "files, mapped into memory; DISK:path holds data, runs nothing"


class DiskFile:
    """A file that handles share: mapped for reading, and again when it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writable = False
        self.bytes: np.ndarray[Any, np.dtype[np.uint8]] | None = None
        self.mapped: mmap.mmap | None = None

    def read(self, stop: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of the file, at least `stop` of them.

        Raises: DeviceError when the file is not there, not readable or shorter.
        """
        if self.bytes is None or self.bytes.nbytes < stop:
            self.bytes = self.map(writable=False)
            if self.bytes.nbytes < stop:
                raise DeviceError(
                    f"file {self.path} has {self.bytes.nbytes} bytes, but byte {stop - 1} of it "
                    f"is wanted; it is truncated, or the size asked for is wrong"
                )
        return self.bytes

    def write(self, stop: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of the file, at least `stop` of them, to write to; makes the file.

        Raises: DeviceError when it cannot be written; OutOfMemoryError when the disk is full.
        """
        if self.bytes is None or not self.writable or self.bytes.nbytes < stop:
            # Some systems cannot change the length of a file that is mapped.
            self.bytes = self.mapped = None
            try:
                with open(self.path, "ab") as file:
                    length = file.seek(0, 2)
                    if length < stop:
                        reserve(file, length, stop)
            except OSError as error:
                raise DeviceError(
                    f"file {self.path} cannot be written: {error.strerror or error}; a path in a "
                    f"folder that exists and is writable would do"
                ) from error
            self.bytes = self.map(writable=True)
            self.writable = True
        return self.bytes

    def map(self, writable: bool) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Maps the whole file as it is now."""
        self.writable = writable
        self.mapped = None
        try:
            with open(self.path, "r+b" if writable else "rb") as file:
                if file.seek(0, 2) == 0:
                    return np.empty(0, dtype=np.uint8)
                access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
                self.mapped = mmap.mmap(file.fileno(), 0, access=access)
        except FileNotFoundError as error:
            raise DeviceError(
                f"file {self.path} does not exist; a path that does, or a copy to this one, which "
                f"makes it, would do"
            ) from error
        except OSError as error:
            raise DeviceError(
                f"file {self.path} cannot be opened: {error.strerror or error}"
            ) from error
        return np.frombuffer(self.mapped, dtype=np.uint8)


def reserve(file: Any, length: int, stop: int) -> None:
    """Grows a file from `length` to `stop` bytes that the disk has room for.

    A write through a map into a file with holes kills the process when the disk is full, so the
    room is taken first. Raises: OutOfMemoryError when there is none.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), length, stop - length)
            return
        zeros = bytes(min(stop - length, 1 << 20))
        for start in range(length, stop, len(zeros)):
            file.write(zeros[: stop - start])
        file.flush()
    except OSError as error:
        file.truncate(length)
        raise OutOfMemoryError(
            f"no room on the disk for {stop - length} bytes of {file.name}: {error.strerror}"
        ) from error


class DiskHandle:
    """`nbytes` bytes of a file from byte `start` on.

    The file has `whole` bytes, or gets them when a part is written.
    """

    __slots__ = ("file", "nbytes", "start", "whole")

    def __init__(self, file: DiskFile, start: int, nbytes: int, whole: int) -> None:
        self.file = file
        self.start = start
        self.nbytes = nbytes
        self.whole = whole


class DiskAllocator(Allocator):
    """Parts of one file."""

    def __init__(self, path: str) -> None:
        self.file = DiskFile(Path(path))

    def alloc(self, nbytes: int) -> DiskHandle:
        """The first `nbytes` bytes; the file is opened when they are read or written."""
        return DiskHandle(self.file, 0, nbytes, nbytes)

    def free(self, handle: DiskHandle, nbytes: int) -> None:
        """Nothing is held for a handle; the map goes with the last view of it."""
        handle.nbytes = 0

    def copyin(self, handle: DiskHandle, source: memoryview) -> None:
        """Writes bytes; makes the file, or makes it longer."""
        part = slice(handle.start, handle.start + source.nbytes)
        handle.file.write(max(part.stop, handle.whole))[part] = np.frombuffer(
            source, dtype=np.uint8
        )

    def copyout(self, target: memoryview, handle: DiskHandle) -> None:
        """Reads bytes."""
        part = slice(handle.start, handle.start + target.nbytes)
        np.frombuffer(target, dtype=np.uint8)[:] = handle.file.read(part.stop)[part]

    def offset(self, handle: DiskHandle, byte_offset: int, nbytes: int) -> DiskHandle:
        """A part of the part."""
        return DiskHandle(handle.file, handle.start + byte_offset, nbytes, handle.whole)

    def as_memoryview(self, handle: DiskHandle, nbytes: int) -> memoryview:
        """The file itself, mapped, for reading only."""
        part = slice(handle.start, handle.start + nbytes)
        return handle.file.read(part.stop)[part].data.toreadonly()


class DiskBackend(Backend):
    """One file."""

    @property
    def target(self) -> Target:
        """Nothing runs here: no ops, no dtypes."""
        return Target("DISK", "null", native_dtypes=frozenset(), native_ops=frozenset())

    def compile(self, source: str) -> bytes:
        """Refuses. Raises: DeviceError."""
        raise DeviceError("DISK holds data and runs nothing; copy to a device that computes: CPU")

    def load(self, name: str, binary: bytes) -> Program:
        """Refuses. Raises: DeviceError."""
        raise DeviceError("DISK holds data and runs nothing; copy to a device that computes: CPU")

    def synchronize(self) -> None:
        """Brings what was written to the disk."""
        allocator = self.allocator
        if isinstance(allocator, DiskAllocator):
            file = allocator.file
            if file.writable and file.mapped is not None:
                file.mapped.flush()


def missing() -> str | None:
    """Files are everywhere."""
    return None


def open_backend(name: str) -> Backend:
    """The backend of "DISK:path"."""
    return DiskBackend(name, DiskAllocator(name.partition(":")[2]))
