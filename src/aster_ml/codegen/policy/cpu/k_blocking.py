"""Cache blocking of reductions (K blocking): the working set of one strip fits in a cache.

Receives a Plan whose SIMD axis, tile and loop order are chosen; applies KBLOCK, and PREFETCH where
strips are read where they lie. What strips do to the graph is said in `kernel`.
"""

from __future__ import annotations

import math

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.cpu.costs import Plan, execution_count
from aster_ml.codegen.policy.cpu.prefetch import held_nbytes, summed_axes
from aster_ml.codegen.prefetch import APART_NBYTES, broadcast_columns, column_loads, run_of_lanes
from aster_ml.codegen.staging.panel import (
    max_nbytes,
    panel_nbytes,
    panel_of,
    reduced_axes,
)
from aster_ml.codegen.transforms.k_blocking import can_block
from aster_ml.helpers import ceildiv, divisors
from aster_ml.uop.node import UOp
from aster_ml.uop.ranges import iterations, size_of

# First caches that the columns of a strip fill that is read where it lies.
STRIP_PART = 2
# Most tiles of rows, fewer than pay for a packed panel, whose filling brings nothing else: those of
# SIMD values of a line. Measured: on a Zen 4, 2026-11-24 (docs/explanation/tuning/prefetch.md).
MAX_TILES = 20
# Steps of a strip come in multiples of those that are transposed together. Measured: on two cores
# of a Zen 4, 2026-11-21 (docs/explanation/tuning/compile-time-llvm.md).
EVEN_STEPS = 16


def choose_strips(plan: Plan) -> None:
    """Strips to be read where they lie, or where a packed panel for all would be too large, or
    columns of the other operand throw one another out of the second cache.
    """
    if strips_in_place(plan):
        return
    kernel = plan.kernel
    a = panel_of(kernel)
    limit = max_nbytes(plan.target)
    if a is None or not can_block(kernel):
        return
    wanted = max(ceildiv(panel_nbytes(kernel, a), limit), crowded_strips(plan))
    if wanted == 1:
        return
    for r in reduced_axes(kernel):
        fitting = [n for n in divisors(size_of(r)) if n >= wanted] if r in a.strides else []
        if fitting and fitting[0] <= 4 * wanted:
            return block_output(kernel, r, size_of(r) // fitting[0])
    # Strips that divide no axis, of steps that are transposed together: the last one is shorter.
    longest = max([r for r in reduced_axes(kernel) if r in a.strides], key=size_of, default=None)
    if longest is None:
        return
    size = size_of(longest)
    for count in (wanted, wanted + 1):
        length = ceildiv(ceildiv(size, count), EVEN_STEPS) * EVEN_STEPS
        if length < size and panel_nbytes(kernel, a) // size * length <= limit:
            return block_output(kernel, longest, length)


def block_output(kernel: Kernel, axis: UOp, length: int) -> None:
    """Strips of so many steps of a reduction, whose sums wait in the outputs."""
    apply(kernel, Opt(OptOps.KBLOCK, axis_name(axis), length, how="output"))


def crowded_strips(plan: Plan) -> int:
    """In how many strips columns that are broadcast have room in half of the second cache's places
    for their lines, where several tiles in turn use each line; 1 where they have it as they are.

    Rows a multiple of a power of two apart have few of the places: 1536 rows of 768 numbers a
    sixteenth (docs/explanation/tuning/prefetch.md).
    """
    loops = [r for r in plan.kernel.outputs if not r.arg.kind.is_lane]
    found = broadcast_columns(plan.kernel.facts, loops[-1]) if loops else []
    wanted = 1
    for a, n in found:
        axes, itemsize = summed_axes(a), a.buffer.dtype.itemsize
        step = min([abs(a.strides[r] or 0) for r in axes]) * itemsize
        near, line = plan.target.cache_bytes[1], plan.target.line_nbytes
        if 2 * n * itemsize <= line <= step and held_nbytes(a) > near:
            way = near // plan.target.ways
            kept = plan.target.ways * way // max(math.gcd(step, way), line)
            wanted = max(wanted, ceildiv(2 * iterations(axes), kept))
    return wanted


def strips_in_place(plan: Plan) -> bool:
    """Strips of a large operand that a few tiles of rows read one after the other; or false.

    While they compute, they ask for the columns that are next, so that memory never rests. To pack
    these columns takes time for which it brings nothing else, and many tiles to be worth it.
    """
    kernel = plan.kernel
    reduced, loops = reduced_axes(kernel), [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if len(reduced) != 1 or len(loops) < 2 or not can_block(kernel):
        return False
    columns, rows = loops[-2:]
    found = [a for a in column_loads(kernel.facts, columns) if rows not in a.strides]
    if len(found) != 1 or not is_streamed(plan, found[0], reduced[0]):
        return False
    # Half as many lanes compute twice as long for each element, and masks are not free for them.
    line_lanes = min(8 * plan.target.line_nbytes, plan.target.vector_bits)
    most = MAX_TILES * line_lanes // (8 * plan.target.line_nbytes)
    masked = found[0].node.src[1:] and not plan.target.masks
    if masked or not 1 < size_of(rows) <= most:
        return False
    run = run_of_lanes(found[0]) * found[0].buffer.dtype.itemsize
    count = ceildiv(size_of(reduced[0]) * run, STRIP_PART * plan.target.cache_bytes[0])
    if count > 1:
        block_output(kernel, reduced[0], ceildiv(size_of(reduced[0]), count))
    # Columns that begin anywhere in a line share lines with the next, so these are asked for too.
    apply(kernel, Opt(OptOps.PREFETCH, axis_name(columns), 2))
    return True


def is_streamed(plan: Plan, a: Access, axis: UOp) -> bool:
    """Whether an operand comes from beyond the second cache, in rows that lie far apart."""
    itemsize = a.buffer.dtype.itemsize
    far = abs(a.strides.get(axis) or 0) * itemsize
    return far >= APART_NBYTES and execution_count(a) * itemsize > (
        plan.target.costs.kept_part * max(plan.target.cache_bytes)
    )
