"""Reads and writes safetensors files: a JSON header that names tensors, then their bytes.

Reading checks the whole header before any tensor is made, and then gives views of the file: bytes
are read when a tensor is used. Writing goes to a second file that takes the name at the end, so a
reader never sees half a file.

Layout: 8 bytes with the header's length (little-endian), the header, the data. A header entry is
`name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}`, offsets counted from the
start of the data; `__metadata__` is a map of strings.

Source: the format's public description, https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.downloads import write_atomically
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.extend import check_tensor
from aster_ml.formats.fileio import (
    TENSOR_NBYTES,
    FileBytes,
    accept_filename,
    byte_count,
    count_elements,
    show_value,
    view_bytes,
)
from aster_ml.formats.shards import files_of, is_of_several_files
from aster_ml.helpers import kind_of, prod
from aster_ml.unpacking import Allowance

NAMES = {
    "BOOL": dtypes.bool,
    "I8": dtypes.int8,
    "U8": dtypes.uint8,
    "I16": dtypes.int16,
    "U16": dtypes.uint16,
    "I32": dtypes.int32,
    "U32": dtypes.uint32,
    "I64": dtypes.int64,
    "U64": dtypes.uint64,
    "F8_E4M3": dtypes.fp8e4m3,
    "F8_E5M2": dtypes.fp8e5m2,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
NAME_OF = {dtype: name for name, dtype in NAMES.items()}
# Dtypes that the format has and Aster has not: bits of an element.
OTHERS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "C64": 64,
}  # fmt: skip
MAX_HEADER_NBYTES = 100_000_000
MAX_DIGITS = 25
# Memory that an object of the header takes, and each of its entries.
OBJECT_NBYTES, ENTRY_NBYTES = 232, 100


class UnknownTensor:
    """A tensor of a dtype that there is none of here. Whatever is done with it raises FormatError.

    The other tensors of its file can be used.
    """

    __slots__ = ("_kind", "_name", "_shape")

    def __init__(self, name: str, kind: str, shape: tuple[int, ...]) -> None:
        self._name, self._kind, self._shape = name, kind, shape

    def __repr__(self) -> str:
        return f"<UnknownTensor {self._kind} {list(self._shape)}>"

    def __getattr__(self, attribute: str) -> Any:
        raise FormatError(
            f"it has the unknown dtype {show_value(self._kind)}; known are {', '.join(NAMES)}",
            f"safetensors: tensor {show_value(self._name)}",
        )


def unique_keys(allowance: Allowance, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; a key that comes twice is an error and not an overwrite."""
    allowance.take(OBJECT_NBYTES + ENTRY_NBYTES * len(pairs), "safetensors")
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise FormatError(f"the header has the key {show_value(key)} twice", "safetensors")
        result[key] = value
    return result


def short_int(digits: str) -> int:
    """A whole number of the header."""
    if len(digits) > MAX_DIGITS:
        raise FormatError(f"the header has a number of {len(digits)} digits", "safetensors")
    return int(digits)


def no_number(name: str) -> Any:
    """NaN and Infinity, which JSON has not."""
    raise FormatError(f"the header has {name}, which is not JSON", "safetensors")


def read_header(t: Tensor) -> tuple[int, dict[str, Any]]:
    """Where the data starts, and the header as parsed, not yet checked entry by entry."""
    file = FileBytes(t, "safetensors")
    nbytes = file.nbytes
    if nbytes < 8:
        raise FormatError(
            f"the file has {nbytes} bytes, the header's length alone takes 8: "
            "it is truncated, or not a safetensors file",
            "safetensors",
        )
    length = int.from_bytes(file.read(0, 8), "little")
    if length > nbytes - 8:
        raise FormatError(
            f"the header claims {length} bytes, {nbytes - 8} follow its length: "
            "the file is truncated, or not a safetensors file",
            "safetensors",
        )
    if length > MAX_HEADER_NBYTES:
        raise FormatError(
            f"the header claims {length} bytes, the format allows {MAX_HEADER_NBYTES}",
            "safetensors",
        )
    raw = file.read(8, 8 + length)
    try:
        header = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=functools.partial(unique_keys, file.allowance),
            parse_int=short_int,
            parse_constant=no_number,
        )
        if b"\\u" in raw:
            # Halves of a character stand for none.
            json.dumps(header, ensure_ascii=False).encode("utf-8")
    except (UnicodeError, json.JSONDecodeError, RecursionError) as error:
        raise FormatError(
            f"the header of {length} bytes is not JSON ({error}); it begins with {raw[:20]!r}",
            "safetensors",
        ) from error
    if not isinstance(header, dict):
        raise FormatError(
            f"the header is a JSON {type(header).__name__}, an object is wanted", "safetensors"
        )
    file.allowance.take(TENSOR_NBYTES * len(header), "safetensors")
    return 8 + length, header


