"""Splits blocks of quantised weights into codes of few bits and the factors they share.

Receives the bytes of blocks as uint8 tensors and returns `Parts`. A row of CODED says what is the
same for all blocks of a type. Types whose elements are points of a grid are not among them. How
codes are laid out for products is in `formats/interleaved`.

Source: the block layouts published with ggml (ggml-common.h and the GGUF specification).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aster_ml import Tensor, dtypes
from aster_ml.formats.ggml.bits import (
    fields,
    fifth_bits,
    half_exponent,
    join_bytes,
    look_up,
    nibble_pairs,
    nibbles,
    pairs,
    scale_bytes,
    small_float,
    split_bits,
    trits,
)


class Factor(NamedTuple):
    """Numbers that whole runs of elements are multiplied with, as they are stored.

    `stored` is [n, s] for n blocks; `read` gives them as float32, element by element.
    """

    stored: Tensor
    read: Callable[[Tensor], Tensor] = Tensor.float


class Parts(NamedTuple):
    """Blocks as codes [n, elements] of uint8, and the factors of scales and of minima."""

    codes: Tensor
    scales: tuple[Factor, ...]
    minima: tuple[Factor, ...] = ()


class Coded(NamedTuple):
    """Format of the blocks of a type.

    A code has as many bits as its planes together, the lowest first; `values` are what codes stand
    for where that is not the code itself. An element is (value - offset) * scales - minima. Of
    `run` neighbours all share their factors. Codes are stored in bits, or as digits of `base`.
    """

    parts: Callable[[Tensor], Parts]
    planes: tuple[int, ...]
    offset: int = 0
    run: int = 32
    values: tuple[int, ...] | None = None
    base: int = 2

    def numbers(self, codes: Tensor) -> Tensor:
        """Decodes codes to float32. Shapes: codes [*b] -> [*b]."""
        return codes.float() - self.offset if self.values is None else self.look_up(codes).float()

    @property
    def zero(self) -> int:
        """Offset of whole numbers."""
        return self.offset if self.values is None else -min(self.values)

    def whole(self, codes: Tensor) -> Tensor:
        """Decodes codes to uint8 with the offset `zero`. Shapes: codes [*b] -> [*b]."""
        if self.values is None:
            return codes
        return (self.look_up(codes) + self.zero).cast(dtypes.uint8)

    def look_up(self, codes: Tensor) -> Tensor:
        """Values by code, as int32. Shapes: codes [*b] -> [*b]."""
        assert self.values is not None
        return look_up(codes, self.values)

    def decode(self, parts: Parts) -> Tensor:
        """The elements of blocks as float32; these may have several axes.

        Shapes: -> [n, elements].
        """
        scale = product_of(parts.scales)
        value = self.numbers(parts.codes).reshape(*scale.shape, -1) * scale.unsqueeze(-1)
        if parts.minima:
            value = value - product_of(parts.minima).unsqueeze(-1)
        return value.flatten(-2)


def product_of(factors: Sequence[Factor]) -> Tensor:
    """The product of factors as float32."""
    first, *rest = [factor.read(factor.stored) for factor in factors]
    for t in rest:
        first = first * t
    return first


def half(b: Tensor, begin: int) -> Factor:
    """The float16 at a byte of every block."""
    return Factor(b[:, begin : begin + 2].bitcast(dtypes.float16))


def minus(t: Tensor) -> Tensor:
    """Numbers that are added, where minima are subtracted."""
    return -t.float()


def low_nibble(t: Tensor) -> Tensor:
    """The low half of a byte."""
    return (t & 15).float()


def high_nibble(t: Tensor) -> Tensor:
    """The high half of a byte."""
    return (t >> 4).float()


def parts_q4_0(b: Tensor) -> Parts:
    """Scale, then 32 nibbles."""
    return Parts(nibbles(b[:, 2:18]), (half(b, 0),))


def parts_q4_1(b: Tensor) -> Parts:
    """Scale and minimum, then 32 nibbles; the minimum is added."""
    return Parts(nibbles(b[:, 4:20]), (half(b, 0),), (Factor(half(b, 2).stored, minus),))


def parts_q5_0(b: Tensor) -> Parts:
    """Scale, 32 fifth bits, then 32 nibbles."""
    return Parts(nibbles(b[:, 6:22]) | fifth_bits(b[:, 2:6]), (half(b, 0),))


def parts_q5_1(b: Tensor) -> Parts:
    """Scale and minimum, 32 fifth bits, then 32 nibbles; the minimum is added."""
    codes = nibbles(b[:, 8:24]) | fifth_bits(b[:, 4:8])
    return Parts(codes, (half(b, 0),), (Factor(half(b, 2).stored, minus),))


def parts_q8_0(b: Tensor) -> Parts:
    """Scale, then 32 signed bytes, whose codes are 128 higher."""
    return Parts(b[:, 2:34] ^ 128, (half(b, 0),))


def parts_q2_k(b: Tensor) -> Parts:
    """16 bytes of 4-bit scales and minima, 256 values of 2 bits, two halves."""
    # Each run of 32 bytes gives four groups of 32, and each half of a group has its own scale.
    codes = split_bits(b[:, 16:80].reshape(-1, 2, 32), 2).flatten(1)
    packed = b[:, 0:16]
    scales, minima = Factor(packed, low_nibble), Factor(packed, high_nibble)
    return Parts(codes, (half(b, 80), scales), (half(b, 82), minima))


def parts_q3_k(b: Tensor) -> Parts:
    """32 bytes of high bits, 256 values of 2 bits, 16 scales of 6 bits in 12 bytes, a half."""
    low = split_bits(b[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    codes = (low | (split_bits(b[:, 0:32], 1) << 2)).flatten(1)
    # Low 4 bits: the nibbles of bytes 0 to 7; high 2: the four fields of bytes 8 to 11.
    scales = nibbles(b[:, 96:104]) | (split_bits(b[:, 104:108], 2).flatten(1) << 4)
    return Parts(codes, (half(b, 108), Factor((scales - 32).bitcast(dtypes.int8))))


def k_factors(b: Tensor) -> tuple[tuple[Factor, ...], tuple[Factor, ...]]:
    """Two halves and 12 bytes of scales and minima, as Q4_K and Q5_K have them."""
    scales, minima = scale_bytes(b[:, 4:16])
    return (half(b, 0), Factor(scales)), (half(b, 2), Factor(minima))


def parts_q4_k(b: Tensor) -> Parts:
    """Two halves, 12 bytes of scales, 256 nibbles in runs of 32 bytes."""
    return Parts(nibble_pairs(b[:, 16:144]).flatten(1), *k_factors(b))


def parts_q5_k(b: Tensor) -> Parts:
    """Two halves, 12 bytes of scales, 32 bytes of fifth bits (bit g for group g), 256 nibbles."""
    codes = nibble_pairs(b[:, 48:176]) | (split_bits(b[:, 16:48], 1) << 4)
    return Parts(codes.flatten(1), *k_factors(b))


def parts_q6_k(b: Tensor) -> Parts:
    """128 bytes of low nibbles, 64 of high 2 bits, 16 signed scales, a half."""
    low = split_bits(b[:, 0:128].reshape(-1, 2, 64), 4).reshape(-1, 2, 4, 32)
    high = split_bits(b[:, 128:192].reshape(-1, 2, 32), 2)
    scales = Factor(b[:, 192:208].bitcast(dtypes.int8))
    return Parts((low | (high << 4)).flatten(1), (half(b, 208), scales))


# Where IQ4 has its 16 values.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def parts_iq4_nl(b: Tensor) -> Parts:
    """Scale, then 32 nibbles that name one of 16 values."""
    return Parts(nibbles(b[:, 2:18]), (half(b, 0),))


def parts_iq4_xs(b: Tensor) -> Parts:
    """Scale, the high 2 bits of eight scales, their low 4, then eight groups as in IQ4_NL."""
    high = fields(join_bytes(b[:, 2:4], dtypes.uint16), tuple(range(0, 16, 2)), 3)
    scales = (pairs(b[:, 4:8]).int() + high.int() * 16 - 32).cast(dtypes.int8)
    codes = split_bits(b[:, 8:136].reshape(-1, 8, 16), 4).flatten(1)
    return Parts(codes, (half(b, 0), Factor(scales)))


# The values of E2M1 (a sign, two bits of exponent, one of mantissa) times two. The negative zero
# is +0: GGUF files are read by llama.cpp, whose table of whole numbers has no other.
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def parts_mxfp4(b: Tensor) -> Parts:
    """A scale that is an exponent (E8M0), then 32 values of 4 bits (E2M1).

    Source: OCP Microscaling Formats specification 1.0.
    """
    return Parts(nibbles(b[:, 1:17]), (Factor(b[:, 0:1], half_exponent),))


def parts_nvfp4(b: Tensor) -> Parts:
    """Four scales of 8 bits (E4M3 whose sign is not read), then four runs of 16 values (E2M1)."""
    codes = split_bits(b[:, 4:36].reshape(-1, 4, 8), 4).flatten(1)
    return Parts(codes, (Factor(b[:, 0:4], small_float),))


def parts_tq1_0(b: Tensor) -> Parts:
    """Digits of base 3: 32 bytes and 16 bytes of five each, 4 bytes of four, then a scale."""
    return Parts(trits(b), (half(b, 52),))


def parts_tq2_0(b: Tensor) -> Parts:
    """64 bytes of four fields each, then a scale."""
    return Parts(split_bits(b[:, 0:64].reshape(-1, 2, 32), 2).flatten(1), (half(b, 64),))


CODED: dict[str, Coded] = {
    "Q4_0": Coded(parts_q4_0, (4,), 8),
    "Q4_1": Coded(parts_q4_1, (4,)),
    "Q5_0": Coded(parts_q5_0, (4, 1), 16),
    "Q5_1": Coded(parts_q5_1, (4, 1)),
    "Q8_0": Coded(parts_q8_0, (8,), 128),
    "Q2_K": Coded(parts_q2_k, (2,), run=16),
    "Q3_K": Coded(parts_q3_k, (2, 1), 4, run=16),
    "Q4_K": Coded(parts_q4_k, (4,)),
    "Q5_K": Coded(parts_q5_k, (4, 1)),
    "Q6_K": Coded(parts_q6_k, (4, 2), 32, run=16),
    "IQ4_NL": Coded(parts_iq4_nl, (4,), values=IQ4),
    "IQ4_XS": Coded(parts_iq4_xs, (4,), values=IQ4),
    "TQ1_0": Coded(parts_tq1_0, (2,), 1, base=3),
    "TQ2_0": Coded(parts_tq2_0, (2,), 1),
    "MXFP4": Coded(parts_mxfp4, (4,), values=E2M1_DOUBLED),
    "NVFP4": Coded(parts_nvfp4, (4,), run=16, values=E2M1_DOUBLED),
}
