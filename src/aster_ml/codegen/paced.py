"""Tiles of a transpose that go to memory through scratch, some rows at a step of a loop.

Receives a kernel whose loops are final, and its graph with the ASKs for the block that follows
(`next_blocks`); returns the graph in which a tile is kept in scratch and stored from there. Which
kernels ask for blocks is decided in `transposes`. Only for LLVM: in C a tile is gathered element by
element, and scratch cost up to a fifth.

rewrite: STORE(INDEX(p, f(row, lane)), v(row, lane)) for all rows of a tile -> scratch[row, lane] =
v(row, lane) for all of them; then, in a loop, some rows at a time: STORE(INDEX(p, f(row, lane)),
scratch[row, lane]), and as large a part of the ASKs
when: one thread alone works, stores go past the caches, and rows of results lie half a page or more
apart
why: memory brings and takes more at once then, by a tenth to a third, as measured; neither scratch
without a loop nor a loop over steps of 16 rows does it. Two threads keep memory as busy without
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.prices import FAR_NBYTES, PACED_ROWS, PACED_STEPS
from aster_ml.codegen.rows import new_scratch, position
from aster_ml.helpers import ceildiv
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


def pace_stores(kernel: Kernel, sink: UOp) -> UOp:
    """The graph in which a tile goes through scratch; the same one where that does not pay."""
    rows = paced_rows(kernel)
    if rows is None:
        return sink
    steps = size_of(rows) // PACED_ROWS
    step = kernel.new_range(steps, AxisType.LOOP)
    part = kernel.new_range(PACED_ROWS, AxisType.UPCAST)
    ends = []
    for end in sink.src:
        node, closed = end.src[0], end.src[1:]
        if node.op is Ops.STORE:
            ends.append(stored_from_scratch(kernel, node, closed, rows, (step, part)))
        else:
            (piece,) = [r for r in closed if r.arg.kind is AxisType.UPCAST]
            few = kernel.new_range(ceildiv(size_of(piece), steps), AxisType.UPCAST)
            node = substitute(node, {piece: position(step, [few])})
            ends.append(node.end(*[r for r in closed if r is not piece], step, few))
    # The new loop stands within all others.
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    lanes = [r for r in kernel.outputs if r.arg.kind.is_lane and r is not rows]
    kernel.outputs = [*loops, step, part, *lanes]
    return sink.replace(src=tuple(ends))


def paced_rows(kernel: Kernel) -> UOp | None:
    """The lanes that are the rows of such a tile; None where there are none."""
    if kernel.asking is None:
        return None
    stores = [a for a in kernel.accesses() if a.is_store]
    lanes = [r for r in kernel.outputs if r.arg.kind is AxisType.UPCAST]
    if kernel.shared is not None or len(stores) != 1 or len(lanes) != 1:
        return None
    (store,), (rows,) = stores, lanes
    apart = abs(store.stride(rows) or 0) * store.buffer.dtype.itemsize
    # The arg of a STORE says that it goes past the caches.
    if store.node.arg is None or store.node.src[2:] or apart < FAR_NBYTES // 2:
        return None
    steps, rest = divmod(size_of(rows), PACED_ROWS)
    return rows if steps >= PACED_STEPS and not rest else None


def stored_from_scratch(
    kernel: Kernel, store: UOp, closed: tuple[UOp, ...], rows: UOp, split: tuple[UOp, UOp]
) -> UOp:
    """A store of some rows a step, of what scratch has been filled with for all of them."""
    value = store.src[1]
    (lane,) = [r for r in closed if r.arg.kind is AxisType.VECTOR]
    own = {r: kernel.new_range(size_of(r), r.arg.kind) for r in (rows, lane)}
    local = new_scratch(kernel.facts.order, value.dtype, size_of(rows) * size_of(lane))
    filled = local.index(position(own[rows], [own[lane]])).store(substitute(value, own))
    step, part = split
    row = position(step, [part])
    kept = local.after(filled.end(*own.values())).index(position(row, [lane])).load()
    at = substitute(store.src[0], {rows: row})
    paced = UOp(Ops.STORE, store.dtype, (at, kept), store.arg)
    return paced.end(*[r for r in closed if r is not rows], *split)
