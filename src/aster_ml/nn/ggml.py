"""Blocks of quantised weights: how each kind is packed, and the ops that give its numbers back.

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
from aster_ml.nn import ggml_iq
from aster_ml.nn.ggml_bits import (
    fields,
    fifth_bits,
    half_at,
    join_bytes,
    look_up,
    nibbles,
    pairs,
    power_of_two,
    signed_bytes,
    split_bits,
)


@dataclass(frozen=True)
class BlockFormat:
    """One kind of block: its number in files, its name, elements and bytes, and how it is read."""

    kind: int
    name: str
    elements: int
    nbytes: int
    decode: Callable[[Tensor], Tensor]
    dtype: Any = dtypes.float32


def decode_q4_0(b: Tensor) -> Tensor:
    """Scale, then 32 nibbles: (q - 8) * d."""
    return (nibbles(b[:, 2:18]).float() - 8) * half_at(b, 0)


def decode_q4_1(b: Tensor) -> Tensor:
    """Scale and minimum, then 32 nibbles: q * d + m."""
    return nibbles(b[:, 4:20]).float() * half_at(b, 0) + half_at(b, 2)


def decode_q5_0(b: Tensor) -> Tensor:
    """Scale, 32 fifth bits, then 32 nibbles: (q - 16) * d."""
    return ((nibbles(b[:, 6:22]) + fifth_bits(b[:, 2:6])).float() - 16) * half_at(b, 0)


def decode_q5_1(b: Tensor) -> Tensor:
    """Scale and minimum, 32 fifth bits, then 32 nibbles: q * d + m."""
    q = nibbles(b[:, 8:24]) + fifth_bits(b[:, 4:8])
    return q.float() * half_at(b, 0) + half_at(b, 2)


def decode_q8_0(b: Tensor) -> Tensor:
    """Scale, then 32 signed bytes: q * d."""
    return signed_bytes(b[:, 2:34]) * half_at(b, 0)


def scale_bytes(b: Tensor) -> tuple[Tensor, Tensor]:
    """The eight scales and eight minima of 6 bits each that Q4_K and Q5_K pack into 12 bytes.

    The first four of each are the low 6 bits of bytes 0 to 3 and 4 to 7; the others have their low
    4 bits in the nibbles of bytes 8 to 11, and their high 2 in the top bits of bytes 0 to 7.

    Shapes: b [n, 12] -> a pair of [n, 8].
    """
    first, second, third = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scales = (first & 63).cat((third & 15) | ((first >> 6) << 4), dim=1)
    minima = (second & 63).cat((third >> 4) | ((second >> 6) << 4), dim=1)
    return scales, minima


def with_scales(b: Tensor, q: Tensor) -> Tensor:
    """q * (d * scale) - dmin * minimum over eight groups of 32, as in Q4_K and Q5_K.

    Shapes: q [n, 8, 32] -> [n, 256].
    """
    scales, minima = [t.float().unsqueeze(-1) for t in scale_bytes(b[:, 4:16])]
    d, dmin = half_at(b, 0).unsqueeze(-1), half_at(b, 2).unsqueeze(-1)
    return (q.float() * (d * scales) - dmin * minima).flatten(1)


def nibble_pairs(t: Tensor) -> Tensor:
    """Runs of 32 bytes: each gives 32 low nibbles, then 32 high ones.

    Shapes: t [n, 128] -> [n, 8, 32].
    """
    return split_bits(t.reshape(-1, 4, 32), 4).reshape(-1, 8, 32)


def decode_q4_k(b: Tensor) -> Tensor:
    """Two halves, 12 bytes of scales, 256 nibbles."""
    return with_scales(b, nibble_pairs(b[:, 16:144]))


def decode_q5_k(b: Tensor) -> Tensor:
    """Two halves, 12 bytes of scales, 32 bytes of fifth bits (bit g for group g), 256 nibbles."""
    return with_scales(b, nibble_pairs(b[:, 48:176]) + split_bits(b[:, 16:48], 1) * 16)


def decode_q2_k(b: Tensor) -> Tensor:
    """16 bytes of 4-bit scales and minima, 256 values of 2 bits, two halves."""
    # Each run of 32 bytes gives four groups of 32, and each half of a group has its own scale.
    q = split_bits(b[:, 16:80].reshape(-1, 2, 32), 2).reshape(-1, 16, 16)
    scales = (b[:, 0:16] & 15).float() * half_at(b, 80)
    minima = (b[:, 0:16] >> 4).float() * half_at(b, 82)
    return (q.float() * scales.unsqueeze(-1) - minima.unsqueeze(-1)).flatten(1)


def decode_q3_k(b: Tensor) -> Tensor:
    """32 bytes of high bits, 256 values of 2 bits, 16 scales of 6 bits in 12 bytes, a half."""
    low = split_bits(b[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    q = (low + split_bits(b[:, 0:32], 1) * 4).reshape(-1, 16, 16).float() - 4
    # Low 4 bits: the nibbles of bytes 0 to 7; high 2: the four fields of bytes 8 to 11.
    scales = nibbles(b[:, 96:104]) | (split_bits(b[:, 104:108], 2).flatten(1) << 4)
    d = (scales.float() - 32) * half_at(b, 108)
    return (q * d.unsqueeze(-1)).flatten(1)


def decode_q6_k(b: Tensor) -> Tensor:
    """128 bytes of low nibbles, 64 of high 2 bits, 16 signed scales, a half: (q - 32) * s * d."""
    low = split_bits(b[:, 0:128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    high = split_bits(b[:, 128:192].reshape(-1, 2, 32), 2)
    q = (low | (high << 4)).reshape(-1, 16, 16).float() - 32
    scales = signed_bytes(b[:, 192:208]) * half_at(b, 208)
    return (q * scales.unsqueeze(-1)).flatten(1)


# The values of E2M1 (a sign, two bits of exponent, one of mantissa) times two. The negative zero
# is +0: GGUF files are read by llama.cpp, whose table of whole numbers has no other.
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode_mxfp4(b: Tensor) -> Tensor:
    """A scale that is an exponent (E8M0), then 32 values of 4 bits (E2M1).

    Half the scale is 2 ** (e - 128), for e = 255 too: there the specification has NaN, and readers
    of GGUF go on counting.
    """
    e = b[:, 0:1].int()
    # Below 2, half the scale is one bit among those of float32's subnormal numbers.
    bits = (e < 2).where(0x200000 * (e + 1), (e - 1) * (1 << 23))
    return look_up(nibbles(b[:, 1:17]), E2M1_DOUBLED).float() * bits.bitcast(dtypes.float32)


def decode_nvfp4(b: Tensor) -> Tensor:
    """Four scales of 8 bits (E4M3 whose sign is not read), then four runs of 16 values (E2M1)."""
    scale = b[:, 0:4]
    exponent, mantissa = ((scale >> 3) & 15).int(), (scale & 7).float()
    value = (exponent == 0).where(mantissa * 2.0**-10, (mantissa + 8) * power_of_two(exponent - 11))
    # 127 means no number, and is read as zero.
    value = (scale == 127).where(0.0, value).unsqueeze(-1)
    q = look_up(split_bits(b[:, 4:36].reshape(-1, 4, 8), 4), E2M1_DOUBLED)
    return (q.reshape(-1, 4, 16).float() * value).flatten(1)


# Where IQ4 has its 16 values.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def decode_iq4_nl(b: Tensor) -> Tensor:
    """Scale, then 32 nibbles that name one of 16 values."""
    return look_up(nibbles(b[:, 2:18]), IQ4).float() * half_at(b, 0)


def decode_iq4_xs(b: Tensor) -> Tensor:
    """Scale, the high 2 bits of eight scales, their low 4, then eight groups as in IQ4_NL."""
    high = fields(join_bytes(b[:, 2:4], dtypes.uint16), tuple(range(0, 16, 2)), 3)
    scales = (pairs(b[:, 4:8]).int() + high.int() * 16 - 32).float() * half_at(b, 0)
    q = look_up(split_bits(b[:, 8:136].reshape(-1, 8, 16), 4), IQ4)
    return (q.reshape(-1, 8, 32).float() * scales.unsqueeze(-1)).flatten(1)


def decode_tq1_0(b: Tensor) -> Tensor:
    """Digits of base 3: 32 bytes and 16 bytes of five each, 4 bytes of four, then a scale.

    A byte is a fraction of 256; each product with 3 has the next digit before the point.
    """
    parts = []
    for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        rest = [b[:, begin:end] * 3**i for i in range(digits)]
        parts.append(Tensor.stack(*rest, dim=1).flatten(1))
    digit: Tensor = (Tensor.cat(*parts, dim=1).cast(dtypes.uint16) * 3) >> 8
    return (digit.float() - 1) * half_at(b, 52)


def decode_tq2_0(b: Tensor) -> Tensor:
    """64 bytes of four fields each, then a scale: (q - 1) * d."""
    q = split_bits(b[:, 0:64].reshape(-1, 2, 32), 2).flatten(1)
    return (q.float() - 1) * half_at(b, 64)


def plain(kind: int, name: str, dtype: Any) -> BlockFormat:
    """Elements that are stored as they are."""
    return BlockFormat(kind, name, 1, dtype.itemsize, lambda b: b.bitcast(dtype), dtype)


ROWS = [
    plain(0, "F32", dtypes.float32),
    plain(1, "F16", dtypes.float16),
    BlockFormat(2, "Q4_0", 32, 18, decode_q4_0),
    BlockFormat(3, "Q4_1", 32, 20, decode_q4_1),
    BlockFormat(6, "Q5_0", 32, 22, decode_q5_0),
    BlockFormat(7, "Q5_1", 32, 24, decode_q5_1),
    BlockFormat(8, "Q8_0", 32, 34, decode_q8_0),
    BlockFormat(10, "Q2_K", 256, 84, decode_q2_k),
    BlockFormat(11, "Q3_K", 256, 110, decode_q3_k),
    BlockFormat(12, "Q4_K", 256, 144, decode_q4_k),
    BlockFormat(13, "Q5_K", 256, 176, decode_q5_k),
    BlockFormat(14, "Q6_K", 256, 210, decode_q6_k),
    BlockFormat(16, "IQ2_XXS", 256, 66, ggml_iq.decode_iq2_xxs),
    BlockFormat(17, "IQ2_XS", 256, 74, ggml_iq.decode_iq2_xs),
    BlockFormat(18, "IQ3_XXS", 256, 98, ggml_iq.decode_iq3_xxs),
    BlockFormat(19, "IQ1_S", 256, 50, ggml_iq.decode_iq1_s),
    BlockFormat(20, "IQ4_NL", 32, 18, decode_iq4_nl),
    BlockFormat(21, "IQ3_S", 256, 110, ggml_iq.decode_iq3_s),
    BlockFormat(22, "IQ2_S", 256, 82, ggml_iq.decode_iq2_s),
    BlockFormat(23, "IQ4_XS", 256, 136, decode_iq4_xs),
    plain(24, "I8", dtypes.int8),
    plain(25, "I16", dtypes.int16),
    plain(26, "I32", dtypes.int32),
    plain(27, "I64", dtypes.int64),
    plain(28, "F64", dtypes.float64),
    BlockFormat(29, "IQ1_M", 256, 56, ggml_iq.decode_iq1_m),
    plain(30, "BF16", dtypes.bfloat16),
    BlockFormat(34, "TQ1_0", 256, 54, decode_tq1_0),
    BlockFormat(35, "TQ2_0", 256, 66, decode_tq2_0),
    BlockFormat(39, "MXFP4", 32, 17, decode_mxfp4),
    BlockFormat(40, "NVFP4", 64, 36, decode_nvfp4),
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
