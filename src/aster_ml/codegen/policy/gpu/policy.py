"""The policy for devices with work-groups: the default schedule, and what a search may change.

Receives a kernel and a Target; `policy/protocol` says what its functions answer. Some of the Opts
that a search may add do not fit the kernel, which shows when they are applied.
"""

from __future__ import annotations

from collections.abc import Iterator

from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.given_opts import apply_given
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.plans import CopyPipeline, Fragments, ProducerWarp, ResultTile, SharedTile
from aster_ml.codegen.policy.body_size import is_small
from aster_ml.codegen.policy.gpu.block_tiles import GROUP_TILES, MAX_STAGES, TILES, WARP_TILES
from aster_ml.codegen.policy.gpu.heuristic import GROUP_SIZE, choose_group_opts
from aster_ml.codegen.work_groups.numbering import axes_in_rows, ranges_of_kind
from aster_ml.codegen.work_groups.tensor_cores import product_of, reads_boxes
from aster_ml.config import ALLOW_TF32
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.target.costs import A100
from aster_ml.target.tensor_cores import ROWS
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of

Opts = tuple[Opt, ...]
# In which order Opts of one kernel stand: a tensor core splits whole axes, and blocks are numbered
# by what is left of them.
PLACES = {
    OptOps.SPLIT: 0, OptOps.TC: 1, OptOps.UPCAST: 2, OptOps.UNROLL: 2, OptOps.VECTOR: 2,
    OptOps.LOCAL: 3, OptOps.GROUP: 3, OptOps.SWAP: 3, OptOps.STAGE: 4, OptOps.PIPELINE: 5,
    OptOps.BLOCKS: 6,
}  # fmt: skip
# Numbers of work-items that are tried along one axis; fewer lanes, steps and rows of tiles.
ITEMS = (2, 4, 8, 16, 32, GROUP_SIZE)
LANES, ROWS_AT_ONCE, STRIPS = ITEMS[:3], ITEMS[:4], (1, *ITEMS[:5])
# What comes as half and double; what one more or one less.
HALVED = frozenset({"LOCAL", "GROUP", "STAGE local", "VECTOR", "BLOCKS order", "BLOCKS loop"})
COUNTED = frozenset({"PIPELINE copies", "PIPELINE producer"})
# Work-items of a processor that keep it busy: a warp for each of four schedulers.
# Source: CUDA C++ Programming Guide, "Compute Capability 8.x" (four warp schedulers).
BUSY_ITEMS = 128


def choose(kernel: Kernel, target: Target, rank: int = 0, by_hand: Opts | None = None) -> None:
    """Blocks and work-items by price, or Opts written by hand, which nothing completes."""
    if by_hand is not None:
        apply_given(kernel, by_hand, target, by_hand=True)
    elif target.compiles and all([size_of(r) for r in kernel.axes]):
        choose_group_opts(kernel, target, rank)


def ranks(target: Target) -> int:
    """One for each tile; on tensor cores, for each with each number of stages."""
    if not target.tensor_cores:
        return len(TILES)
    return len(GROUP_TILES) + len(WARP_TILES) * (MAX_STAGES - 1)


def insert(opts: Opts, more: Opts) -> Opts:
    """Each behind those that come before it."""
    for opt in more:
        place = PLACES.get(opt.op, 7)
        at = next((i for i, o in enumerate(opts) if PLACES.get(o.op, 7) > place), len(opts))
        opts = (*opts[:at], opt, *opts[at:])
    return opts


def filled(r: UOp, opt: Opt) -> Opts:
    """An Opt, and before it one that lets its number divide the axis."""
    if r.src[0].op is not Ops.CONST or not size_of(r) % opt.arg:
        return (opt,)
    whole = ceildiv(size_of(r), opt.arg) * opt.arg
    return (Opt(OptOps.SPLIT, axis_name(r), whole, how="mask"), opt)


