"""GGUF files: metadata and tensors, quantised in blocks, as llama.cpp and its kin write them.

The header is parsed and checked here; each tensor becomes a view of the file followed by the
arithmetic that its quantisation asks for, as ordinary tensor ops, so nothing is read or computed
before it is used. How each kind of block is packed is in `nn.ggml`.

Source: the public GGUF specification (ggml, docs/gguf.md), versions 2 and 3.
"""

from __future__ import annotations

import struct
from typing import Any

from aster_ml import Tensor
from aster_ml.errors import FormatError
from aster_ml.helpers import prod, round_up
from aster_ml.nn.fileio import accept_filename, byte_count, read_bytes
from aster_ml.nn.ggml import block_format, ggml_data_to_tensor

__all__ = ["ggml_data_to_tensor", "gguf_load"]

SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32
CHUNK_NBYTES = 1 << 20
MAX_DIMS = 8


class HeaderReader:
    """Reads the header's values one after another, from chunks of the file."""

    def __init__(self, t: Tensor) -> None:
        self.t, self.nbytes = t, byte_count(t, "gguf")
        self.position = 0
        self.chunk, self.chunk_start = b"", 0

    def take(self, count: int, what: str) -> bytes:
        """The next bytes.

        Raises: FormatError when the file ends before.
        """
        stop = self.position + count
        if stop > self.nbytes:
            raise FormatError(
                f"gguf: {what} takes {count} bytes at {self.position}, the file has {self.nbytes}: "
                "it is truncated, or its header lies"
            )
        offset = self.position - self.chunk_start
        if offset + count > len(self.chunk):
            self.chunk_start, offset = self.position, 0
            end = min(self.nbytes, self.position + max(count, CHUNK_NBYTES))
            self.chunk = read_bytes(self.t, self.position, end)
        self.position = stop
        return self.chunk[offset : offset + count]

    def number(self, code: str, what: str) -> Any:
        """The next number, packed as `struct` says."""
        return struct.unpack(code, self.take(struct.calcsize(code), what))[0]

    def string(self, what: str) -> str:
        """The next string: its length in bytes, then UTF-8."""
        length = self.number("<Q", f"the length of {what}")
        raw = self.take(length, what)
        # Tokens of a vocabulary may be cut inside a character.
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int, what: str) -> Any:
        """The next metadata value of that kind."""
        if kind in SCALARS:
            return self.number(SCALARS[kind], what)
        if kind == STRING:
            return self.string(what)
        if kind != ARRAY:
            raise FormatError(f"gguf: {what} has the unknown type {kind}, 0 to 12 are defined")
        inner, count = self.number("<I", what), self.number("<Q", what)
        if inner in SCALARS:
            code = SCALARS[inner]
            raw = self.take(count * struct.calcsize(code), what)
            return [item[0] for item in struct.iter_unpack(code, raw)]
        if count > self.nbytes:
            raise FormatError(
                f"gguf: {what} claims {count} elements, the file has {self.nbytes} bytes"
            )
        return [self.value(inner, what) for _ in range(count)]


@accept_filename
def gguf_load(tensor: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata of a GGUF file, and its tensors by name as float (or plain integer) tensors.

    Raises: FormatError when the file is truncated, its header does not add up, or a tensor has a
    quantisation that is not known here.
    """
    reader = HeaderReader(tensor)
    magic = reader.take(4, "the magic number")
    if magic != b"GGUF":
        raise FormatError(f"gguf: the file begins with {magic!r}, b'GGUF' is wanted")
    version = reader.number("<I", "the version")
    if version not in (2, 3):
        raise FormatError(
            f"gguf: version {version}, 2 or 3 is wanted (a big-endian file shows a huge number)"
        )
    tensor_count = reader.number("<Q", "the count of tensors")
    value_count = reader.number("<Q", "the count of metadata values")
    metadata: dict[str, Any] = {}
    for i in range(value_count):
        key = reader.string(f"key {i} of {value_count}")
        metadata[key] = reader.value(reader.number("<I", f"the type of {key!r}"), repr(key))
    infos = [read_info(reader, i, tensor_count) for i in range(tensor_count)]
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise FormatError(f"gguf: general.alignment is {alignment!r}, a positive number is wanted")
    start = round_up(reader.position, alignment)
    tensors: dict[str, Tensor] = {}
    for name, shape, kind, offset in infos:
        if name in tensors:
            raise FormatError(f"gguf: two tensors are named {name!r}")
        tensors[name] = view_tensor(tensor, reader.nbytes, start + offset, name, shape, kind)
    return metadata, tensors


def read_info(reader: HeaderReader, i: int, count: int) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape (slowest axis first), kind and offset of the next tensor."""
    name = reader.string(f"the name of tensor {i} of {count}")
    what = f"tensor {name!r}"
    ndim = reader.number("<I", what)
    if ndim > MAX_DIMS:
        raise FormatError(f"gguf: {what} claims {ndim} axes, at most {MAX_DIMS} are wanted")
    sizes = [reader.number("<Q", what) for _ in range(ndim)]
    return name, tuple(reversed(sizes)), reader.number("<I", what), reader.number("<Q", what)


def view_tensor(
    t: Tensor, nbytes: int, begin: int, name: str, shape: tuple[int, ...], kind: int
) -> Tensor:
    """One tensor, dequantised when it is used."""
    known = block_format(kind, f"gguf: tensor {name!r}")
    count = prod(shape)
    if count == 0 or count % known.elements:
        raise FormatError(
            f"gguf: tensor {name!r} of shape {list(shape)} has {count} elements, {known.name} "
            f"comes in blocks of {known.elements}"
        )
    end = begin + count // known.elements * known.nbytes
    if end > nbytes:
        raise FormatError(
            f"gguf: tensor {name!r} of shape {list(shape)}, {known.name}, needs bytes {begin} to "
            f"{end}, the file has {nbytes}: it is truncated, or its header lies"
        )
    return ggml_data_to_tensor(t.shrink(((begin, end),)), count, kind).reshape(shape)
