"""Reads GGUF files: metadata and tensors, quantised in blocks, as llama.cpp and its kin write them.

The header is parsed and checked here; each tensor becomes a view of the file (`formats.quantised`)
and the arithmetic that its quantisation asks for, as ordinary tensor ops, so nothing is read or
computed before it is used. How each kind of block is packed is in `formats.ggml`.

Source: the public GGUF specification (ggml, docs/gguf.md), versions 2 and 3.
"""

from __future__ import annotations

import itertools
import pathlib
import re
import struct
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from aster_ml import Tensor
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.formats.fileio import (
    TENSOR_NBYTES,
    FileBytes,
    accept_filename,
    count_elements,
    open_file,
    part_of,
    path_of,
    show_value,
)
from aster_ml.formats.ggml.blocks import FORMATS, block_format, ggml_data_to_tensor
from aster_ml.formats.gguf.values import (
    ARRAY,
    BOOL,
    MAX_DEPTH,
    NAMES,
    SCALARS,
    STRING,
    Metadata,
    Type,
)
from aster_ml.formats.quantised import QuantTensor
from aster_ml.helpers import round_up

__all__ = ["ggml_data_to_tensor", "gguf_load"]

# Their values are there once and for all, and a list only names them.
SMALL = frozenset({"<B", "<?"})
U64 = 10
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 8
# Memory that a string takes besides its characters, a number in a list, and a tensor with all that
# takes its blocks apart.
STRING_NBYTES, NUMBER_NBYTES, QUANTISED_NBYTES = 64, 40, 1 << 16
# So many arrays in arrays are read of a file; nobody writes them but for a few.
MAX_NESTED = 1 << 16


class HeaderReader:
    """Reads the header's values one after another."""

    def __init__(self, file: FileBytes) -> None:
        self.cursor = file.cursor("gguf")
        self.nested = 0

    def number(self, code: str, what: str) -> Any:
        """The next number, packed as `struct` says."""
        return struct.unpack(code, self.cursor.take(struct.calcsize(code), what))[0]

    def string(self, what: str) -> str:
        """The next string: its length in bytes, then UTF-8."""
        length = self.number("<Q", f"the length of {what}")
        raw = self.cursor.take(length, what)
        self.cursor.allowance.take(STRING_NBYTES + 4 * length, "gguf")
        # Tokens of a vocabulary may be cut inside a character.
        return raw.decode("utf-8", errors="replace")

    def name(self, what: str) -> str:
        """The next string, a key or a tensor's name, which is no text without being UTF-8."""
        found = self.string(what)
        if "\ufffd" in found:
            raise FormatError(f"{what} is {show_value(found)}, which is no UTF-8", "gguf")
        return found

    def strings(self, count: int, what: str) -> list[str]:
        """The next strings; a vocabulary has hundreds of thousands."""
        cursor = self.cursor
        result: list[str] = []
        while len(result) < count:
            chunk, start = cursor.look(8)
            found, stop = texts_of(chunk, start, count - len(result))
            nbytes = stop - start
            cursor.position += nbytes
            cursor.allowance.take(STRING_NBYTES * len(found) + 4 * nbytes, "gguf")
            # One that is longer than a chunk is read alone.
            result += found or [self.string(what)]
        return result

    def scalar(self, kind: int, what: str) -> Any:
        """The next number or truth value."""
        return self.scalars(kind, 1, what)[0]

    def scalars(self, kind: int, count: int, what: str) -> list[Any]:
        """The next numbers, or truth values, which are 0 or 1."""
        code = SCALARS[kind]
        raw = self.cursor.take(count * struct.calcsize(code), what)
        self.cursor.allowance.take((8 if code in SMALL else NUMBER_NBYTES) * count, "gguf")
        if kind == BOOL and count and max(raw) > 1:
            raise FormatError(f"{what} is a truth value of {max(raw)}, 0 or 1 is wanted", "gguf")
        return list(struct.unpack(f"<{count}{code[1:]}", raw))

    def value(self, kind: int, what: str, depth: int = 0) -> tuple[Any, Type]:
        """The next metadata value of that kind, and its type."""
        if kind in SCALARS:
            return self.scalar(kind, what), NAMES[kind]
        if kind == STRING:
            return self.string(what), NAMES[kind]
        if kind != ARRAY:
            raise FormatError(f"{what} has the unknown type {kind}, 0 to 12 are defined", "gguf")
        if depth >= MAX_DEPTH:
            raise FormatError(f"{what} has arrays in arrays, more than {MAX_DEPTH} deep", "gguf")
        inner, count = self.number("<I", what), self.number("<Q", what)
        if count > self.cursor.end:
            raise FormatError(
                f"{what} claims {count} elements, the file has {self.cursor.end} bytes", "gguf"
            )
        if inner in SCALARS:
            return self.scalars(inner, count, what), [NAMES[inner]]
        if inner == STRING:
            return self.strings(count, what), [NAMES[inner]]
        if inner != ARRAY:
            raise FormatError(f"{what} has the unknown type {inner}, 0 to 12 are defined", "gguf")
        self.nested += count
        if self.nested > MAX_NESTED:
            raise FormatError(
                f"{what} has {count} arrays in an array; a file has at most {MAX_NESTED}", "gguf"
            )
        self.cursor.allowance.take(2 * STRING_NBYTES * count, "gguf")
        values, types = [], []
        for _ in range(count):
            found = self.value(ARRAY, what, depth + 1)
            values.append(found[0])
            types.append(found[1])
        alike = all([t == types[0] for t in types])
        return values, types if types and not alike else types[:1] or [[]]


