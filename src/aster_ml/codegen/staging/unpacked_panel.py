"""Unpacked operands of products that serve many results: chosen for as memory, kept in panels.

Receives a kernel before its Opts (`stand_in`): such an operand becomes a load of memory that is
not there, so that the schedule is that of a product of plain matrices. When Opts are applied
(`unpack`), the load goes through a panel in scratch, which holds what a tile of results reads and
is filled with unpacked numbers, SIMD lanes along the packed ones; or it is unpacked where it is
read, where no loop would use the panel again.

rewrite: v(k, n) -> LOAD(INDEX(memory, k * N + n)) -> LOAD(INDEX(panel, k * L + l)), after the panel
has been filled with v over all k and lanes l
when: v is unpacked from bytes and serves many results
why: unpacking takes longer than the products with it; in memory it would be as large as it gets
"""

from __future__ import annotations

import functools

from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.plans import UnpackedOperand
from aster_ml.codegen.staging.panel import (
    fill_uses,
    lanes_of,
    max_nbytes,
    packed_load,
    panel_axes,
    places_to_fill,
)
from aster_ml.codegen.staging.stage import position
from aster_ml.codegen.transforms.decoded import (
    FEW_USES,
    DecodedOperand,
    blocks_of,
    find_operands,
    is_byte,
    is_unpacked,
)
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import simplify_around

# Numbers of the memory that stands in begin beyond those of any kernel's arguments.
FIRST_SLOT = 1 << 16


def stand_in(kernel: Kernel, target: Target) -> None:
    """Puts a placeholder for each dequantized operand that many results read: plain memory."""
    if not target.compiles or not is_unpacked(kernel):
        return
    found: list[UnpackedOperand] = []
    changes: dict[UOp, UOp] = {}
    for operand in find_operands(kernel):
        u = operand.reduce
        if operand.uses <= FEW_USES or not operand.others or not is_plain(operand):
            continue
        shared = {r for f in operand.others for r in f.ranges}
        # Those of the batch, then of the sum, then its own.
        axes = sorted(operand.axes, key=lambda r: 1 if r in u.src[1:] else 0 if r in shared else 2)
        value = functools.reduce(lambda a, b: a.alu(Ops.MUL, b), operand.factors)
        slot = FIRST_SLOT + len(found)
        found.append(UnpackedOperand(slot=slot, value=value, axes=tuple(axes)))
        product = found[-1].memory.index(position(axes)).load()
        for f in reversed(operand.others):
            product = f.alu(Ops.MUL, product)
        changes[u] = UOp(Ops.REDUCE, u.dtype, (product, *u.src[1:]), u.arg)
    if changes:
        kernel.sink = substitute(kernel.sink, changes)
        for plan in found:
            kernel.add(plan)


def is_plain(operand: DecodedOperand) -> bool:
    """Whether axes have fixed sizes, and nothing but loads without a gate is unpacked."""
    loads = [u for f in operand.factors for u in toposort(f) if u.op is Ops.LOAD]
    return all([r.src[0].op is Ops.CONST for r in operand.axes]) and all(
        [len(u.src) == 1 for u in loads]
    )


def unpack(kernel: Kernel, target: Target) -> None:
    """Replaces placeholders with panels of dequantized numbers, or the numbers where read."""
    for found in kernel.plans_of(UnpackedOperand):
        for a in [a for a in kernel.accesses() if a.buffer is found.memory]:
            # One after the other: each panel has scratch of its own.
            load = unpacked_load(kernel, target, found, a)
            kernel.sink = substitute(kernel.sink, {a.node: load})


def unpacked_load(kernel: Kernel, target: Target, found: UnpackedOperand, a: Access) -> UOp:
    """Value in place of a load of a stand-in."""
    axes, decode = panel_axes(a, kernel.facts.reduced), functools.partial(value_at, found)
    nbytes = prod([size_of(r) for r in axes]) * a.buffer.dtype.itemsize
    plain = all([a.strides[r] is not None for r in axes])
    if not plain or fill_uses(a, kernel.outputs) < 2 or nbytes > max_nbytes(target):
        return decode(a.node)
    # As codes lie: side by side along their runs, and apart along all else.
    blocks = blocks_of(tuple([u for u in toposort(found.value) if is_byte(u)]))
    steps = {found.step(r) for r in found.axes if r in blocks}
    stored = a._replace(strides={r: 1 if n in steps else nbytes for r, n in a.strides.items()})
    places = places_to_fill(kernel, stored, axes, lanes_of(kernel), decoded=True)
    return packed_load(kernel, a, axes, places, decode)


def value_at(found: UnpackedOperand, load: UOp) -> UOp:
    """The unpacked numbers in place of a load of what stands in for them."""
    index, gate = load.src[0].src[1], load.src[1:]
    places = {}
    for r in found.axes:
        i = index_alu(Ops.IDIV, index, UOp.index_const(found.step(r)))
        i = index_alu(Ops.MOD, i, r.src[0])
        places[r] = simplify_around(i)
    value = substitute(found.value, places)
    if not gate:
        return value
    loads = [u for u in toposort(value) if u.op is Ops.LOAD]
    gated = {u: UOp(Ops.LOAD, u.dtype, (u.src[0], *gate), u.arg) for u in loads}
    return gate[0].where(substitute(value, gated), UOp.const(value.dtype, 0))
