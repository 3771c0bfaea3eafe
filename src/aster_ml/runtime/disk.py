"""Opens files as buffers: `DISK:path` is one regular file; runs no kernels.

A read opens the file, so nothing is read before it is needed, and slices cost nothing. A write
(copyin) creates or extends the file; a read creates a file of zeros if there was none when the
buffer was allocated. Handles open their file at the first use, which decides between reading and
writing. Bytes are read and written by system calls and not through a map: a truncated file, or a
full or failing disk, raises an error, where accessing a map would end the process. `map_file`
accepts that risk for kernels that read the file in place.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np

from aster_ml.allocator import Allocator
from aster_ml.backend import Backend, StorageBackend
from aster_ml.errors import (
    DiskError,
    FileKindError,
    FileMissingError,
    OutOfMemoryError,
)
from aster_ml.runtime.host_queue import HostQueue
from aster_ml.thread_state import SharedWeakSet

DOC = "files; DISK:path holds data, runs nothing"
# Maps in use.
MAPS: SharedWeakSet[mmap.mmap] = SharedWeakSet()


class Descriptor:
    """An open file of the system, closed with the last reference."""

    def __init__(self, number: int, writable: bool) -> None:
        self.number = number
        self.writable = writable

    # Bound here, since at the interpreter's end the names of a module may be gone already.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class DiskFile:
    """A file that handles share: opened for reading, and again when it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: Descriptor | None = None
        # Bytes to create if a read finds no file; 0 for an existing file.
        self.new_nbytes = 0

    def read(self, start: int, target: memoryview) -> None:
        """Fills `target` with the bytes from `start` on.

        Raises: DiskError when the file is not there, not readable or, by now, shorter.
        """
        opened = self.opened
        if opened is None:
            if self.new_nbytes and not self.path.exists():
                self.write(0, memoryview(b""), self.new_nbytes)
            opened = self.opened = self.opened or self.open(writable=False)
        done = 0
        try:
            while done < target.nbytes:
                count = read_at(opened.number, target[done:], start + done)
                if not count:
                    size = os.fstat(opened.number).st_size
                    raise DiskError(
                        f"the file has {size} bytes, but byte {start + target.nbytes - 1} of it "
                        f"is wanted; it is truncated, or the size asked for is wrong",
                        path=str(self.path),
                    )
                done += count
        except OSError as error:
            raise self.failed("read", error) from error

    def write(self, start: int, source: memoryview, whole: int) -> None:
        """Puts bytes at `start`; makes the file, and gives it at least `whole` bytes.

        Raises: DiskError when it cannot be written; OutOfMemoryError when the disk is full.
        """
        opened = self.opened
        if opened is None or not opened.writable:
            opened = self.opened = self.open(writable=True)
        done = 0
        try:
            length = os.fstat(opened.number).st_size
            if length < whole:
                reserve(self.path, opened.number, length, whole)
            while done < source.nbytes:
                done += write_at(opened.number, source[done:], start + done)
        except OSError as error:
            raise self.failed("written", error) from error

    def open(self, writable: bool) -> Descriptor:
        """Opens the file; a plain one is wanted.

        Raises: DiskError when it is another, or cannot be opened.
        """
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        # Opening a pipe without a writer would block.
        flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        try:
            opened = Descriptor(os.open(self.path, flags, 0o666), writable)
            mode = os.fstat(opened.number).st_mode
        except FileNotFoundError as error:
            if writable:
                raise self.failed("written", error) from error
            raise DiskError(
                "the file does not exist; a path that does, or a copy to this one, which "
                "makes it, would do",
                path=str(self.path),
            ) from error
        except (OSError, ValueError) as error:
            raise self.failed("written" if writable else "opened", error) from error
        if not stat.S_ISREG(mode):
            raise DiskError(f"it is {kind_of_file(mode)}, a file is wanted", path=str(self.path))
        return opened

    def failed(self, what: str, error: OSError | ValueError) -> DiskError:
        """The error that says what could not be done with the file, and why."""
        reason = getattr(error, "strerror", None) or str(error)
        would_do = "; a path in a folder that exists and is writable would do"
        return DiskError(
            f"the file cannot be {what}: {reason}{would_do if what == 'written' else ''}",
            path=str(self.path),
        )

    def flush(self) -> None:
        """Flushes writes to the disk."""
        if self.opened is not None and self.opened.writable:
            os.fsync(self.opened.number)


