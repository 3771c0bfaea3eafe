"""The passes of code generation (hop 5, first part): from a kernel AST and a Target to a Linear.

Three tables in running order, and between the first two the schedule: Opts as they are given, or as
the cost model chooses them. A pass of the first two changes a Kernel (its graph, its axes), one of
the third a Linear. Every row says when it runs and why it stands where it stands; what it does says
its function. `docs/reference/passes.md` is made from this page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aster_ml.codegen.decompose.ops import decompose_kernel
from aster_ml.codegen.given_opts import apply_given
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.indices import lower_addresses
from aster_ml.codegen.lower.linearize import check_scratch, linearize
from aster_ml.codegen.lower.program_order import drop_work_groups, linearize_in_order
from aster_ml.codegen.opts import Opt, parse_opts
from aster_ml.codegen.pipeline.async_mma import add_in_place
from aster_ml.codegen.pipeline.loop import pipeline_loops
from aster_ml.codegen.plans import (
    ChainedProducts,
    ChainedTiles,
    ComputedEpilogue,
    CopiesAhead,
    Halo,
    OverlappedExp,
    PackedPanel,
    PackedWords,
    PeeledStep,
    PipelinedFolds,
    PipelinedStores,
    PrefetchedBlocks,
    ProducerWarp,
    ResultsOverOperands,
    ResultTile,
    RowSums,
    TileEpilogue,
    UnpackedOperand,
)
from aster_ml.codegen.policy.protocol import policy_of
from aster_ml.codegen.prefetch import ask_for_next_blocks
from aster_ml.codegen.staging.accumulators import sum_rows
from aster_ml.codegen.staging.dot_packing import pack_words
from aster_ml.codegen.staging.epilogue import finish_in_loop
from aster_ml.codegen.staging.halo import fill_slab
from aster_ml.codegen.staging.panel import pack_panels
from aster_ml.codegen.staging.row import fill_rows
from aster_ml.codegen.staging.unpacked_panel import stand_in, unpack
from aster_ml.codegen.tails import run_last_steps_apart
from aster_ml.codegen.transforms.axes import merge_axes, simplify_kernel, split_divided_axes
from aster_ml.codegen.transforms.block_products import has_bytes, multiply_words
from aster_ml.codegen.transforms.decoded import is_unpacked, split_at_blocks
from aster_ml.codegen.transforms.factored_sums import factor_sums
from aster_ml.codegen.transforms.horizontal import fold_together
from aster_ml.codegen.transforms.nonpositive_exp import mark_differences
from aster_ml.codegen.transforms.shared_division import prepare_divisors
from aster_ml.codegen.transforms.trip_counts import limit_reductions
from aster_ml.codegen.transforms.unroll_stacks import share_loads
from aster_ml.codegen.transforms.wide_fields import widen_fields
from aster_ml.config import NOOPT
from aster_ml.late import late_function
from aster_ml.target import INTERPRETER, Target
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.passes import Pass, PassClock
from aster_ml.watch import WATCHERS

# Kernels of a CPU have no work-groups.
if TYPE_CHECKING:
    from aster_ml.codegen.work_groups.chained_products import build_chain
    from aster_ml.codegen.work_groups.shared_memory import build_blocks
    from aster_ml.codegen.work_groups.tma_epilogue import await_tma_stores
else:
    build_chain = late_function("codegen.work_groups.chained_products", "build_chain")
    build_blocks = late_function("codegen.work_groups.shared_memory", "build_blocks")
    await_tma_stores = late_function("codegen.work_groups.tma_epilogue", "await_tma_stores")


def on_cpu(kernel: Kernel, target: Target) -> bool:
    """Kernels of CPUs."""
    return target.is_cpu


def in_groups(kernel: Kernel, target: Target) -> bool:
    """Kernels of devices with work-groups that are not written by hand."""
    return target.has_local and not kernel.in_order


def written_with_groups(kernel: Kernel, target: Target) -> bool:
    """Kernels written by hand, for a device without work-groups that does not interpret them."""
    return not target.has_local and target.kind != INTERPRETER and kernel.in_order


def optimised(kernel: Kernel, target: Target) -> bool:
    """Kernels of CPUs, unless NOOPT is set."""
    return target.is_cpu and not NOOPT


def folds_twice(kernel: Kernel, target: Target) -> bool:
    """Kernels of CPUs with several reductions."""
    return target.is_cpu and len(kernel.reduces) > 1


def unpacks(kernel: Kernel, target: Target) -> bool:
    """Kernels of CPUs whose sums load bytes."""
    return target.is_cpu and is_unpacked(kernel)


def multiplies_bytes(kernel: Kernel, target: Target) -> bool:
    """Kernels that load int8, of targets that multiply four of them at once."""
    return has_bytes(kernel, target) and not NOOPT


KERNEL = "kernel"
BEFORE_OPTS = (
    Pass(
        "stand in for unpacked operands", stand_in, applies=on_cpu, stage=KERNEL,
        why="first: all choices are then those for plain matrices",
    ),
    Pass(
        "split sums at blocks", split_at_blocks, applies=on_cpu, stage=KERNEL,
        why="before axes are merged: strides are plain within blocks",
    ),
    Pass(
        "split divided axes", split_divided_axes, stage=KERNEL,
        why="first: every choice below is better on plain strides",
    ),
    Pass(
        "merge axes", merge_axes, stage=KERNEL,
        why="every choice below is better on fewer, longer axes",
    ),
    Pass(
        "mark nonpositive exponents", mark_differences, stage=KERNEL,
        why="before a value that is computed in two places is kept: both have to stay the same",
    ),
    Pass(
        "share loads of stacks", share_loads, applies=on_cpu, stage=KERNEL,
        why="before Opts: the cost of lanes counts the loads that are left",
    ),
)  # fmt: skip
AFTER_OPTS = (
    Pass(
        "chain products", build_chain, carries_out=(ChainedProducts, ChainedTiles),
        needed=True, stage=KERNEL,
        why="first: nothing below takes the kernel that it was",
    ),
    Pass(
        "build work-groups", build_blocks, applies=in_groups, needed=True, stage=KERNEL,
        why="before indices are simplified: block and work-item numbers come in as divisions",
    ),
    Pass(
        "drop work-groups", drop_work_groups, applies=written_with_groups, needed=True,
        why="before all that reads loops",
    ),
    Pass(
        "unpack operands", unpack, carries_out=(UnpackedOperand,), needed=True, stage=KERNEL,
        why="after the loop order is final: it says how often a panel is filled",
    ),
    Pass(
        "pack words", pack_words, carries_out=(PackedWords,), stage=KERNEL,
        why="after the loop order is final: it says how often a panel is filled",
    ),
    Pass(
        "pack panels", pack_panels, carries_out=(PackedPanel,), stage=KERNEL,
        why="after the loop order is final: it says how often a panel is filled",
    ),
    Pass(
        "limit trip counts", limit_reductions, applies=optimised, stage=KERNEL,
        why="after panels, which are filled for every step",
    ),
    Pass(
        "peel last steps", run_last_steps_apart, carries_out=(PeeledStep,), stage=KERNEL,
        why="after panels, and on the trip counts that are left",
    ),
    Pass(
        "accumulate rows", sum_rows, carries_out=(RowSums,), stage=KERNEL,
        why="once it is known which part of a row a thread has",
    ),
    Pass(
        "fill rows", fill_rows, applies=on_cpu, stage=KERNEL,
        why="once lanes are final: scratch is filled and read with the same ones",
    ),
    Pass("fill halos", fill_slab, carries_out=(Halo,), stage=KERNEL, why="as rows"),
    Pass(
        "multiply words", multiply_words, applies=multiplies_bytes, stage=KERNEL,
        why="once SIMD lanes are final: a DOT is of whole SIMD values",
    ),
    Pass(
        "factor sums", factor_sums, applies=unpacks, stage=KERNEL,
        why="once it is known which steps of a sum stand side by side",
    ),
    Pass(
        "widen fields", widen_fields, applies=unpacks, stage=KERNEL,
        why="once sums are written out, which say what each field is",
    ),
    Pass(
        "fold lanes together", fold_together, applies=folds_twice, stage=KERNEL,
        why="once SIMD accumulators are final",
    ),
    Pass(
        "loop over results of a tile", finish_in_loop,
        carries_out=(TileEpilogue, ComputedEpilogue), stage=KERNEL,
        why="after all that changes the loops of sums",
    ),
    Pass(
        "share divisions", prepare_divisors, stage=KERNEL,
        why="once lanes say for how many results a divisor is the same",
    ),
    Pass(
        "prefetch next blocks", ask_for_next_blocks, carries_out=(PrefetchedBlocks,),
        stage=KERNEL,
        why="once loops are final: what it walks is the tile of the outputs",
    ),
    Pass(
        "simplify indices", simplify_kernel, needed=True, stage=KERNEL,
        why="after all that splits axes, which leaves sums of products in indices",
    ),
    Pass(
        "decompose", decompose_kernel, needed=True, stage=KERNEL,
        why="before lanes are set apart: it may add integer arithmetic of its own",
    ),
    Pass(
        "lower indices", lower_addresses, needed=True,
        why="last on the graph: bounds and floor division end here",
    ),
)  # fmt: skip
ON_LINEAR = (
    Pass(
        "add products in place", add_in_place, carries_out=(ChainedTiles,),
        why="before loops are pipelined: a product is waited for where its sum is read",
    ),
    Pass(
        "pipeline loops", pipeline_loops, needed=True,
        carries_out=(PipelinedFolds, PipelinedStores, CopiesAhead, ProducerWarp, OverlappedExp),
        why="on the list: an iteration and a later one are not told apart in a graph",
    ),
    Pass(
        "wait for TMA stores", await_tma_stores, needed=True,
        carries_out=(ResultTile, ResultsOverOperands),
        why="once it is known who has which role, and which loops are around results",
    ),
    Pass(
        "check scratch", check_scratch, applies=on_cpu, needed=True,
        why="once nothing adds scratch any more",
    ),
)  # fmt: skip
# What becomes of a graph once its passes are done.
LINEARIZE = Pass("linearize", linearize, why="the graph becomes a list", needed=True)


def is_due(step: Pass, kernel: Kernel, target: Target) -> bool:
    """Whether a kernel has a plan of just the kind that a pass carries out, or it applies to it."""
    if step.carries_out:
        return not {*map(type, kernel.plans)}.isdisjoint(step.carries_out)
    return step.applies is None or step.applies(kernel, target)


def run_passes(
    passes: tuple[Pass, ...], kernel: Kernel, target: Target, clock: PassClock, plain: bool
) -> None:
    """Runs those that apply to the kernel; of a `plain` one those that are needed."""
    for step in passes:
        if (step.needed or not plain) and is_due(step, kernel, target):
            step.run(kernel, target)
            clock(step, kernel.sink)


def schedule_kernel(
    ast: UOp,
    target: Target,
    opts: tuple[Opt, ...] | None = None,
    by_hand: bool = False,
    rank: int = 0,
    plain: bool = False,
) -> Kernel:
    """The kernel with its axes arranged: by the given Opts, or by the cost; `plain` not at all.

    Of Opts that were written `by_hand`, an UPCAST may be SIMD. With a `rank`, the SIMD axis is not
    the one that costs least, but one of the next.
    """
    kernel = Kernel(ast)
    if plain or kernel.in_order or (NOOPT and opts is None):
        return kernel
    run_passes(BEFORE_OPTS, kernel, target, PassClock(), plain)
    if opts is None or by_hand:
        policy_of(target).choose(kernel, target, rank, opts)
    else:
        apply_given(kernel, opts, target)
    for w in WATCHERS:
        w.arranged(kernel, target)
    return kernel


def lower(
    ast: UOp,
    target: Target,
    opts: tuple[Opt, ...] | None = None,
    by_hand: bool = False,
    plain: bool = False,
) -> tuple[Linear, tuple[Opt, ...]]:
    """The kernel as a list of nodes for this target, and the Opts that it was given.

    A `plain` one has none, and no pass that only makes kernels faster; nor has one whose stores
    have an order.
    """
    if opts is None and ast.arg is not None and ast.arg.opts is not None:
        opts, by_hand = parse_opts(ast.arg.opts), True
    plain = plain or (ast.arg is not None and ast.arg.in_order)
    kernel = schedule_kernel(ast, target, opts, by_hand, plain=plain)
    clock = PassClock()
    plain = plain or kernel.in_order
    run_passes(AFTER_OPTS, kernel, target, clock, plain)
    name = (kernel.sink if kernel.in_order else ast).arg
    name = name and name.name
    if kernel.in_order:
        linear = linearize_in_order(kernel, name or "ordered")
    else:
        linear = linearize(kernel.sink, kernel.outputs, name or kernel_name(kernel))
    clock(LINEARIZE, linear)
    for step in ON_LINEAR:
        if is_due(step, kernel, target):
            linear = step.run(linear, kernel, target)
            clock(step, linear)
    return linear, tuple(kernel.applied)


def kernel_name(kernel: Kernel) -> str:
    """`r_64_32_16` for a reduction, `E_1024` without one: sizes of the axes, outermost first."""
    sizes = [
        str(r.src[0].arg) if r.src[0].op is Ops.CONST else "n"
        for r in kernel.outputs + [a for u in kernel.reduces for a in u.src[1:]]
    ]
    return "_".join(["r" if kernel.reduces else "E", *sizes[:8]])