def is_count(value: object) -> bool:
    """Whether a JSON value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_entry(name: str, entry: Any, data_nbytes: int) -> tuple[Any, tuple[int, ...], int, int]:
    """The dtype, shape, begin and end of one tensor; every claim checked.

    A dtype that there is none of here is its name.

    Raises: FormatError that names the tensor, what was found and what was wanted.
    """
    where = f"safetensors: tensor {show_value(name)}"
    if not isinstance(entry, dict):
        raise FormatError(f"its entry is {show_value(entry)}, an object is wanted", where)
    for key in ("dtype", "shape", "data_offsets"):
        if key not in entry:
            raise FormatError(f"{key} is missing, its entry has {', '.join(entry)[:200]}", where)
    if not isinstance(entry["dtype"], str):
        raise FormatError(f"dtype {show_value(entry['dtype'])}, a name is wanted", where)
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(is_count(size) for size in shape):
        raise FormatError(
            f"shape {show_value(shape)}, a list of sizes of at least 0 is wanted", where
        )
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(is_count(o) for o in offsets):
        raise FormatError(f"data_offsets {show_value(offsets)}, [begin, end] is wanted", where)
    begin, end = offsets
    if begin > end:
        raise FormatError(f"data_offsets [{begin}, {end}], begin comes after end", where)
    if end > data_nbytes:
        raise FormatError(
            f"data_offsets [{begin}, {end}] reach past the data of {data_nbytes} bytes: "
            "the file is truncated, or its header lies",
            where,
        )
    dtype = NAMES.get(entry["dtype"], entry["dtype"])
    count = count_elements(shape, where)
    bits = OTHERS.get(dtype) if isinstance(dtype, str) else 8 * dtype.itemsize
    if bits is None:
        raise FormatError(
            f"dtype {show_value(dtype)} is none of the format's; there are "
            f"{', '.join((*NAMES, *OTHERS))}",
            where,
        )
    if count * bits % 8:
        raise FormatError(
            f"shape {show_value(shape)} of {dtype} takes {count * bits} bits, no whole number of "
            "bytes",
            where,
        )
    wanted = count * bits // 8
    if end - begin != wanted:
        raise FormatError(
            f"data_offsets [{begin}, {end}] span {end - begin} bytes, shape {show_value(shape)} of "
            f"{entry['dtype']} takes {wanted}",
            where,
        )
    return dtype, tuple(shape), begin, end


def check_cover(spans: dict[str, tuple[int, int]], data_nbytes: int) -> None:
    """No two tensors share a byte, and every byte of the data belongs to one, as the format asks.

    Bytes in between could be another file, which other programs see and this one does not.
    """
    last, last_end = "", 0
    for name, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if begin < last_end and begin < end:
            raise FormatError(
                f"tensor {show_value(name)} at [{begin}, {end}] overlaps tensor "
                f"{show_value(last)}, which ends at {last_end}",
                "safetensors",
            )
        if begin > last_end:
            raise FormatError(
                f"bytes {last_end} to {begin} of the data belong to no tensor; "
                f"{show_value(name)} begins behind them",
                "safetensors",
            )
        last, last_end = name, max(end, last_end)
    if last_end < data_nbytes:
        raise FormatError(
            f"the tensors end at {last_end}, the data has {data_nbytes} bytes: some "
            "belong to no tensor",
            "safetensors",
        )


@accept_filename
def safe_load_metadata(t: Tensor) -> tuple[Tensor, int, dict[str, Any]]:
    """The file as a tensor, where its data starts, and its header as a dict.

    Raises: FormatError when the file is truncated or the header is not what the format says.
    """
    start, header = read_header(t)
    return t, start, header


def safe_load(fn: Tensor | str | pathlib.Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, in the order of its header, as views of the file.

    A folder, or the index of a model in several files (`model.safetensors.index.json`), gives the
    tensors of all of them. Nothing but headers is read here; a tensor's bytes are read when it is
    used or moved, as in `safe_load("model.safetensors")["weight"].to("CPU")`. A tensor of a dtype
    that is unknown here is an `UnknownTensor`, which raises when it is used.

    Raises: FormatError when a file is truncated, its header does not add up, two tensors share
    bytes, bytes belong to none, or files of a model do not have what its index says.
    """
    if not is_of_several_files(fn):
        return load_file(fn)
    found: dict[str, Tensor] = {}
    for path, names in files_of(fn):  # type: ignore[arg-type]
        tensors = load_file(path)
        lacking = [name for name in names or () if name not in tensors]
        twice = [name for name in tensors if name in found and (names is None or name in names)]
        for name in lacking[:1]:
            raise FormatError(
                f"{path.name} lacks {show_value(name)}, which the index says it has", "safetensors"
            )
        for name in twice[:1]:
            raise FormatError(
                f"{path.name} has {show_value(name)}, which another file of the folder has",
                "safetensors",
            )
        found |= tensors if names is None else {name: tensors[name] for name in names}
    return found


