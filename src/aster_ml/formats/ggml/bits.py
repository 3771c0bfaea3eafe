"""Takes bits and bytes of quantised blocks apart: fields, numbers and small tables, as integer
tensor ops.

Receives the bytes of blocks as uint8 tensors and returns tensors of their fields. Everything is
element-wise or a movement, so taking a block apart fuses into what uses its values. What the fields
mean in a kind of block is in `formats/ggml/blocks` and `formats/ggml/grids`.
"""

from __future__ import annotations

from typing import Any

from aster_ml import Tensor, dtypes


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


def nibble_pairs(t: Tensor) -> Tensor:
    """Runs of 32 bytes: each gives 32 low nibbles, then 32 high ones.

    Shapes: t [n, 128] -> [n, 8, 32].
    """
    return split_bits(t.reshape(-1, 4, 32), 4).reshape(-1, 8, 32)


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


def trits(b: Tensor) -> Tensor:
    """Digits of base 3: 32 bytes and 16 bytes of five each, 4 bytes of four.

    A byte is a fraction of 256; each product with 3 has the next digit before the point.

    Shapes: b [n, 54] -> [n, 256].
    """
    parts = []
    for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        rest = [b[:, begin:end] * 3**i for i in range(digits)]
        parts.append(Tensor.stack(*rest, dim=1).flatten(1))
    whole: Tensor = (Tensor.cat(*parts, dim=1).cast(dtypes.uint16) * 3) >> 8
    return whole.cast(dtypes.uint8)


def half_exponent(e: Tensor) -> Tensor:
    """Half the scale that a byte is the exponent of (E8M0): 2 ** (e - 128), for e = 255 too.

    There the specification has NaN, and readers of GGUF go on counting.
    """
    e = e.int()
    # Below 2, half the scale is one bit among those of float32's subnormal numbers.
    bits = (e < 2).where(0x200000 * (e + 1), (e - 1) * (1 << 23))
    return bits.bitcast(dtypes.float32)


def small_float(scale: Tensor) -> Tensor:
    """Half the scale in a byte (E4M3), whose sign is not read; 127, no number, is zero."""
    exponent, mantissa = ((scale >> 3) & 15).int(), (scale & 7).float()
    value = (exponent == 0).where(mantissa * 2.0**-10, (mantissa + 8) * power_of_two(exponent - 11))
    return (scale == 127).where(0.0, value)


def pairs(t: Tensor) -> Tensor:
    """The low and the high nibble of every byte, side by side.

    Shapes: t [n, m] -> [n, 2 * m].
    """
    return Tensor.stack(t & 15, t >> 4, dim=-1).flatten(1)


def join_bytes(t: Tensor, dtype: Any) -> Tensor:
    """Little-endian numbers of the bytes on the last axis, by shifts.

    Shapes: t [*b, k] -> [*b].
    """
    total = t[..., 0].cast(dtype)
    for i in range(1, dtype.itemsize):
        total = total | (t[..., i].cast(dtype) << (8 * i))
    return total


def fields(t: Tensor, shifts: tuple[int, ...], mask: int) -> Tensor:
    """The field of every number at each shift, on a new last axis.

    Shapes: t [*b] -> [*b, len(shifts)].
    """
    return Tensor.stack(*[(t >> shift) & mask for shift in shifts], dim=-1)


def look_up(q: Tensor, values: tuple[int, ...]) -> Tensor:
    """The q-th of 16 values of -128 to 127, as int32: of four words of four bytes each, the byte.

    It stays arithmetic, which every lane of a vector does by itself, where a table takes a load.
    """
    packed = b"".join([value.to_bytes(1, "little", signed=True) for value in values])
    words = [int.from_bytes(packed[i : i + 4], "little", signed=True) for i in range(0, 16, 4)]
    q = q.int()
    low, high = (q < 4).where(words[0], words[1]), (q < 12).where(words[2], words[3])
    # The byte moves to the top of the word, and back with its sign.
    return ((q < 8).where(low, high) << (24 - (q & 3) * 8)) >> 24


def power_of_two(exponent: Tensor) -> Tensor:
    """2 to an integer in [-126, 127], exactly: the exponent bits of a float32."""
    return ((exponent + 127) * (1 << 23)).bitcast(dtypes.float32)
