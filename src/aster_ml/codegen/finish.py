"""What is done with the results of a register tile, in a loop over the tile where it is long.

Receives a kernel whose Opts are applied and whose panels are filled; returns it with the sums of a
tile in scratch and a loop that reads them there. Only for targets without work-groups. Which tile a
kernel has is decided in `cost`.

rewrite: STORE(INDEX(p, f(t)), g(REDUCE(v(t), k), t)) over lanes t
-> STORE(INDEX(p, f(l)), g(LOAD(INDEX(scratch, l)), l)) in a loop l, after scratch was filled
when: g, or lanes that are stored one by one, are written out many times over
why: a compiler takes as long for it as for the whole sum before; reading and storing the sums once
more is nothing to a sum that is long
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.prices import (
    LEAST_SAVED,
    LEAST_SUMMED,
    LINES,
    LINES_APART,
    decomposed_nodes,
)
from aster_ml.codegen.rows import new_scratch, position
from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of


class Tile(NamedTuple):
    """The sum of a tile, its lanes, and those of them that become loops."""

    total: UOp
    lanes: list[UOp]
    loops: list[UOp]


def finish_in_loop(kernel: Kernel, target: Target) -> None:
    """The rewrite, where it saves enough code."""
    tile = find_tile(kernel, target)
    if tile is None:
        return
    total, lanes, looped = tile
    local = new_scratch(kernel.facts.order, total.dtype, prod([size_of(r) for r in lanes]))
    at = position(UOp.index_const(0), lanes)
    ready = local.after(local.index(at).store(total).end(*lanes))
    steps = {r: kernel.new_range(size_of(r), AxisType.LOOP) for r in looped}
    # The sum itself keeps its lanes, so what reads it is moved while it is not there.
    hole = local.index(at).load()
    (store,) = kernel.stores
    moved = substitute(substitute(store, {total: hole}), steps)
    there = substitute(hole, steps)
    moved = substitute(moved, {there: ready.index(there.src[0].src[1]).load()})
    kernel.outputs = [r for r in kernel.outputs if r not in steps] + list(steps.values())
    kernel.sink = kernel.sink.replace(src=(moved.end(*kernel.outputs),))


def find_tile(kernel: Kernel, target: Target) -> Tile | None:
    """The tile whose results are finished in a loop, if there is one."""
    otherwise = kernel.rows or kernel.skewed is not None or kernel.group
    if otherwise or len(kernel.stores) != 1 or not kernel.reduces:
        return None
    (store,) = kernel.stores
    total = kernel.reduces[-1]
    after = toposort(store, enter=lambda u: u is not total)
    if any(u.op is Ops.REDUCE and u is not total for u in after) or total not in after:
        return None
    loops = [r for u in toposort(total) if u.op is Ops.REDUCE for r in u.src[1:]]
    known = all(r.src[0].op is Ops.CONST for r in loops)
    if not set(kernel.outputs) <= total.ranges or not known:
        return None
    lanes = [r for r in kernel.outputs if r.arg.kind.is_lane]
    lanes.sort(key=lambda r: (r.arg.kind is AxisType.VECTOR, r.arg.id))
    simd = [r for r in lanes if r.arg.kind is AxisType.VECTOR]
    steps = iterations([r for r in loops if not r.arg.kind.is_lane])
    if len(simd) != 1 or steps < LEAST_SUMMED:
        return None
    accesses = [a for a in kernel.accesses() if a.node in after]
    apart = [a for a in accesses if a.stride(simd[0]) not in (0, 1)]
    # Those stay that make runs of what SIMD lanes load or store apart.
    looped = [r for r in lanes[:-1] if not any(abs(a.stride(r) or 0) == 1 for a in apart)]
    nodes = [u for u in after if u.op in ELEMENTWISE and u.dtype is not dtypes.index]
    each = len(nodes) + decomposed_nodes(nodes, target)
    each += LINES_APART * len(apart) + LINES * (len(accesses) - len(apart))
    values = prod([size_of(r) for r in lanes[:-1]])
    left = values // prod([size_of(r) for r in looped])
    # Sums are stored, and loaded again.
    saved = each * (values - left) - LINES * (values + left)
    return Tile(total, lanes, looped) if saved >= LEAST_SAVED else None