def texts_of(chunk: bytes, start: int, most: int) -> tuple[list[str], int]:
    """The strings that are whole in a chunk from `start` on, and where the last of them ends.

    why: where lengths are below 256, seven zeros after a byte are one; that these places follow one
    another as the lengths say is checked for all at once, and what is left is read one by one
    """
    raw = np.frombuffer(chunk, np.uint8)[start:]
    ends = start_of_texts(raw)[: most + 1]
    result, at = [], start
    if len(ends) > 1:
        is_text = np.ones(int(ends[-1]), np.bool_)
        # A zero stands for each length, the other bytes of it are left out.
        for i in range(1, 8):
            is_text[ends[:-1] + i] = False
        joined = raw[: int(ends[-1])].copy()
        joined[ends[:-1]] = 0
        try:
            texts = joined[is_text].tobytes().decode("utf-8").split("\0")[1:]
        except UnicodeDecodeError:
            texts = []
        # A text with a zero in it is cut in two.
        if len(texts) == len(ends) - 1:
            result, at = texts, start + int(ends[-1])
    while at + 8 <= len(chunk) and len(result) < most:
        stop = at + 8 + int.from_bytes(chunk[at : at + 8], "little")
        if stop > len(chunk):
            break
        result.append(chunk[at + 8 : stop].decode("utf-8", errors="replace"))
        at = stop
    return result, at


