"""Bits and bytes of quantised blocks: fields, numbers and small tables, as integer tensor ops.

Receives the bytes of blocks as uint8 tensors and returns tensors of their fields. Everything is
element-wise or a movement, so taking a block apart fuses into what uses its values. What the fields
mean in a kind of block is in `nn.ggml` and `nn.ggml_grids`.
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
