"""Plans: what the applied Opts say of the loops and of the scratch of one kernel.

An Opt changes the graph of a kernel, or leaves a plan that a later pass carries out, or both. Each
kind of plan is a frozen record: an `AxisPlan` says how the loop over one axis runs, beyond the kind
of its range; a `StagePlan` says that a value goes through scratch. An axis is named by the id of
its range, which stays while other axes are split off. Two kernels with the same graph, the same
order of loops and the same plans are the same. Nothing here changes a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

from aster_ml.codegen.staging.sliding_windows import Slab
from aster_ml.helpers import prod
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops, ParamArg
from aster_ml.uop.ranges import size_of


@dataclass(frozen=True, kw_only=True)
class KernelPlan:
    """Work that a pass does to a kernel.

    `count` is how many lanes, steps, stages, rows or blocks; which, says the kind of plan.
    """

    count: int = 0

    def replaces(self, other: KernelPlan) -> bool:
        """Whether a kernel has this plan in place of another: it has one plan of a kind."""
        return isinstance(other, type(self)) or isinstance(self, type(other))


class EachPlan(KernelPlan):
    """A plan of a kind of which a kernel may have many."""

    def replaces(self, other: KernelPlan) -> bool:
        """Whether the other plan is this one."""
        return self == other


# How loops run


@dataclass(frozen=True, kw_only=True)
class AxisPlan(KernelPlan):
    """Way in which the loop over an axis runs; `axis` is the id of its range."""

    axis: int


class Threads(AxisPlan):
    """Threads share out the iterations: THREAD. The range is a LOOP until indices are lowered."""


class Strips(AxisPlan):
    """Each iteration adds a strip of a reduction to sums in the output: KBLOCK output."""


class TiledLoop(AxisPlan, EachPlan):
    """The loop is one over tiles, of which the last may start early: SPLIT loop."""


class MaskedTail(AxisPlan, EachPlan):
    """The loop has grown past its end, where all is masked, and runs in any order: SPLIT mask."""


class PeeledStep(AxisPlan, EachPlan):
    """The masked last step of a reduction is taken off its loop: SPLIT last."""


@dataclass(frozen=True, kw_only=True)
class ShiftedTail(AxisPlan, EachPlan):
    """The last `count` steps that were split off an axis of a `size` start early, at size - count.

    `inner` is the id of the range over these steps. What the last steps have in common with those
    before is computed twice.
    """

    size: int
    inner: int


class ShiftedLanes(ShiftedTail):
    """A tail of SIMD lanes: VECTOR; `count` are those of all SIMD values side by side."""


class ShiftedTile(ShiftedTail):
    """A tail of a register tile: UPCAST shift."""


class ShiftedLoop(ShiftedTail):
    """A tail of a loop: SPLIT loop, or THREAD of so many chunks."""


class PrefetchedBlocks(AxisPlan):
    """Each iteration prefetches the block that the next one reads: PREFETCH."""


class PipelinedStores(AxisPlan):
    """The rows of an iteration are stored in the loops of the next one: PIPELINE stores."""


class PipelinedFolds(AxisPlan):
    """The first fold of an iteration runs in the loops of the one before: PIPELINE folds."""


class CopyPipeline(AxisPlan):
    """Iterations fill local memory for later ones; `count` are the stages that it has room for."""

    def replaces(self, other: KernelPlan) -> bool:
        """Whether the other plan fills local memory too."""
        return isinstance(other, CopyPipeline)


class CopiesAhead(CopyPipeline):
    """All warps copy, some stages ahead: PIPELINE copies."""


class ProducerWarp(CopyPipeline):
    """A producer warp copies, and consumer warps multiply: PIPELINE producer."""


class OverlappedExp(ProducerWarp):
    """A producer warp, and exp of a tile overlapping the second product of the tile before."""


class BlockOrder(AxisPlan):
    """`count` tiles along an axis of blocks follow one another: BLOCKS order."""


class BlockCluster(AxisPlan):
    """`count` neighbouring blocks along an axis are a cluster: BLOCKS cluster."""


class PersistentBlocks(KernelPlan):
    """A launch has `count` blocks, each of which computes many tiles: BLOCKS loop."""


@dataclass(frozen=True, kw_only=True)
class TensorCorePlan(AxisPlan):
    """A tensor core sums over an axis; `core` is its row of `target/tensor_cores`."""

    core: int


@dataclass(frozen=True, kw_only=True)
class Fragments(TensorCorePlan):
    """Axes of a product are bits of m, n and k as a warp has them: TC.

    `ids` has the ids of what is left of the axes, by "m", "n" and "k", and of their bits, by "m0".
    """

    ids: tuple[tuple[str, int], ...]


class ChainedProducts(TensorCorePlan):
    """Two products of which the first stays in registers, in one loop over an axis: TC chain."""


class ChainedTiles(ChainedProducts):
    """The same, of operands that asynchronous copies of tiles bring to local memory."""


# What goes through scratch


class StagePlan(KernelPlan):
    """A value goes through scratch, or through local memory that a block has."""


class SharedTile(AxisPlan, StagePlan):
    """Loads of the steps of an axis go through local memory: STAGE local."""


@dataclass(frozen=True, kw_only=True)
class PanelPlan(StagePlan):
    """The load from argument `slot` goes through a panel."""

    slot: int


class PackedPanel(PanelPlan):
    """The panel is packed, so that SIMD lanes are neighbours in it: STAGE panel."""


@dataclass(frozen=True, kw_only=True)
class UnpackedOperand(PanelPlan, EachPlan):
    """The panel holds a value over axes, the outermost first, or the value is where it is read.

    Until then no argument has this `slot`: the load is a placeholder.
    """

    value: UOp
    axes: tuple[UOp, ...]

    @property
    def memory(self) -> UOp:
        """The placeholder's memory."""
        size = prod([size_of(r) for r in self.axes])
        return UOp(Ops.PARAM, self.value.dtype, (), ParamArg(self.slot, size))

    def step(self, axis: UOp) -> int:
        """Elements between neighbours along an axis."""
        return int(prod([size_of(r) for r in self.axes[self.axes.index(axis) + 1 :]]))


class PackedWords(StagePlan):
    """The factors of a product go through panels of words, `count` in each: STAGE words."""


class RowSums(StagePlan):
    """Sums of a whole row lie in scratch, and `count` steps are added at a time: KBLOCK row."""


@dataclass(frozen=True, kw_only=True)
class Halo(StagePlan):
    """Sliding windows are loaded into a slab: STAGE halo."""

    slab: Slab


class TileEpilogue(StagePlan):
    """Results of a register tile are finished in a loop, `count` SIMD lanes at a time: STAGE tile.

    A count of 0 is all lanes.
    """


class ComputedEpilogue(TileEpilogue):
    """The same of results that are computed in a loop of their own before: STAGE results."""


class ResultTile(StagePlan):
    """Results lie in local memory before they are stored: STAGE out."""


class ResultsOverOperands(ResultTile):
    """The same, in the memory that operands had."""
