"""Lists the kinds of blocks of quantised weights, and dequantises them.

A kind is a row of FORMATS: elements and bytes of a block, and a function from the blocks' bytes
[blocks, nbytes] to their values [blocks, elements]. Bytes are taken apart with integer ops, so
dequantising fuses into whatever uses the weight.

Source: the block layouts published with ggml (ggml-common.h and the GGUF specification); MXFP4 from
the OCP Microscaling Formats specification 1.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aster_ml import Tensor, dtypes
from aster_ml.errors import ArgumentError, FormatError
from aster_ml.formats.ggml import iq as ggml_iq
from aster_ml.formats.ggml.bits import half_at, signed_bytes
from aster_ml.formats.ggml.codes import CODED


@dataclass(frozen=True)
class BlockFormat:
    """One kind of block: its number in files, its name, elements and bytes, and how it is read."""

    kind: int
    name: str
    elements: int
    nbytes: int
    decode: Callable[[Tensor], Tensor]
    dtype: Any = dtypes.float32


def decode_q8_0(b: Tensor) -> Tensor:
    """Scale, then 32 signed bytes: q * d."""
    return signed_bytes(b[:, 2:34]) * half_at(b, 0)


def coded(name: str) -> Callable[[Tensor], Tensor]:
    """Makes the decoder of blocks of codes."""
    return lambda b: CODED[name].decode(CODED[name].parts(b))


def plain(kind: int, name: str, dtype: Any) -> BlockFormat:
    """Elements that are stored as they are."""
    return BlockFormat(kind, name, 1, dtype.itemsize, lambda b: b.bitcast(dtype), dtype)


ROWS = [
    plain(0, "F32", dtypes.float32),
    plain(1, "F16", dtypes.float16),
    BlockFormat(2, "Q4_0", 32, 18, coded("Q4_0")),
    BlockFormat(3, "Q4_1", 32, 20, coded("Q4_1")),
    BlockFormat(6, "Q5_0", 32, 22, coded("Q5_0")),
    BlockFormat(7, "Q5_1", 32, 24, coded("Q5_1")),
    BlockFormat(8, "Q8_0", 32, 34, decode_q8_0),
    BlockFormat(10, "Q2_K", 256, 84, coded("Q2_K")),
    BlockFormat(11, "Q3_K", 256, 110, coded("Q3_K")),
    BlockFormat(12, "Q4_K", 256, 144, coded("Q4_K")),
    BlockFormat(13, "Q5_K", 256, 176, coded("Q5_K")),
    BlockFormat(14, "Q6_K", 256, 210, coded("Q6_K")),
    BlockFormat(16, "IQ2_XXS", 256, 66, ggml_iq.decode_iq2_xxs),
    BlockFormat(17, "IQ2_XS", 256, 74, ggml_iq.decode_iq2_xs),
    BlockFormat(18, "IQ3_XXS", 256, 98, ggml_iq.decode_iq3_xxs),
    BlockFormat(19, "IQ1_S", 256, 50, ggml_iq.decode_iq1_s),
    BlockFormat(20, "IQ4_NL", 32, 18, coded("IQ4_NL")),
    BlockFormat(21, "IQ3_S", 256, 110, ggml_iq.decode_iq3_s),
    BlockFormat(22, "IQ2_S", 256, 82, ggml_iq.decode_iq2_s),
    BlockFormat(23, "IQ4_XS", 256, 136, coded("IQ4_XS")),
    plain(24, "I8", dtypes.int8),
    plain(25, "I16", dtypes.int16),
    plain(26, "I32", dtypes.int32),
    plain(27, "I64", dtypes.int64),
    plain(28, "F64", dtypes.float64),
    BlockFormat(29, "IQ1_M", 256, 56, ggml_iq.decode_iq1_m),
    plain(30, "BF16", dtypes.bfloat16),
    BlockFormat(34, "TQ1_0", 256, 54, coded("TQ1_0")),
    BlockFormat(35, "TQ2_0", 256, 66, coded("TQ2_0")),
    BlockFormat(39, "MXFP4", 32, 17, coded("MXFP4")),
    BlockFormat(40, "NVFP4", 64, 36, coded("NVFP4")),
]
FORMATS = {row.kind: row for row in ROWS}
NAMED = {row.name: row for row in ROWS}


def block_format(kind: int, what: str) -> BlockFormat:
    """The row of a kind.

    Raises: FormatError that lists the kinds there are.
    """
    if kind not in FORMATS:
        known = ", ".join(f"{number} {row.name}" for number, row in FORMATS.items())
        raise FormatError(f"{what}: ggml type {kind} is not known here; known are {known}")
    return FORMATS[kind]


def format_named(name: str, what: str) -> BlockFormat:
    """The row of a name.

    Raises: ArgumentError that lists the names there are.
    """
    if not isinstance(name, str) or name not in NAMED:
        raise ArgumentError(f"{what}: {name!r} is no type known here; known are {', '.join(NAMED)}")
    return NAMED[name]


def ggml_data_to_tensor(t: Tensor, n: int, ggml_type: int) -> Tensor:
    """The first n elements of quantised bytes; plain kinds keep their dtype, others are float32.

    Bytes of a file come to the default device when they are used, since a disk computes nothing.

    Shapes: t [m] -> [n].
    Raises: ArgumentError when t is not bytes, too short, or n is no whole number of blocks;
    FormatError for an unknown kind.
    """
    row = block_format(ggml_type, "ggml")
    if t.dtype != dtypes.uint8 or t.ndim != 1:
        raise ArgumentError(
            f"ggml: bytes are wanted as a uint8 tensor of one axis, t is {t.dtype} {list(t.shape)}"
        )
    if n < 1 or n % row.elements:
        raise ArgumentError(f"ggml: n={n} elements, {row.name} comes in blocks of {row.elements}")
    blocks = n // row.elements
    if int(t.shape[0]) < blocks * row.nbytes:
        raise ArgumentError(
            f"ggml: {n} elements of {row.name} take {blocks * row.nbytes} bytes, t has {t.shape[0]}"
        )
    data = t.shrink(((0, blocks * row.nbytes),))
    if str(t.device).startswith("DISK"):
        data = data.to(None)
    if row.elements == 1:
        return row.decode(data)
    return row.decode(data.reshape(blocks, row.nbytes)).reshape(n)
