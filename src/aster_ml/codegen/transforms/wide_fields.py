"""Fields of bytes that become floats, cut out of integers as wide as these.

Receives a kernel whose Opts are applied and whose products are unpacked from bytes; returns its
graph.

rewrite: CAST(p & 15, float32) -> CAST(CAST(p, int32) & 15, float32)
when: the fields are made of bytes by bitwise ops and no step can be beyond 255
why: SIMD lanes of a byte are widened once for all fields in it
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.unpacked import is_byte
from aster_ml.dtype import dtypes
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

INT, BYTE = dtypes.int32, dtypes.uint8
# Of these the operands have the dtype of the result.
CUT = frozenset({Ops.AND, Ops.OR, Ops.ADD, Ops.SHL, Ops.SHR, Ops.WHERE})
MOST = int(dtypes.max(BYTE))


def widen_fields(kernel: Kernel, target: Target) -> None:
    """Fields of bytes that become floats are cut out of integers as wide as these."""
    changes = {}
    for u in kernel.facts.order:
        if u.op is Ops.CAST and u.dtype is dtypes.float32 and u.src[0].dtype is BYTE:
            wide = in_words(u.src[0])
            if wide is not None:
                changes[u.src[0]] = wide
    if changes:
        casts = {
            u: UOp(Ops.CAST, u.dtype, (changes[u.src[0]],))
            for u in kernel.facts.order
            if u.op is Ops.CAST and u.dtype is dtypes.float32 and u.src[0] in changes
        }
        kernel.sink = substitute(kernel.sink, casts)


def in_words(field: UOp) -> UOp | None:
    """A field as int32; None where it is no field, or a step of it might be beyond a byte."""
    if field.op not in CUT:
        return None
    made: dict[UOp, tuple[UOp, int]] = {}
    for u in toposort(field, enter=lambda u: u.op in CUT and u.dtype is BYTE):
        if u.dtype is not BYTE:
            continue
        if u.op is Ops.CONST:
            made[u] = UOp.const(INT, u.arg), int(u.arg)
        elif is_byte(u):
            made[u] = UOp(Ops.CAST, INT, (u,)), MOST
        elif u.op in CUT:
            parts = [made.get(s, (s, MOST)) for s in u.src]
            most = most_of(u, [bound for _, bound in parts])
            if most > MOST or any([s not in made and s.dtype is BYTE for s in u.src]):
                return None
            made[u] = UOp(u.op, INT, tuple([x for x, _ in parts])), most
        else:
            return None
    return made[field][0]


def most_of(u: UOp, bounds: list[int]) -> int:
    """The largest that a step can be, of operands of 0 and more."""
    if u.op is Ops.AND:
        return min(bounds)
    if u.op is Ops.WHERE:
        return max(bounds[1:])
    if u.op is Ops.SHR or u.op is Ops.SHL:
        if u.src[1].op is not Ops.CONST:
            return bounds[0] if u.op is Ops.SHR else MOST + 1
        return bounds[0] >> bounds[1] if u.op is Ops.SHR else bounds[0] << bounds[1]
    return sum(bounds)
