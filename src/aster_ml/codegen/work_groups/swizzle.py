"""Chooses XOR swizzles of local memory and applies them to indices.

Receives the size of a tile's rows, or an index of local memory with a swizzle. Rows consist of
units of 16 bytes, 8 of which occupy each bank once. Unit c of a row is stored at c XOR bits of the
row number, so that 8 work-items which read a unit each, of a row or of a column, have no bank
conflicts.

rewrite: INDEX(local, x) -> INDEX(local, x ^ (x >> off) % 2**n << to), applied once indices are
lowered: no rule sees an XOR
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp, index_alu, index_sum
from aster_ml.uop.ops import Ops
from aster_ml.uop.rules.linear_form import Form, form_of, node_of
from aster_ml.uop.rules.symbolic import simplify

# Bytes of a unit, which is a copy or a row of a matrix, and of all banks.
# Source: PTX ISA 8.7, "ldmatrix"; CUDA C++ Programming Guide, "Shared Memory" (32 banks).
UNIT_NBYTES, BANKS_NBYTES = 16, 128

# (n, to, off): n bits from bit `to` on are changed by the n bits from bit `off` on.
Xor = tuple[int, int, int]


def xor_of_rows(run: int, itemsize: int, apart: bool = False) -> Xor | None:
    """The swizzle of a tile with rows of `run` elements; None where there is none.

    Several rows shorter than all banks share them; the swizzle uses the number of such a group.
    With `apart` it is for work-items that read single words, eight of each of four rows: these rows
    are two units apart.
    """
    units = run * itemsize // UNIT_NBYTES
    if run & (run - 1) or units < 2:
        return None
    unit = (UNIT_NBYTES // itemsize).bit_length() - 1
    pieces = (BANKS_NBYTES // UNIT_NBYTES).bit_length() - 1
    along = units.bit_length() - 1
    if apart and along >= pieces:
        return pieces - 1, unit + 1, unit + along
    return min(along, pieces), unit, unit + max(along, pieces)


def place_of(x: int, layout: Xor) -> int:
    """The swizzled offset of element `x`."""
    n, to, off = layout
    return x ^ (x >> off & (1 << n) - 1) << to


class Bits(NamedTuple):
    """A summand of an index, and the range of bits it may set: from `low` on, below `high`."""

    value: UOp
    low: int
    high: int
    is_lane: bool


def split_by_xor(index: UOp, layout: Xor) -> tuple[UOp, UOp]:
    """A swizzled index as a base, and an offset that is a constant for each lane.

    Where summands have no bit in common, only those that the swizzle touches change, and the other
    lanes stay an offset; else the base is the whole index.
    """
    n, to, off = layout
    form = rows_apart(form_of(simplify(index)))
    bits = [bits_of(t, a) for t, a in form.terms.items()]
    number = UOp.index_const(form.const)
    if form.const > 0:
        bits += [
            Bits(UOp.index_const(1 << i), i, i + 1, True)
            for i in range(form.const.bit_length())
            if form.const >> i & 1
        ]
    known = [b for b in bits if b is not None]
    ordered = sorted(known, key=lambda b: b.low)
    apart = all([a.high <= b.low for a, b in itertools.pairwise(ordered)])
    if len(known) < len(bits) or form.const < 0 or not apart:
        whole = index_alu(Ops.ADD, node_of(Form(form.terms, 0)), number)
        return changed_by(whole, whole, layout), UOp.index_const(0)
    rows = [b for b in known if b.low < off + n and off < b.high]
    columns = [b for b in known if b.is_lane and b.low < to + n and to < b.high]
    fixed = [b for b in known if not b.is_lane]
    lanes = [b for b in known if b.is_lane and b not in columns]
    base = index_sum([b.value for b in fixed])
    if rows:
        base = changed_by(base, index_sum([b.value for b in rows]), layout)
    for b in columns:
        base = xor(base, b.value)
    return base, index_sum([b.value for b in lanes])


def rows_apart(form: Form) -> Form:
    """Splits a summand that rules have merged into rows and columns.

    rewrite: a * x + b * (x // n) -> a * (x % n) + (a * n + b) * (x // n)
    """
    terms = dict(form.terms)
    for row, b in form.terms.items():
        if row.op is not Ops.IDIV or row.src[1].op is not Ops.CONST or b <= 0:
            continue
        x, n = row.src
        a = terms.get(x, 0)
        if 0 < a:
            del terms[x]
            terms[index_alu(Ops.MOD, x, n)] = a
            terms[row] = a * int(n.arg) + b
    return Form(terms, form.const)


def bits_of(term: UOp, factor: int) -> Bits | None:
    """A summand and its bits; None where it may be negative."""
    low, high = term.bounds
    if factor <= 0 or low < 0:
        return None
    value = index_alu(Ops.MUL, term, UOp.index_const(factor))
    is_lane = term.op is Ops.RANGE and term.arg.kind.is_lane
    if not is_lane and any([r.arg.kind.is_lane for r in term.ranges]):
        return None
    return Bits(
        value, (factor & -factor).bit_length() - 1, (int(high) * factor).bit_length(), is_lane
    )


def changed_by(value: UOp, rows: UOp, layout: Xor) -> UOp:
    """The swizzled index: bits of `value` XOR bits of the row number."""
    n, to, off = layout
    row = index_alu(Ops.IDIV, rows, UOp.index_const(1 << off))
    row = simplify(index_alu(Ops.MOD, row, UOp.index_const(1 << n)))
    return xor(value, index_alu(Ops.MUL, row, UOp.index_const(1 << to)))


def xor(a: UOp, b: UOp) -> UOp:
    """The exclusive or of two indices."""
    if b.op is Ops.CONST and b.arg == 0:
        return a
    if a.op is Ops.CONST and a.arg == 0:
        return b
    return UOp(Ops.XOR, dtypes.index, (a, b))
