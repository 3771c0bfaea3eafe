"""Default schedules of elementwise kernels and of row reductions: lanes, loop order, hints.

Receives a Plan and applies Opts to its Kernel: lanes side by side, the order of loops, and hints
about memory. Transposes stand in `policy/cpu/transpose`; SIMD axes, register tiles of sums and
threads are chosen in `policy/cpu/heuristic`.
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply, upcast
from aster_ml.codegen.decompose.slots import takes_long
from aster_ml.codegen.estimate import pays_threads
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.pipeline.plan import folds_of_next, row_stage
from aster_ml.codegen.plans import RowSums
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import (
    MAX_WRITTEN_OUT,
    Plan,
    between,
    bodies_side_by_side,
)
from aster_ml.codegen.policy.cpu.loop_order import hoist_axes
from aster_ml.codegen.policy.cpu.prefetch import (
    ask_for_broadcasts,
    ask_for_columns,
    ask_for_rows,
    moved_nbytes,
    past_caches,
    rows_ahead,
)
from aster_ml.codegen.policy.cpu.tails import MAX_TWICE, gates_along, is_peeled, tail_overhead
from aster_ml.codegen.policy.cpu.vectorize import finish_nodes
from aster_ml.codegen.prefetch import (
    longest,
    own_nodes,
    row_passes,
    walks_rows,
)
from aster_ml.codegen.tails import can_overlap, may_split, shifted_lanes
from aster_ml.codegen.transforms.decoded import find_operands, is_unpacked
from aster_ml.codegen.transforms.shared_division import axes_sharing, shared_quotients
from aster_ml.helpers import ceildiv, prod
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

# SIMD values side by side from which on rows are stored later in caches too: fewer take longer so
# (docs/explanation/tuning/pipelining.md). Measured: on a Zen 4, 2026-11-23.
BESIDE_LATER = 3
# Steps of a loop up to which the loop around it is repeated for its sake.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
FEW_STEPS = 4
# Nodes of a body up to which it is repeated for the loop's own sake.
# Measured: lines and cycles, 2026-11-28 (docs/explanation/tuning/limits.md).
MAX_WIDENED = 24
# Rows to try side by side that divide by the same: what a divisor takes is done once for them.
# Measured: on one thread of a Zen 4, 2026-11-25 (docs/explanation/tuning/shared-divisions.md).
ROWS_SHARING = (12, 8, 6, 4)
# Rows side by side that are shorter are waited for line by line where a kernel moves more than a
# part of the last cache (docs/explanation/tuning/shared-divisions.md). Measured: on one thread of a
# Zen 4, 2026-11-25.
SHARING_NBYTES = 6144


def tile_interleaved(plan: Plan, outputs: list[UOp]) -> bool:
    """Lanes along the axis that lies between the SIMD lanes of a store."""
    kernel = plan.kernel
    vector = [r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR]
    for a in plan.accesses:
        if a.is_store and vector:
            r = between(a, vector[0], outputs)
            nodes = plan.values + plan.extra
            fits = r is not None and may_split(kernel, r, size_of(r))
            if r is not None and fits and size_of(r) * nodes <= MAX_BODY:
                apply(kernel, Opt(OptOps.UPCAST, axis_name(r), size_of(r)))
                return True
    return False


def share_indices(plan: Plan, outputs: list[UOp]) -> bool:
    """Lanes along an axis for which the same indices and masks serve, where these take arithmetic.

    why: a division, a loaded index, or tests that differ by SIMD lane, at almost every step
    """
    kernel = plan.kernel
    lanes = [r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR]
    inner = list(lanes)
    for r in reversed(outputs):
        if iterations([x for x in outputs if x in inner]) <= FEW_STEPS:
            inner.append(r)
    computed = [r for r in inner if shifted_lanes(kernel, r) is None]
    hard = [a for a in plan.accesses if any(a.stride(r) is None for r in computed)]
    gates = [g for a in plan.accesses if not a.is_store for g in a.node.src[1:]]
    masked = any(r in g.ranges for g in gates for r in lanes)
    others = [r for r in outputs if r not in inner] if hard or masked else []
    easy = [r for r in others if all([a.stride(r) is not None for a in hard])]
    counts = [n for n in (4, 2) if n * plan.nodes <= MAX_BODY]
    return any(set_beside(plan, r, counts) for r in reversed(easy))


def set_beside(plan: Plan, r: UOp, counts: list[int]) -> bool:
    """Lanes along an axis, the first of these numbers that leaves work for all threads."""
    kernel, size = plan.kernel, size_of(r)
    if r.src[0].op is not Ops.CONST or shifted_lanes(kernel, r) is not None:
        return False
    for n in counts:
        few = tail_overhead(size, n) <= MAX_TWICE and can_overlap(kernel)
        if size // n >= plan.target.threads and (size % n == 0 or few):
            upcast(kernel, r, n)
            return True
    return False


def share_divisors(plan: Plan, outputs: list[UOp]) -> bool:
    """Rows side by side that divide by the same, where a kernel waits for its divisions.

    why: what a divisor takes to be prepared is then done once for all of them (see
    `transforms/shared_division`)
    """
    kernel = plan.kernel
    quotients = shared_quotients(kernel, plan.target)
    kept = plan.target.costs.several_part * max(plan.target.cache_bytes)
    if quotients and moved_nbytes(plan) > kept:
        simd, along = AxisType.VECTOR, plan.vector_id
        row = [size_of(r) for r in kernel.outputs if r.arg.id == along or r.arg.kind is simd]
        stored = max([a.buffer.dtype.itemsize for a in plan.accesses if a.is_store])
        if prod(row) * stored < SHARING_NBYTES:
            return False
    counts = [n for n in ROWS_SHARING if n * (plan.nodes + plan.extra) <= MAX_BODY]
    axes = axes_sharing(quotients, outputs, plan.vector_id)
    return any(set_beside(plan, r, counts) for r in reversed(axes))


def widen_rows(plan: Plan, outputs: list[UOp]) -> bool:
    """Several SIMD values an iteration: of a row, and of several rows where one has few.

    Also of several rows where what is computed would wait for itself, and a row does not divide.
    """
    side = lanes_beside(plan)
    for axis in outputs[:-3:-1]:
        n = widen(plan, axis, side)
        side *= n
        waits = n == 1 and plan.nodes + plan.extra > MAX_WIDENED
        if ceildiv(size_of(axis), n) > FEW_STEPS and not waits:
            break
    return side > 1


def lanes_beside(plan: Plan) -> int:
    """SIMD values that stacks which are written out put side by side already.

    Few do not count, nor those of which an access takes lanes that lie apart in runs, since wider
    ones have longer runs; nor where a store goes to more pages at each step than a cache has
    places for lines at one offset: each is to get some lines at a time.
    """
    kernel = plan.kernel
    written = [r for r in kernel.outputs if r.arg.kind is AxisType.UPCAST]
    simd = [r for r in kernel.outputs if r.arg.kind is AxisType.VECTOR]
    beside = prod([size_of(r) for r in written])
    apart = [a for a in plan.accesses if any(a.stride(r) not in (0, 1, 2, 3) for r in simd)]
    runs = [a for a in apart if a.is_store or any(a.stride(r) == 1 for r in written)]
    pages = max(
        [pages_of(a, written, plan.target.page_nbytes) for a in plan.accesses if a.is_store],
        default=1,
    )
    # Lanes that are loaded one by one are so much code that the rest does not matter.
    counts = beside >= FEW_STEPS and not runs and (apart or pages <= plan.target.ways)
    return beside if counts else 1


def pages_of(a: Access, axes: list[UOp], page_nbytes: int) -> int:
    """Places that an access goes to along these axes, a page or more from one to the next."""
    nbytes = a.buffer.dtype.itemsize
    far = [size_of(r) for r in axes if abs(a.stride(r) or 0) * nbytes >= page_nbytes]
    return int(prod(far))


def widen(plan: Plan, axis: UOp, side: int) -> int:
    """SIMD values along an axis that an iteration now has, beside so many that it had already."""
    size = size_of(axis)
    nodes = max(plan.nodes + plan.extra, 1)
    if axis.src[0].op is not Ops.CONST:
        return 1
    early = shifted_lanes(plan.kernel, axis)
    small = nodes <= MAX_WIDENED
    most = min(4, 64 // nodes) if small else bodies_side_by_side(plan, nodes)
    if side == 1 and row_is_known(plan, axis, nodes):
        apply(plan.kernel, Opt(OptOps.UPCAST, axis_name(axis), size))
        return size
    for n in [n for n in (4, 2) if n * side <= most]:
        fits = size % n == 0
        # Few SIMD values may run twice.
        few = tail_overhead(size, n) <= MAX_TWICE
        if early is not None:
            fits = n * early.count <= early.size and few
        how = ""
        if not fits and early is None and few and can_overlap(plan.kernel):
            fits, how = True, "shift"
        if fits and size // n >= plan.target.threads:
            apply(plan.kernel, Opt(OptOps.UPCAST, axis_name(axis), n, how))
            return n
    return 1


def set_row_beside(plan: Plan, u: UOp, most: int) -> None:
    """The SIMD values of a short row of results next to each other, as they lie.

    Where loops further in read these results, threads share the row instead: all else would be
    done by each of them, and parts of a row would be stored to the same lines at the same time.
    """
    kernel = plan.kernel
    lanes = prod([size_of(r) for r in u.src[0].ranges if r.arg.kind is AxisType.UPCAST])
    loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
    rows = [r for r in kernel.outputs if r.arg.id == plan.vector_id and not r.arg.kind.is_lane]
    if not loops or not rows or rows[0] not in u.ranges:
        return
    row = rows[0]
    if row.src[0].op is not Ops.CONST or not 1 < size_of(row) <= most // max(lanes, 1):
        return
    if not set(kernel.outputs) <= u.ranges and (
        size_of(row) * finish_nodes(plan) > MAX_BODY
        or (plan.target.threads > 1 and pays_threads(kernel, plan.target))
    ):
        return
    # Lanes that start early are not those of short rows.
    if shifted_lanes(kernel, row) is None:
        apply(kernel, Opt(OptOps.UPCAST, axis_name(row), size_of(row)))


def results_are_nearer(plan: Plan, u: UOp, axis: UOp, count: int) -> bool:
    """Whether what the next result reads lies nearer than what the next step of an axis does.

    As of channels of images, whose sums each read a little of every image. There have to be
    `count` results. Lanes of results are those of all reductions, so none may have some already.
    """
    kernel = plan.kernel
    if any(r.arg.kind is AxisType.UPCAST for x in kernel.reduces for r in x.src[0].ranges):
        return False
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if len(loops) != len(kernel.outputs) or not loops or size_of(loops[-1]) < count:
        return False
    mine = [a for a in plan.accesses if not a.is_store and axis in a.node.ranges]
    strides = [(a.stride(loops[-1]), a.stride(axis)) for a in mine]
    return bool(strides) and all(n and far and n < far for n, far in strides)


def set_side_by_side(plan: Plan, u: UOp, count: int, parts: int = 2) -> bool:
    """Some results next to each other, where additions of one would wait for one another.

    So many `parts` of them are left for each thread at least.
    """
    kernel = plan.kernel
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    if not loops or not set(kernel.outputs) <= u.ranges or loops[-1].src[0].op is not Ops.CONST:
        return False
    axis, size = loops[-1], size_of(loops[-1])
    if kernel.fills_slab(axis):
        return False
    fitting = [n for n in range(count, count // 2, -1) if n > 1 and size % n == 0]
    n = fitting[0] if fitting else count
    if shifted_lanes(kernel, axis) is not None or size < parts * n * plan.target.threads:
        return False
    if not fitting and not can_overlap(kernel):
        return False
    upcast(kernel, axis, n)
    return True


def row_is_known(plan: Plan, axis: UOp, nodes: int) -> bool:
    """Whether a short row, written out, is one where it is known which lanes are masked."""
    size, loops = size_of(axis), [r for r in plan.kernel.outputs if not r.arg.kind.is_lane]
    return (
        1 < size <= MAX_WRITTEN_OUT
        and size * nodes <= MAX_BODY // 2
        and iterations(loops) >= size * plan.target.threads
        and axis.arg.id == plan.vector_id
        and shifted_lanes(plan.kernel, axis) is None
        and gates_along(plan.kernel, axis)
    )


def choose_hints(plan: Plan) -> None:
    """Rows that are asked for in time, and stores past the caches where nothing finds them there.

    Of a product the stores are few, and stay as they are.
    """
    kernel = plan.kernel
    outputs = set(kernel.outputs)
    if any(outputs <= u.ranges for u in kernel.reduces):
        if not ask_for_rows(plan):
            ask_for_columns(plan)
            ask_for_broadcasts(plan)
        fold_rows_early(plan)
        return
    hoisted = hoist_axes(kernel)
    for axis in [r for r in kernel.outputs if r in hoisted][-1:]:
        passes = row_passes(kernel.facts, axis)
        steps = rows_ahead(plan, axis, longest(passes).loads) if passes else 0
        if steps:
            apply(kernel, Opt(OptOps.PREFETCH, axis_name(axis), steps))
    note = past_caches(plan) if kernel.axes else None
    if note is not None:
        kernel.notes.append(note)
        apply(kernel, Opt(OptOps.NONTEMPORAL))
    store_rows_later(plan, least=1 if note is not None else BESIDE_LATER)
    fold_rows_early(plan)


def fold_rows_early(plan: Plan) -> None:
    """Rows that are first folded beside the last fold of the row before, two folds or more each.

    Not where both rows do not stay in the first cache; nor where rows come from memory, unless
    they are asked for and something takes long to compute besides: memory is what it waits for.
    """
    kernel, target = plan.kernel, plan.target
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    axes = [r for r in loops if all(r in u.ranges for u in kernel.reduces)]
    folds = folds_of_next(kernel.facts, axes[-1]) if axes else None
    if folds is None or not target.cache_bytes or kernel.plan(RowSums) is not None:
        return
    if is_unpacked(kernel) and find_operands(kernel):
        # Sums of decoded numbers are factored later, which adds loops to their folds.
        return
    if not nest_alike(*folds) or any([is_peeled(kernel, u) for u in folds]):
        return
    axis, (first, _) = axes[-1], folds
    inside = set(own_nodes(first.src[0]))
    rows = [a for a in plan.accesses if a.node in inside and walks_rows(a, axis)]
    if not rows:
        return
    computes = any([takes_long(u, target) for u in kernel.facts.order])
    far = moved_nbytes(plan) >= target.costs.full_part * max(target.cache_bytes)
    if far and not (computes and OptOps.PREFETCH in [o.op for o in kernel.applied]):
        return
    nbytes = sum([a.node.dtype.itemsize for a in rows]) * iterations(list(first.src[1:]))
    # Of rows whose powers or logarithms are computed a row and the next one may fill all of it.
    part = 1.0 if computes else target.costs.near_part
    if 2 * nbytes <= part * target.cache_bytes[0]:
        apply(kernel, Opt(OptOps.PIPELINE, axis_name(axis), how="folds"))


def nest_alike(first: UOp, last: UOp) -> bool:
    """Whether loops of two folds that are alike stay so where a sum becomes a sum of sums."""
    if first.arg.op is not Ops.ADD:
        return True
    return bool(last.arg.op is Ops.ADD and last.dtype is first.dtype)


def store_rows_later(plan: Plan, least: int) -> None:
    """Rows in scratch whose results are stored while the next one is computed.

    Not where stores read rows of memory too: nothing asks for these, and all the work would wait;
    nor where fewer than `least` SIMD values of a row can be computed side by side.
    """
    kernel = plan.kernel
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if len(loops) < 2 or row_stage(kernel.facts, kernel.outputs, loops[-2]) is None:
        return
    axis = loops[-2]
    stored = set(own_nodes(*[u.src[1] for u in kernel.stores]))
    if any(a.node in stored and walks_rows(a, axis) for a in plan.accesses):
        return
    # A body waits for itself where it takes long. None may run twice: scratch has the next row by
    # then.
    most = bodies_side_by_side(plan, plan.nodes + plan.extra)
    row, twice = loops[-1], shifted_lanes(kernel, loops[-1]) is not None
    fitting = [n for n in (4, 3, 2) if n <= most and not twice and may_split(kernel, row, n)]
    n = fitting[0] if fitting else 1
    if n < least:
        return
    apply(kernel, Opt(OptOps.PIPELINE, axis_name(axis), how="stores"))
    if n > 1:
        apply(kernel, Opt(OptOps.UPCAST, axis_name(row), n))
