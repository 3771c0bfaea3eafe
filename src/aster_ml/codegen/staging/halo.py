"""Halos: the elements that neighbouring windows share, kept in scratch so that lanes load it whole.

Receives a kernel with the Opt STAGE halo, whose windowed load reads a STAGE by then; returns it
with scratch that is filled beforehand. Only for targets without work-groups. Which kernels get one
is decided in `policy/cpu/heuristic`.

rewrite: LOAD(INDEX(x, f(o * stride + k * dilation)), inside) -> LOAD(INDEX(slab, g(o, k)))
when: the windows along the SIMD axis are strided, or reach beyond an end; and there is more to
them than a plain row whose elements are used once
why: every element is loaded once, under masks and lanes apart, and is read many times, whole: rows
have their padding in the slab, and what is `stride` apart in them lies side by side, the rest of
the division by it outside (`transforms/polyphase`)
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import Halo, TiledLoop
from aster_ml.codegen.policy.cpu.costs import (
    Plan,
)
from aster_ml.codegen.staging.panel import max_nbytes
from aster_ml.codegen.staging.sliding_windows import (
    Slab,
    Windowed,
    find_windowed,
    slab_load,
    slab_of,
)
from aster_ml.codegen.staging.stage import Stage, new_stage, position
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# SIMD values of a row that are written out, and the most phases of a row.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_TURNS, MAX_PHASES = 16, 4

# Uses of an element from which on waiting for it from far away is nothing to what it is used for.
MOST_USES = 100


class SlabCost(NamedTuple):
    """A slab that could be: its windows, rows of results at a time, cycles that fill it."""

    found: Windowed
    rows: int
    cycles: float


def slab_cost(plan: Plan, axis: UOp, lanes: int) -> SlabCost | None:
    """Cost of a slab for the windows along a SIMD axis; None where it gains nothing."""
    found = stored_windows(plan, axis)
    if found is None or found.columns.stride > MAX_PHASES:
        return None
    gated, once = bool(found.access.node.src[1:]), uses_of_element(plan, found) <= 1
    if not gated and found.access.stride(axis) == 1:
        return None
    # What is used once is shuffled as it is loaded, in whole SIMD values along one row.
    plain = found.rows is None and not found.others and not gated
    if plain and once and size_of(axis) >= lanes:
        return None
    return cost_of(plan, found, slab_of(found, 0), lanes)


def far_slab(plan: Plan, axis: UOp, lanes: int) -> SlabCost | None:
    """A slab for windows that are near, but far from those of the next step; None without need.

    They lie along the SIMD axis, or are broadcast to lanes along one that they do not change with.

    why: what each step of the sum loads lies on a page of its own, beyond the second cache: each
    would wait for memory alone, while a slab is filled by loads that are under way together
    """
    kernel = plan.kernel
    found = stored_windows(plan, kernel.outputs[-1])
    if found is None or len(kernel.reduces) != 1:
        return None
    along = axis is found.columns.out
    if (found.columns.stride > MAX_PHASES) if along else axis in found.access.strides:
        return None
    a, itemsize = found.access, found.access.buffer.dtype.itemsize
    (u,) = kernel.reduces
    if along and uses_of_element(plan, found) > MOST_USES:
        return None
    inside = [w.out for w in (found.columns, found.rows) if w is not None]
    reach = sum([(a.stride(r) or 0) * (size_of(r) - 1) for r in (*inside, *found.others)])
    gap = max([a.stride(r) or 0 for r in found.others], default=0)
    panel = iterations(list(u.src[1:])) * lanes * itemsize
    if gap * itemsize < plan.target.page_nbytes or (not along and panel > max_nbytes(plan.target)):
        return None
    if reach * itemsize <= plan.target.cache_bytes[1] // 2:
        return None
    return cost_of(plan, found, slab_of(found, 0, whole=not along), lanes)


def uses_of_element(plan: Plan, found: Windowed) -> float:
    """Counts how often each element that windows meet is used."""
    (u,) = plan.kernel.reduces
    loops = iterations(list(u.ranges.union(u.src[1:])))
    met = found.row_count * found.columns.places
    return loops / (iterations([*found.others, *loops_around(plan, found)]) * met)


def stored_windows(plan: Plan, axis: UOp) -> Windowed | None:
    """The windows along an axis that results lie side by side along."""
    if not plan.kernel.reduces:
        return None
    if not any(a.is_store and a.stride(axis) == 1 for a in plan.accesses):
        return None
    kernel = plan.kernel
    return find_windowed(kernel.facts, kernel.outputs, axis, tiled(kernel))


def loops_around(plan: Plan, found: Windowed) -> list[UOp]:
    """The output axes that windows depend on and do not slide along."""
    along = [w.out for w in (found.columns, found.rows) if w is not None]
    outputs = plan.kernel.outputs
    return [r for r in outputs if r in found.access.strides and r not in along]


def cost_of(plan: Plan, found: Windowed, slab: Slab, lanes: int) -> SlabCost | None:
    """Finds the part of a slab that fits at a time, and the cost of filling all of it."""
    a, columns, rows = found.access, found.columns, found.rows
    others = iterations(list(found.others))
    room = max_nbytes(plan.target) // a.buffer.dtype.itemsize
    room //= others * slab.phases * slab.pitch
    outer = loops_around(plan, found)
    blocks, results, filled = 1, 0, 1
    if rows is not None:
        count = size_of(rows.out)
        # Each result more takes `stride` rows more than one does.
        one = rows.places - rows.stride * (count - 1)
        most = min((room - one) // rows.stride + 1, count)
        if most < 1:
            return None
        blocks = max(ceildiv(count, most), ceildiv(plan.target.threads, iterations(outer)))
        results = ceildiv(count, blocks)
        blocks = ceildiv(count, results)
        filled = one + rows.stride * (results - 1)
    elif room < 1:
        return None
    turns = ceildiv(columns.places, lanes)
    costs, instruction = plan.target.costs, plan.target.instruction
    each = turns * (costs.masked + 1) * instruction
    if (a.stride(columns.out) or 0) != columns.stride:
        each = columns.places * (costs.masked_gather if a.node.src[1:] else costs.gather)
    if slab.phases > 1:
        each += turns * (1 + slab.phases) * instruction
    return SlabCost(found, results, iterations(outer) * blocks * filled * others * each)


def tiled(kernel: Kernel) -> frozenset[int]:
    """The ids of axes that are loops over tiles."""
    return frozenset([p.axis for p in kernel.plans_of(TiledLoop)])


def load_slab(kernel: Kernel, axis: UOp, whole: bool) -> None:
    """The windows of a load along an output axis read a STAGE of what they meet.

    Its rows are `whole`, or in phases: what neighbours along the axis read lies side by side.
    """
    found = find_windowed(kernel.facts, kernel.outputs, axis, tiled(kernel))
    if found is None or kernel.plan(Halo) is not None:
        raise KernelOptError("an output axis with windows of one load along it is wanted")
    slab = slab_of(found, kernel.next_id, whole)
    kernel.add(Halo(slab=slab))
    load = slab_load(found, slab, whole, kernel.new_range)
    kernel.sink = substitute(kernel.sink, {found.access.node: load})


def fill_slab(kernel: Kernel, target: Target) -> None:
    """Stages the input that overlapping windows share in scratch, filled in the loops around."""
    stage, halo = kernel.slab_stage(), kernel.plan(Halo)
    assert stage is not None and halo is not None
    slab = halo.slab
    reads = [u for u in kernel.facts.order if u.op is Ops.LOAD and u.src[0].src[0] is stage]
    value, *axes = stage.src
    others, columns = axes[:-1], axes[-1]
    lanes = target.lanes(value.dtype.itemsize)
    loops = {r: kernel.new_range(r.src[0], AxisType.LOOP) for r in others}
    row = UOp.index_const(slab.phases * slab.pitch)
    start = index_alu(Ops.MUL, position(others, loops), row)
    value = substitute(value, loops)
    # What SIMD lanes reach beyond the end of a row is nobody's result.
    rows = prod([size_of(r) for r in others])
    needed = max([rows * slab.phases * slab.pitch, *[int(u.src[0].src[1].vmax) + 1 for u in reads]])
    local = new_stage(kernel.facts.order, value.dtype, size=needed + lanes)
    if slab.phases == 1:
        filled = fill_row(kernel, local, start, value, columns, lanes)
    else:
        filled = fill_phases(kernel, local, start, value, columns, lanes, slab)
    ready = local.after(filled.end(*loops.values()))
    changes = {u: ready.load(u.src[0].src[1]) for u in reads}
    kernel.sink = substitute(kernel.sink, changes)


def fill_row(kernel: Kernel, place: Stage, start: UOp, value: UOp, columns: UOp, lanes: int) -> UOp:
    """The loop that stores a row from `start` on, its elements side by side."""
    count = size_of(columns)
    step, closed = simd_steps(kernel, ceildiv(count, lanes), lanes)
    value = substitute(value, {columns: step})
    if count % lanes:
        load = value
        gated = (load.src[0], kernel.both(step < count, *load.src[1:]))
        value = UOp(Ops.LOAD, load.dtype, gated, load.arg)
    return place.fill(index_alu(Ops.ADD, start, step), value, *closed)


def fill_phases(
    kernel: Kernel, place: Stage, start: UOp, value: UOp, columns: UOp, lanes: int, slab: Slab
) -> UOp:
    """The same, with every so manieth element side by side, out of a row that is loaded whole."""
    turns = ceildiv(ceildiv(size_of(columns), slab.phases), lanes)
    size = turns * lanes * slab.phases + lanes
    whole = new_stage([place.memory], value.dtype, size=size)
    filled = whole.after(fill_row(kernel, whole, UOp.index_const(0), value, columns, lanes))
    step, closed = simd_steps(kernel, turns, lanes)
    phase = kernel.new_range(slab.phases, AxisType.UPCAST)
    source = index_alu(Ops.MUL, step, UOp.index_const(slab.phases))
    source = index_alu(Ops.ADD, source, phase)
    to = index_alu(Ops.ADD, start, index_alu(Ops.MUL, phase, UOp.index_const(slab.pitch)))
    return place.fill(index_alu(Ops.ADD, to, step), filled.load(source), *closed, phase)


def simd_steps(kernel: Kernel, turns: int, lanes: int) -> tuple[UOp, list[UOp]]:
    """So many steps of SIMD values: the step of each element, and the axes to close."""
    loop = kernel.new_range(turns, AxisType.UPCAST if turns <= MAX_TURNS else AxisType.LOOP)
    lane = kernel.new_range(lanes, AxisType.VECTOR)
    start = index_alu(Ops.MUL, loop, UOp.index_const(lanes))
    return index_alu(Ops.ADD, start, lane), [loop, lane]