def additions(kernel: Kernel, target: Target) -> Iterator[Opts]:
    """Opts that may still come."""
    for r in kernel.output_loops:
        axis, size = axis_name(r), size_of(r)
        for op, numbers in ((OptOps.LOCAL, ITEMS), (OptOps.UPCAST, LANES), (OptOps.VECTOR, LANES)):
            for n in numbers:
                if n <= size:
                    yield filled(r, Opt(op, axis, n))
        for n in ROWS_AT_ONCE:
            if n < size:
                yield (Opt(OptOps.BLOCKS, axis, n, how="order"),)
        if reads_boxes(kernel) and size > 1:
            yield (Opt(OptOps.BLOCKS, axis, 2, how="cluster"),)
    for r in kernel.facts.reduced:
        axis, size = axis_name(r), size_of(r)
        for op, numbers in ((OptOps.GROUP, ITEMS), (OptOps.UNROLL, LANES), (OptOps.VECTOR, LANES)):
            for n in numbers:
                if n <= size:
                    yield filled(r, Opt(op, axis, n))
        if kernel.plan(SharedTile) is None:
            for n in STRIPS:
                if n <= size:
                    yield filled(r, Opt(OptOps.STAGE, axis, n, how="local"))
        elif kernel.plan(CopyPipeline) is None:
            for n in range(2, MAX_STAGES + 1):
                yield (Opt(OptOps.PIPELINE, axis, n, how="copies"),)
                if reads_boxes(kernel):
                    yield (Opt(OptOps.PIPELINE, axis, n, how="producer"),)
        if kernel.plan(Fragments) is None:
            yield from tensor_cores(kernel, r, target)
    if kernel.plan(Fragments) is not None and kernel.plan(ResultTile) is None:
        over = 1 if kernel.plan(ProducerWarp) is None else 0
        yield (Opt(OptOps.STAGE, arg=over, how="out"),)
    if kernel.plan(ProducerWarp) is not None and target.units:
        yield (Opt(OptOps.BLOCKS, 0, target.units, how="loop"),)


def tensor_cores(kernel: Kernel, depth: UOp, target: Target) -> Iterator[Opts]:
    """The product of a kernel on each of the tensor cores that multiply its dtypes."""
    for number, core in enumerate(ROWS):
        if core.name not in target.tensor_cores or (core.rounds and not ALLOW_TF32):
            continue
        found = product_of(kernel, depth, core)
        if found is not None:
            axes = {"m": found.m, "n": found.n, "k": depth}
            short = [(r, core.size(w)) for w, r in axes.items() if size_of(r) % core.size(w)]
            masks = [Opt(OptOps.SPLIT, axis_name(r), n, how="mask") for r, n in short]
            yield (*masks, Opt(OptOps.TC, axis_name(depth), number))


def sizes(opt: Opt, target: Target) -> Iterator[Opt]:
    """An Opt with another number, or done another way."""
    if opt.kind in HALVED:
        yield from [opt._replace(arg=n) for n in (opt.arg // 2, opt.arg * 2) if n > 0]
    elif opt.kind == "UPCAST" and opt.arg:
        yield from [opt._replace(arg=n) for n in (opt.arg // 2, opt.arg * 2) if n > 1]
    elif opt.kind in COUNTED:
        yield from [opt._replace(arg=n) for n in (opt.arg - 1, opt.arg + 1) if n > 1]
        yield opt._replace(how=next(how for how in ("copies", "producer") if how != opt.how))
    elif opt.kind == "TC":
        alike = [i for i, core in enumerate(ROWS) if core.dtype == ROWS[opt.arg].dtype]
        there = [i for i in alike if ROWS[i].name in target.tensor_cores and i != opt.arg]
        yield from [opt._replace(arg=i) for i in there]


def fits(kernel: Kernel, target: Target) -> bool:
    """Whether a block has work-items and registers for a kernel, as far as shows without compiling.

    Accumulators lie in registers: those of a work-item, and of all of a block.
    """
    items = items_of(kernel)
    if items > target.max_group or not is_small(kernel):
        return False
    if not target.warp:
        return True
    lanes = [[r for r in u.ranges if r.arg.kind.is_lane] for u in kernel.reduces]
    sums = sum([iterations(own) for own in lanes])
    return sums <= A100.own_registers and sums * items <= A100.registers


def items_of(kernel: Kernel) -> int:
    """Work-items of a block; those that reduce together are others of it where they are as many."""
    locals_, groups = (
        [size_of(r) for r in ranges_of_kind(kernel, kind)]
        for kind in (AxisType.LOCAL, AxisType.GROUP)
    )
    return int(prod(locals_) * prod(set(groups) - set(locals_)))


def cycles(kernel: Kernel, target: Target) -> float:
    """Cycles of the resource that takes longest, with what stands idle."""
    return estimate(kernel, target).busy * idle(kernel, target)


def idle(kernel: Kernel, target: Target) -> float:
    """Ratio of the time of blocks to that of the same work spread evenly over all processors.

    A processor that has no block left waits for the others, and one with few work-items in its
    blocks waits for each of their loads.
    """
    if not target.units:
        return 1.0
    inside = axes_in_rows(kernel)
    blocks = iterations([r for r in kernel.output_loops if r not in inside])
    each = ceildiv(blocks, target.units)
    waiting = max(1.0, BUSY_ITEMS / (items_of(kernel) * each))
    return float(each * target.units / blocks * waiting)
