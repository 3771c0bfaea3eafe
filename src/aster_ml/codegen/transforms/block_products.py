"""Sums of products of bytes within blocks, four products to an instruction.

Receives a kernel whose Opts are applied; returns its graph with such sums taken by words. A word is
a uint32 that holds four bytes, the first in its lowest bits. Which kernels have SIMD lanes that
allow it is decided in `cpu/decoded_product`.

rewrite: REDUCE(CAST(p[w, i, j] & 15, int32) * CAST(q[w, j], int32), w, j) ->
REDUCE(DOT((P[w, i] & 0x0F0F0F0F) ^ 0x80808080, Q[w]), w), where P[w, i] is the word p[w, i, 0:4]
when: j has four steps, along which bytes lie side by side; one factor is a load of int8, the other
is cut out of bytes of uint8 by bitwise ops, and by choices that are alike for all four; and what is
cut out has SIMD lanes
why: an instruction multiplies and adds up the four bytes of each lane, and masks and shifts cut
four fields at once
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aster_ml.codegen.analysis import find_strides
from aster_ml.codegen.kernel import Kernel
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ReduceArg
from aster_ml.uop.ranges import size_of

WORD, BYTE, SIGNED, INT = dtypes.uint32, dtypes.uint8, dtypes.int8, dtypes.int32
# Bytes of a word; a number in each of them; and what DOT takes its first operand higher by.
# Source: Intel SDM 2, VPDPBUSD (four bytes a lane, the first operand unsigned).
GROUP, EACH, HIGH = 4, 0x01010101, 0x80808080
BITWISE = frozenset({Ops.AND, Ops.OR, Ops.XOR})
SHIFTS = frozenset({Ops.SHL, Ops.SHR})
# Numbers of SIMD lanes for which a target with DOT has it.
# Source: Intel SDM 2, VPDPBUSD (forms of 128, 256 and 512 bits).
WIDTHS = (4, 8, 16)


class BlockProduct(NamedTuple):
    """A sum of products of bytes: the axis along a word, and the factors of each term.

    Of these the first are made of uint8, the second are loads of int8.
    """

    reduce: UOp
    group: UOp
    terms: tuple[tuple[UOp, UOp], ...]

    @property
    def lane(self) -> UOp | None:
        """The axis of the SIMD lanes."""
        lanes = [r for r in self.reduce.ranges if r.arg.kind is AxisType.VECTOR]
        return lanes[0] if len(lanes) == 1 else None

    @property
    def loads(self) -> list[UOp]:
        """The loads of uint8."""
        return [x for field, _ in self.terms for x in made_of(field) if is_load(x)]


def above(u: UOp) -> bool:
    """Whether what a node is made of is arithmetic on bytes."""
    return u.op is not Ops.LOAD


def made_of(part: UOp) -> list[UOp]:
    """The arithmetic on bytes that a factor is, sources first, down to loads.

    What says which of two bytes it is does not belong to it.
    """
    order, found = [*toposort(part, enter=above)], {part}
    for u in reversed(order):
        if u in found and above(u):
            found.update(u.src[1:] if u.op is Ops.WHERE else u.src)
    return [u for u in order if u in found]


def is_load(u: UOp) -> bool:
    """Whether a node is a load of a byte."""
    return u.op is Ops.LOAD and u.dtype in (BYTE, SIGNED)


def has_bytes(kernel: Kernel, target: Target) -> bool:
    """Whether a kernel may have such sums: most load no int8."""
    return "int8" in target.dot_dtypes and any(
        [u.op is Ops.LOAD and u.dtype is SIGNED for u in kernel.facts.by_op[Ops.LOAD]]
    )


def find_block_product(u: UOp) -> BlockProduct | None:
    """The sum as products of bytes, if it is one."""
    if u.op is not Ops.REDUCE or u.dtype is not INT or u.arg.op is not Ops.ADD:
        return None
    pairs = [factors_of(term) for term in u.src[0].split_uop(Ops.ADD)]
    terms = tuple([pair for pair in pairs if pair is not None])
    if len(terms) < len(pairs):
        return None
    for r in u.src[1:]:
        if r.src[0].op is Ops.CONST and size_of(r) == GROUP:
            parts = [part for term in terms for part in term]
            if all([fits_words(part, r) for part in parts]):
                return BlockProduct(u, r, terms)
    return None


def factors_of(term: UOp) -> tuple[UOp, UOp] | None:
    """A product's factors before their casts: of uint8, and a load of int8."""
    if term.op is not Ops.MUL or any([s.op is not Ops.CAST for s in term.src]):
        return None
    x, y = (s.src[0] for s in term.src)
    if x.dtype is SIGNED:
        x, y = y, x
    return (x, y) if x.dtype is BYTE and y.dtype is SIGNED and y.op is Ops.LOAD else None


