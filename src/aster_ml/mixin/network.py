"""Sorting networks: places in order, of whole rows or of the first few.

Receives tensors of unsigned ints whose order is the one wanted, no two alike, in one word each or
in several, the first counting most; the length of their last axis is a power of two. Returns such
words. What keys and places are is said in `mixin.order`.

Blocks of a bitonic network run up and down by turns. Here all run up: of every second block the
words are turned over, which a step does on the way from one size of blocks to the next.
"""

from __future__ import annotations

from typing import Any, TypeVar

from aster_ml.dtype import dtypes
from aster_ml.mixin.create import CreateMixin
from aster_ml.mixin.join import JoinMixin
from aster_ml.mixin.math import MathMixin

W = TypeVar("W", bound="NetworkMixin")

# Distances that one kernel compares at: what it loads serves all of them.
DISTANCES = 2


class NetworkMixin(JoinMixin, MathMixin, CreateMixin):
    """What a network asks of its words."""

    __slots__ = ()


def sorted_words(words: list[W]) -> list[W]:
    """Rows in ascending order."""
    return blocks_sorted(words, words[0].shape[-1])


def least_words(words: list[W], count: int) -> list[W]:
    """The `count` least of each row in ascending order; a power of two.

    Blocks of so many are sorted, then the lesser halves of pairs of them, until one is left.
    """
    words = blocks_sorted(words, count)
    while words[0].shape[-1] > count:
        words = merged(halved(words, count), count, False)
    return words


def blocks_sorted(words: list[W], size: int) -> list[W]:
    """Blocks of this size in ascending order, every second one turned over."""
    block = 1
    words = [turned(w.unsqueeze(-1), odd_rows(w.unsqueeze(-1))).squeeze(-1) for w in words]
    while block < size:
        block *= 2
        words = merged(words, block, True)
    return words


def merged(words: list[W], block: int, turning: bool) -> list[W]:
    """Blocks that rise and then fall in order. Turning, halves of them are in order one by one."""
    distances = block.bit_length() - 1
    while distances:
        sides = (distances - 1) % DISTANCES + 1
        distances -= sides
        words = compared(words, 1 << distances, sides, turning)
        turning = False
    return words


def compared(words: list[W], step: int, sides: int, turning: bool) -> list[W]:
    """Elements `step` << i apart in order, for each i below `sides`, the largest first."""
    count, shape = 1 << sides, words[0].shape
    rows = [side_of(words, count, step, i) for i in range(count)]
    if turning:
        odd = odd_rows(rows[0][0])
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


def halved(words: list[W], block: int) -> list[W]:
    """The lesser half of each pair of blocks, which rises and falls; every second turned over."""
    low, high = (side_of(words, 2, block, i) for i in (0, 1))
    high = [word.bitwise_not() for word in high]
    before = is_before(high, low)
    least = [before.where(b, a) for a, b in zip(low, high, strict=True)]
    *lead, rows, _ = least[0].shape
    odd = odd_rows(least[0])
    return [turned(word, odd).reshape((*lead, rows * block)) for word in least]


def side_of(words: list[W], count: int, step: int, i: int) -> list[W]:
    """Of each `count` runs of `step` neighbours the one with number `i`: [*lead, rows, step]."""
    *lead, width = words[0].shape
    rows = width // (count * step)
    cut: list[Any] = [*[None] * (len(lead) + 1), (i, i + 1), None]
    split = (*lead, rows, count, step)
    return [word.reshape(split).shrink(cut).reshape((*lead, rows, step)) for word in words]


def odd_rows(word: W) -> W:
    """[rows, 1]: whether a row before the last axis has an odd number."""
    rows = word.shape[-2]
    number = word.arange(rows, device=word.device, dtype=dtypes.int32)
    return number.bitwise_and(1).ne(0).reshape((rows, 1))


def turned(word: W, where: W) -> W:
    """A word with its bits turned over where that is asked for: what is least is greatest then."""
    zero = word.scalar(0)
    return word ^ where.where(word.scalar(dtypes.max(word.dtype)), zero).cast(word.dtype)


def exchanged(a: list[W], b: list[W]) -> tuple[list[W], list[W]]:
    """The lesser and the greater of two."""
    swap = is_before(b, a)
    pairs = list(zip(a, b, strict=True))
    return [swap.where(y, x) for x, y in pairs], [swap.where(x, y) for x, y in pairs]


def is_before(a: list[W], b: list[W]) -> W:
    """Whether `a` is less, by the first of its words that differs."""
    before = a[-1] < b[-1]
    for x, y in zip(a[-2::-1], b[-2::-1], strict=True):
        before = (x < y) | (x.eq(y) & before)
    return before


__all__ = ["NetworkMixin", "least_words", "sorted_words"]
