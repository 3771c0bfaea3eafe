"""Default staging of CPUs: which rows and tiles of results go through scratch.

Receives a kernel and a Target: a row is kept before any other Opt, all else is chosen when loops
and lanes are final. Applies STAGE row, STAGE tile and STAGE results; panels are chosen in
`policy/cpu/panel`, last steps in `policy/cpu/tails`. What they do stands in `codegen/staging`.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply
from aster_ml.codegen.decompose.slots import LONG, more_slots
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.plans import PackedWords, PeeledStep
from aster_ml.codegen.policy.cpu.panel import choose_panel
from aster_ml.codegen.policy.cpu.tails import choose_last_steps
from aster_ml.codegen.staging.epilogue import accesses_after, lanes_in_loop, tile_of
from aster_ml.codegen.staging.row import max_nbytes as max_row_nbytes
from aster_ml.codegen.staging.row import shared_value
from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.target import BLOCK_NBYTES, Target
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import ELEMENTWISE
from aster_ml.uop.ranges import iterations, size_of

# Lines of code that the load or store of a SIMD value takes, and of one whose lanes lie apart, in
# runs; and the least steps of the sum before a loop over the results of a register tile.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
LINES, LINES_APART, MIN_SUMMED = 2, 14, 128
# Of all that is done with these results, the lines that the loop has to save. Measured: on two
# cores of a Zen 4, 2026-11-21 (docs/explanation/tuning/compile-time-llvm.md; 100 cost up to 5%).
MIN_SAVED = 200
# The same where one block is transposed at a time: lines of each value and those that it has to
# save; and the most nodes for each result that are computed in as few lanes.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
LINES_TURNED, MIN_TURNED, MAX_NARROW = 5, 60, 8
# And the least steps of the sum. Measured: on two cores of a Zen 4, 2026-11-21
# (docs/explanation/tuning/compile-time-llvm.md; 147 steps cost 3 to 5%, 25 up to 20%).
MIN_SUMMED_TURNED = 256


def choose_row(kernel: Kernel, target: Target) -> None:
    """A costly value of a row that a reduction and outputs read is kept, where scratch has room."""
    if not any([u.op in LONG for u in kernel.facts.order]):
        return
    for r in [u.src[1] for u in kernel.reduces if len(u.src) == 2]:
        for o in kernel.output_loops:
            v = shared_value(kernel, r, o) if kernel.may_reorder(o) else None
            if v is not None and size_of(r) * v.dtype.itemsize <= max_row_nbytes(target):
                apply(kernel, Opt(OptOps.STAGE, axis_name(r), axis_name(o), "row"))
                return


def choose_staging(kernel: Kernel, target: Target) -> None:
    """Chooses what goes through scratch once loops and lanes are final, and steps that run apart.

    Panels of words have no other staging beside them.
    """
    if kernel.plan(PackedWords) is not None:
        return
    choose_panel(kernel, target)
    choose_last_steps(kernel)
    choose_epilogue(kernel, target)


def choose_epilogue(kernel: Kernel, target: Target) -> None:
    """The results of a long register tile are finished in a loop, where that is written out less.

    SIMD lanes that lie apart are stored a block at a time, where a whole sum takes long enough.
    """
    loops = [r for u in kernel.reduces for r in u.src[1:]]
    if iterations([r for r in loops if not r.arg.kind.is_lane]) < MIN_SUMMED:
        return
    found = tile_of(kernel)
    if found is None:
        return
    total, lanes = found
    if any([kernel.plan_of(PeeledStep, r) is not None for r in total.src[1:]]):
        # The results are those of two sums.
        return
    accesses = accesses_after(kernel, total)
    after = toposort(kernel.stores[0], enter=lambda u: u is not total)
    apart = [a for a in accesses if a.stride(lanes[-1]) not in (0, 1)]
    looped = lanes_in_loop(lanes, accesses)
    nodes = [u for u in after if u.op in ELEMENTWISE and u.dtype is not dtypes.index]
    work = len(nodes) + more_slots(nodes, target)
    near, values = len(accesses) - len(apart), prod([size_of(r) for r in lanes[:-1]])
    left = values // prod([size_of(r) for r in looped])
    whole, block = size_of(lanes[-1]), BLOCK_NBYTES // total.dtype.itemsize
    each = work + LINES_APART * len(apart) + LINES * near
    # Sums are stored, and loaded again.
    saved = each * (values - left) - LINES * (values + left)
    before = work > MAX_NARROW
    stored_apart = any([a.is_store for a in apart]) and not (before and apart[1:])
    if 2 < block < whole and stored_apart and iterations(loops) >= MIN_SUMMED_TURNED:
        here = LINES_TURNED * len(apart) + (0 if before else work + LINES * near)
        once = work + LINES * near if before else 0
        turned = each * values - once - here * left - LINES * (values + left)
        if turned >= max(saved, MIN_TURNED):
            apply(kernel, Opt(OptOps.STAGE, arg=block, how="results" if before else "tile"))
            return
    if saved >= MIN_SAVED:
        apply(kernel, Opt(OptOps.STAGE, how="tile"))
