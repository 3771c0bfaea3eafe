"""Adds DOTs of int8 up, as x86 does it: one instruction each, or products of pairs as int16.

Receives the writer and the operands of several DOTs as LLVM text, with the bits that may be set in
each word of the first; returns the name of their sum. A DOT on its own is in `llvm_rules`.

why: an instruction that multiplies and adds leaves no addition; and of fields of a few bits the
sums of pairs stay within 16 bits for several words, which are widened once

Source: Intel, 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPMADDUBSW.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aster_ml.dtype import dtypes
from aster_ml.renderer.llvm.rules import PAIRS_TO_WORDS, add_dot, literal, llvm_type
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# What DOT takes its first operand higher by, in each byte; all bits of a word.
HIGH, ALL = 0x80808080, 0xFFFFFFFF
# Ops of whose operands the bits of a result follow.
BITWISE = frozenset({Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR, Ops.WHERE})
# The largest int16, and the largest product of an int8 and 1 to either side.
MOST, SIDE = 32767, 128
BYTES_TO_PAIRS = {
    4: "llvm.x86.ssse3.pmadd.ub.sw.128",
    8: "llvm.x86.avx2.pmadd.ub.sw",
    16: "llvm.x86.avx512.pmaddubs.w.512",
}


class Dot(NamedTuple):
    """Operands of a DOT, and the largest byte that its first one may have, 128 added to it."""

    x: str
    y: str
    most: int


def add_dots(w: Any, n: int, dots: Sequence[Dot], target: Target) -> str:
    """The sum of DOTs of int8, int32 of width `n`."""
    total = literal(0, dtypes.int32, n)
    sums: str | None = None
    room = MOST
    for dot in dots:
        pair = 2 * SIDE * dot.most
        if target.dots_at_once or pair > MOST:
            total = add_dot(w, dtypes.int32, n, dot.x, dot.y, total)
            continue
        if sums is not None and pair > room:
            total = widened(w, n, sums, total)
            sums, room = None, MOST
        products = pairs_of_bytes(w, n, dot)
        shorts = llvm_type(dtypes.int16, 2 * n)
        sums = products if sums is None else w.emit(f"add {shorts} {sums}, {products}")
        room -= pair
    return total if sums is None else widened(w, n, sums, total)


def pairs_of_bytes(w: Any, n: int, dot: Dot) -> str:
    """Products of bytes, two neighbours added up, as int16."""
    words, parts = llvm_type(dtypes.uint32, n), llvm_type(dtypes.int8, 4 * n)
    x = w.emit(f"xor {words} {dot.x}, {literal(HIGH, dtypes.uint32, n)}")
    x, y = (w.emit(f"bitcast {words} {v} to {parts}") for v in (x, dot.y))
    shorts = llvm_type(dtypes.int16, 2 * n)
    return str(w.call(shorts, BYTES_TO_PAIRS[n], f"{parts} {x}, {parts} {y}", f"{parts}, {parts}"))


def widened(w: Any, n: int, sums: str, total: str) -> str:
    """Neighbours among int16 added up, and to the total."""
    kind, shorts = llvm_type(dtypes.int32, n), llvm_type(dtypes.int16, 2 * n)
    args = f"{shorts} {sums}, {shorts} {literal(1, dtypes.int16, 2 * n)}"
    value = w.call(kind, PAIRS_TO_WORDS[n], args, f"{shorts}, {shorts}")
    return str(w.emit(f"add {kind} {total}, {value}"))


def most_of_bytes(x: UOp) -> int:
    """The largest byte that the first operand of a DOT may have, 128 added to each."""
    bits = bits_of(x.src[0] if x.op is Ops.XOR and is_high(x.src[1]) else x)
    return max([bits >> shift & 0xFF for shift in (0, 8, 16, 24)])


def is_high(x: UOp) -> bool:
    """Whether a word takes four bytes higher by 128 each."""
    return x.op is Ops.CONST and x.arg == HIGH


def bits_of(word: UOp) -> int:
    """The bits of a word that may be set."""
    known: dict[UOp, int] = {}
    for x in toposort(word, enter=lambda x: x.op in BITWISE):
        a, b = [known.get(s, ALL) for s in x.src[-2:]] if len(x.src) > 1 else (ALL, ALL)
        if x.op is Ops.CONST and x.dtype is dtypes.uint32:
            known[x] = int(x.arg)
        elif x.op is Ops.AND:
            known[x] = a & b
        elif x.op in (Ops.OR, Ops.XOR, Ops.WHERE):
            known[x] = a | b
        elif x.op in (Ops.SHL, Ops.SHR) and x.src[1].op is Ops.CONST:
            by = int(x.src[1].arg)
            known[x] = a << by & ALL if x.op is Ops.SHL else a >> by
    return known.get(word, ALL)
