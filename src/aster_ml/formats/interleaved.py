"""Multiplies by quantised matrices in integers: rows interleaved for SIMD lanes, and activations in
fixed point, two digits of int8 each.

Receives a `QuantTensor` of two axes, or of three, a matrix for each expert; returns an
`Interleaved`, the same numbers in another order of bytes. Its products round what they are given to
15 bits, a scale for each block of 32; whoever wants float products has `QuantTensor.dequantize`.
All of it are ordinary tensor ops. What codes and factors a type has is in `formats/ggml/codes`.

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
from aster_ml.formats.fileio import part_of
from aster_ml.formats.ggml.codes import CODED, Coded, Factor, Parts, product_of
from aster_ml.formats.quantised import QuantTensor
from aster_ml.helpers import prod

# Rows whose words lie side by side, bytes of a word, and elements of a block of activations, which
# has so many words.
LANES, WORD, BLOCK = 16, 4, 32
QUADS = BLOCK // WORD
# Steps from 0 to the largest of a block; how many of them the high digit counts at once.
DIGIT = 128
MOST = 127 * DIGIT
# 1.5 * 2 ** 23, whose neighbours among float32 are whole numbers; its bits end in 22 zeros.
UNITS = 12582912.0
# Codes that stand for other values are quicker as floats.
INTERLEAVED = tuple([name for name, row in CODED.items() if row.values is None])


class Rounded(NamedTuple):
    """Activations in fixed point, their scales, and the sums of runs of them.

    A number is (high * 128 + low) * scale. Digits are int8 [n, blocks, 32], scales [n, blocks], and
    sums [n, blocks, runs].
    """

    high: Tensor
    low: Tensor
    scales: Tensor
    sums: Tensor


def round_blocks(x: Tensor, run: int = BLOCK) -> Rounded:
    """Rounds to 127 * 128 steps either way of the largest in each block.

    `x` is [n, k], with k a multiple of 32; `run` is how many are summed.
    """
    x = x.float().reshape(x.shape[0], -1, BLOCK)
    largest = x.abs().max(-1, keepdim=True)
    steps = (largest > 0).where(MOST / largest, 0)
    # Of so large a float the lowest 22 bits are the number that was added, rounded to even.
    rounded = (x * steps + UNITS).bitcast(dtypes.int32)
    scales = (largest / MOST).squeeze(-1)
    high = ((rounded << 10) >> 17).cast(dtypes.int8).contiguous()
    low = (rounded & (DIGIT - 1)).cast(dtypes.int8).contiguous()
    runs = (*x.shape[:2], BLOCK // run, run)
    whole = joined(*[t.reshape(*runs).cast(dtypes.int32).sum(-1) for t in (high, low)])
    sums = whole.float() * scales.unsqueeze(-1)
    return Rounded(high, low, scales.contiguous(), sums.contiguous())


def joined(high: Tensor, low: Tensor) -> Tensor:
    """The number of two digits, or the sum of products with them."""
    return high * DIGIT + low


class Interleaved:
    """Quantised matrices [*experts, m, k] in memory, words of sixteen rows side by side.

    Of 32 codes a plane of b bits has b words: uint8 [*experts, m / 16, k / 32, b, 16, 4]. The first
    codes are in the lowest bits of their bytes. Factors are [*experts, m / 16, n, s, 16], s of them
    for each of n blocks in a row. Rows that fill the last sixteen up are zeros.
    """

    def __init__(self, packed: QuantTensor) -> None:
        if not can_interleave(packed):
            raise ArgumentError(
                f"Interleaved: matrices of {', '.join(INTERLEAVED)} are wanted, {packed.type} "
                f"{list(packed.shape)} is given"
            )
        self.type, self.shape = packed.type, packed.shape
        *rows, self.blocks, nbytes = packed.blocks.shape
        coded = self.coded
        parts = coded.parts(packed.blocks.reshape(-1, nbytes))
        codes = parts.codes.reshape(*rows, self.shape[-1] // BLOCK, BLOCK)
        shifts = [sum(coded.planes[:i]) for i in range(len(coded.planes))]
        self.planes = [
            side_by_side(words_of(codes, shift, bits), len(rows), -2)
            for shift, bits in zip(shifts, coded.planes)
        ]
        factors = (*parts.scales, *parts.minima)
        made = {
            id(t): side_by_side(t.reshape(*rows, self.blocks, t.shape[-1]), len(rows), -1)
            for t, _ in factors
        }
        self.scales, self.minima = (
            [Factor(made[id(t)], read) for t, read in some] for some in (parts.scales, parts.minima)
        )

    @property
    def coded(self) -> Coded:
        """Format of the blocks of its type."""
        return CODED[self.type]

    @property
    def words(self) -> int:
        """Words of the 32 codes of a block that are cut out alike."""
        return min(*self.coded.planes, self.coded.run // WORD)

    @property
    def ndim(self) -> int:
        """Two, or three with experts."""
        return len(self.shape)

    def memory(self) -> list[Tensor]:
        """The tensors that hold it."""
        factors = {id(t): t for t, _ in (*self.scales, *self.minima)}
        return [*self.planes, *factors.values()]

    def with_memory(self, memory: Sequence[Tensor]) -> Interleaved:
        """A matrix of the same type and shape that is held by these tensors."""
        made = dict(zip(map(id, self.memory()), memory, strict=True))
        return self.each(lambda t: made[id(t)], self.shape)

    def nbytes(self) -> int:
        """Number of bytes."""
        return sum([int(t.nbytes()) for t in self.memory()])

    def each(self, change: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Interleaved:
        """The same with a change of all that holds it; what has `shape` then."""
        found = copy(self)
        found.shape = shape
        found.planes = [change(t) for t in self.planes]
        found.scales, found.minima = (
            [Factor(change(t), read) for t, read in some] for some in (self.scales, self.minima)
        )
        return found

    def codes(self, planes: Sequence[Tensor], place: int) -> Tensor:
        """The codes at one of the places in bytes that words are cut out of.

        `planes` are [*b, words, *r] each, and so is the result.
        """
        found: Tensor | None = None
        shift = 0
        for plane, bits in zip(planes, self.coded.planes):
            part = cut(
                plane[..., place % (bits // self.words), :, :, :],
                bits,
                bits * (place // (bits // self.words)),
                shift,
            )
            found = part if found is None else found | part
            shift += bits
        assert found is not None
        return found

    def decode(self, planes: list[Tensor], factors: list[list[Tensor]]) -> Tensor:
        """Elements as float32, of what has no axis of rows side by side.

        `planes` are [*b, k / 32, bits, 4] each, the result is [*b, k].
        """
        *rows, blocks, _, _ = planes[0].shape
        apart = [t.reshape(*rows, blocks, -1, self.words, 1, WORD) for t in planes]
        places = range(QUADS // self.words)
        codes = Tensor.stack(*[self.codes(apart, i) for i in places], dim=-4)
        scales, minima = (
            tuple([Factor(t, factor.read) for t, factor in zip(found, some)])
            for found, some in zip(factors, (self.scales, self.minima))
        )
        parts = Parts(codes.reshape(*rows, self.blocks, -1), scales, minima)
        return self.coded.decode(parts).reshape(*rows, self.shape[-1])

    def dequantize(self) -> Tensor:
        """The elements as float32, lazily. Shapes: -> [*experts, m, k]."""
        *experts, m, _ = self.shape

        def apart(t: Tensor, lane: int) -> Tensor:
            """With the rows of sixteen one behind the other, without those that fill up."""
            order = list(range(t.ndim))
            order.insert(len(experts) + 1, order.pop(lane))
            t = t.permute(order).flatten(len(experts), len(experts) + 1)
            return t[..., :m, :, :] if lane == -1 else t[..., :m, :, :, :]

        return self.decode(
            [apart(t, -2) for t in self.planes],
            [[apart(t, -1) for t, _ in some] for some in (self.scales, self.minima)],
        )

    def rows(self, index: Tensor) -> Tensor:
        """The rows of a matrix at an index; nothing else is read.

        Shapes: index int [*b] -> [*b, k].
        """
        flat = index.reshape(-1)
        high, low = flat // LANES, flat % LANES
        found = self.decode(
            [t[high, :, :, low] for t in self.planes],
            [[t[high, :, :, low] for t, _ in some] for some in (self.scales, self.minima)],
        )
        return found.reshape(*index.shape, self.shape[-1])

    def product(self, x: Tensor) -> Tensor:
        """x, rounded to 15 bits in blocks of 32, times the transposed matrix, summed in float32.

        Shapes: x float [*b, k] -> [*b, m].
        Dtype: that of x.
        Raises: ShapeError where the last axes differ.
        Error: that of the rounding, half a step of 1/16256 of each block's largest activation.
        """
        self.check(x)
        rows = (prod(x.shape[:-1]),)
        result = self.each(lambda t: t.unsqueeze(0), self.shape).multiply(x, rows)
        return result.reshape(*x.shape[:-1], self.shape[-2]).cast(x.dtype)

    def chosen(self, x: Tensor, index: Tensor) -> Tensor:
        """x times the transposed matrices of some experts; no others are read.

        Shapes: x float [n, u or 1, k], index int [n, u] -> [n, u, m].
        Dtype: that of x.
        Raises: ShapeError where the last axes differ.
        Error: as `product`.
        """
        self.check(x)
        picked = self.each(lambda t: t[index], (*index.shape, *self.shape[1:]))
        return picked.multiply(x, tuple(x.shape[:2])).cast(x.dtype)

    def check(self, x: Tensor) -> None:
        """Checks that x can be multiplied. Raises: ShapeError."""
        if x.ndim == 0 or x.shape[-1] != self.shape[-1]:
            raise ShapeError(
                f"product: k differs, {list(x.shape)} by rows of {list(self.shape)}; both need "
                "the same last axis"
            )

    def multiply(self, x: Tensor, rows: tuple[int, ...]) -> Tensor:
        """Products with matrices that stand before the rows of x, or one for each of them.

        `x` is [*b, k], `rows` the shape in which b is seen, and the result [*rows, m].
        """
        (m, k), run = self.shape[-2:], self.coded.run
        given = round_blocks(x.reshape(prod(rows), k), run)
        along = (self.blocks, k // BLOCK // self.blocks)
        groups = self.planes[0].shape[: len(rows) + 1]
        planes = [t.reshape(*groups, *along, -1, self.words, LANES, WORD) for t in self.planes]
        step = given.scales.reshape(*rows, 1, *along, 1)
        sums = given.sums.reshape(*rows, 1, *along, BLOCK // run, 1)
        places, result = QUADS // self.words, None
        for i in range(BLOCK // run):
            part = range(i * run // WORD // self.words, (i + 1) * run // WORD // self.words)
            high, low = (
                self.summed(planes, digit.reshape(*rows, 1, *along, places, -1, 1, WORD), part)
                for digit in (given.high, given.low)
            )
            value, total = joined(high, low).float() * step, sums[..., i, :]
            if self.coded.zero:
                value = value - total * self.coded.zero
            value = value * self.shared(self.scales, i)
            if self.minima:
                value = value - total * self.shared(self.minima, i)
            result = value if result is None else result + value
        assert result is not None
        whole = result.sum((-3, -2)).reshape(*result.shape[: len(rows)], -1)
        return whole if m % LANES == 0 else whole.contiguous()[..., :m]

    def summed(self, planes: Sequence[Tensor], digits: Tensor, places: range) -> Tensor:
        """Sums over runs of products with one digit, int32."""
        total: Tensor | None = None
        for i in places:
            number = self.coded.whole(self.codes(planes, i)).cast(dtypes.int32)
            term = digits[..., i, :, :, :].cast(dtypes.int32) * number
            total = term if total is None else total + term
        assert total is not None
        return total.sum((-3, -1))

    def shared(self, factors: Sequence[Factor], run: int) -> Tensor:
        """The product of factors of one of the runs in blocks of 32.

        The result is [*b, m / 16, n, e / 32, 16], e the elements of a block.
        """
        parts = []
        for t, read in factors:
            *groups, count, _ = t.shape
            across = min(count, self.shape[-1] // BLOCK // self.blocks)
            t = t.reshape(*groups, across, -1, LANES)
            parts.append(Factor(t[..., min(run, t.shape[-2] - 1), :], read))
        return product_of(parts)

    def part(self, rows: slice) -> Interleaved | Tensor:
        """Some of the rows, in whole groups of sixteen; other rows as floats."""
        start, stop, step = rows.indices(self.shape[0])
        if step != 1 or start % LANES or (stop % LANES and stop < self.shape[0]):
            return self.dequantize()[rows]
        groups = slice(start // LANES, -(-stop // LANES))
        return self.each(lambda t: t[groups], (stop - start, self.shape[1]))


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

    def by_parts(self, packed: QuantTensor, nbytes: int, after: Callable[[], None]) -> Interleaved:
        """The matrix, in memory, made of some rows after the other; `after` is called behind each.

        For a part so many bytes of blocks are read, or sixteen rows. Matrices of experts, and those
        that the host does not see, are made at once.
        """
        m = packed.shape[0]
        rows = max(nbytes * m // packed.nbytes() // LANES, 1) * LANES
        if rows >= m or len(packed.shape) != 2 or not packed.blocks._memory().is_seen_by_host():
            made = self(packed)
            after()
            return made
        whole = Interleaved(packed)
        memory = [Tensor.empty(*t.shape, dtype=t.dtype).realize() for t in whole.memory()]
        left = [t._memory().as_memoryview() for t in memory]
        blocks, each = packed.blocks.reshape(-1), packed.nbytes() // m
        for start in range(0, m, rows):
            stop = min(start + rows, m)
            part = part_of(blocks, start * each, stop * each)
            shape = (stop - start, *packed.blocks.shape[1:])
            found = self(QuantTensor(packed.type, part.reshape(shape))).memory()
            for i, made_bytes in enumerate([t._memory().as_memoryview() for t in found]):
                left[i][: len(made_bytes)] = made_bytes
                left[i] = left[i][len(made_bytes) :]
            after()
        return whole.with_memory(memory)


def interleaved_memory(name: str, blocks: Tensor) -> list[Tensor]:
    """Computes the memory of a matrix of such a type and blocks."""
    memory = Interleaved(QuantTensor(name, blocks)).memory()
    Tensor.realize(*memory)
    return memory


def side_by_side(t: Tensor, rows: int, at: int) -> Tensor:
    """Sixteen rows side by side on a new axis; the last ones are filled up with zeros.

    `t` is [*b, m, *r], whose axes to m are `rows`; the result has m / 16 for m, and 16 at `at`.
    """
    m = t.shape[rows - 1]
    t = t.pad((*[(0, 0)] * (rows - 1), (0, -m % LANES), *[(0, 0)] * (t.ndim - rows)))
    t = t.reshape(*t.shape[: rows - 1], -1, LANES, *t.shape[rows:])
    order = list(range(t.ndim))
    lane = order.pop(rows)
    order.insert(len(order) + 1 + at, lane)
    return t.permute(order).contiguous()


def words_of(codes: Tensor, shift: int, bits: int) -> Tensor:
    """Some bits of the codes of a block, in as few bytes as they take.

    Shapes: codes [*b, 32] -> [*b, bits, 4].
    """
    fields = codes.reshape(*codes.shape[:-1], 8 // bits, bits, WORD)
    parts = [cut(fields[..., i, :, :], bits, shift, bits * i) for i in range(8 // bits)]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole | part
    return whole


def cut(t: Tensor, bits: int, start: int, to: int) -> Tensor:
    """A field of each byte at another place, alone in it."""
    moved = t >> (start - to) if start >= to else t << (to - start)
    left = ((1 << bits) - 1) << to
    # What a shift leaves of the byte.
    have = 0xFF >> (start - to) if start >= to else 0xFF << (to - start) & 0xFF
    return moved if have == left else moved & left


def can_interleave(packed: QuantTensor) -> bool:
    """Whether a quantised value is a matrix, or one for each expert, of a type that fits.

    why: codes in several planes are put together in memory before the experts that are chosen
    multiply, which takes as long as floats do
    """
    shape = packed.shape
    if packed.type not in INTERLEAVED or 0 in shape:
        return False
    return len(shape) == 2 or (len(shape) == 3 and len(CODED[packed.type].planes) == 1)
