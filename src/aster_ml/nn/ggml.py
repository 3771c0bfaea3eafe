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


@dataclass(frozen=True)
class BlockFormat:
    """One kind of block: its name, its elements, its bytes, and how to read them."""

    name: str
    elements: int
    nbytes: int
    decode: Callable[[Tensor], Tensor]


def half_at(blocks: Tensor, begin: int) -> Tensor:
    """The float16 at a byte of every block, as float32.

    Shapes: blocks [n, nbytes] -> [n, 1].
    """
    return blocks[:, begin : begin + 2].bitcast(dtypes.float16).float()


def signed_bytes(t: Tensor) -> Tensor:
    """Bytes as float32, read as two's complement."""
    return t.bitcast(dtypes.int8).float()


def split_bits(t: Tensor, width: int) -> Tensor:
    """The fields of `width` bits in every byte, lowest first, on a new axis before the last.

    Shapes: t [*b, m] -> [*b, 8 // width, m].
    """
    mask = (1 << width) - 1
    return Tensor.stack(*[(t >> shift) & mask for shift in range(0, 8, width)], dim=-2)


def nibbles(t: Tensor) -> Tensor:
    """The low nibbles of all bytes, then the high ones.

    Shapes: t [n, m] -> [n, 2 * m].
    """
    return split_bits(t, 4).flatten(1)


def fifth_bits(t: Tensor) -> Tensor:
    """Bit i of four bytes for element i, moved to the value 16.

    Shapes: t [n, 4] -> [n, 32].
    """
    return split_bits(t, 1).transpose(1, 2).flatten(1) * 16


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


def scales_6bit(b: Tensor) -> tuple[Tensor, Tensor]:
    """The eight scales and eight minima of 6 bits each that Q4_K and Q5_K pack into 12 bytes.

    The first four of each are the low 6 bits of bytes 0 to 3 and 4 to 7; the others have their low
    4 bits in the nibbles of bytes 8 to 11, and their high 2 in the top bits of bytes 0 to 7.

    Shapes: b [n, 12] -> a pair of [n, 8, 1].
    """
    first, second, third = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scales = (first & 63).cat((third & 15) | ((first >> 6) << 4), dim=1)
    minima = (second & 63).cat((third >> 4) | ((second >> 6) << 4), dim=1)
    return scales.float().unsqueeze(-1), minima.float().unsqueeze(-1)


def with_scales(b: Tensor, q: Tensor) -> Tensor:
    """q * (d * scale) - dmin * minimum over eight groups of 32, as in Q4_K and Q5_K.

    Shapes: q [n, 8, 32] -> [n, 256].
    """
    scales, minima = scales_6bit(b[:, 4:16])
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


def decode_mxfp4(b: Tensor) -> Tensor:
    """A scale that is an exponent (E8M0), then 32 values of 4 bits (E2M1)."""
    q = nibbles(b[:, 1:17])
    exponent, mantissa = ((q & 7) >> 1).int(), (q & 1).float()
    # 0, 0.5, then 1, 1.5, 2, 3, 4, 6.
    normal = (mantissa * 0.5 + 1) * power_of_two(exponent - 1)
    value = (exponent == 0).where(mantissa * 0.5, normal)
    value = (q & 8).cast(dtypes.bool).where(-value, value)
    # The exponent 127 means 1; 2^-127 is below float32's normal range and takes two factors.
    scale = b[:, 0:1].int() - 127
    return value * power_of_two(scale.maximum(-126)) * (scale < -126).where(0.5, 1.0)


def power_of_two(exponent: Tensor) -> Tensor:
    """2 to an integer in [-126, 127], exactly: the exponent bits of a float32."""
    return ((exponent + 127) * (1 << 23)).bitcast(dtypes.float32)


def plain(dtype: Any) -> Callable[[Tensor], Tensor]:
    """Elements that are stored as they are."""
    return lambda b: b.bitcast(dtype)


FORMATS = {
    0: BlockFormat("F32", 1, 4, plain(dtypes.float32)),
    1: BlockFormat("F16", 1, 2, plain(dtypes.float16)),
    2: BlockFormat("Q4_0", 32, 18, decode_q4_0),
    3: BlockFormat("Q4_1", 32, 20, decode_q4_1),
    6: BlockFormat("Q5_0", 32, 22, decode_q5_0),
    7: BlockFormat("Q5_1", 32, 24, decode_q5_1),
    8: BlockFormat("Q8_0", 32, 34, decode_q8_0),
    10: BlockFormat("Q2_K", 256, 84, decode_q2_k),
    11: BlockFormat("Q3_K", 256, 110, decode_q3_k),
    12: BlockFormat("Q4_K", 256, 144, decode_q4_k),
    13: BlockFormat("Q5_K", 256, 176, decode_q5_k),
    14: BlockFormat("Q6_K", 256, 210, decode_q6_k),
    24: BlockFormat("I8", 1, 1, plain(dtypes.int8)),
    25: BlockFormat("I16", 1, 2, plain(dtypes.int16)),
    26: BlockFormat("I32", 1, 4, plain(dtypes.int32)),
    27: BlockFormat("I64", 1, 8, plain(dtypes.int64)),
    28: BlockFormat("F64", 1, 8, plain(dtypes.float64)),
    30: BlockFormat("BF16", 1, 2, plain(dtypes.bfloat16)),
    39: BlockFormat("MXFP4", 32, 17, decode_mxfp4),
}


def block_format(kind: int, what: str) -> BlockFormat:
    """The row of a kind.

    Raises: FormatError that lists the kinds there are.
    """
    if kind not in FORMATS:
        known = ", ".join(f"{number} {row.name}" for number, row in FORMATS.items())
        raise FormatError(f"{what}: ggml type {kind} is not known here; known are {known}")
    return FORMATS[kind]


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
