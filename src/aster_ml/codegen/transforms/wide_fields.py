"""Fields of bytes, cut out of wider integers: one as int32, those of four neighbours as a word.

Receives a field as it is computed from bytes; returns it in the wider integer. A word is a uint32
that holds four bytes, the first in its lowest bits. As a pass: receives a kernel whose Opts are
applied, and widens the fields that become floats.

rewrite: CAST(p & 15, float32) -> CAST(CAST(p, int32) & 15, float32)
when: the fields are made of bytes by bitwise ops, and by sums that stay within a byte
why: SIMD lanes of a byte are widened once for all fields in it
"""

from __future__ import annotations

from aster_ml.codegen.analysis import find_strides
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.decoded import is_byte
from aster_ml.dtype import DType, dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

INT, WORD, BYTE = dtypes.int32, dtypes.uint32, dtypes.uint8
# Of these the operands, conditions and numbers of bits aside, have the dtype of the result.
BITWISE = frozenset({Ops.AND, Ops.OR, Ops.XOR})
SHIFTS = frozenset({Ops.SHL, Ops.SHR})
CUT = BITWISE | SHIFTS | {Ops.ADD, Ops.WHERE}
MOST = int(dtypes.max(BYTE))


def widen_fields(kernel: Kernel, target: Target) -> None:
    """Fields of bytes that become floats are cut out of integers as wide as these."""
    changes = {}
    for u in kernel.facts.order:
        if u.op is Ops.CAST and u.dtype is dtypes.float32 and u.src[0].op in CUT:
            wide = cut_out(u.src[0]) if u.src[0].dtype is BYTE else None
            if wide is not None:
                changes[u] = UOp(Ops.CAST, u.dtype, (wide,))
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def is_cut(u: UOp) -> bool:
    """Whether a node may be a step by which a field is cut out of bytes."""
    return u.op in CUT and u.dtype is BYTE


def steps_of(field: UOp) -> list[UOp]:
    """The steps by which a field is cut out, sources first, with the bytes that it is cut out of.

    What says which of two bytes a field is has other dtypes, and is no step.
    """
    return [u for u in toposort(field, enter=is_cut) if u.dtype is BYTE or u is field]


def cut_out(field: UOp, group: UOp | None = None) -> UOp | None:
    """A field as int32, or those of the four steps of an axis as a word; None where that differs.

    Each byte of the result is what a byte would have been: what a shift brings in from a neighbour
    is masked, and a sum beyond a byte is refused.
    """
    wide, each = (INT, 1) if group is None else (WORD, 0x01010101)
    made: dict[UOp, tuple[UOp, int]] = {}
    for u in steps_of(field):
        parts = [made[s] for s in u.src if s in made]
        found = None
        if u.op is Ops.CONST:
            found = UOp.const(wide, u.arg * each), int(u.arg)
        elif is_byte(u):
            load = u.cast(INT) if group is None else load_word(u, group)
            found = None if load is None else (load, MOST)
        elif u.op in SHIFTS:
            found = shifted(u, parts, wide, each)
        elif u.op in CUT and len(parts) == len(u.src) - (u.op is Ops.WHERE):
            found = combined(u, parts, group)
        if found is None:
            return None
        made[u] = found
    return made[field][0]


def load_word(load: UOp, group: UOp) -> UOp | None:
    """The four bytes along an axis in one load; None where they do not lie side by side."""
    place, *gates = load.src
    if place.op is not Ops.INDEX or any([group in g.ranges for g in gates]):
        return None
    if find_strides(place.src[1]).get(group) != 1:
        return None
    return UOp(Ops.LOAD, WORD, substitute(load, {group: UOp.index_const(0)}).src, load.arg)


def shifted(u: UOp, parts: list[tuple[UOp, int]], wide: DType, each: int) -> tuple[UOp, int] | None:
    """A shift of each byte and the largest number that it gives."""
    if len(parts) < 2:
        return None
    (x, most), (by, _) = parts
    if u.src[1].op is not Ops.CONST:
        return (x.alu(u.op, by), most) if u.op is Ops.SHR and each == 1 else None
    count = int(u.src[1].arg)
    if count >= BYTE.bits:
        return None
    left = MOST >> count if u.op is Ops.SHR else MOST << count & MOST
    found = x.alu(u.op, UOp.const(wide, count))
    if each == 1 and (u.op is Ops.SHR or most << count <= MOST):
        return found, most >> count if u.op is Ops.SHR else most << count
    return found & UOp.const(wide, left * each), left


def combined(u: UOp, parts: list[tuple[UOp, int]], group: UOp | None) -> tuple[UOp, int] | None:
    """Computes a step on wider integers, and the largest number that it gives."""
    values, bounds = [x for x, _ in parts], [most for _, most in parts]
    if u.op is Ops.WHERE:
        same = group is None or group not in u.src[0].ranges
        return (u.src[0].where(*values), max(bounds)) if same else None
    most = min(bounds) if u.op is Ops.AND else sum(bounds)
    if most > MOST and u.op is Ops.ADD:
        return None
    return values[0].alu(u.op, values[1]), min(most, MOST)