def read_at(number: int, target: memoryview, start: int) -> int:
    """Reads into `target` from byte `start` of an open file; returns the count, 0 at the end.

    Uses pread if there is one, since forked processes share a file position.
    """
    if hasattr(os, "preadv"):
        return os.preadv(number, [target], start)
    os.lseek(number, start, os.SEEK_SET)
    data = os.read(number, target.nbytes)
    target[: len(data)] = data
    return len(data)


def write_at(number: int, source: memoryview, start: int) -> int:
    """Writes at byte `start` of an open file; the count of bytes written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(number, source, start)
    os.lseek(number, start, os.SEEK_SET)
    return os.write(number, source)


def kind_of_file(mode: int) -> str:
    """The kind of a file other than a regular one, by its mode."""
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def plain_file_size(path: Path) -> int:
    """Size of a plain file, in bytes.

    Raises: FileMissingError; FileKindError for what is no plain file.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileMissingError(
            f"no file {str(path)!r} (in {str(path.absolute().parent)!r}): {reason}"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise FileKindError(f"{str(path)!r} is {kind_of_file(found.st_mode)}, a file is wanted")
    return found.st_size


def map_file(path: Path) -> mmap.mmap:
    """The bytes of a file as read-only memory, which keeps the file open; none is read before use.

    The system starts reading ahead. Changes by other processes are visible; access beyond the end
    of a truncated file ends the process with SIGBUS.

    Raises: FileMissingError; FileKindError for what is no plain file; DiskError for one that is
    empty or cannot be read or mapped.
    """
    if plain_file_size(path) == 0:
        raise DiskError("the file is empty: there is nothing to map", path=str(path))
    try:
        with path.open("rb") as file:
            found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise DiskError(
            f"the file cannot be mapped: {getattr(error, 'strerror', None) or error}; without a "
            "map it is read",
            path=str(path),
        ) from error
    if hasattr(mmap, "MADV_WILLNEED"):
        found.madvise(mmap.MADV_WILLNEED)
    MAPS.add(found)
    return found


def forget_pages(memory: memoryview) -> None:
    """Releases the pages of a map in which `memory` is; other memory is unchanged.

    Pages that are read again come from the system's page cache.
    why: pages that were copied to another form are not needed, but count as memory of this process,
    together with the pages that the system maps around a small tensor
    """
    if not hasattr(mmap, "MADV_DONTNEED") or not memory.nbytes:
        return
    begin = np.frombuffer(memory, np.uint8).ctypes.data
    for found in list(MAPS):
        if 0 <= begin - np.frombuffer(found, np.uint8).ctypes.data < len(found):
            found.madvise(mmap.MADV_DONTNEED)


def reserve(path: Path, number: int, length: int, stop: int) -> None:
    """Grows an open file from `length` to `stop` bytes.

    Space is allocated first, so that a full disk leaves no half-written file.

    Raises: OutOfMemoryError when the disk is full.
    """
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(number, length, stop - length)
            return
        zeros = memoryview(bytes(min(stop - length, 1 << 20)))
        while length < stop:
            length += write_at(number, zeros[: stop - length], length)
    except OSError as error:
        os.ftruncate(number, length)
        raise OutOfMemoryError(
            f"no room on the disk for {stop - length} bytes of {path}: {error.strerror}"
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
        """The first `nbytes` bytes; the file is opened, or made, when they are read or written."""
        self.file.new_nbytes = 0 if os.path.lexists(self.file.path) else nbytes
        return DiskHandle(self.file, 0, nbytes, nbytes)

    def free(self, handle: DiskHandle, nbytes: int) -> None:
        """Nothing is held for a handle; the file is closed with the last of them."""
        handle.nbytes = 0

    def copyin(self, handle: DiskHandle, source: memoryview) -> None:
        """Writes bytes; makes the file, or makes it longer."""
        data = source.cast("B")
        handle.file.write(handle.start, data, max(handle.start + data.nbytes, handle.whole))

    def copyout(self, target: memoryview, handle: DiskHandle) -> None:
        """Reads bytes."""
        handle.file.read(handle.start, target.cast("B"))

    def offset(self, handle: DiskHandle, byte_offset: int, nbytes: int) -> DiskHandle:
        """A part of the part."""
        return DiskHandle(handle.file, handle.start + byte_offset, nbytes, handle.whole)


class DiskBackend(StorageBackend):
    """One file."""

    def synchronize(self) -> None:
        """Flushes writes to the disk."""
        allocator = self.allocator
        if isinstance(allocator, DiskAllocator):
            allocator.file.flush()


def missing() -> str | None:
    """Files are everywhere."""
    return None


def open_backend(name: str) -> Backend:
    """The backend of "DISK:path"."""
    return DiskBackend(name, DiskAllocator(name.partition(":")[2]), HostQueue())
