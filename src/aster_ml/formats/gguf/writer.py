"""Writes GGUF files: tensors by name, as they are or in blocks, and metadata of every type.

`gguf_save` writes what `formats.gguf` reads. Quantising is in `formats.ggml.quantise`,
the bytes of metadata values in `formats.gguf.values`.

Source: the public GGUF specification (ggml, docs/gguf.md), version 3.
"""

from __future__ import annotations

import pathlib
import struct
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.downloads import write_atomically
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.extend import check_tensor
from aster_ml.formats.fileio import show_value
from aster_ml.formats.ggml.blocks import NAMED
from aster_ml.formats.gguf.reader import DEFAULT_ALIGNMENT
from aster_ml.formats.gguf.values import Metadata, pack_string, pack_value, type_of
from aster_ml.formats.quantised import QuantTensor
from aster_ml.helpers import kind_of, prod, round_up

ALIGNMENT = "general.alignment"
# What llama.cpp reads: axes, and bytes of a name.
MAX_AXES, MAX_NAME = 4, 63
PLAIN = {row.dtype: row for row in NAMED.values() if row.elements == 1}


def gguf_save(
    tensors: dict[str, Tensor | QuantTensor],
    fn: str | pathlib.Path,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write tensors by name to a GGUF file, and metadata by key.

    A `Tensor` is written in its dtype, a `QuantTensor` (of `ggml_quantize`, or of
    `gguf_load(..., raw=True)`) as its blocks are. Metadata that `gguf_load` gave are written in the
    types they had; of others `formats.gguf.values` says which type a value has, and NumPy's numbers
    and arrays have their own. `general.alignment` is where it is to be another than 32.
    The bytes go to a file beside it, which takes the name once it is complete.

    Raises: FormatError for tensors that the format has no type for, without elements, of more than
    4 axes, or with a name of more than 63 bytes; ArgumentError for metadata that do not fit.
    """
    if not isinstance(tensors, dict):
        raise ArgumentError(f"gguf_save: {kind_of(tensors)} is given; a dict by name is wanted")
    values = metadata if metadata is not None else {}
    if not isinstance(values, dict):
        raise ArgumentError(f"gguf_save: metadata is {kind_of(values)}; a dict by key is wanted")
    alignment = int(values.get(ALIGNMENT, DEFAULT_ALIGNMENT))
    if alignment < 8 or alignment & (alignment - 1):
        raise ArgumentError(
            f"gguf_save: {ALIGNMENT} is {alignment}; a power of two of at least 8 is wanted"
        )
    types = values.types if isinstance(values, Metadata) else {}
    packed = [pack_entry(key, value, types) for key, value in values.items()]
    infos, offset = [], 0
    for name, t in tensors.items():
        info, nbytes = pack_info(name, t, offset)
        infos.append(info)
        offset += round_up(nbytes, alignment)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(packed)) + b"".join(packed + infos)

    def write(file: Any) -> None:
        file.write(head + bytes(-len(head) % alignment))
        for t in tensors.values():
            source = t.blocks if isinstance(t, QuantTensor) else t
            data = np.ascontiguousarray(source._memory().numpy()).reshape(-1).view(np.uint8)
            file.write(data.data)
            file.write(bytes(-data.nbytes % alignment))

    write_atomically(pathlib.Path(fn), write)


def pack_entry(key: Any, value: Any, types: dict[str, Any]) -> bytes:
    """A key and its value."""
    if not isinstance(key, str) or not key:
        raise ArgumentError(f"gguf_save: the key {key!r:.80} is {kind_of(key)}; a text is wanted")
    what = f"gguf_save: {show_value(key)}"
    kind = types[key] if key in types else type_of(value, what)
    if key == ALIGNMENT:
        kind = "uint32"
    return pack_string(key, what) + pack_value(value, kind, what)


def pack_info(name: Any, t: Any, offset: int) -> tuple[bytes, int]:
    """A tensor's entry in the header, and how many bytes its data have."""
    if not isinstance(name, str):
        raise FormatError(f"the name {name!r:.80} is {kind_of(name)}, no text", "gguf")
    where = f"gguf: tensor {show_value(name)}"
    if isinstance(t, QuantTensor):
        row = t.format
    else:
        check_tensor(t, where)
        if t.dtype not in PLAIN:
            raise FormatError(
                f"the dtype is {t.dtype}, the format has types for "
                f"{', '.join([str(dtype) for dtype in PLAIN])}; ggml_quantize has others",
                where,
            )
        row = PLAIN[t.dtype]
    packed, shape = pack_string(name, where), [int(size) for size in t.shape]
    if len(packed) - 8 > MAX_NAME:
        raise FormatError(f"the name has {len(packed) - 8} bytes, at most {MAX_NAME} do", where)
    count = prod(shape)
    if len(shape) > MAX_AXES or count == 0:
        raise FormatError(f"shape {shape}; 0 to {MAX_AXES} axes with elements are wanted", where)
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    entry = packed + sizes + struct.pack("<IQ", row.kind, offset)
    return entry, count // row.elements * row.nbytes