def start_of_texts(raw: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where strings of less than 256 bytes begin that follow one another from 0 on, and the end."""
    zeros = raw == 0
    is_length = zeros[1:-6].copy()
    for i in range(2, 8):
        is_length &= zeros[i : len(zeros) - 7 + i]
    places = np.flatnonzero(is_length)
    if len(places) == 0 or places[0] != 0:
        return np.zeros(0, np.int64)
    ends = places + 8 + raw[places]
    wrong = np.flatnonzero(ends[:-1] != places[1:])
    count = int(wrong[0]) + 1 if len(wrong) else len(places)
    whole = ends[:count] <= len(raw)
    return np.append(places[:count][whole], ends[:count][whole][-1:])


@overload
def gguf_load(
    tensor: Tensor | str | pathlib.Path, raw: Literal[False] = False, mapped: bool = False
) -> tuple[Metadata, dict[str, Tensor]]: ...


@overload
def gguf_load(
    tensor: Tensor | str | pathlib.Path, raw: Literal[True], mapped: bool = False
) -> tuple[Metadata, dict[str, QuantTensor]]: ...


def gguf_load(
    tensor: Any, raw: bool = False, mapped: bool = False
) -> tuple[Metadata, dict[str, Any]]:
    """The metadata of a GGUF file, and its tensors by name as float (or plain integer) tensors.

    With `raw` the tensors are `QuantTensor`s, the type and the blocks as they are in the file;
    their `dequantize()` gives what is there without `raw`. Nothing is read before it is used.
    With `mapped` the file is memory that kernels read where it lies, as `Tensor.from_file` says:
    it has to stay as it is as long as its tensors are used.
    A model in several files (`model-00001-of-00003.gguf`) is read whole by the name of any of them;
    its metadata are those of the first. `metadata.types` has the types of the values.

    Raises: FormatError when the file is truncated, its header does not add up, a name comes twice,
    tensors overlap or are not aligned, a row is no whole number of blocks, a tensor has a
    quantisation that is not known here, or files of a model are missing or do not belong together.
    """
    read = read_mapped if mapped else read_part
    metadata, found = read(tensor)
    if metadata.get(SPLIT_COUNT, 0) > 1:
        metadata, found = read_all_parts(tensor, (metadata, found), read)
    if raw:
        return metadata, found
    return metadata, {name: quantised.dequantize() for name, quantised in found.items()}


# What a file says that is one of several: how many there are, its own number from 0, and how many
# tensors there are in all of them.
SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS = "split.count", "split.no", "split.tensors.count"
PART = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


Part = tuple[Metadata, dict[str, QuantTensor]]


def read_all_parts(tensor: Any, given: Part, read: Callable[[Any], Part]) -> Part:
    """The first part's metadata, and the tensors of all parts; one of them is read already.

    Raises: FormatError when the name does not tell the others', one is missing, or they do not
    belong together; the path is that of the part.
    """
    path = pathlib.Path(path_of(tensor) if isinstance(tensor, Tensor) else tensor)
    match, count = PART.fullmatch(path.name), given[0][SPLIT_COUNT]
    if match is None or int(match[3]) != count:
        raise FormatError(
            f"the file is one of {count}; parts are read by the name of one of them, such "
            f"as model-00001-of-{count:05}.gguf",
            "gguf",
            path=str(path) if path.name else "",
        )
    whole = Metadata()
    tensors: dict[str, QuantTensor] = {}
    for i in range(count):
        part = path.with_name(f"{match[1]}-{i + 1:05}-of-{match[3]}.gguf")
        metadata, found = given if part == path else read(part)
        numbers = (metadata.get(SPLIT_NO), metadata.get(SPLIT_COUNT))
        twice = next((name for name in found if name in tensors), None)
        if numbers != (i, count) or twice is not None:
            said = f"tensor {show_value(twice)} is in a part before it too"
            if numbers != (i, count):
                said = (
                    f"it says that it is part {show_value(numbers[0])} of "
                    f"{show_value(numbers[1])}, counted from 0; its name, {i} of {count}"
                )
            raise FormatError(said, "gguf", path=str(part))
        tensors.update(found)
        whole = whole or metadata
    total = whole.get(SPLIT_TENSORS, len(tensors))
    if total != len(tensors):
        raise FormatError(
            f"{SPLIT_TENSORS} is {show_value(total)}, the {count} parts have {len(tensors)}",
            "gguf",
            path=str(path),
        )
    return whole, tensors


def read_mapped(file: Any) -> Part:
    """`read_part` of a file whose bytes are used where they lie."""
    name = path_of(file) if isinstance(file, Tensor) else file
    if not name:
        raise ArgumentError("gguf_load: mapped is for a file, and this tensor is none")
    open_file(name)
    try:
        return read_part(Tensor.from_file(name))
    except FormatError as error:
        error.path = error.path or str(name)
        raise


@accept_filename
def read_part(tensor: Tensor) -> Part:
    """The metadata of one file, and its tensors as they are packed."""
    file = FileBytes(tensor, "gguf")
    reader = HeaderReader(file)
    magic = reader.cursor.take(4, "the magic number")
    if magic != b"GGUF":
        raise FormatError(f"the file begins with {magic!r}, b'GGUF' is wanted", "gguf")
    version = reader.number("<I", "the version")
    if version not in (2, 3):
        raise FormatError(
            f"version {version}, 2 or 3 is wanted (a big-endian file shows a huge number)", "gguf"
        )
    tensor_count = reader.number("<Q", "the count of tensors")
    value_count = reader.number("<Q", "the count of metadata values")
    metadata = Metadata()
    for i in range(value_count):
        key = reader.name(f"key {i} of {value_count}")
        what = show_value(key)
        if key in metadata:
            raise FormatError(f"the key {what} comes twice", "gguf")
        kind = reader.number("<I", f"the type of {what}")
        metadata[key], metadata.types[key] = reader.value(kind, what)
    infos: dict[str, TensorInfo] = {}
    for i in range(tensor_count):
        info = read_info(reader, i, tensor_count)
        if info.name in infos:
            raise FormatError(f"two tensors are named {show_value(info.name)}", "gguf")
        infos[info.name] = info
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if alignment.__class__ is not int or alignment < 1 or alignment & (alignment - 1):
        raise FormatError(
            f"general.alignment is {show_value(alignment)}, a power of two is wanted", "gguf"
        )
    count = metadata.get(SPLIT_COUNT, 0)
    if count.__class__ is not int or not 0 <= count < 1 << 16:
        raise FormatError(f"{SPLIT_COUNT} is {show_value(count)}, 0 to 65535 is wanted", "gguf")
    start = round_up(reader.cursor.position, alignment)
    spans = [check_info(info, start, alignment, file.nbytes) for info in infos.values()]
    check_apart(spans)
    tensors: dict[str, QuantTensor] = {}
    for info, (begin, end, name) in zip(infos.values(), spans):
        row = FORMATS[info.kind]
        file.allowance.take(QUANTISED_NBYTES if row.elements > 1 else TENSOR_NBYTES, "gguf")
        rows, count = info.shape[:-1], info.shape[-1:]
        shape = (*rows, *[size // row.elements for size in count], row.nbytes)
        tensors[name] = QuantTensor(row.name, part_of(tensor, begin, end).reshape(shape))
    return metadata, tensors


class TensorInfo(NamedTuple):
    """A tensor as the header has it; the shape's slowest axis comes first."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def read_info(reader: HeaderReader, i: int, count: int) -> TensorInfo:
    """The next tensor."""
    name = reader.name(f"the name of tensor {i} of {count}")
    what = f"tensor {show_value(name)}"
    ndim = reader.number("<I", what)
    if ndim > MAX_DIMS:
        raise FormatError(f"{what} claims {ndim} axes, at most {MAX_DIMS} are wanted", "gguf")
    sizes = reader.scalars(U64, ndim, what)
    return TensorInfo(
        name, tuple(reversed(sizes)), reader.number("<I", what), reader.number("<Q", what)
    )


def check_info(info: TensorInfo, start: int, alignment: int, nbytes: int) -> tuple[int, int, str]:
    """Where a tensor's bytes begin and end, and its name."""
    place = f"gguf: tensor {show_value(info.name)}"
    known = block_format(info.kind, place)
    count = count_elements(info.shape, place)
    shape = show_value(info.shape)
    row = info.shape[-1] if info.shape else 1
    if count == 0 or row % known.elements:
        raise FormatError(
            f"shape {shape} has {count} elements, {known.name} comes in blocks of "
            f"{known.elements} along the last axis",
            place,
        )
    if info.offset % alignment:
        raise FormatError(
            f"it begins at {info.offset} of the data, a multiple of {alignment} is wanted", place
        )
    begin = start + info.offset
    end = begin + count // known.elements * known.nbytes
    if end > nbytes:
        raise FormatError(
            f"shape {shape} of {known.name} needs bytes {begin} to {end}, the file has "
            f"{nbytes}: it is truncated, or its header lies",
            place,
        )
    return begin, end, info.name


def check_apart(spans: list[tuple[int, int, str]]) -> None:
    """No two tensors share a byte."""
    for (_, end, first), (begin, _, second) in itertools.pairwise(sorted(spans)):
        if begin < end:
            raise FormatError(
                f"tensor {show_value(second)} begins at {begin} and overlaps "
                f"{show_value(first)}, which ends at {end}",
                "gguf",
            )
