"""Sums of products of bytes within blocks, four products to an instruction.

Receives a kernel whose Opts are applied; returns its graph with such sums taken by words. A word is
a uint32 that holds four bytes, the first in its lowest bits. Which kernels have SIMD lanes that
allow it is decided in `policy/cpu/decoded_product`.

rewrite: REDUCE(CAST(p[w, i, j] & 15, int32) * CAST(q[w, j], int32), w, j) ->
REDUCE(DOT((P[w, i] & 0x0F0F0F0F) ^ 0x80808080, Q[w]), w), where P[w, i] is the word p[w, i, 0:4]
when: j has four steps, along which bytes lie side by side; one factor is a load of int8, the other
is cut out of bytes of uint8 by bitwise ops, and by choices that are alike for all four; and what is
cut out has SIMD lanes
why: an instruction multiplies and adds up the four bytes of each lane, and masks and shifts cut
four fields at once
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.wide_fields import BYTE, INT, WORD, cut_out, steps_of
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ReduceArg
from aster_ml.uop.ranges import size_of

SIGNED = dtypes.int8
# Bytes of a word, and what DOT takes its first operand higher by.
# Source: Intel SDM 2, VPDPBUSD (four bytes a lane, the first operand unsigned).
GROUP, HIGH = 4, 0x80808080
# Numbers of SIMD lanes for which a target with DOT has it.
# Source: Intel SDM 2, VPDPBUSD (forms of 128, 256 and 512 bits).
WIDTHS = (4, 8, 16)


class BlockProduct(NamedTuple):
    """A sum of products of bytes: the axis along a word, and both words of each term.

    Of these the first are cut out of `loads` of uint8, the second are words of int8.
    """

    reduce: UOp
    group: UOp
    loads: tuple[UOp, ...]
    words: tuple[tuple[UOp, UOp], ...]

    @property
    def lane(self) -> UOp | None:
        """The axis of the SIMD lanes."""
        lanes = [r for r in self.reduce.ranges if r.arg.kind is AxisType.VECTOR]
        return lanes[0] if len(lanes) == 1 else None


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
    terms = [pair for pair in pairs if pair is not None]
    if len(terms) < len(pairs):
        return None
    for r in u.src[1:]:
        if r.src[0].op is Ops.CONST and size_of(r) == GROUP:
            cut = [(cut_out(field, r), cut_out(signed, r)) for field, signed in terms]
            words = [(x, y) for x, y in cut if x is not None and y is not None]
            if len(words) == len(terms):
                steps = [x for field, _ in terms for x in steps_of(field)]
                loads = [x for x in steps if x.op is Ops.LOAD]
                return BlockProduct(u, r, tuple(loads), tuple(words))
    return None


def factors_of(term: UOp) -> tuple[UOp, UOp] | None:
    """A product's factors before their casts: of uint8, and a load of int8."""
    if term.op is not Ops.MUL or any([s.op is not Ops.CAST for s in term.src]):
        return None
    x, y = (s.src[0] for s in term.src)
    if x.dtype is SIGNED:
        x, y = y, x
    return (x, y) if x.dtype is BYTE and y.dtype is SIGNED and y.op is Ops.LOAD else None


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
    (field, signed), *others = found.words
    if others:
        lane = kernel.new_range(UOp.index_const(len(found.words)), AxisType.UNROLL)
        field, signed = (chosen_by(lane, side) for side in zip(*found.words))
        rest.append(lane)
    value = UOp(Ops.DOT, INT, (field ^ UOp.const(WORD, HIGH), signed))
    return UOp(Ops.REDUCE, INT, (value, *rest), ReduceArg(Ops.ADD)) if rest else value


def chosen_by(lane: UOp, parts: Sequence[UOp]) -> UOp:
    """One of several values by the step of a lane."""
    value = parts[-1]
    for i in reversed(range(len(parts) - 1)):
        value = lane.alu(Ops.CMPEQ, UOp.index_const(i)).where(parts[i], value)
    return value
