"""Reads files as tensors: opens one by name, and gives a file object over a byte tensor.

A file on disk is a uint8 tensor on the device `DISK:<path>`; what reads formats takes such a tensor
and never knows whether its bytes lie in a file or in memory. `FileBytes` reads parts of it and
counts what reading takes; `Cursor` reads one value after another. What is in a file does not
belong here.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.extend import check_tensor, plain_file_size, wrapped_node
from aster_ml.helpers import kind_of
from aster_ml.unpacking import Allowance

T = TypeVar("T")
CHUNK_NBYTES, MAX_LINE_NBYTES = 1 << 18, 1 << 16
SHOWN_BITS, SHOWN_LENGTH = 256, 80
MAX_ELEMENTS, MAX_AXES = 1 << 60, 64
# Memory that a tensor takes which is a view of a file.
TENSOR_NBYTES = 2048


def accept_filename(func: Callable[[Tensor], T]) -> Callable[[Tensor | str | pathlib.Path], T]:
    """Lets a reader of byte tensors take a file's name as well; its errors have the file's name."""

    @functools.wraps(func)
    def reader(fn: Tensor | str | pathlib.Path) -> T:
        t = fn if isinstance(fn, Tensor) else open_file(fn)
        try:
            return func(t)
        except FormatError as error:
            error.path = error.path or path_of(t)
            raise

    return reader


def open_file(fn: str | pathlib.Path) -> Tensor:
    """The file's bytes as a tensor on disk; nothing is read yet.

    Raises: FileMissingError, FileKindError for a folder, pipe or device; FormatError for an empty
    file.
    """
    if not isinstance(fn, (str, os.PathLike)):
        raise ArgumentError(f"{fn!r} is {kind_of(fn)}; the name of a file is wanted")
    path = pathlib.Path(fn)
    if plain_file_size(path) == 0:
        raise FormatError(f"{str(path)!r} is empty: it is truncated, or was never written")
    return Tensor(path)


def path_of(t: Tensor) -> str:
    """The name of the file that a tensor lies in, or nothing."""
    device = str(t.device)
    return device.partition(":")[2] if device.startswith("DISK") else ""


def byte_count(t: Tensor, what: str) -> int:
    """Number of bytes of a file that is given as a tensor.

    Raises: ArgumentError when it is not one axis of uint8.
    """
    check_tensor(t, what)
    if t.dtype != dtypes.uint8 or t.ndim != 1:
        raise ArgumentError(
            f"{what}: the file's bytes are wanted as a uint8 tensor of one axis, this one is "
            f"{t.dtype} {list(t.shape)}"
        )
    return int(t.shape[0])


def show_value(value: Any) -> str:
    """A value out of a file for a message: short, whatever it is."""
    if isinstance(value, int) and value.bit_length() > SHOWN_BITS:
        return f"an int of {value.bit_length()} bits"
    if isinstance(value, (str, bytes)):
        return repr(value[:SHOWN_LENGTH]) + ("..." if len(value) > SHOWN_LENGTH else "")
    if value is None or isinstance(value, (int, float)):
        return repr(value)
    scalar = (int, float, str, bytes)
    if isinstance(value, (list, tuple)) and all([isinstance(v, scalar) for v in value[:9]]):
        shown = ", ".join([show_value(v) for v in value[:8]])
        return f"[{shown}{', ...' if len(value) > 8 else ''}]"
    return kind_of(value)


def count_elements(shape: Iterable[int], place: str) -> int:
    """Number of elements of a shape out of a file.

    Raises: FormatError when no memory could hold them, or it has more axes than any tensor.
    """
    sizes = list(shape)
    if len(sizes) > MAX_AXES:
        raise FormatError(f"{len(sizes)} axes, at most {MAX_AXES} are wanted", place)
    count = 0 if 0 in sizes else 1
    for size in sizes:
        count *= size
        if max(count, size) >= MAX_ELEMENTS:
            raise FormatError(f"shape {show_value(sizes)} is larger than any memory", place)
    return count


class FileBytes:
    """The bytes of a file that is given as a tensor, and the memory that reading it may take."""

    def __init__(self, t: Tensor, what: str) -> None:
        self.nbytes = byte_count(t, what)
        self.buffer = t._memory() if self.nbytes else None
        self.allowance = Allowance(self.nbytes)

    def read(self, begin: int, end: int) -> bytes:
        """Bytes begin to end, as many of them as there are; read now."""
        end = min(end, self.nbytes)
        if self.buffer is None or begin >= end:
            return b""
        part = self.buffer.view(end - begin, dtypes.uint8, begin)
        return bytes(part.copyout(bytearray(end - begin)))

    def cursor(self, place: str, begin: int = 0, end: int | None = None) -> Cursor:
        """Reads from `begin` on, up to `end`."""
        stop = self.nbytes if end is None else min(end, self.nbytes)
        return Cursor(self.read, begin, stop, place, self.allowance)


def cursor_over(data: bytes | bytearray, place: str, allowance: Allowance) -> Cursor:
    """Reads one value after another of bytes in memory."""
    return Cursor(lambda begin, end: bytes(data[begin:end]), 0, len(data), place, allowance)


class Cursor:
    """Reads one value after another, from chunks of what `read` gives; counts from its start."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        begin: int,
        end: int,
        place: str,
        allowance: Allowance,
    ) -> None:
        self.read, self.position, self.end = read, begin, end
        self.place, self.allowance = place, allowance
        self.chunk, self.chunk_start = b"", begin

    def look(self, count: int) -> tuple[bytes, int]:
        """A chunk with the next `count` bytes, or what there is of them, and where they begin."""
        offset = self.position - self.chunk_start
        if offset + count > len(self.chunk):
            stop = min(self.end, self.position + max(count, CHUNK_NBYTES))
            self.chunk, self.chunk_start = self.read(self.position, stop), self.position
            offset = 0
        return self.chunk, offset

    def take(self, count: int, what: str) -> bytes:
        """The next bytes.

        Raises: FormatError when the file ends before.
        """
        if self.position + count > self.end:
            raise FormatError(
                f"{what} takes {show_value(count)} bytes at {self.position}, there are "
                f"{self.end}: it is truncated, or its header lies",
                self.place,
            )
        chunk, offset = self.look(count)
        self.position += count
        return chunk[offset : offset + count]

    def line(self) -> bytes:
        """The bytes before the next end of a line.

        Raises: FormatError when there is none, or not within MAX_LINE_NBYTES.
        """
        chunk, offset = self.look(min(MAX_LINE_NBYTES, self.end - self.position))
        stop = chunk.find(b"\n", offset, offset + MAX_LINE_NBYTES)
        if stop < 0:
            raise FormatError(f"the line at {self.position} has no end", self.place)
        self.position += stop + 1 - offset
        return chunk[offset:stop]


