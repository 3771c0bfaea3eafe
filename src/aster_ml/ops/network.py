"""Sorts by networks: places in order, of whole rows or of the first few.

Receives tensors of unsigned ints whose order is the one wanted, no two alike, in one word each or
in several, the first counting most; the length of their last axis is a power of two. Returns such
words. What keys and places are is said in `ops.order`.

Blocks of a bitonic network rise and fall by turns. Here all rise: of every second block the words
are turned over, which a step does on the way from one size of blocks to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aster_ml.dtype import dtypes
from aster_ml.ops import Self

# Which lines are turned over: of what is laid out as [rows, run], given the columns of a run.
Turning = Callable[[Self, int], Self]

# Distances that one kernel compares at: what it loads serves all of them.
DISTANCES = 2


def sorted_words(words: list[Self]) -> list[Self]:
    """Rows in ascending order."""
    return columns_sorted(words, 1)


def least_words(words: list[Self], count: int) -> list[Self]:
    """The `count` least of each row in ascending order; a power of two.

    A row is taken as [count, columns], so that what is compared lies in runs. Columns are sorted,
    then the lesser halves of pairs of them, until one is left.
    """
    columns = words[0].shape[-1] // count
    words = columns_sorted(words, columns)
    while columns > 1:
        words = halved(words, columns)
        columns //= 2
        words = merged(words, count, columns, None)
    return words


def columns_sorted(words: list[Self], columns: int) -> list[Self]:
    """Columns in ascending order, those of the right half turned over; sorted in growing blocks."""
    lines = [word.reshape((*word.shape[:-1], -1, columns)) for word in words]
    size = lines[0].shape[-2]
    odd = odd_rows(lines[0], columns) if size > 1 else right_half(lines[0], columns)
    words = [turned(x, odd).reshape(word.shape) for x, word in zip(lines, words, strict=True)]
    block = 1
    while block < size:
        block *= 2
        words = merged(words, block, columns, right_half if block == size else odd_rows)
    return words


def merged(
    words: list[Self], block: int, columns: int, turning: Turning[Self] | None
) -> list[Self]:
    """Blocks of each column that rise and then fall in order.

    Where their second half is turned over instead, `turning` says which lines are from now on.
    """
    distances = block.bit_length() - 1
    while distances:
        sides = (distances - 1) % DISTANCES + 1
        distances -= sides
        words = compared(words, columns << distances, sides, columns, turning)
        turning = None
    return words


def compared(
    words: list[Self], step: int, sides: int, columns: int, turning: Turning[Self] | None
) -> list[Self]:
    """Elements `step` << i apart in order, for each i below `sides`, the largest first."""
    count, shape = 1 << sides, words[0].shape
    rows = [side_of(words, count, step, i) for i in range(count)]
    if turning is not None:
        odd = turning(rows[0][0], columns)
        for i in range(count):
            flip = odd if i < count // 2 else odd.logical_not()
            rows[i] = [turned(word, flip) for word in rows[i]]
    for bit in reversed(range(sides)):
        for i in range(count):
            if not i >> bit & 1:
                j = i | 1 << bit
                rows[i], rows[j] = exchanged(rows[i], rows[j])
    return [
        first.stack(*rest, dim=-2).reshape(shape).contiguous()
        for first, *rest in zip(*rows, strict=True)
    ]


def halved(words: list[Self], columns: int) -> list[Self]:
    """The lesser half of each pair of columns, which rises and falls; the right half turned."""
    half = columns // 2
    low, high = (side_of(words, 2, half, i) for i in (0, 1))
    high = [word.bitwise_not() for word in high]
    before = is_before(high, low)
    least = [before.where(b, a) for a, b in zip(low, high, strict=True)]
    odd = right_half(least[0], half)
    return [turned(word, odd).flatten(-2) for word in least]


def side_of(words: list[Self], count: int, step: int, i: int) -> list[Self]:
    """Of each `count` runs of `step` neighbours the one with number `i`: [*lead, rows, step]."""
    *lead, width = words[0].shape
    rows = width // (count * step)
    cut: list[Any] = [*[None] * (len(lead) + 1), (i, i + 1), None]
    split = (*lead, rows, count, step)
    return [word.reshape(split).shrink(cut).reshape((*lead, rows, step)) for word in words]


def odd_rows(word: Self, columns: int) -> Self:
    """[rows, 1]: whether a row before the last axis has an odd number."""
    rows = word.shape[-2]
    number = word.arange(rows, device=word.device, dtype=dtypes.int32)
    return number.bitwise_and(1).ne(0).reshape((rows, 1))


def right_half(word: Self, columns: int) -> Self:
    """[run]: whether an element of the last axis is in the right half of the columns."""
    place = word.arange(word.shape[-1], device=word.device, dtype=dtypes.int32)
    return place.bitwise_and(columns // 2).ne(0)


def turned(word: Self, where: Self) -> Self:
    """A word with its bits turned over where that is asked for: what is least is greatest then."""
    zero = word._scalar(0)
    return word ^ where.where(word._scalar(dtypes.max(word.dtype)), zero).cast(word.dtype)


def exchanged(a: list[Self], b: list[Self]) -> tuple[list[Self], list[Self]]:
    """The lesser and the greater of two."""
    swap = is_before(b, a)
    pairs = list(zip(a, b, strict=True))
    return [swap.where(y, x) for x, y in pairs], [swap.where(x, y) for x, y in pairs]


def is_before(a: list[Self], b: list[Self]) -> Self:
    """Tests whether `a` is less, by the first of its words that differs."""
    before = a[-1] < b[-1]
    for x, y in zip(a[-2::-1], b[-2::-1], strict=True):
        before = (x < y) | (x.eq(y) & before)
    return before


__all__ = ["least_words", "sorted_words"]