def fits_words(part: UOp, group: UOp) -> bool:
    """Whether four neighbours of a factor are worked out as a word."""
    for u in made_of(part):
        if u.op is Ops.LOAD:
            place, *gates = u.src
            if place.op is not Ops.INDEX or any([group in g.ranges for g in gates]):
                return False
            if find_strides(place.src[1]).get(group) != 1:
                return False
        elif u.op in SHIFTS:
            if u.src[1].op is not Ops.CONST or not 0 <= u.src[1].arg < 8:
                return False
        elif u.op is Ops.WHERE:
            if u.dtype is not BYTE or group in u.src[0].ranges:
                return False
        elif u.op is not Ops.CONST and (u.op not in BITWISE or u.dtype is not BYTE):
            return False
    return True


def multiply_words(kernel: Kernel, target: Target) -> None:
    """Makes 4-way dot products (DOT) of sums of products of bytes within blocks."""
    changes = {}
    asked: set[UOp] = set()
    for u in kernel.reduces:
        found = find_block_product(u)
        if found is not None and found.lane is not None and size_of(found.lane) in WIDTHS:
            changes[u] = asking_once(in_words(kernel, found), asked)
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def asking_once(product: UOp, asked: set[UOp]) -> UOp:
    """A product whose loads ask for nothing further in memory for which others ask.

    why: products of one field with several digits load the same words, which compilers load once
    """
    loads = [u for u in toposort(product) if u.op is Ops.LOAD and u.arg is not None]
    again = {u: UOp(Ops.LOAD, u.dtype, u.src) for u in loads if u.src[0].src[0] in asked}
    asked |= {u.src[0].src[0] for u in loads}
    return substitute(product, again)


def in_words(kernel: Kernel, found: BlockProduct) -> UOp:
    """The sum over words; several terms are lanes of one sum.

    why: what multiplies adds up all of a sum
    """
    rest = [r for r in found.reduce.src[1:] if r is not found.group]
    fields = [as_word(field, found.group) for field, _ in found.terms]
    words = [as_word(signed, found.group) for _, signed in found.terms]
    if len(found.terms) > 1:
        lane = kernel.new_range(UOp.index_const(len(found.terms)), AxisType.UNROLL)
        fields, words = [chosen_by(lane, fields)], [chosen_by(lane, words)]
        rest.append(lane)
    value = UOp(Ops.DOT, INT, (fields[0] ^ UOp.const(WORD, HIGH), words[0]))
    return UOp(Ops.REDUCE, INT, (value, *rest), ReduceArg(Ops.ADD)) if rest else value


def chosen_by(lane: UOp, parts: Sequence[UOp]) -> UOp:
    """One of several values by the step of a lane."""
    value = parts[-1]
    for i in reversed(range(len(parts) - 1)):
        value = lane.alu(Ops.CMPEQ, UOp.index_const(i)).where(parts[i], value)
    return value


def as_word(part: UOp, group: UOp) -> UOp:
    """Four neighbours of a factor in a word."""
    made: dict[UOp, UOp] = {}
    for u in made_of(part):
        made[u] = WORDS.get(u.op, bitwise)(u, made, group)
    return made[part]


def loaded(u: UOp, made: dict[UOp, UOp], group: UOp) -> UOp:
    """Four bytes from memory."""
    return UOp(Ops.LOAD, WORD, substitute(u, {group: UOp.index_const(0)}).src, u.arg)


def number(u: UOp, made: dict[UOp, UOp], group: UOp) -> UOp:
    """The same number in each byte."""
    return UOp.const(WORD, u.arg * EACH)


def shifted(u: UOp, made: dict[UOp, UOp], group: UOp) -> UOp:
    """Shifts of each byte: what comes in from its neighbour is masked."""
    by = int(u.src[1].arg)
    left = 0xFF >> by if u.op is Ops.SHR else 0xFF << by & 0xFF
    return made[u.src[0]].alu(u.op, UOp.const(WORD, by)) & UOp.const(WORD, left * EACH)


def chosen(u: UOp, made: dict[UOp, UOp], group: UOp) -> UOp:
    """One of two words, by what is the same for its four bytes."""
    return u.src[0].where(made[u.src[1]], made[u.src[2]])


def bitwise(u: UOp, made: dict[UOp, UOp], group: UOp) -> UOp:
    """An op that no bit of another place has a part in."""
    return made[u.src[0]].alu(u.op, made[u.src[1]])


WORDS: dict[Ops, Callable[[UOp, dict[UOp, UOp], UOp], UOp]] = {
    Ops.LOAD: loaded,
    Ops.CONST: number,
    Ops.SHL: shifted,
    Ops.SHR: shifted,
    Ops.WHERE: chosen,
}
