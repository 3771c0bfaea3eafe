"""Applies Opts: the table from each Opt to the function that changes a kernel.

Receives a Kernel and an Opt; changes the kernel, or raises KernelOptError. Which Opts a kernel gets
is decided in `cpu/heuristic` and `gpu/heuristic`; which may be asked for by hand says `given_opts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import WAYS, Opt, OptOps, axis_name, wanted_of
from aster_ml.codegen.pipeline.plan import pipeline_copies, pipeline_folds, pipeline_stores
from aster_ml.codegen.plans import (
    ChainedProducts,
    ComputedEpilogue,
    PackedPanel,
    PackedWords,
    PeeledStep,
    PipelinedFolds,
    PipelinedStores,
    ResultTile,
    RowSums,
    SharedTile,
    Threads,
    TiledLoop,
    TileEpilogue,
)
from aster_ml.codegen.prefetch import prefetch, stream
from aster_ml.codegen.staging.halo import load_slab
from aster_ml.codegen.staging.panel import stage_panel
from aster_ml.codegen.staging.row import keep_row
from aster_ml.codegen.tails import (
    can_peel,
    mask_tail,
    peel,
    shift_inwards,
    shifted_lanes,
    split_lanes,
)
from aster_ml.codegen.transforms.k_blocking import block_in_output, block_rows, block_wide
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.late import late_function
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType
from aster_ml.uop.ranges import size_of
from aster_ml.watch import WATCHERS

# Kernels of a CPU have no work-groups.
if TYPE_CHECKING:
    from aster_ml.codegen.work_groups.chained_products import chain_products, producer_kind
    from aster_ml.codegen.work_groups.tensor_cores import use_tensor_core
    from aster_ml.codegen.work_groups.tile_order import join_blocks, loop_over_tiles, order_tiles
else:
    chain_products = late_function("codegen.work_groups.chained_products", "chain_products")
    producer_kind = late_function("codegen.work_groups.chained_products", "producer_kind")
    use_tensor_core = late_function("codegen.work_groups.tensor_cores", "use_tensor_core")
    join_blocks = late_function("codegen.work_groups.tile_order", "join_blocks")
    loop_over_tiles = late_function("codegen.work_groups.tile_order", "loop_over_tiles")
    order_tiles = late_function("codegen.work_groups.tile_order", "order_tiles")

# What can be said of chained products.
AFTER_CHAIN = ("PIPELINE copies", "PIPELINE producer")


def apply(kernel: Kernel, opt: Opt) -> None:
    """Does what the Opt says.

    Raises: KernelOptError where it cannot be done to this kernel, or changes nothing of it:
        which Opt, why, and what would do.
    """
    before = (kernel.facts.sink, [*kernel.outputs], kernel.plans)
    axes = kernel.axes_of(opt)
    try:
        change = change_of(opt)
        if kernel.plan(ChainedProducts) is not None and opt.kind not in AFTER_CHAIN:
            there = " and ".join(AFTER_CHAIN)
            raise KernelOptError(f"after TC chain only {there} can be asked for")
        change(kernel, *axes, opt.arg)
    except KernelOptError as error:
        raise KernelOptError(f"{opt}: {error}") from None
    if (kernel.facts.sink, kernel.outputs, kernel.plans) == before:
        raise KernelOptError(f"{opt}: changes nothing of this kernel")
    kernel.applied.append(opt)
    for w in WATCHERS:
        w.applied(kernel, opt)


def upcast(kernel: Kernel, axis: UOp, lanes: int) -> None:
    """Splits lanes off an axis; where they do not divide it, the last of them start early."""
    how = "shift" if size_of(axis) % lanes else ""
    apply(kernel, Opt(OptOps.UPCAST, axis_name(axis), lanes, how))


def of_axes(change: Callable[..., None]) -> Callable[..., None]:
    """A change that takes the axes of an Opt and no number."""
    return lambda kernel, *axes_and_number: change(kernel, *axes_and_number[:-1])


def lanes_of(kind: AxisType) -> Callable[[Kernel, UOp, int], None]:
    """Splits lanes of a kind off an axis; 0 takes all of it."""

    def split(kernel: Kernel, axis: UOp, lanes: int) -> None:
        if kernel.fills_slab(axis):
            raise KernelOptError("lanes would share a slab that every step fills anew")
        split_lanes(kernel, axis, lanes or size_of(axis), kind)

    return split


def share_out(kernel: Kernel, axis: UOp, items: int) -> None:
    """Work-items reduce an axis together; a reduction has one axis of them (`gpu/group_reduce`)."""
    mine = [u for u in kernel.reduces if axis in u.src[1:]]
    if any([r.arg.kind is AxisType.GROUP for u in mine for r in u.src[1:]]):
        raise KernelOptError("the reduction is shared out already; one GROUP of more would do")
    lanes_of(AxisType.GROUP)(kernel, axis, items)


def upcast_shift(kernel: Kernel, axis: UOp, lanes: int) -> None:
    """Lanes of a register tile, of which the last start early."""
    if kernel.fills_slab(axis) or shifted_lanes(kernel, axis) is not None:
        lanes_of(AxisType.UPCAST)(kernel, axis, lanes)
    else:
        shift_inwards(kernel, axis, lanes, AxisType.UPCAST)


def split_loop(kernel: Kernel, axis: UOp, steps: int) -> None:
    """Two loops, of which the last part of the axis starts early."""
    kernel.add(TiledLoop(axis=axis.arg.id))
    shift_inwards(kernel, axis, steps, AxisType.LOOP)


def stage_local(kernel: Kernel, axis: UOp, steps: int) -> None:
    """Loads of so many steps go through local memory (`gpu/shared_memory`)."""
    kernel.add(SharedTile(axis=kernel.next_id))
    lanes_of(AxisType.UNROLL)(kernel, axis, steps)


def stage_words(kernel: Kernel, axis: UOp, group: int) -> None:
    """Factors of a product go in words of a panel (`staging/dot_packing`)."""
    if kernel.plan(RowSums) is not None:
        raise KernelOptError("sums of whole rows read memory, and no panels")
    kernel.add(PackedWords(count=group))


def rows_of_memory(kernel: Kernel, axis: UOp, count: int) -> None:
    """Sums of whole rows, which a panel would be filled for once a block of the sum."""
    if kernel.plan(PackedPanel) is not None:
        raise KernelOptError("sums of whole rows read memory, and no panels")
    block_rows(kernel, axis, count)


def last_apart(kernel: Kernel, axis: UOp, _: int) -> None:
    """The masked last step of a reduction is taken off its loop (`tails`)."""
    if not can_peel(kernel, axis):
        raise KernelOptError("a reduction that runs over this axis alone is wanted")
    kernel.add(PeeledStep(axis=axis.arg.id))


def finished_in(kind: type[TileEpilogue]) -> Callable[[Kernel, int], None]:
    """Results of a tile are finished in a loop (`staging/epilogue`), or also computed in one."""

    def finish(kernel: Kernel, lanes: int) -> None:
        kernel.add(kind(count=lanes))

    return finish


def store_later(kernel: Kernel, over: int) -> None:
    """Results lie in local memory before they are stored (`gpu/result_boxes`)."""
    if over not in (0, 1):
        raise KernelOptError(f"0 is memory of their own, 1 that of operands; {over} is given")
    kernel.add(ResultTile(over=bool(over)))


def with_producer(kernel: Kernel, axis: UOp, stages: int) -> None:
    """A producer warp copies the strips along an axis of a reduction ahead of their use."""
    pipeline_copies(kernel, axis, stages, producer_kind(kernel))


def swap(kernel: Kernel, axis: UOp, other: UOp) -> None:
    """Two output axes change places."""
    i, j = kernel.outputs.index(axis), kernel.outputs.index(other)
    kernel.outputs[i], kernel.outputs[j] = kernel.outputs[j], kernel.outputs[i]


def make_thread(kernel: Kernel, axis: UOp, chunks: int = 0) -> None:
    """The axis becomes the outermost and is shared out, or so many chunks of it do.

    Where chunks do not share out the axis, the last of them starts early.
    """
    if kernel.plan(Threads) is not None:
        raise KernelOptError("another axis is shared out over threads already")
    if 0 < chunks < size_of(axis):
        place = kernel.outputs.index(axis)
        length = ceildiv(size_of(axis), chunks)
        # Rows that follow one another are steps of the loop within a chunk.
        kernel.move_plans(axis, kernel.next_id, PipelinedStores, PipelinedFolds)
        if size_of(axis) % chunks:
            shift_inwards(kernel, axis, length, AxisType.LOOP)
        else:
            kernel.split(axis, length, AxisType.LOOP)
        axis = kernel.outputs[place]
    kernel.outputs.remove(axis)
    kernel.outputs.insert(0, axis)
    kernel.add(Threads(axis=axis.arg.id))


Change = Callable[..., None]
# By Opt, and by its ways where there are several; a change is called with the kernel, the axes that
# the Opt names, and its number.
APPLY: dict[OptOps, Change | dict[str, Change]] = {
    OptOps.UPCAST: {"": lanes_of(AxisType.UPCAST), "shift": upcast_shift},
    OptOps.UNROLL: lanes_of(AxisType.UNROLL),
    OptOps.VECTOR: lanes_of(AxisType.VECTOR),
    OptOps.THREAD: make_thread,
    OptOps.LOCAL: lanes_of(AxisType.LOCAL),
    OptOps.GROUP: share_out,
    OptOps.TC: {"": use_tensor_core, "chain": chain_products},
    OptOps.SPLIT: {"mask": mask_tail, "loop": split_loop, "peel": peel, "last": last_apart},
    OptOps.SWAP: of_axes(swap),
    OptOps.KBLOCK: {"output": block_in_output, "row": rows_of_memory, "wide": block_wide},
    OptOps.STAGE: {
        "local": stage_local, "halo": load_slab, "words": stage_words, "row": of_axes(keep_row),
        "panel": stage_panel, "tile": finished_in(TileEpilogue),
        "results": finished_in(ComputedEpilogue), "out": store_later,
    },
    OptOps.PREFETCH: prefetch,
    OptOps.PIPELINE: {
        "stores": of_axes(pipeline_stores), "folds": of_axes(pipeline_folds),
        "copies": pipeline_copies, "producer": with_producer,
    },
    OptOps.BLOCKS: {"order": order_tiles, "loop": loop_over_tiles, "cluster": join_blocks},
    OptOps.NONTEMPORAL: of_axes(stream),
}  # fmt: skip


def change_of(opt: Opt) -> Change:
    """Finds the change of an Opt in the way that it names.

    Raises: KernelOptError where there is no such way.
    """
    row = APPLY[opt.op]
    ways = row if isinstance(row, dict) else {"": row}
    how = opt.how or WAYS.get(opt.op, ("",))[0]
    if how not in ways:
        raise KernelOptError(wanted_of(opt.op))
    return ways[how]
