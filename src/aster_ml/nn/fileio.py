"""Files as tensors: opening one by name, reading bytes, and a file object over a byte tensor.

A file on disk is a uint8 tensor on the device `DISK:<path>`; what reads formats takes such a tensor
and never knows whether its bytes lie in a file or in memory.
"""

from __future__ import annotations

import functools
import io
import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.mixin.handle import check_tensor

T = TypeVar("T")


def accept_filename(func: Callable[[Tensor], T]) -> Callable[[Tensor | str | pathlib.Path], T]:
    """Lets a reader of byte tensors take a file's name as well."""

    @functools.wraps(func)
    def reader(fn: Tensor | str | pathlib.Path) -> T:
        return func(fn if isinstance(fn, Tensor) else open_file(fn))

    return reader


def open_file(fn: str | pathlib.Path) -> Tensor:
    """The file's bytes as a tensor on disk; nothing is read yet.

    Raises: FileNotFoundError, IsADirectoryError; FormatError for an empty file.
    """
    if not isinstance(fn, (str, os.PathLike)):
        raise ArgumentError(f"{fn!r} is a {type(fn).__name__}; the name of a file is wanted")
    path = pathlib.Path(fn)
    if not path.exists():
        raise FileNotFoundError(f"no file {str(path)!r} (in {str(path.absolute().parent)!r})")
    if path.is_dir():
        raise IsADirectoryError(f"{str(path)!r} is a folder, a file is wanted")
    if path.stat().st_size == 0:
        raise FormatError(f"{str(path)!r} is empty: it is truncated, or was never written")
    return Tensor(path)


def byte_count(t: Tensor, what: str) -> int:
    """How many bytes a file has that is given as a tensor.

    Raises: ArgumentError when it is not one axis of uint8.
    """
    check_tensor(t, what)
    if t.dtype != dtypes.uint8 or t.ndim != 1:
        raise ArgumentError(
            f"{what}: the file's bytes are wanted as a uint8 tensor of one axis, this one is "
            f"{t.dtype} {list(t.shape)}"
        )
    return int(t.shape[0])


def read_bytes(t: Tensor, begin: int, end: int) -> bytes:
    """Bytes begin to end, read now."""
    return bytes(t.shrink(((begin, end),)).data()) if begin < end else b""


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
        self.size = byte_count(t, "TensorIO")
        self.tensor, self.position = t, 0

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
        result = read_bytes(self.tensor, self.position, self.position + count)
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
