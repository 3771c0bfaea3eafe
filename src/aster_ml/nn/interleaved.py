"""Products with quantised matrices in integers: rows interleaved for SIMD lanes, and activations
in fixed point, two digits of int8 each.

Receives a `QuantTensor` of two axes; returns an `Interleaved`, the same numbers in another order of
bytes. Its products round what they are given to 15 bits, a scale for each block of 32; whoever
wants float products has `QuantTensor.dequantize`. All of it are ordinary tensor ops.

why: with one digit, as ggml's Q8_1 has, a small model's first choice of a word changes now and
then; the second one costs a product of bytes where reading the weights takes longer

Source: blocks with a scale and a sum are those of ggml's Q8_1 (public GGUF documentation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

from aster_ml import Tensor, TinyJit, dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.helpers import prod
from aster_ml.nn.ggml import nibble_pairs, scale_bytes
from aster_ml.nn.quantised import QuantTensor

# Rows whose words lie side by side, bytes of a word, and elements of a block of activations.
LANES, WORD, BLOCK = 16, 4, 32
# Steps from 0 to the largest of a block; how many of them the high digit counts at once.
DIGIT = 128
MOST = 127 * DIGIT
# 1.5 * 2 ** 23, whose neighbours among float32 are whole numbers; its bits end in 22 zeros.
UNITS = 12582912.0


class Parts(NamedTuple):
    """A type's blocks as bytes that hold codes, and factors of their scales and minima.

    A byte holds code i of a block in its low half, and code i + 16 in the high one where codes have
    4 bits. An element is (code - offset) * scales - minima.

    Of n blocks with s scales each codes are uint8 [n, s, bytes], scales and minima [n, s], or
    [n, 1].
    """

    codes: Tensor
    bits: int
    offset: int
    scales: tuple[Tensor, ...]
    minima: tuple[Tensor, ...] = ()


def half(b: Tensor, begin: int) -> Tensor:
    """The float16 at a byte of every block. Shapes: b [n, nbytes] -> [n, 1]."""
    return b[:, begin : begin + 2].bitcast(dtypes.float16)


def parts_q4_0(b: Tensor) -> Parts:
    """Scale, then 32 nibbles."""
    return Parts(b[:, 2:18].unsqueeze(1), 4, 8, (half(b, 0),))


def parts_q4_1(b: Tensor) -> Parts:
    """Scale and minimum, then 32 nibbles; the minimum is added."""
    return Parts(b[:, 4:20].unsqueeze(1), 4, 0, (half(b, 0),), (-half(b, 2),))


def parts_q8_0(b: Tensor) -> Parts:
    """Scale, then 32 signed bytes, whose codes are 128 higher."""
    return Parts((b[:, 2:34] ^ 128).unsqueeze(1), 8, 128, (half(b, 0),))


def parts_q4_k(b: Tensor) -> Parts:
    """Two halves, 12 bytes of scales, 256 nibbles in runs of 32 bytes."""
    codes = nibble_pairs(b[:, 16:144])
    scales, minima = scale_bytes(b[:, 4:16])
    joined = codes[:, :, :16] | (codes[:, :, 16:] << 4)
    return Parts(joined, 4, 0, (half(b, 0), scales), (half(b, 2), minima))


PARTS: dict[str, Callable[[Tensor], Parts]] = {
    "Q4_0": parts_q4_0,
    "Q4_1": parts_q4_1,
    "Q8_0": parts_q8_0,
    "Q4_K": parts_q4_k,
}


class Rounded(NamedTuple):
    """Activations in fixed point, their scales, and the sums of blocks of them.

    A number is (high * 128 + low) * scale. Digits are int8 [n, blocks, 32], scales and sums
    [n, blocks].
    """

    high: Tensor
    low: Tensor
    scales: Tensor
    sums: Tensor


def round_blocks(x: Tensor) -> Rounded:
    """Rounds to 127 * 128 steps either way of the largest in each block.

    `x` is [n, k], with k a multiple of 32.
    """
    x = x.float().reshape(x.shape[0], -1, BLOCK)
    largest = x.abs().max(-1, keepdim=True)
    steps = (largest > 0).where(MOST / largest, 0)
    # Of so large a float the lowest 22 bits are the number that was added, rounded to even.
    rounded = (x * steps + UNITS).bitcast(dtypes.int32)
    scales = (largest / MOST).squeeze(-1)
    high = ((rounded << 10) >> 17).cast(dtypes.int8).contiguous()
    low = (rounded & (DIGIT - 1)).cast(dtypes.int8).contiguous()
    whole = joined(*[t.cast(dtypes.int32).sum(-1) for t in (high, low)])
    return Rounded(high, low, scales.contiguous(), (whole.float() * scales).contiguous())


def joined(high: Tensor, low: Tensor) -> Tensor:
    """The number of two digits, or the sum of products with them."""
    return high * DIGIT + low


class Interleaved:
    """A quantised matrix [m, k] in memory, words of sixteen rows side by side.

    With n blocks in a row, which have s scales each, codes are uint8 [m / 16, n * s, words, 16, 4],
    scales and minima [m / 16, n, s, 16] or [m / 16, n, 1, 16].
    """

    def __init__(self, packed: QuantTensor) -> None:
        if not can_interleave(packed):
            raise ArgumentError(
                f"Interleaved: a matrix of {', '.join(PARTS)} with a multiple of {LANES} rows is "
                f"wanted, {packed.type} {list(packed.shape)} is given"
            )
        self.type, self.shape = packed.type, packed.shape
        blocks = packed.blocks
        self.blocks = int(blocks.shape[1])
        parts = PARTS[packed.type](blocks.reshape(-1, blocks.shape[-1]))
        self.bits, self.offset = parts.bits, parts.offset
        self.each = int(parts.codes.shape[1])
        across = (self.shape[0] // LANES, LANES, self.blocks * self.each, -1, WORD)
        self.codes = parts.codes.reshape(*across).permute(0, 2, 3, 1, 4).contiguous()
        self.scales = [self.beside(t) for t in parts.scales]
        self.minima = [self.beside(t) for t in parts.minima]

    def beside(self, t: Tensor) -> Tensor:
        """A factor of each block, those of sixteen rows side by side.

        Shapes: t [n, s] -> [n // 16 // blocks, blocks, s, 16].
        """
        t = t.reshape(self.shape[0] // LANES, LANES, self.blocks, t.shape[-1])
        return t.permute(0, 2, 3, 1).contiguous()

    @property
    def ndim(self) -> int:
        """Two."""
        return len(self.shape)

    def memory(self) -> list[Tensor]:
        """The tensors that hold it."""
        return [self.codes, *self.scales, *self.minima]

    def with_memory(self, memory: Sequence[Tensor]) -> Interleaved:
        """A matrix of the same type and shape that is held by these tensors."""
        found, scales = copy(self), 1 + len(self.scales)
        found.codes, found.scales, found.minima = memory[0], [*memory[1:scales]], [*memory[scales:]]
        return found

    def nbytes(self) -> int:
        """How many bytes they take."""
        return sum([int(t.nbytes()) for t in self.memory()])

    def fields(self, codes: Tensor) -> list[Tensor]:
        """The codes in bytes, by their place in them."""
        return [codes & 15, codes >> 4] if self.bits == 4 else [codes]

    def decode(self, codes: Tensor, scales: list[Tensor], minima: list[Tensor]) -> Tensor:
        """Elements as float32.

        Shapes: codes [r, n, m] -> [r, k].
        """
        r, shape = codes.shape[0], (codes.shape[0], self.blocks, self.each, -1)
        values = self.fields(codes)
        found = values[0] if len(values) == 1 else values[0].cat(values[1], dim=-1)
        value = (found.float() - self.offset).reshape(*shape) * times(scales).unsqueeze(-1)
        if minima:
            value = value - times(minima).unsqueeze(-1)
        return value.reshape(r, self.shape[1])

    def dequantize(self) -> Tensor:
        """The elements as float32, lazily. Shapes: -> [m, k]."""
        m = self.shape[0]
        codes = self.codes.permute(0, 3, 1, 2, 4).reshape(m, self.blocks * self.each, -1)
        scales, minima = (
            [t.permute(0, 3, 1, 2).reshape(m, self.blocks, t.shape[2]) for t in factors]
            for factors in (self.scales, self.minima)
        )
        return self.decode(codes, scales, minima)

    def rows(self, index: Tensor) -> Tensor:
        """The rows at an index; nothing else is read. Shapes: index int [*b] -> [*b, k]."""
        flat = index.reshape(-1)
        high, low = flat // LANES, flat % LANES
        codes = self.codes[high, :, :, low].reshape(flat.shape[0], self.blocks * self.each, -1)
        scales, minima = (
            [t[high, :, :, low] for t in factors] for factors in (self.scales, self.minima)
        )
        return self.decode(codes, scales, minima).reshape(*index.shape, self.shape[1])

    def product(self, x: Tensor) -> Tensor:
        """x, rounded to 15 bits in blocks of 32, times the transposed matrix, summed in float32.

        Shapes: x float [*b, k] -> [*b, m].
        Dtype: that of x.
        Raises: ShapeError where the last axes differ.
        Error: that of the rounding, half a step of 1/16256 of each block's largest activation.
        """
        if x.ndim == 0 or x.shape[-1] != self.shape[1]:
            raise ShapeError(
                f"product: k differs, {list(x.shape)} by rows of {list(self.shape)}; both need "
                "the same last axis"
            )
        n = prod(x.shape[:-1])
        given = round_blocks(x.reshape(n, self.shape[1]))
        along = (n, 1, self.blocks, self.each)
        m = self.shape[0] // LANES
        words = self.codes.reshape(1, m, self.blocks, self.each, -1, LANES, WORD)
        fields = [field.cast(dtypes.int32) for field in self.fields(words)]

        def summed(digit: Tensor) -> Tensor:
            """Sums over blocks of products with one digit, int32."""
            digits = digit.reshape(*along, len(fields), -1, 1, WORD).cast(dtypes.int32)
            terms = [digits[:, :, :, :, i] * field for i, field in enumerate(fields)]
            return (terms[0] if len(terms) == 1 else terms[0] + terms[1]).sum((4, 6))

        whole = joined(summed(given.high), summed(given.low)).float()
        step, total = (t.reshape(*along, 1) for t in (given.scales, given.sums))
        value = whole * step
        if self.offset:
            value = value - total * self.offset
        value = value * times(self.scales)
        if self.minima:
            value = value - total * times(self.minima)
        return value.sum((2, 3)).reshape(*x.shape[:-1], self.shape[0]).cast(x.dtype)

    def part(self, rows: slice) -> Interleaved | Tensor:
        """Some of the rows, in whole groups of sixteen; other rows as floats."""
        start, stop, step = rows.indices(self.shape[0])
        if step != 1 or start % LANES or stop % LANES:
            return self.dequantize()[rows]
        found = copy(self)
        groups = slice(start // LANES, stop // LANES)
        found.shape = (stop - start, self.shape[1])
        found.codes = self.codes[groups]
        found.scales = [t[groups] for t in self.scales]
        found.minima = [t[groups] for t in self.minima]
        return found


class Interleaver:
    """Makes `Interleaved`s one after the other; those of one type and shape by one recording.

    why: a model has a matrix of each kind in every layer, and to find out what a kernel would be
    for each of them takes longer than to move its bytes
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], tuple[Interleaved, TinyJit[list[Tensor]]]] = {}

    def __call__(self, packed: QuantTensor) -> Interleaved:
        """The matrix, in memory. Raises: ArgumentError where `can_interleave` says no."""
        key = packed.type, packed.shape
        if key not in self.known:
            self.known[key] = Interleaved(packed), TinyJit(partial(interleaved_memory, packed.type))
        like, jit = self.known[key]
        return like.with_memory(jit(packed.blocks))


def interleaved_memory(name: str, blocks: Tensor) -> list[Tensor]:
    """What holds a matrix of such a type and blocks, computed."""
    memory = Interleaved(QuantTensor(name, blocks)).memory()
    Tensor.realize(*memory)
    return memory


def times(factors: list[Tensor]) -> Tensor:
    """The product of factors as float32."""
    result = factors[0].float()
    for t in factors[1:]:
        result = result * t.float()
    return result


def can_interleave(packed: QuantTensor) -> bool:
    """Whether a quantised value is a matrix of a type, and of a number of rows, that fit."""
    shape = packed.shape
    return packed.type in PARTS and len(shape) == 2 and 0 not in shape and shape[0] % LANES == 0
