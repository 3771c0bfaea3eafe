"""The schedule language: how the axes of a kernel run, as data.

An `Opt` names an axis by its position in `Kernel.axes` (outputs first, then reductions) and says
what becomes of it; UNROLL, GROUP, STAGE, KBLOCK and ROW_ACCUMULATE are of reductions alone and
count only these. A list of Opts is the whole of what a default schedule or a search decides; it
prints as text and parses back.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, NamedTuple

from aster_ml.errors import ArgumentError


class OptOps(Enum):
    """What can be done to an axis."""

    UPCAST = "UPCAST"  # split off lanes; of a reduction: accumulators side by side
    UNROLL = "UNROLL"  # split off lanes of a reduction that fold into one accumulator
    VECTOR = "VECTOR"  # split off lanes that make one SIMD value; of outputs the last start early
    THREAD = "THREAD"  # the axis goes outermost and is shared out over threads
    LOCAL = "LOCAL"  # split off work-items of a block
    GROUP = "GROUP"  # split off work-items that reduce together
    STAGE = "STAGE"  # loads of a reduction go through local memory, strips of the axis at a time
    OVERLAP = "OVERLAP"  # UPCAST that need not divide: the last lanes start early, and run twice
    PADTO = "PADTO"  # the axis grows to a multiple; what is beyond its end is masked
    SWAP = "SWAP"  # two output axes change places
    PEEL = "PEEL"  # so many steps of a reduction on their own, and the rest on its own
    BLOCKED_SUM = "BLOCKED_SUM"  # so many steps of a sum at a time; these sums in a wider dtype
    KBLOCK = "KBLOCK"  # strips of a reduction run outside of the outputs, which add up in memory
    # so many steps of a reduction at a time for a whole row of outputs
    ROW_ACCUMULATE = "ROW_ACCUMULATE"
    TILE = "TILE"  # a loop of so many steps inside, which need not divide: the last ones run twice
    SLAB = "SLAB"  # what windows along the axis meet is loaded once, into scratch
    # the longest pass over rows asks for those so many steps of the axis further; a transpose for
    # the next block
    PREFETCH = "PREFETCH"
    NEXT = "NEXT"  # rows along the axis are first folded beside the last fold of the row before
    SKEW = "SKEW"  # results of a row are stored while the next row along the axis is computed
    NONTEMPORAL = "NONTEMPORAL"  # what the kernel stores goes past the caches
    # a product of narrow operands goes through panels, so many of a reduction in a word
    PACK_DOT = "PACK_DOT"
    TC = "TC"  # a tile for tensor cores
    GROUPTOP = "GROUPTOP"  # GROUP: which elements each work-item has makes no difference here


OF_REDUCTIONS = frozenset(
    {
        OptOps.UNROLL,
        OptOps.GROUP,
        OptOps.GROUPTOP,
        OptOps.STAGE,
        OptOps.KBLOCK,
        OptOps.ROW_ACCUMULATE,
        OptOps.PEEL,
        OptOps.PACK_DOT,
        OptOps.BLOCKED_SUM,
    }
)


class Opt(NamedTuple):
    """`arg` is the number of lanes or work-items (0: all of the axis), the multiple, or the other
    axis.
    """

    op: OptOps
    axis: int = 0
    arg: Any = 0

    def __repr__(self) -> str:
        return f"{self.op.name}({self.axis},{self.arg})"


def parse_opts(text: str) -> tuple[Opt, ...]:
    """The Opts of a text such as `VECTOR(1,8) UPCAST(0,4)`.

    Raises: ArgumentError at what is no Opt.
    """
    result = []
    for word in text.split():
        match = re.fullmatch(r"([A-Z_]+)\((\d+),(\d+)\)", word)
        if match is None or match[1] not in OptOps.__members__:
            raise ArgumentError(
                f"{word!r} is no Opt; one looks like VECTOR(1,8), with one of "
                f"{', '.join(OptOps.__members__)}"
            )
        result.append(Opt(OptOps[match[1]], int(match[2]), int(match[3])))
    return tuple(result)
