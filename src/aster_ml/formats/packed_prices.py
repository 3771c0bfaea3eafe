"""Prices products with packed matrices on a processor: of integers whose rows are interleaved, and
of floats that are unpacked from the blocks as they are stored.

Receives a type, the shape of a matrix, how many rows it multiplies, and a Target; returns cycles of
one core. How either is computed is in `formats/interleaved` and in the kernels that unpack
(`codegen/policy/cpu/decoded_product`); figures of processors are those of `target/costs`.

why: which of the two is quicker hangs on the instructions that a processor has for bytes, on how
many bits a code takes, and on how many results share what is unpacked
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.formats.ggml.codes import CODED, Coded
from aster_ml.formats.interleaved import LANES, WORD
from aster_ml.helpers import ceildiv
from aster_ml.target import Target

# Int8 digits of what is multiplied.
DIGITS = 2
# Rows that share what is unpacked of a block: of integers, and of floats where there are few; from
# more on floats are unpacked once for all (`codegen/transforms/decoded`).
SHARING, FEW = 8, 4
MANY = 8
# Instructions a SIMD value, counted in the kernels of a Q4_1: to cut a field out of bytes, to join
# two, to make floats of bytes; to join digits, to convert, scale and add the sum of a block; and to
# round what is multiplied, in so many kernels.
CUT, JOIN, CONVERT, FINISH, ROUND, ROUNDING = 2, 1, 2, 10, 14, 3
# The same of digits of base 3, of which five lie in a byte.
TRITS = 12
# How many rows a prompt has, and a token: what is chosen is chosen for both.
PROMPT, TOKEN = 128, 1


class Ways(NamedTuple):
    """Cycles of either way of computing a product."""

    integers: float
    floats: float


class Work(NamedTuple):
    """Instructions of SIMD values: those that multiply, all arithmetic, and loads."""

    products: float = 0.0
    arithmetic: float = 0.0
    loads: float = 0.0

    def times(self, count: float) -> Work:
        """The same so many times."""
        return Work(*[n * count for n in self])

    def plus(self, other: Work) -> Work:
        """Both."""
        return Work(*[a + b for a, b in zip(self, other, strict=True)])

    def cycles(self, target: Target) -> float:
        """Cycles of the unit that is busy for longest, on one core."""
        costs = target.costs
        # Half as wide a register leaves more units for what is no product.
        begun = target.issue if target.masks else costs.pairs_begun
        return max(
            self.products / target.issue,
            self.arithmetic / begun,
            self.loads / costs.loads,
            (self.arithmetic + self.loads) / costs.begun,
        )


def ways_of(name: str, m: int, k: int, rows: int, target: Target) -> Ways:
    """Cycles of x [rows, k] times a transposed matrix [m, k] of a type.

    Integers cost without end where the target has no DOT of int8.
    """
    coded = CODED[name]
    floats = float_work(coded, m, k, rows, target).cycles(target) + target.costs.launch
    if "int8" not in target.dot_dtypes:
        return Ways(float("inf"), floats)
    work = integer_work(coded, m, k, rows, target)
    return Ways(work.cycles(target) + (1 + ROUNDING) * target.costs.launch, floats)


def prefers_integers(name: str, m: int, k: int, target: Target) -> bool:
    """Whether products of integers are the quicker ones, for a token and for a prompt.

    Where each is so for one of them, those that lose less by it.
    """
    token, prompt = [ways_of(name, m, k, rows, target) for rows in (TOKEN, PROMPT)]
    lost = [ways.integers / ways.floats for ways in (token, prompt)]
    return lost[0] * lost[1] <= 1


def integer_work(coded: Coded, m: int, k: int, rows: int, target: Target) -> Work:
    """Words times digits in blocks, then floats of their sums."""
    width = target.lanes(WORD)
    lanes = ceildiv(m, LANES) * LANES
    words, runs = lanes * k / WORD / width, lanes * k / coded.run / width
    each = dot_work(coded, target).times(DIGITS * rows * words)
    shared = ceildiv(rows, SHARING)
    unpacked = Work(0, cut_of(coded), len(coded.planes)).times(shared * words)
    finished = Work(2, FINISH, 2).times(rows * runs)
    rounded = Work(1, ROUND, 1).times(rows * k / width)
    return each.plus(unpacked).plus(finished).plus(rounded)


def cut_of(coded: Coded) -> int:
    """Instructions that cut a SIMD value of codes out of their planes."""
    return CUT * len(coded.planes) + JOIN * (len(coded.planes) - 1)


def dot_work(coded: Coded, target: Target) -> Work:
    """One DOT of a SIMD value of words, added to a sum (`renderer/llvm/dots`)."""
    costs = target.costs
    # The digit is the same in all lanes.
    spread = 0.0 if target.broadcasts else 1.0
    if target.dots_at_once:
        return Work(1, 1, spread + costs.embedded_broadcast)
    bits = sum(coded.planes)
    together = 32767 // (256 * ((1 << bits) - 1))
    if together == 0:
        return Work(2, costs.pairs + costs.split_value, 1)
    widened = 2 / min(together, coded.run // WORD)
    return Work(1 + widened / 2, 2 + widened, 1)


def float_work(coded: Coded, m: int, k: int, rows: int, target: Target) -> Work:
    """A multiplication with addition for each element and row, of what is unpacked before."""
    values = m * k / target.lanes(WORD)
    # Bytes are there as they are.
    cut = 0 if sum(coded.planes) == 8 else cut_of(coded)
    cut = TRITS if coded.base == 3 else cut
    unpacked = Work(1, cut + CONVERT, 1).times(values * (1 if rows > MANY else ceildiv(rows, FEW)))
    costs = target.costs
    spread = costs.embedded_broadcast if target.broadcasts else costs.broadcast
    return unpacked.plus(Work(1, 1, (spread + costs.loaded) / 2 * costs.loads).times(values * rows))
