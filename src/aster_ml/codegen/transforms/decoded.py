"""Finds operands of products that are decoded from stored narrow numbers, and splits their blocks.

Receives a kernel before its Opts; finds the factors of each sum of products that are computed from
codes, bytes that lie in blocks (quantised weights), and splits the loops of such sums at the
blocks. Nothing here knows a format: a block shows in the divisions of the indices.

rewrite: REDUCE(f(p[k // 32, k % 16], k % 32 < 16), k) -> REDUCE(f(p[b, j], h < 1), b, h, j)
when: f is a float made of numbers of one byte, and few results are made of each
why: j then walks along the bytes, h says which bits of them are read, and what depends on b alone
is worked out once a block
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.transforms.axes import simplify_indices, walks
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of

# Results of each unpacked number beyond which it is kept, and not unpacked for each tile of them.
FEW_USES = 8
INTEGERS = ("int", "uint", "bool")
DIVISIONS = frozenset({Ops.IDIV, Ops.MOD})


class DecodedOperand(NamedTuple):
    """The factors of a sum of products that are decoded, and the others.

    `codes` are the loads of stored numbers, `axes` those that the factors depend on, outputs first.
    """

    reduce: UOp
    factors: tuple[UOp, ...]
    others: tuple[UOp, ...]
    codes: tuple[UOp, ...]
    axes: tuple[UOp, ...]
    # Results that each element serves.
    uses: int


def find_operands(kernel: Kernel) -> list[DecodedOperand]:
    """The decoded operand of each sum of products that has one."""
    found = [operand_of(kernel, u) for u in kernel.reduces]
    return [operand for operand in found if operand is not None]


def operand_of(kernel: Kernel, u: UOp) -> DecodedOperand | None:
    """The decoded operand of one sum.

    Its codes lie in fields: several of them are loaded from the same memory for one product.
    """
    if u.arg.op is not Ops.ADD or u.dtype.kind != "float" or len(u.src) < 2:
        return None
    buffers = [x.src[0].src[0] for x in kernel.facts.inside[u] if is_byte(x)]
    if all([buffers.count(buffer) < 2 for buffer in buffers]):
        return None
    factors, outputs = u.src[0].split_uop(Ops.MUL), set(kernel.outputs)
    made = {f: codes_of(f) for f in factors}
    own = {r for f in factors if made[f] for r in f.ranges & outputs}
    # What changes along these results alone belongs to them: scales.
    mine = [f for f in factors if made[f] or (f.ranges & outputs and f.ranges & outputs <= own)]
    if not any(made.values()):
        return None
    inside_of = {r for f in mine for r in f.ranges}
    axes = tuple([r for r in (*kernel.outputs, *u.src[1:]) if r in inside_of])
    others = tuple([f for f in factors if f not in mine])
    uses = prod([size_of(r) for r in kernel.outputs if r in u.ranges and r not in inside_of])
    codes = tuple([x for f in mine for x in made[f]])
    return DecodedOperand(u, tuple(mine), others, codes, axes, uses)


def is_byte(u: UOp) -> bool:
    """Whether a node is a load of a number of one byte."""
    return u.op is Ops.LOAD and u.dtype.itemsize == 1 and u.dtype.kind in INTEGERS


def codes_of(factor: UOp) -> list[UOp]:
    """The loads of bytes that a float is computed from alone, in no sum of its own; else none."""
    order = toposort(factor, enter=lambda u: u.op is not Ops.LOAD)
    if factor.dtype.kind != "float" or any([u.op in (Ops.REDUCE, Ops.STAGE) for u in order]):
        return []
    loads = [u for u in order if u.op is Ops.LOAD]
    return loads if all(map(is_byte, loads)) else []


def blocks_of(codes: tuple[UOp, ...]) -> set[UOp]:
    """The axes along which codes lie in blocks."""
    found: set[UOp] = set()
    for u in codes:
        for x in toposort(u.src[0].src[1], enter=lambda x: x.op is not Ops.LOAD):
            if x.op in DIVISIONS and x.src[1].op is Ops.CONST:
                found |= {r for r in x.src[0].ranges if walks(x.src[0], r)}
    return found


def split_at_blocks(kernel: Kernel, target: Target) -> None:
    """Splits reductions over few quantized products at the blocks of the quantized numbers."""
    if not target.compiles or not is_unpacked(kernel):
        return
    more = True
    while more:
        more = False
        for u in kernel.reduces:
            operand = operand_of(kernel, u)
            if operand is not None and operand.uses <= FEW_USES and split_once(kernel, u):
                more = True
                break


def is_unpacked(kernel: Kernel) -> bool:
    """Whether a sum of a kernel may have such an operand: most kernels load no bytes."""
    loads = kernel.facts.by_op[Ops.LOAD]
    return bool(kernel.reduces) and any([u.dtype.itemsize == 1 for u in loads if u.op is Ops.LOAD])


def split_once(kernel: Kernel, u: UOp) -> bool:
    """Splits one loop of a sum by the least number that an index divides it by."""
    mine = toposort(u.src[0])
    for r in u.src[1:]:
        if r.arg.kind is not AxisType.REDUCE or r.src[0].op is not Ops.CONST:
            continue
        divisors = [
            x.src[1].arg for x in kernel.facts.divisions if x in mine and walks(x.src[0], r)
        ]
        n = min(divisors, default=1)
        if 1 < n < size_of(r) and size_of(r) % n == 0:
            kernel.split(r, n, AxisType.REDUCE)
            kernel.sink = simplify_indices(kernel.sink, kernel.facts.order)
            return True
    return False
