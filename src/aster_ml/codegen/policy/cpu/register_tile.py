"""Register tiles of reductions: cycles for each result, by register pressure and reuse.

Receives a Plan with the loads that a tile serves, and answers for one tile after the other: for
each kernel some hundred are tried, so what no tile changes is worked out once. Which are tried is
decided in `policy/cpu/heuristic`; figures of processors stand in `target/costs`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.plans import Halo, UnpackedOperand
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import MAX_GAP, Plan, execution_count
from aster_ml.codegen.staging.panel import max_nbytes, panel_axes, panel_nbytes, uses_of
from aster_ml.codegen.transforms.trip_counts import Window
from aster_ml.helpers import prod
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# How many results each axis of outputs has in a tile.
Tile = dict[UOp, int]
# Products that windows over a short axis are written out to, at most.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_PRODUCTS = 128


class Load(NamedTuple):
    """Load as a tile sees it: the axes that it changes with, among them those in far steps."""

    strides: dict[UOp, int | None]
    has_lanes: bool
    far: frozenset[UOp]
    # Results that each element serves, of what comes from beyond the second cache; 0 of others.
    streamed: int
    # Whether it loads windows from a slab.
    from_slab: bool
    # Without SIMD lanes, axes of which the first cache keeps few steps at a time, and how many.
    kept: dict[UOp, int]


class Store(NamedTuple):
    """A store whose SIMD lanes lie apart: what that takes, and axes along which it has runs."""

    scattered: float
    runs: frozenset[UOp]


class Tiles:
    """Prices of tiles of one kernel."""

    def __init__(
        self,
        plan: Plan,
        loads: list[Access],
        vector: set[UOp],
        windows: dict[UOp, Window],
        panel: Access | None,
    ) -> None:
        kernel = plan.kernel
        self.windows = windows
        self.costs, self.instruction = plan.target.costs, plan.target.instruction
        self.registers = plan.target.registers
        # A value without SIMD lanes is broadcast as part of the arithmetic.
        costs = self.costs
        self.broadcast = costs.embedded_broadcast if plan.target.broadcasts else costs.broadcast
        self.values = plan.values
        self.is_simd = plan.vector_id >= 0
        self.sizes = {r: size_of(r) for r in kernel.outputs}
        self.steps = max(iterations(list(u.src[1:])) for u in kernel.reduces)
        self.waste = prod([w.waste for w in windows.values()])
        self.loads = [load_of(plan, a, vector) for a in loads]
        self.gathered = [a.strides.keys() for a in loads if gathers(a, vector)]
        apart = [(a, [r for r in vector if a.stride(r) not in (0, 1)]) for a in plan.accesses]
        self.stores = [
            Store(
                sum([costs.scatter * size_of(r) for r in lanes], 0.0),
                frozenset([r for r in a.strides if a.strides[r] == 1]),
            )
            for a, lanes in apart
            if a.is_store and lanes
        ]
        halo = kernel.plan(Halo)
        self.rows = None if halo is None else halo.slab.rows
        step = None if self.rows is None else self.rows.inner
        # Rows of a window in a slab: so many numbers of a kernel that is written out are at hand.
        self.rows_within = 1 if step is None else size_of(step)
        # Bytes of a panel without a tile, how many fit, and the axes that widen it.
        self.panel = frozenset[UOp]() if panel is None else frozenset(panel.strides)
        self.panel_nbytes = 0 if panel is None else panel_nbytes(kernel, panel)
        self.max_nbytes = max_nbytes(plan.target)
        # The same of panels of unpacked numbers, of each operand.
        memory = {p.memory for p in kernel.plans_of(UnpackedOperand)}
        self.unpacked = [
            (
                frozenset(a.strides),
                iterations(panel_axes(a, kernel.facts.reduced)) * a.buffer.dtype.itemsize,
            )
            for a in plan.accesses
            if a.buffer in memory
        ]

    def too_many(self, results: int) -> bool:
        """Whether so many results have no registers, or make too long a body."""
        return results * self.values > MAX_BODY or (results > 1 and results >= self.registers)

    def needs_strips(self, tile: Tile) -> bool:
        """Whether the panel of a tile is too large for all of the reduction."""
        nbytes = self.panel_nbytes
        for r, n in tile.items():
            if r in self.panel:
                nbytes *= n
        return nbytes > self.max_nbytes

    def unpacks_again(self, tile: Tile) -> bool:
        """Whether numbers of a tile are unpacked for each use, having no room in a panel."""
        return any(
            [
                nbytes * prod([n for r, n in tile.items() if r in axes]) > self.max_nbytes
                for axes, nbytes in self.unpacked
            ]
        )

    def cost(self, tile: Tile) -> float | None:
        """Cycles for each result of a step of the reduction; None if it is too large.

        Whether it has `too_many` results is asked before.
        """
        sides = list(tile.items())
        results = 1
        for _, n in sides:
            results *= n
        windows = self.windows
        waste, written, over = 1.0, 1, False
        if windows:
            # Of windows over all of a short axis the steps are written out, and those that meet
            # nothing are left out; with part of a longer one in the tile no step is left out.
            mine = [(r, n) for r, n in sides if r in windows]
            over = any([n > 1 for _, n in mine])
            if not [r for r, n in mine if n not in (1, self.sizes[r])]:
                written = prod([size_of(windows[r].step) for r, n in mine if n > 1])
            else:
                waste = self.waste
        if results * written > (MAX_PRODUCTS if over else MAX_BODY):
            return None
        broadcast, costs = self.broadcast, self.costs
        need, held = 0.0, 1
        for strides, has_lanes, far, streamed, from_slab, kept in self.loads:
            count = served = 1
            changes = jumps = crowded = False
            for r, n in sides:
                if r not in strides:
                    served *= n
                    continue
                count *= n
                changes = True
                jumps = jumps or (n > 1 and r in far)
                crowded = crowded or n > kept.get(r, n)
            if has_lanes:
                # What serves one result alone is an operand from memory.
                held += 1 if results == count and self.is_simd else count * written
                part = self.distinct_part(sides) if from_slab else 1.0
                held += self.rows_within if part < 1.0 else 0
                # What tiles further on load again is near by then: of few results a tile has all.
                need += costs.loaded * count * part
                need += costs.row * (served / streamed) if streamed else 0.0
            else:
                # Windows that are written out have most of it in common.
                need += broadcast * count / (written if over and changes else 1)
            if jumps:
                need += (costs.crowded if crowded else costs.far) * count
        if results > 1 and results + held > self.registers:
            return None
        # Too few independent accumulators leave the adders waiting, save for lanes one by one.
        alone = self.gathered and any([tile.keys() <= axes for axes in self.gathered])
        latency = 1.0 if alone else max(1.0, costs.accumulators / results)
        cost = (need + results * latency * self.instruction) / results + self.store_cost(
            sides
        ) / self.steps
        twice = 1.0
        for r, n in sides:
            # What the last lanes do twice.
            twice *= -(-self.sizes[r] // n) * n / self.sizes[r]
        return cost * waste * twice

    def distinct_part(self, sides: list[tuple[UOp, int]]) -> float:
        """The part of what a tile loads from a slab that differs, once windows are written out.

        Results below one another read the same rows, in different steps of their windows.
        """
        rows = self.rows
        if rows is None:
            return 1.0
        n = next((n for r, n in sides if r.arg.id == rows.out.arg.id), 1)
        steps = self.rows_within
        if n == 1 or steps == 1 or prod([n for _, n in sides]) * steps > MAX_PRODUCTS:
            return 1.0
        return min(1.0, (rows.stride * (n - 1) + rows.dilation * (steps - 1) + 1) / (n * steps))

    def store_cost(self, sides: list[tuple[UOp, int]]) -> float:
        """Cycles that storing SIMD values takes whose lanes lie apart, in runs of a tile."""
        cost = 0.0
        for scattered, runs in self.stores:
            run = max([n for r, n in sides if r in runs], default=1)
            cost += scattered / min(1 << (run.bit_length() - 1), MAX_GAP)
        return cost


def load_of(plan: Plan, a: Access, vector: set[UOp]) -> Load:
    """A load as tiles see it."""
    lanes = vector & a.strides.keys()
    itemsize = a.buffer.dtype.itemsize
    far: list[UOp] = []
    # Gathered lanes come from a panel, side by side.
    if all([a.strides[v] == 1 for v in lanes]):
        far = [
            r
            for r, stride in a.strides.items()
            if abs(stride or 0) * itemsize >= plan.target.page_nbytes
        ]
    streamed = uses_of(a, plan.kernel.outputs) if lanes and comes_from_far(plan, a) else 0
    from_slab = a.buffer.op is Ops.STAGE
    kept = {} if lanes else {r: lines_kept(plan, (a.strides[r] or 0) * itemsize) for r in far}
    return Load(a.strides, bool(lanes), frozenset(far), streamed, from_slab, kept)


def lines_kept(plan: Plan, step: int) -> int:
    """Counts the lines so many bytes apart that the first cache keeps: ways of a page each."""
    sets = plan.target.page_nbytes // max(
        math.gcd(step, plan.target.page_nbytes), plan.target.line_nbytes
    )
    return sets * max(plan.target.cache_bytes[0] // plan.target.page_nbytes, 1)


def gathers(a: Access, vector: set[UOp]) -> bool:
    """Whether the SIMD lanes of a load come one by one."""
    return any([a.stride(v) not in (0, 1, 2) for v in vector & a.strides.keys()])


def comes_from_far(plan: Plan, a: Access) -> bool:
    """Whether a load comes from beyond the second cache, from another page with each step."""
    itemsize = a.buffer.dtype.itemsize
    steps = [abs(a.stride(r) or 0) for r in a.strides if r.arg.kind is AxisType.REDUCE]
    if min(steps, default=0) * itemsize < plan.target.page_nbytes:
        return False
    return execution_count(a) * itemsize > plan.target.cache_bytes[1]
