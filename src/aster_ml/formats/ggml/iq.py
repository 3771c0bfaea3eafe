"""Decodes IQ1, IQ2 and IQ3: blocks of 256 elements that refer to points of a grid.

Each function takes the bytes of blocks [n, nbytes] and gives their values [n, 256]. A point stands
for 4 or 8 elements; signs, scales and the high bits of places lie beside, packed in each type's own
way. The grids are in `formats/ggml/grids`; the table of types, with those that need no grid, is in
`formats/ggml/blocks`.

Source: the block layouts published with ggml (ggml-common.h).
"""

from __future__ import annotations

from aster_ml import Tensor, dtypes
from aster_ml.formats.ggml.bits import fields, half_at, join_bytes, pairs
from aster_ml.formats.ggml.grids import grid_points

# Where eight bits of a byte are, and four fields of 2, 7 and 3 bits of a number.
BITS, TWOS, SEVENS, THREES = tuple(range(8)), (0, 2, 4, 6), (0, 7, 14, 21), (0, 3, 6, 9)


def signs(bits: Tensor) -> Tensor:
    """-1 for each bit that is set, 1 for others, as float32.

    Shapes: bits [*b] -> [*b, 8].
    """
    return 1 - 2 * fields(bits, BITS, 1).float()


def signs_of_7(bits: Tensor) -> Tensor:
    """Eight signs of seven bits: the last is such that an even number of them is negative.

    Shapes: bits [*b] -> [*b, 8].
    """
    parity = bits ^ (bits >> 4)
    parity = parity ^ (parity >> 2)
    parity = (parity ^ (parity >> 1)) & 1
    return signs(bits | (parity << 7))


def signed_points(scale: Tensor, points: Tensor, sign: Tensor) -> Tensor:
    """The product of the three; each scale is for as many elements as its share is.

    Shapes: scale [n, k], points [n, *a], sign [n, *b] -> [n, 256].
    """
    n, k = scale.shape
    values = points.reshape(n, k, -1) * scale.unsqueeze(-1)
    return (values * sign.reshape(n, k, -1)).flatten(1)


def decode_iq2_xxs(b: Tensor) -> Tensor:
    """Scale, then eight groups: 4 places, and a number of 4 x 7 signs below a scale of 4 bits."""
    groups = b[:, 2:66].reshape(-1, 8, 8)
    word = join_bytes(groups[:, :, 4:8], dtypes.uint32)
    scale = half_at(b, 0) * ((word >> 28).float() + 0.5) * 0.25
    return signed_points(
        scale, grid_points(groups[:, :, 0:4], "IQ2_XXS"), signs_of_7(fields(word, SEVENS, 127))
    )


def decode_iq2_xs(b: Tensor) -> Tensor:
    """Scale, 32 numbers of a place of 9 bits below 7 signs, 16 scales of 4 bits."""
    word = join_bytes(b[:, 2:66].reshape(-1, 32, 2), dtypes.uint16)
    scale = half_at(b, 0) * (pairs(b[:, 66:74]).float() + 0.5) * 0.25
    return signed_points(scale, grid_points(word & 511, "IQ2_XS"), signs_of_7(word >> 9))


def decode_iq2_s(b: Tensor) -> Tensor:
    """Scale, 32 places, 32 bytes of signs, the high 2 bits of places, 16 scales of 4 bits."""
    high = fields(b[:, 66:74], TWOS, 3).flatten(1).int()
    scale = half_at(b, 0) * (pairs(b[:, 74:82]).float() + 0.5) * 0.25
    points = grid_points(b[:, 2:34].int() | (high << 8), "IQ2_S")
    return signed_points(scale, points, signs(b[:, 34:66]))


def decode_iq3_xxs(b: Tensor) -> Tensor:
    """Scale, 64 places, eight numbers of 4 x 7 signs below a scale of 4 bits."""
    word = join_bytes(b[:, 66:98].reshape(-1, 8, 4), dtypes.uint32)
    scale = half_at(b, 0) * ((word >> 28).float() + 0.5) * 0.5
    points = grid_points(b[:, 2:66], "IQ3_XXS")
    return signed_points(scale, points, signs_of_7(fields(word, SEVENS, 127)))


def decode_iq3_s(b: Tensor) -> Tensor:
    """Scale, 64 places, their ninth bits, 32 bytes of signs, 8 scales of 4 bits."""
    high = fields(b[:, 66:74], BITS, 1).flatten(1).int()
    scale = half_at(b, 0) * (pairs(b[:, 106:110]).float() * 2 + 1)
    points = grid_points(b[:, 2:66].int() | (high << 8), "IQ3_S")
    return signed_points(scale, points, signs(b[:, 74:106]))


def shifted_points(scale: Tensor, points: Tensor, down: Tensor) -> Tensor:
    """Points moved by an eighth, down where the bit is set, times their scales.

    Shapes: scale [n, k], points [n, 32, 8], down [n, m] -> [n, 256]; 32 % k == 0.
    """
    n, k = scale.shape
    shift = (0.125 - down.float() * 0.25).unsqueeze(-1)
    moved = points.reshape(n, down.shape[1], -1) + shift
    return (moved.reshape(n, k, -1) * scale.unsqueeze(-1)).flatten(1)


def decode_iq1_s(b: Tensor) -> Tensor:
    """Scale, 32 places, eight numbers: 4 x 3 high bits, a scale of 3, the way of the shift."""
    word = join_bytes(b[:, 34:50].reshape(-1, 8, 2), dtypes.uint16)
    high = fields(word, THREES, 7).flatten(1).int()
    scale = half_at(b, 0) * (((word >> 12) & 7).float() * 2 + 1)
    points = grid_points(b[:, 2:34].int() | (high << 8), "IQ1_S")
    return shifted_points(scale, points, word >> 15)


def decode_iq1_m(b: Tensor) -> Tensor:
    """32 places, a nibble of 3 high bits and a shift for each, four numbers of 4 x 3 bits of scale.

    The top nibbles of these numbers are the float16 that scales the block, the lowest first.
    """
    word = join_bytes(b[:, 48:56].reshape(-1, 4, 2), dtypes.uint16)
    top = word >> 12
    whole = top[:, 0:1] | (top[:, 1:2] << 4) | (top[:, 2:3] << 8) | (top[:, 3:4] << 12)
    scale = whole.bitcast(dtypes.float16).float() * (fields(word, THREES, 7).flatten(1) * 2 + 1)
    nibble = pairs(b[:, 32:48])
    points = grid_points(b[:, 0:32].int() | ((nibble & 7).int() << 8), "IQ1_S")
    return shifted_points(scale, points, nibble >> 3)
