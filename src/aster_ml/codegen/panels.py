"""Packed panels: an operand of a product that is read again and again, kept together in scratch.

Receives a kernel whose Opts are applied; returns its graph with some loads going through
DEFINE_LOCAL. Only for targets without work-groups, where scratch is a strip of stack in the cache.

rewrite: LOAD(INDEX(p, f(outer, k, lanes))) -> LOAD(INDEX(panel, g(k, lanes))), after the panel has
been filled with f over all k and lanes
when: the SIMD lanes are contiguous in p, neighbours in k are far apart, the panel fits half of the
second cache, and loops that do not change it run inside
why: rows far apart fall on the same few cache lines' places and push one another out; packed, they
are one stream
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Access, Kernel, size_of
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops, ScratchArg

# Rows closer together than this share pages and lines anyway.
FAR_NBYTES = 1024
# Fewer uses of a panel than this do not pay for packing it.
MIN_REUSE = 6
# Scratch is stack, and threads have little of it.
MAX_PANEL_NBYTES = 512 << 10


def pack_panels(kernel: Kernel, target: Target) -> None:
    """Packs what is worth it."""
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    main = [u for u in kernel.reduces if set(loops) <= u.ranges]
    if len(main) != 1 or len(kernel.reduces) != 1 or not all(map(kernel.may_reorder, loops)):
        return
    reduced = [r for r in main[0].src[1:] if r.arg.kind is AxisType.REDUCE]
    changes: dict[UOp, UOp] = {}
    for a in kernel.accesses():
        if not a.is_store and is_worth_packing(a, loops, reduced, target):
            changes[a.node] = packed_load(kernel, a, reduced, len(changes))
            break
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def panel_axes(a: Access, reduced: list[UOp]) -> list[UOp]:
    """The axes that a panel spans: the reduced ones, then lanes, the SIMD one last."""
    lanes = [r for r in a.strides if r.arg.kind.is_lane]
    lanes.sort(key=lambda r: (r.arg.kind is AxisType.VECTOR, r.arg.id))
    return [*[r for r in reduced if r in a.strides], *lanes]


def is_worth_packing(a: Access, loops: list[UOp], reduced: list[UOp], target: Target) -> bool:
    """Whether the conditions at the top hold for this load."""
    if len(a.node.src) > 1 or any(s is None for s in a.strides.values()):
        return False
    axes = panel_axes(a, reduced)
    if any(r.src[0].op is not Ops.CONST for r in axes):
        return False
    vector = [r for r in axes if r.arg.kind is AxisType.VECTOR]
    itemsize = a.buffer.dtype.itemsize
    far = max([abs(a.strides[r] or 0) * itemsize for r in axes if r in reduced], default=0)
    # Loops inside of the innermost one that the panel changes with use it again.
    inside = 0
    for i, r in enumerate(loops):
        if r in a.strides:
            inside = i + 1
    reuse = prod([size_of(r) for r in loops[inside:]])
    nbytes = prod([size_of(r) for r in axes]) * itemsize
    limit = min(MAX_PANEL_NBYTES, target.cache_bytes[1] * 5 // 8)
    return (
        len(vector) == 1
        and a.strides[vector[0]] == 1
        and far >= FAR_NBYTES
        and reuse >= MIN_REUSE
        and nbytes <= limit
    )


def packed_load(kernel: Kernel, a: Access, reduced: list[UOp], number: int) -> UOp:
    """The load through a panel that is filled beforehand."""
    axes = panel_axes(a, reduced)
    local = UOp(
        Ops.DEFINE_LOCAL, a.buffer.dtype, (), ScratchArg(number, prod([size_of(r) for r in axes]))
    )

    def at(place: dict[UOp, UOp]) -> UOp:
        total = UOp.index_const(0)
        for r in axes:
            total = index_alu(Ops.ADD, index_alu(Ops.MUL, total, r.src[0]), place.get(r, r))
        return total

    # The panel is filled in loops of its own over the reduced axes; lanes stay lanes.
    copies = {r: kernel.new_range(size_of(r), AxisType.LOOP) for r in axes if r in reduced}
    lanes = {r: kernel.new_range(size_of(r), r.arg.kind) for r in axes if r not in reduced}
    place = {**copies, **lanes}
    store = local.index(at(place)).store(substitute(a.node, place))
    filled = store.end(*copies.values(), *lanes.values())
    return local.after(filled).index(at({})).load()
