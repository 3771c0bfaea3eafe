"""Roles of axes: what the applied Opts have said of an axis that its range alone does not tell.

Opts write them, by the id of a range, which stays when others are split off; passes after the Opts
read them. Two kernels with the same graph, the same order of loops and the same roles are the same.
Nothing here changes a graph.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from aster_ml.codegen.staging.sliding_windows import Slab
from aster_ml.uop.node import UOp


class ShiftedTail(NamedTuple):
    """Lanes that start at `size - lanes - short`, where `short` is 0 for the last of them."""

    short: UOp
    size: int
    lanes: int


class OverlappedSplit(NamedTuple):
    """The id of lanes that were split off an axis, how many, and how long it was."""

    inner: int
    lanes: int
    size: int


class Fragments(NamedTuple):
    """A row of `target/tensor_cores`, and the ids of the axes that are bits of m, n and k."""

    core: int
    ids: tuple[tuple[str, int], ...]


class Epilogue(NamedTuple):
    """SIMD lanes that are stored at a time, 0 for all, and whether results lie in scratch too."""

    block: int
    computed_before: bool


@dataclass
class Roles:
    """The roles that axes of one kernel have, by id; a change is a new value."""

    # The output axis that threads share out. It is a LOOP until indices are lowered.
    threads: int | None = None
    # The lane axis along which loads are staged through local memory.
    staged: int | None = None
    # How the axes of a product lie in a warp.
    fragments: Fragments | None = None
    # The axis of keys of attention, by id, and the row of a tensor core that computes it.
    chained: tuple[int, int] | None = None
    # Whether its powers are computed while those of the tile before are multiplied.
    pipelines_products: bool = False
    # The axis that runs over strips of a reduction, whose sums lie in the output in between.
    strips: int | None = None
    # How many steps of its reduction are taken at a time for a whole row; 0 without rows.
    row_steps: int = 0
    # The axis whose rows are stored in the loops of the next row.
    stored_later: int | None = None
    # The axis of rows that are first folded in the loops of the row before.
    folded_early: int | None = None
    # The axis whose steps fill local memory for a later one, and for how many there is room.
    pipelined: tuple[int, int] | None = None
    # Whether a warp of its own does so.
    has_producer: bool = False
    # The axis of blocks of which so many tiles follow one another, and how many.
    tile_rows: tuple[int, int] | None = None
    # How many blocks a launch has where each computes many tiles; 0 where it computes one.
    looping_blocks: int = 0
    # The axis of blocks along which neighbours are a cluster, and how many of them.
    cluster: tuple[int, int] | None = None
    # Whether results lie in the memory of operands before they are stored, or in their own.
    leaves: bool | None = None
    # The axis whose steps prefetch the block that the next step reads.
    prefetched: int | None = None
    # How many factors of a product go in one word of a panel; 0 without panels of words.
    word: int = 0
    # The slot of the load that goes through a packed panel.
    panel: int | None = None
    # Axes of reductions whose masked last step is taken off their loop.
    last_apart: frozenset[int] = frozenset()
    # How results of a tile are finished in a loop.
    epilogue: Epilogue | None = None
    # Windows that are loaded through scratch.
    slab: Slab | None = None
    # Axes that were split into loops with a tail that starts early.
    tiled: frozenset[int] = frozenset()
    # Axes that were told apart before they grew: what is beyond their end is masked.
    apart: frozenset[int] = frozenset()
    # By an axis whose last SIMD lanes start early: how.
    early: dict[int, ShiftedTail] = field(default_factory=dict)
    # By an axis of which the last lanes, no SIMD lanes, start early: how.
    twice: dict[int, OverlappedSplit] = field(default_factory=dict)
    # Whether some elements are computed twice, those of `twice` aside.
    overlaps: bool = False
    # What stands in for unpacked operands (`staging.unpacked_panel`).
    unpacked: tuple[Any, ...] = ()

    @property
    def value(self) -> tuple[Any, ...]:
        """All of them, to be compared."""
        return (
            self.threads, self.staged, self.strips, self.row_steps, self.stored_later,
            self.folded_early, self.prefetched, self.word, self.panel, self.last_apart,
            self.epilogue, self.slab, self.overlaps, self.tiled, self.apart,
            frozenset(self.early.items()), frozenset(self.twice.items()),
            self.unpacked, self.fragments, self.pipelined,
            self.has_producer, self.chained, self.tile_rows, self.looping_blocks,
            self.cluster, self.leaves,
        )  # fmt: skip

    def copy(self) -> Roles:
        """The same; what is changed of one does not show in the other."""
        return replace(self)

    def no_early(self, axis_id: int) -> None:
        """The last SIMD lanes of an axis do not start early any more."""
        self.early = {i: tail for i, tail in self.early.items() if i != axis_id}