@accept_filename
def load_file(fn: Tensor) -> dict[str, Tensor]:
    """The tensors of one file."""
    start, header = read_header(fn)
    check_metadata(header.get("__metadata__", {}))
    data_nbytes = byte_count(fn, "safetensors") - start
    entries = {
        name: check_entry(name, entry, data_nbytes)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    spans = {name: (begin, end) for name, (_, _, begin, end) in entries.items()}
    check_cover(spans, data_nbytes)
    tensors: dict[str, Any] = {}
    for name, (dtype, shape, begin, end) in entries.items():
        if isinstance(dtype, str):
            tensors[name] = UnknownTensor(name, dtype, shape)
        else:
            tensors[name] = view_bytes(fn, start + begin, start + end, dtype, shape)
    return tensors


def check_metadata(metadata: Any) -> None:
    """The `__metadata__` entry is a map from strings to strings."""
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError(
            f"__metadata__ is {show_value(metadata)}, a map from strings to strings is wanted",
            "safetensors",
        )


def safe_save(
    tensors: dict[str, Tensor], fn: str | pathlib.Path, metadata: dict[str, Any] | None = None
) -> None:
    """Write tensors by name to a safetensors file; values of `metadata` are written as text.

    The bytes go to a file beside it, which takes the name once it is complete.

    Raises: FormatError for a dtype that the format has no name for.
    """
    if not isinstance(tensors, dict):
        raise ArgumentError(
            f"safetensors: {kind_of(tensors)} is given; a dict of tensors by name is wanted"
        )
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = {str(key): str(value) for key, value in metadata.items()}
    for name, t in tensors.items():
        if not isinstance(name, str):
            raise FormatError(f"the name {name!r} is {kind_of(name)}, no text", "safetensors")
        check_tensor(t, f"safetensors: {name}")
        if t.dtype not in NAME_OF:
            raise FormatError(
                f"tensor {name!r} has dtype {t.dtype}, the format has names for "
                f"{', '.join(str(dtype) for dtype in NAME_OF)}",
                "safetensors",
            )
        if name == "__metadata__":
            raise FormatError("no tensor can have the name '__metadata__'", "safetensors")
        header[name] = {"dtype": NAME_OF[t.dtype], "shape": list(t.shape)}
    # Widest first: each tensor then starts at a multiple of its own element size.
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    offset = 0
    for name in order:
        nbytes = prod(tensors[name].shape) * tensors[name].dtype.itemsize
        header[name]["data_offsets"] = [offset, offset + nbytes]
        offset += nbytes
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)

    def write(file: Any) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            array = np.ascontiguousarray(tensors[name]._memory().numpy())
            file.write(array.reshape(-1).view(np.uint8).data)

    write_atomically(pathlib.Path(fn), write)
