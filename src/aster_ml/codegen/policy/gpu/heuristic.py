"""Default schedules of devices with work-groups: blocks, work-items, shared memory.

Receives a kernel and applies Opts to it. Schedules of CPUs are in `policy/cpu/heuristic`.
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.gpu.block_tiles import tile_block
from aster_ml.codegen.policy.gpu.edges import fill_up, is_at_least
from aster_ml.codegen.policy.gpu.wide_access import widen_outputs, widen_reductions
from aster_ml.codegen.work_groups.chained_products import find_chain
from aster_ml.codegen.work_groups.numbering import axes_in_rows
from aster_ml.config import BOXES
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.target.costs import A100
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of


def choose_group_opts(kernel: Kernel, target: Target, rank: int = 0) -> None:
    """Blocks and work-items for devices that have them.

    A reduction with reuse along two output axes gets a block tile: work-items and lanes along both,
    its loads staged through local memory. One with few results is shared out over the work-items of
    a block. Anything else has work-items along its innermost output axis. With a `rank` a product
    on tensor cores has another tile than the cheapest.
    """
    if chain(kernel, target):
        return
    outputs = [r for r in kernel.outputs if kernel.may_reorder(r)]
    if tile_block(kernel, target, outputs, rank):
        return
    inside = axes_in_rows(kernel)
    if inside:
        if share_rows(kernel, target, max(inside, key=size_of)):
            return
    else:
        share_operands(kernel, target, outputs)
        if not widen_outputs(kernel, target, list(kernel.outputs)):
            widen_reductions(kernel, target)
        columns = neighbouring_results(kernel)
        group_reductions(kernel, target, columns)
    outputs = [r for r in kernel.output_loops if kernel.may_reorder(r) and r not in inside]
    if turn_around(kernel, target, outputs):
        return
    # Where nothing else decides: a block of two warps takes as long to launch as one of eight.
    most = BLOCK_SIZE if target.units and not kernel.reduces else GROUP_SIZE
    most = min(most, min(BLOCK_SIZE, target.max_group) // work_items(kernel))
    for r in reversed(outputs):
        n = items_along(r, most)
        # Where work-items are known to run in warps, short axes fill one together.
        short = r.src[0].op is Ops.CONST and n < size_of(r) <= min(most, target.warp)
        n = size_of(r) if short else n
        if n > 1:
            give_items(kernel, OptOps.LOCAL, r, n)
            most //= n
            if work_items(kernel) >= target.warp:
                load_more(kernel, target, r.arg.id)
                return


def chain(kernel: Kernel, target: Target) -> bool:
    """Chained products on the tensor core with the longest sum that their dtypes have.

    They have as many stages as there is room for. TMA brings operands where the setting BOXES asks
    for what nobody has run.
    """
    there = [(core.size("k"), i) for i, core in enumerate(ROWS) if core.name in target.tensor_cores]
    for _, number in sorted(there, reverse=True):
        core = ROWS[number]
        found = None if core.in_group and BOXES < 2 else find_chain(kernel, core)
        if found is None or found.why_not:
            continue
        stages, axis = found.stages(target), axis_name(found.axis)
        if core.in_group and stages < 2:
            continue
        apply(kernel, Opt(OptOps.TC, axis, number, "chain"))
        if stages > 1:
            how = "producer" if core.in_group else "copies"
            apply(kernel, Opt(OptOps.PIPELINE, axis, stages, how))
        return True
    return False


# Work-items that reduce together. Source: CUDA C++ Best Practices Guide, "Thread and Block
# Heuristics" (64 a block at least).
GROUP_SIZE = 64
# The fewest elements that each of them has to fold.
GROUP_LENGTH = 4
# Most work-items of a block whose rows are shared out. Source: CUDA C++ Best Practices Guide,
# "Thread and Block Heuristics" (128 to 256 to begin with).
BLOCK_SIZE = 256
# Those of them that lie along columns: two of the pieces that memory moves, of float32.
COLUMNS = 2 * A100.sector_nbytes // 4
# Most results along the shorter axis of a product of which a work-item has all.
MAX_ROWS = 8
# Results of a work-item, one for each of which it reads a line.
TURNED = 4
# Most elements of a row that a work-item keeps in registers: so many leave room for all others.
MAX_KEPT = A100.registers // A100.items
# How many work-items may have a row: from a warp to the largest block. Source: CUDA C++ Programming
# Guide, "Technical Specifications per Compute Capability" (32 and 1,024).
TEAMS = (32, 64, 128, 256, 512, 1024)
# Steps of a row from which on they are as many as can be: what a block of usual size cannot keep.
LONG_ROW = BLOCK_SIZE * MAX_KEPT


def largest_divisor(r: UOp, limit: int) -> int:
    """The largest power of two up to `limit` that divides a constant size, else 1."""
    if r.src[0].op is not Ops.CONST:
        return 1
    return max(
        [n for n in (1, 2, 4, 8, 16, *TEAMS) if n <= limit and size_of(r) % n == 0],
        default=1,
    )


def items_along(r: UOp, most: int) -> int:
    """Number of work-items along an axis: a divisor of it, or `most` where that is too few."""
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


def share_rows(kernel: Kernel, target: Target, row: UOp) -> bool:
    """The work-items of a block lie along a row, for its reductions and its results alike.

    Not where a row is short, or where its neighbours lie apart in memory and there are rows enough
    for many blocks: each work-item has rows of its own then.
    why: what is reduced of a row is needed by all of it, and each reads what it computes with
    """
    most = min(GROUP_SIZE, target.max_group)
    strided = not any([a.strides.get(row) == 1 for a in kernel.accesses()])
    rows = iterations([r for r in kernel.output_loops if r is not row])
    if not is_at_least(row, most) or (strided and rows > GROUP_SIZE**2):
        return False
    widen_outputs(kernel, target, [row])
    widen_reductions(kernel, target)
    row = next(r for r in kernel.outputs if r.arg == row.arg)
    longest = dict.fromkeys([max(u.src[1:], key=size_of) for u in kernel.reduces if u.src[1:]])
    if keep_rows(kernel, target, row, list(longest)):
        return True
    # A long row that is read again for each sum has many work-items: it stays in the cache that
    # processors share as long as few rows are under way at once.
    team = TEAMS[-1] if target.units and size_of(row) >= LONG_ROW else GROUP_SIZE
    n = items_along(row, min(team, target.max_group))
    give_items(kernel, OptOps.LOCAL, row, n)
    for r in longest:
        if size_of(r) >= n:
            give_items(kernel, OptOps.GROUP, r, n)
    return True


def keep_rows(kernel: Kernel, target: Target, row: UOp, reduced: list[UOp]) -> bool:
    """All of a row is in registers of the work-items of a block: read once, whatever is summed.

    A warp has a row as long as that is short; blocks of one warp have several rows.
    """
    if not target.warp or row.src[0].op is not Ops.CONST or size_of(row) <= 1:
        return False
    lanes = [lanes_of(kernel, r) for r in (row, *reduced)]
    if any([size_of(r) != size_of(row) for r in reduced]) or len(set(lanes)) > 1:
        return False
    counts = [n for n in TEAMS if target.warp <= n <= target.max_group]
    each = {n: lanes[0] * ceildiv(size_of(row), n) for n in counts}
    # Blocks of all work-items that a block can have leave no room for another one.
    fitting = [n for n in counts if each[n] <= MAX_KEPT and n == target.warp]
    fitting += [n for n in counts if each[n] <= MAX_KEPT // 2 and 2 * n <= target.max_group]
    fitting += [n for n in counts if each[n] <= MAX_KEPT]
    if not fitting or size_of(row) < fitting[0]:
        return False
    n = fitting[0]
    for r in (row, *reduced):
        first, second = (OptOps.LOCAL, OptOps.UPCAST) if r is row else (OptOps.GROUP, OptOps.UNROLL)
        give_items(kernel, first, r, n)
        if size_of(r) > n:
            apply(kernel, Opt(second, axis_name(r), ceildiv(size_of(r), n)))
    others = [r for r in kernel.output_loops if kernel.may_reorder(r) and r.arg.id != row.arg.id]
    if others and 2 * n <= BLOCK_SIZE:
        rows = largest_divisor(others[-1], BLOCK_SIZE // n)
        if rows > 1 and iterations(others) // rows >= 2 * target.units:
            apply(kernel, Opt(OptOps.LOCAL, axis_name(others[-1]), rows))
    return True


def lanes_of(kernel: Kernel, r: UOp) -> int:
    """Number of SIMD lanes split off an axis: those that walk memory just inside of it."""
    for a in kernel.accesses():
        step = a.strides.get(r)
        for lane, inner in a.strides.items():
            if lane.arg.kind is AxisType.VECTOR and inner == 1 and step == size_of(lane):
                return size_of(lane)
    return 1


def neighbouring_results(kernel: Kernel) -> UOp | None:
    """The axis of outputs along which a reduction's loads are neighbours, if one is.

    why: work-items along the reduction would each read from another line of memory
    """
    loops = [r for r in kernel.output_loops if kernel.may_reorder(r)]
    for u in kernel.reduces:
        axis = max(u.src[1:], key=size_of, default=None)
        mine = [a for a in kernel_loads(kernel, u) if axis in a.strides]
        for r in reversed(loops):
            both = [a for a in mine if r in a.strides]
            if both and all([is_nearer(a, r, axis) for a in both]):
                return r
    return None


def is_nearer(access: Access, r: UOp, other: UOp | None) -> bool:
    """Whether steps of an axis lie closer together in memory than those of another."""
    step, far = access.strides.get(r), access.strides.get(other) if other is not None else None
    return bool(step and far and 0 < step < far)


def group_reductions(kernel: Kernel, target: Target, columns: UOp | None) -> None:
    """Shares long reductions with few results out over the work-items of a block.

    Where results are neighbours in `columns`, some of them have a block together. Where steps of
    the reduction are, a warp has at least one result, however many there are: work-items that read
    rows of their own would each read from another line of memory.
    """
    limit = min(GROUP_SIZE, target.max_group)
    for i in range(len(kernel.reduces)):
        # Each Opt makes new nodes of those that read what it changed.
        u = kernel.reduces[i]
        steps = [r for r in u.src[1:] if r.arg.kind is AxisType.REDUCE]
        if any(r.arg.kind is AxisType.REDUCE for r in u.ranges) or not steps:
            continue
        results = iterations([r for r in u.ranges if not r.arg.kind.is_lane])
        axis = max(steps, key=size_of)
        neighbours = [
            a for a in kernel_loads(kernel, u) for r in u.src[1:] if a.strides.get(r) == 1
        ]
        along = columns is None and bool(neighbours)
        if results > GROUP_SIZE**2 and not (along and target.warp):
            continue
        if columns is None:
            most = team_size(target, results, along)
        else:
            # Half as many still read whole lines, and leave no processor without a block.
            few = results < COLUMNS * target.units and not columns.arg.kind.is_lane
            most = min(limit, BLOCK_SIZE // (COLUMNS // 2 if few else COLUMNS))
        # Of few and short ones a warp is quickest, as it needs no local memory.
        few = results <= target.units and size_of(axis) <= 2 * target.warp
        n = largest_divisor(axis, min(most, size_of(axis) // (1 if few else GROUP_LENGTH)))
        if n >= 4:
            apply(kernel, Opt(OptOps.GROUP, axis_name(axis), n))


def team_size(target: Target, results: int, along: bool) -> int:
    """Most work-items that reduce one of so many results.

    As many as keep all processors busy; one warp of them needs no local memory.
    """
    if not (target.units and target.warp):
        return min(GROUP_SIZE, target.max_group)
    most = target.units * A100.items // (2 * max(results, 1))
    least = target.warp if along else 1
    return max(least, min(BLOCK_SIZE, 1 << max(most, 1).bit_length() - 1))


def kernel_loads(kernel: Kernel, u: UOp) -> list[Access]:
    """The loads of a reduction."""
    return [a for a in kernel.accesses() if a.node in kernel.facts.inside[u]]


def share_operands(kernel: Kernel, target: Target, outputs: list[UOp]) -> None:
    """A work-item has all of a few rows of results, so that what they share is read once.

    when: one operand of a sum of products does not change along an axis that is this short, and it
    is most of what is read
    """
    if not target.warp or len(kernel.reduces) != 1 or not kernel.reduces[0].src[1:]:
        return
    loads = kernel_loads(kernel, kernel.reduces[0])
    short = [r for r in outputs if 1 < size_of(r) <= MAX_ROWS and r.src[0].op is Ops.CONST]
    for r in short:
        shared = [a for a in loads if r not in a.strides]
        own = [a for a in loads if r in a.strides]
        if shared and own and max(map(elements, shared)) >= MAX_ROWS * max(map(elements, own)):
            apply(kernel, Opt(OptOps.UPCAST, axis_name(r), size_of(r)))
            share_rows_of_items(kernel, size_of(r))
            return


def elements(access: Access) -> int:
    """Number of elements that a load reads, of axes that it changes along."""
    return iterations(access.strides)


def share_rows_of_items(kernel: Kernel, rows: int) -> None:
    """Two results along the other axis, where steps of the sum are neighbours for all operands.

    why: each of the few rows is read again for each result along the other axis
    when: there are registers for all sums, of which each SIMD lane has its own
    """
    [u] = kernel.reduces
    loads = kernel_loads(kernel, u)
    axis = max(u.src[1:], key=size_of)
    others = [r for r in kernel.output_loops if size_of(r) % 2 == 0 and kernel.may_reorder(r)]
    if 2 < rows <= MAX_ROWS // 2 and others and all([a.strides.get(axis) == 1 for a in loads]):
        apply(kernel, Opt(OptOps.UPCAST, axis_name(max(others, key=size_of)), 2))


def turn_around(kernel: Kernel, target: Target, outputs: list[UOp]) -> bool:
    """A warp has results that are 32 bytes in memory, and beside them others that are read so.

    why: of what lies along one axis and is stored along another, each work-item would read from a
    line of memory of its own
    """
    if kernel.reduces or not (target.units and target.warp):
        return False
    stores = [a for a in kernel.accesses() if a.is_store]
    near = [r for r in outputs if all([a.strides.get(r) == 1 for a in stores])]
    if not stores or not near or not is_at_least(near[0], target.warp):
        return False
    loads = [a for a in kernel.accesses() if not a.is_store and (a.strides.get(near[0]) or 0) > 1]
    across = [r for r in outputs if any([a.strides.get(r) == 1 for a in loads])]
    if not across or not is_at_least(across[0], target.warp):
        return False
    side = min(
        target.warp, A100.sector_nbytes // min([a.node.src[0].dtype.itemsize for a in stores])
    )
    n, name = target.warp // side, axis_name(across[0])
    if size_of(across[0]) % (TURNED * n):
        return False
    if n > 1:
        apply(kernel, Opt(OptOps.LOCAL, name, n))
    give_items(kernel, OptOps.LOCAL, near[0], BLOCK_SIZE // n)
    apply(kernel, Opt(OptOps.UPCAST, name, TURNED))
    return True


def load_more(kernel: Kernel, target: Target, axis_id: int) -> None:
    """Twice as many loads a work-item, before it waits for any, where there are work-items enough.

    why: what a processor asks for at once is what keeps memory busy while it waits
    """
    units = target.units
    left = [r for r in kernel.output_loops if r.arg.id == axis_id and r.src[0].op is Ops.CONST]
    if kernel.reduces or not units or not left:
        return
    items = iterations(kernel.output_loops) * work_items(kernel)
    lanes = prod([size_of(r) for r in kernel.outputs if r.arg.kind.is_lane])
    if lanes > 1 and size_of(left[0]) % 2 == 0 and items >= 4 * units * A100.items:
        apply(kernel, Opt(OptOps.UPCAST, axis_name(left[0]), 2))
