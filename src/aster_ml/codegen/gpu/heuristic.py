"""Default schedules of devices with work-groups: blocks, work-items, shared memory.

Receives a Plan and applies Opts to its kernel. Schedules of CPUs are in `cpu/heuristic`.
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply
from aster_ml.codegen.cpu.costs import Plan
from aster_ml.codegen.gpu.block_tiles import tile_block
from aster_ml.codegen.gpu.chained_products import best_chain
from aster_ml.codegen.gpu.edges import fill_up, is_at_least
from aster_ml.codegen.gpu.numbering import axes_in_rows
from aster_ml.codegen.gpu.wide_access import widen_outputs, widen_reductions
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.helpers import prod
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of


def choose_group_opts(plan: Plan, rank: int = 0) -> None:
    """Blocks and work-items for devices that have them.

    A reduction with reuse along two output axes gets a block tile: work-items and lanes along both,
    its loads staged through local memory. One with few results is shared out over the work-items of
    a block. Anything else has work-items along its innermost output axis. With a `rank` a product
    on tensor cores has another tile than the cheapest.
    """
    kernel = plan.kernel
    if attend(plan):
        return
    outputs = [r for r in kernel.outputs if kernel.may_reorder(r)]
    if tile_block(plan, outputs, rank):
        return
    inside = axes_in_rows(kernel)
    if inside:
        if share_rows(plan, max(inside, key=size_of)):
            return
    else:
        if not widen_outputs(plan, outputs):
            widen_reductions(plan)
        columns = neighbouring_results(plan)
        group_reductions(plan, columns)
    outputs = [r for r in kernel.output_loops if kernel.may_reorder(r) and r not in inside]
    most = min(GROUP_SIZE, min(BLOCK_SIZE, plan.target.max_group) // work_items(kernel))
    for r in reversed(outputs):
        n = items_along(r, most)
        if n > 1:
            give_items(kernel, OptOps.LOCAL, r, n)
            return


def attend(plan: Plan) -> bool:
    """Attention on a tensor core, of as many stages as there is room for."""
    found = best_chain(plan.kernel, plan.target)
    if found is None:
        return False
    keys = axis_name(found.parts.keys)
    apply(plan.kernel, Opt(OptOps.TC, keys, found.number, "chain"))
    if found.stages > 1:
        apply(plan.kernel, Opt(OptOps.PIPELINE, keys, found.stages, found.how))
    return True


# Work-items that reduce together, and the fewest elements that each of them has to fold.
GROUP_SIZE, GROUP_LENGTH = 64, 4
# Most work-items of a block whose rows are shared out, and those of them that lie along columns.
BLOCK_SIZE, COLUMNS = 256, 16


def largest_divisor(r: UOp, limit: int) -> int:
    """The largest power of two up to `limit` that divides a constant size, else 1."""
    if r.src[0].op is not Ops.CONST:
        return 1
    return max(
        [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n <= limit and size_of(r) % n == 0],
        default=1,
    )


def items_along(r: UOp, most: int) -> int:
    """How many work-items lie along an axis: what divides it, or `most` where that is too few."""
    n = largest_divisor(r, most)
    return n if 2 * n >= most or r.src[0].op is not Ops.CONST or size_of(r) < most else most


def give_items(kernel: Kernel, op: OptOps, r: UOp, n: int) -> None:
    """Splits work-items off an axis; those behind its end are masked."""
    fill_up(kernel, r, n)
    apply(kernel, Opt(op, axis_name(r), n))


def work_items(kernel: Kernel) -> int:
    """Work-items of a block so far."""
    ranges = [r for r in kernel.facts.order if r.op is Ops.RANGE]
    sizes = [size_of(r) for r in ranges if r.arg.kind in (AxisType.LOCAL, AxisType.GROUP)]
    return int(prod(sizes))


def share_rows(plan: Plan, row: UOp) -> bool:
    """The work-items of a block lie along a row, for its reductions and its results alike.

    Not where a row is short, or where its neighbours lie apart in memory and there are rows enough
    for many blocks: each work-item has rows of its own then.
    why: what is reduced of a row is needed by all of it, and each reads what it computes with
    """
    kernel = plan.kernel
    most = min(GROUP_SIZE, plan.target.max_group)
    strided = not any([a.strides.get(row) == 1 for a in plan.accesses])
    rows = iterations([r for r in kernel.output_loops if r is not row])
    if not is_at_least(row, most) or (strided and rows > GROUP_SIZE**2):
        return False
    widen_outputs(plan, [row])
    widen_reductions(plan)
    row = next(r for r in kernel.outputs if r.arg == row.arg)
    n = items_along(row, most)
    longest = dict.fromkeys([max(u.src[1:], key=size_of) for u in kernel.reduces if u.src[1:]])
    give_items(kernel, OptOps.LOCAL, row, n)
    for r in longest:
        if size_of(r) >= n:
            give_items(kernel, OptOps.GROUP, r, n)
    return True


def neighbouring_results(plan: Plan) -> UOp | None:
    """The axis of outputs along which a reduction's loads are neighbours, if one is.

    why: work-items along the reduction would each read from another line of memory
    """
    kernel = plan.kernel
    loops = [r for r in kernel.output_loops if kernel.may_reorder(r)]
    for u in kernel.reduces:
        axis = max(u.src[1:], key=size_of, default=None)
        mine = [a for a in plan.accesses if a.node in kernel.facts.inside[u] and axis in a.strides]
        for r in reversed(loops):
            both = [a for a in mine if r in a.strides]
            if both and all([is_nearer(a, r, axis) for a in both]):
                return r
    return None


def is_nearer(access: Access, r: UOp, other: UOp | None) -> bool:
    """Whether steps of an axis lie closer together in memory than those of another."""
    step, far = access.strides.get(r), access.strides.get(other) if other is not None else None
    return bool(step and far and 0 < step < far)


def group_reductions(plan: Plan, columns: UOp | None) -> None:
    """Shares long reductions with few results out over the work-items of a block.

    Where results are neighbours in `columns`, some of them have a block together.
    """
    kernel, most = plan.kernel, min(GROUP_SIZE, plan.target.max_group)
    for u in kernel.reduces:
        if any(r.arg.kind is AxisType.REDUCE for r in u.ranges) or not u.src[1:]:
            continue
        results = iterations([r for r in u.ranges if not r.arg.kind.is_lane])
        axis = max([r for r in u.src[1:] if r.arg.kind is AxisType.REDUCE], key=size_of)
        n = largest_divisor(axis, most if columns is None else min(most, BLOCK_SIZE // COLUMNS))
        if results > GROUP_SIZE**2 or n < 4 or size_of(axis) < n * GROUP_LENGTH:
            continue
        apply(kernel, Opt(OptOps.GROUP, axis_name(axis), n))
