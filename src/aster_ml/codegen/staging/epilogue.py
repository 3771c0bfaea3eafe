"""Epilogue of a register tile: what is done with its results, in a loop where the tile is long.

Receives a kernel with the Opt STAGE tile whose panels are filled; returns it with the sums of a
tile in scratch and a loop that reads them there. Only for targets without work-groups. Which tile a
kernel has is decided in `policy/cpu/heuristic`, whether it has such a loop in
`policy/cpu/staging`.

rewrite: STORE(INDEX(p, f(t)), g(REDUCE(v(t), k), t)) over lanes t
-> STORE(INDEX(p, f(l)), g(LOAD(INDEX(scratch, l)), l)) in a loop l, after scratch was filled
when: g, or lanes that are stored apart, are written out many times over
why: a compiler takes as long for it as for the whole sum before; reading and storing the sums once
more is nothing to a sum that is long

SIMD lanes that lie apart in memory are transposed, block by block. In scratch they may be fewer for
that than those of the sum: one block, and a loop over all of them. What takes longer in fewer lanes
is computed in all of them before, in a loop of its own, from scratch to scratch. Where another lane
lies side by side in memory, the SIMD lanes are along that one here: sums are then transposed as
they come from scratch, and what is done with them loads and stores neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import (
    ComputedEpilogue,
    PackedWords,
    PipelinedStores,
    RowSums,
    TileEpilogue,
)
from aster_ml.codegen.staging.stage import Stage, new_stage, position
from aster_ml.codegen.transforms.axes import stray_ranges, walks_as_one
from aster_ml.errors import KernelOptError
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


class Tile(NamedTuple):
    """The sum of a tile, its lanes, and what becomes of them where results are finished.

    `loops` are the lanes that become loops; `block` is how many SIMD lanes are left, and `before`
    whether values are computed in a loop of their own before they are stored. `across` is the lane
    that has the SIMD lanes in place of those of the sum, if any does. Along `beyond`, all that is
    stored or loaded goes on where the SIMD lanes of the sum end: one loop is over both.
    """

    total: UOp
    lanes: list[UOp]
    loops: list[UOp]
    block: int
    before: bool
    across: UOp | None = None
    beyond: UOp | None = None


def finish_in_loop(kernel: Kernel, target: Target) -> None:
    """Computes the epilogue of a long register tile in a loop over its results."""
    plan = kernel.plan(TileEpilogue)
    assert plan is not None
    tile = find_tile(kernel, plan)
    total, lanes, looped, block, before, across, beyond = tile
    simd = lanes[-1]
    sums = new_stage(kernel.facts.order, total.dtype, lanes)
    ready = sums.after(sums.fill(sums.at(), total, *lanes))
    (store,) = kernel.stores
    read = total
    if before:
        # Not as they lie in scratch: the long one inside, so that its steps overlap.
        outer = sorted(lanes[:-1], key=size_of)
        own = {r: kernel.new_range(size_of(r), AxisType.LOOP) for r in outer}
        own[simd] = kernel.new_range(size_of(simd), AxisType.VECTOR)
        value = store.src[1]
        values = new_stage([sums.memory], value.dtype, lanes)
        finished = moved(value, total, ready, own)
        filled = values.fill(values.at(own), finished, *own.values())
        ready, read = values.after(filled), value
    inner = [kernel.new_range(size_of(r), AxisType.LOOP) for r in looped]
    steps = dict(zip(looped, inner, strict=True))
    if block < size_of(simd):
        if beyond is not None:
            steps[beyond] = UOp.index_const(0)
        for r in (simd,) if across is None else (simd, across):
            size = size_of(r) * (size_of(beyond) if r is simd and beyond is not None else 1)
            step = kernel.new_range(size // block, AxisType.LOOP)
            kind = AxisType.VECTOR if across in (None, r) else AxisType.UPCAST
            inner += [step, kernel.new_range(block, kind)]
            steps[r] = position(inner[-2:])
    kernel.outputs = [r for r in kernel.outputs if r not in steps] + inner
    ended = moved(store, read, ready, steps).end(*kernel.outputs)
    kernel.sink = kernel.sink.replace(src=(ended,))


def moved(node: UOp, read: UOp, ready: Stage, steps: dict[UOp, UOp]) -> UOp:
    """The node along other lanes, with what scratch holds of these where it has `read`.

    What `read` is made from keeps its lanes.
    """
    return substitute(node, {**steps, read: ready.load(substitute(ready.at(), steps))})


def tile_of(kernel: Kernel) -> tuple[UOp, list[UOp]] | None:
    """The sum of a tile and its lanes, the SIMD one last, if results can be finished in a loop."""
    otherwise = kernel.plan(RowSums) or kernel.plan(PipelinedStores) or kernel.plan(PackedWords)
    if otherwise is not None or len(kernel.stores) != 1 or not kernel.reduces:
        return None
    (store,) = kernel.stores
    total = kernel.reduces[-1]
    # All other reductions have to be those that the last one is made from.
    after = toposort(store, enter=lambda u: u is not total)
    if any(u.op is Ops.REDUCE and u is not total for u in after) or total not in after:
        return None
    loops = [r for u in kernel.reduces for r in u.src[1:]]
    lanes = [r for r in kernel.outputs if r.arg.kind.is_lane]
    known = all(r.src[0].ranges.isdisjoint(lanes) for r in loops)
    if not set(kernel.outputs) <= total.ranges or not known:
        return None
    lanes.sort(key=lambda r: (r.arg.kind is AxisType.VECTOR, r.arg.id))
    simd = [r for r in lanes if r.arg.kind is AxisType.VECTOR]
    return (total, lanes) if len(simd) == 1 else None


def accesses_after(kernel: Kernel, total: UOp) -> list[Access]:
    """Accesses after a sum is complete."""
    after = toposort(kernel.stores[0], enter=lambda u: u is not total)
    return [a for a in kernel.accesses() if a.node in after]


def lanes_in_loop(lanes: list[UOp], accesses: list[Access]) -> list[UOp]:
    """The lanes that become loops: those stay that make runs of what SIMD lanes reach apart."""
    apart = [a for a in accesses if a.stride(lanes[-1]) not in (0, 1)]
    return [r for r in lanes[:-1] if not any(abs(a.stride(r) or 0) == 1 for a in apart)]


def find_tile(kernel: Kernel, epilogue: TileEpilogue) -> Tile:
    """The tile whose results are finished in a loop.

    Raises: KernelOptError where there is none, or its SIMD lanes have no such blocks.
    """
    found = tile_of(kernel)
    if found is None:
        raise KernelOptError(
            "STAGE tile: one store of a register tile with SIMD lanes, of a reduction that has all "
            "of its lanes, is wanted; other Opts have left none"
        )
    total, lanes = found
    accesses, block, whole = accesses_after(kernel, total), epilogue.count, size_of(lanes[-1])
    looped, before = lanes_in_loop(lanes, accesses), isinstance(epilogue, ComputedEpilogue)
    if not block and not before:
        return Tile(total, lanes, looped, whole, False)
    if not 0 < block < whole or whole % block:
        raise KernelOptError(f"STAGE tile: {block} of {whole} SIMD lanes; a part of them is wanted")
    across = next((r for r in lanes[:-1] if can_turn(r, accesses, block)), None)
    beyond = lane_beyond(kernel, looped, lanes[-1], accesses)
    if beyond is not None:
        looped.remove(beyond)
        lanes = [*[r for r in lanes[:-1] if r is not beyond], beyond, lanes[-1]]
    return Tile(total, lanes, looped, block, before, across, beyond)


def can_turn(lane: UOp, accesses: list[Access], block: int) -> bool:
    """Whether blocks of SIMD lanes along a lane reach nothing but neighbours, or one for all."""
    return size_of(lane) % block == 0 and all([a.stride(lane) in (0, 1) for a in accesses])


def lane_beyond(kernel: Kernel, lanes: list[UOp], simd: UOp, accesses: list[Access]) -> UOp | None:
    """The lane along which every access goes on over the end of the SIMD lanes, if there is one."""
    plain = {simd, *lanes} - stray_ranges(kernel)
    if simd not in plain:
        return None
    return next(
        (r for r in lanes if r in plain and all([walks_as_one(a, r, simd) for a in accesses])), None
    )
