"""Decompresses files, and bounds the memory that reading one file may take.

Receives bytes of gzip, bzip2, xz or zip's methods; returns the decompressed bytes. A file of a few
bytes can decompress to gigabytes, so memory is counted before it is allocated: at most FREE_NBYTES
plus LOAD_LIMIT times the file's size.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import Any

from aster_ml.config import LOAD_LIMIT
from aster_ml.errors import FormatError

FREE_NBYTES = 64 << 20
CHUNK_NBYTES, PIECE_NBYTES = 1 << 16, 1 << 20
# Memory limit of the xz decoder; its strongest preset takes a third of it.
XZ_NBYTES = 192 << 20
# First bytes of a file -> its kind.
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}


class Allowance:
    """Counts the memory that reading a file of `nbytes` bytes takes, and enforces its limit."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.limit = FREE_NBYTES + LOAD_LIMIT.value * nbytes if LOAD_LIMIT else None
        self.taken = 0

    def take(self, nbytes: int, place: str = "") -> None:
        """Counts `nbytes` more.

        Raises: FormatError when that is more than the file may take.
        """
        self.taken += nbytes
        if self.limit is not None and self.taken > self.limit:
            raise FormatError(
                f"a file of {self.nbytes} bytes would take {self.taken} bytes of memory or more, "
                f"the limit is {self.limit}; LOAD_LIMIT={LOAD_LIMIT.value} (times the size of the "
                "file) can be raised, 0 is no limit",
                place,
            )


def kind_of_packed(start: bytes) -> str | None:
    """The kind of compression of a file with these first bytes, or None."""
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)


def open_stream(kind: str) -> Any:
    """A decompressor of one stream.

    Raises: FormatError for a kind that is not known here.
    """
    if kind in ("gzip", "deflate"):
        return zlib.decompressobj(31 if kind == "gzip" else -15)
    if kind == "bzip2":
        return bz2.BZ2Decompressor()
    if kind in ("xz", "lzma"):
        form = lzma.FORMAT_XZ if kind == "xz" else lzma.FORMAT_ALONE
        return lzma.LZMADecompressor(form, memlimit=XZ_NBYTES)
    raise FormatError(f"{kind} is no known kind of compression; gzip, bzip2, xz and zip's are")


def unpack_stream(
    packed: memoryview, kind: str, result: bytearray, allowance: Allowance, place: str
) -> int:
    """Decompresses the stream at the start of `packed` into `result`; returns its length."""
    stream, position = open_stream(kind), 0
    while not stream.eof:
        # zlib returns unread input, the other decoders keep it.
        rest = getattr(stream, "unconsumed_tail", b"")
        wants_more = not rest if hasattr(stream, "unconsumed_tail") else stream.needs_input
        data: Any = rest
        if wants_more:
            data = packed[position : position + CHUNK_NBYTES]
            position += len(data)
        piece = stream.decompress(data, PIECE_NBYTES)
        if wants_more and not data and not piece:
            raise EOFError("it ends inside of its compressed data: the file is truncated")
        # A growing bytearray over-allocates.
        allowance.take(len(piece) + len(piece) // 4, place)
        result += piece
    return position - len(stream.unused_data)


def unpack(
    data: bytes | bytearray, kind: str, allowance: Allowance, place: str = "", many: bool = True
) -> bytearray:
    """Decompresses data; with `many`, several concatenated streams.

    Raises: FormatError when the data are damaged or truncated, other bytes follow, or the result
    exceeds the allowance.
    """
    packed, result, position = memoryview(data), bytearray(), 0
    allowance.take(len(data), place)
    try:
        while True:
            position += unpack_stream(packed[position:], kind, result, allowance, place)
            rest = packed[position:]
            if not rest or (many and not any(rest)):
                return result
            if not many or kind_of_packed(bytes(rest[:6])) != kind:
                raise EOFError(f"{len(rest)} bytes that are no {kind} follow its end")
    except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"no whole {kind} data: {error}", place) from error