def part_of(t: Tensor, begin: int, end: int) -> Tensor:
    """Bytes begin to end of t, without reading them; of a mapped file, as memory of its own.

    why: a kernel gets memory as an argument, so one serves all parts of a form, wherever they lie
    """
    owner = t._memory().opaque if begin < end and not path_of(t) else None
    if not isinstance(owner, np.ndarray) or owner.size != t.shape[0] or owner.flags.writeable:
        return t.shrink(((begin, end),))
    return t._naming(wrapped_node(owner[begin:end], str(t.device)))


def view_bytes(t: Tensor, begin: int, end: int, dtype: Any, shape: tuple[int, ...]) -> Tensor:
    """Bytes begin to end of t as a tensor of that dtype and shape, without reading them."""
    if begin == end:
        return Tensor.empty(*shape, dtype=dtype, device=t.device)
    return t.shrink(((begin, end),)).bitcast(dtype).reshape(shape)


class TensorIO(io.RawIOBase):
    """A byte tensor as a binary file that can be read and sought in.

    Wrap it in `io.BufferedReader` where reads are small: every read here is one of the device.
    """

    def __init__(self, t: Tensor) -> None:
        self.source = FileBytes(t, "TensorIO")
        self.size, self.tensor, self.position = self.source.nbytes, t, 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes, all that are left when size is negative."""
        left = max(self.size - self.position, 0)
        count = left if size is None or size < 0 else min(size, left)
        result = self.source.read(self.position, self.position + count)
        self.position += count
        return result

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # any writable buffer
        """Fill the buffer from here; returns the count of bytes, 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to offset, counted from the start, from here or from the end; not past the end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ArgumentError(f"TensorIO.seek: whence={whence}, 0, 1 or 2 is wanted")
        self.position = min(max(0, base + offset), self.size)
        return self.position

    def tell(self) -> int:
        """Where the next read begins."""
        return self.position

    def write(self, data) -> int:  # type: ignore[no-untyped-def]  # any buffer
        """Not possible: Raises io.UnsupportedOperation."""
        raise io.UnsupportedOperation("TensorIO only reads")

    def writelines(self, lines) -> None:  # type: ignore[no-untyped-def]  # any buffers
        """Not possible: Raises io.UnsupportedOperation."""
        raise io.UnsupportedOperation("TensorIO only reads")
