"""The schedule language: how the axes of a kernel run, as data.

An `Opt` names an axis and says what becomes of it, where there are several ways also how. The name
of an axis is that of its range, `r2`: it stays while others are split, swapped or unrolled, and
after lanes are split off it is that of the loop that is left. Programs written by hand may give the
position in `Kernel.axes` instead (outputs first, then reductions; Opts of reductions alone count
only these). A list of Opts is the whole of what a default schedule or a search decides; it prints
as text and parses back.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, NamedTuple

from aster_ml.errors import ArgumentError, KernelOptError
from aster_ml.uop.node import UOp


class UnknownOpts(Enum):
    """Opts that programs of tinygrad name and that no device here can do: none is ever applied."""

    NOLOCALS = "NOLOCALS"


class OptOps(Enum):
    """Kinds of change of an axis."""

    UPCAST = "UPCAST"  # split off lanes; of a reduction: accumulators side by side
    UNROLL = "UNROLL"  # split off lanes of a reduction that fold into one accumulator
    VECTOR = "VECTOR"  # split off lanes that make one SIMD value; of outputs the last start early
    THREAD = "THREAD"  # the axis goes outermost and is shared out over threads
    LOCAL = "LOCAL"  # split off work-items of a block
    GROUP = "GROUP"  # split off work-items that reduce together
    TC = "TC"  # a product of matrices as a tensor core has it: bits of its axes are work-items
    SPLIT = "SPLIT"  # an axis in two loops, or of another size, so that its tail is elsewhere
    SWAP = "SWAP"  # two output axes change places
    KBLOCK = "KBLOCK"  # steps of a reduction at a time, with sums of them in between
    STAGE = "STAGE"  # what is loaded again and again goes through scratch or local memory
    PREFETCH = "PREFETCH"  # loads so many steps of the axis further are asked for ahead of use
    PIPELINE = "PIPELINE"  # a part of the work on one row runs in the loops of the next
    NONTEMPORAL = "NONTEMPORAL"  # what the kernel stores goes past the caches
    BLOCKS = "BLOCKS"  # which tiles blocks compute, in which order
    # As programs of tinygrad call two of them: the same members.
    PADTO = "SPLIT"  # noqa: PIE796
    GROUPTOP = "GROUP"  # noqa: PIE796


type.__setattr__(OptOps, "NOLOCALS", UnknownOpts.NOLOCALS)
# In which ways an Opt can be done, where there are several; without a word it is the first.
WAYS: dict[OptOps, tuple[str, ...]] = {
    OptOps.UPCAST: ("", "shift"),
    OptOps.TC: ("", "chain"),
    OptOps.SPLIT: ("mask", "loop", "peel", "last"),
    OptOps.KBLOCK: ("output", "row", "wide"),
    OptOps.STAGE: ("local", "halo", "words", "row", "panel", "tile", "results", "out"),
    OptOps.BLOCKS: ("order", "loop", "cluster"),
    OptOps.PIPELINE: ("stores", "folds", "copies", "producer"),
}
ELSEWHERE = frozenset(UnknownOpts.__members__)
OF_REDUCTIONS = frozenset(
    {
        "UNROLL", "GROUP", "TC", "TC chain", "SPLIT peel", "SPLIT last", "KBLOCK output",
        "KBLOCK row", "KBLOCK wide", "STAGE local", "STAGE words", "STAGE row", "PIPELINE copies",
        "PIPELINE producer",
    }
)  # fmt: skip
# These are of outputs alone.
OF_OUTPUTS = frozenset(
    {
        "THREAD", "UPCAST shift", "SWAP", "SPLIT loop", "STAGE halo",
        "PIPELINE stores", "PIPELINE folds", "BLOCKS order", "BLOCKS cluster",
    }
)  # fmt: skip


# These are of a kernel as a whole: their axis is 0 and says nothing.
OF_KERNELS = frozenset(
    {"STAGE panel", "STAGE tile", "STAGE results", "STAGE out", "NONTEMPORAL", "BLOCKS loop"}
)
# These name an axis of outputs in place of a number.
WITH_OTHER = frozenset({"SWAP", "STAGE row"})


class OptDoc(NamedTuple):
    """Documentation of a kind of Opt: `rewrite` is before -> after, `when` says what it may be
    done to, `why` what it gains. `example` is a text of Opts, of which the last one is meant, and
    `kernel` names what they are done to in `tools/make_opts_doc.py`.
    """

    rewrite: str
    when: str
    why: str
    kernel: str
    example: str


# By kind: the name of an Opt, and the way where there are several.
OPT_DOCS = {
    "UPCAST": OptDoc(
        "axis i of n -> i * arg + j, j an UPCAST of arg lanes",
        "arg divides the axis, or the axis has SIMD lanes of which the last start early; arg 0 "
        "takes all of it",
        "a register tile: what does not depend on j is loaded once for all lanes; of a reduction, "
        "accumulators side by side, so that no addition waits for the one before",
        "product",
        "VECTOR(r1,8) UPCAST(r0,4)",
    ),
    "UPCAST shift": OptDoc(
        "axis i of n -> min(i * arg, n - arg) + j, j an UPCAST of arg lanes",
        "an axis of outputs of a kernel that reads nothing that it stores",
        "a register tile of any size without masks: the tail shifts inwards, and what the last "
        "lanes have in common with those before is computed twice",
        "product, odd",
        "UPCAST(r0,6,shift)",
    ),
    "UNROLL": OptDoc(
        "axis k of a reduction -> k * arg + j, j an UNROLL of arg lanes",
        "arg divides the reduction's axis; arg 0 takes all of it",
        "fewer iterations of a short loop; neighbours along k can be loaded as one SIMD value",
        "row sums",
        "UNROLL(r1,4)",
    ),
    "VECTOR": OptDoc(
        "axis i of n -> i * arg + j, j a VECTOR of arg lanes",
        "arg divides the axis; where it does not, the axis is one of outputs and the tail shifts "
        "inwards: the last lanes start at n - arg",
        "one SIMD instruction does the work of arg; each access is a vector load, a broadcast or a "
        "gather by its stride along j; of a reduction, lanes that are folded at the end",
        "elementwise, odd",
        "VECTOR(r0,8)",
    ),
    "THREAD": OptDoc(
        "axis i -> outermost, and each thread runs a part of it; of arg parts where arg is not 0",
        "no other axis is shared out, and steps of this one may run in any order",
        "all cores work; parts of a length that fits a cache keep what they read there",
        "product",
        "THREAD(r0,0)",
    ),
    "LOCAL": OptDoc(
        "axis i of n -> i * arg + j, j the work-items of a block",
        "arg divides the axis; the device has work-groups",
        "work-items of a block run at once, and neighbours among them read neighbours in memory",
        "product",
        "LOCAL(r1,8)",
    ),
    "GROUP": OptDoc(
        "axis k of a reduction -> k * arg + j, j work-items that reduce together",
        "arg divides the axis; the device has work-groups and barriers",
        "a long reduction with few results has work for a whole block",
        "row sums",
        "GROUP(r1,4)",
    ),
    "TC": OptDoc(
        "m, n, k -> bits that are work-items of a warp, registers and one MMA over those of k",
        "the one reduction is a product of operands of the dtype of the tensor core arg, a row of "
        "`target/tensor_cores`, whose sizes divide the axes; the device has it",
        "a warp multiplies small matrices in one instruction",
        "half product",
        "TC(r2,3)",
    ),
    "TC chain": OptDoc(
        "max, sum and product of powers of scores over the keys i -> one loop over tiles of i, in "
        "which results so far are rescaled where a row has a new maximum",
        "a row of the kernel library computes the kernel, of operands of the dtype of the tensor "
        "core arg, whose results lie as operands do; the device has it",
        "scores stay in registers, and are computed once and not three times",
        "chained products",
        "TC(r3,3,chain)",
    ),
    "SPLIT mask": OptDoc(
        "axis of n -> axis of the next multiple of arg, loads and stores behind n masked",
        "the size is a number",
        "lanes that do not divide an axis, where a tail may not run twice",
        "elementwise, odd",
        "SPLIT(r0,8,mask)",
    ),
    "SPLIT loop": OptDoc(
        "axis i of n -> min(i * arg, n - arg) + j, j a loop of arg steps",
        "an axis of outputs of a kernel that reads nothing that it stores",
        "a part of the axis whose working set fits in a cache, or is a thread's; the tail shifts "
        "inwards",
        "column sums",
        "SPLIT(r0,96,loop)",
    ),
    "SPLIT peel": OptDoc(
        "reduce(k < n) -> reduce(k < arg) + reduce(k < n - arg)",
        "one reduction alone runs over the axis",
        "lanes divide the first part, and the uneven rest has a loop of its own: no masks",
        "row sums, odd",
        "SPLIT(r1,96,peel)",
    ),
    "SPLIT last": OptDoc(
        "reduce(k < n), masked at k = n - 1 alone -> reduce(k < n - 1) + the step n - 1",
        "one reduction alone runs over the axis, and nothing but its last step is masked",
        "a mask takes a comparison at every step, and that of one known step is a number; a panel "
        "is filled for both parts at once, which two reductions could not have",
        "row sums, odd",
        "SPLIT(r1,104,mask) VECTOR(r1,8) SPLIT(r1,0,last)",
    ),
    "SWAP": OptDoc(
        "loops i and arg of outputs change places",
        "both are axes of outputs",
        "loop interchange: what the inner loop does not change is loaded, or packed, less often",
        "product",
        "SWAP(r0,r1)",
    ),
    "KBLOCK output": OptDoc(
        "reduce(k < n) -> a loop over strips of arg steps outside of the outputs, whose partial "
        "results lie in the output between strips",
        "one store of one sum or maximum, in its own dtype, that reads nothing that it stores",
        "K blocking: the working set of a strip, a panel or some rows, stays in a cache",
        "product",
        "KBLOCK(r2,8,output)",
    ),
    "KBLOCK row": OptDoc(
        "arg steps of a reduction at a time for a whole row of outputs, partial sums in scratch",
        "one reduction over one axis is all that runs in the loops of outputs",
        "a reduction over columns reads whole rows of memory, in place of a few columns of each",
        "column sums",
        "VECTOR(r0,8) KBLOCK(r1,4,row)",
    ),
    "KBLOCK wide": OptDoc(
        "sum(k < n) -> sum in float64 of sums over arg steps",
        "a sum of float32 or float64 over an axis of which the size is a number",
        "rounding errors grow with the number of additions in a row: short inner sums, and an "
        "outer one that loses nothing",
        "row sums, odd",
        "KBLOCK(r1,16,wide)",
    ),
    "STAGE local": OptDoc(
        "axis k of a reduction -> k * arg + j; loads of arg steps go through local memory",
        "arg divides the axis; the device has work-groups and barriers",
        "what several work-items of a block read comes from memory once",
        "product",
        "UPCAST(r0,4) LOCAL(r1,8) STAGE(r2,4,local)",
    ),
    "STAGE halo": OptDoc(
        "windows read memory -> a STAGE in scratch holds what they meet, and windows read that; "
        "arg 0: elements of one phase of the stride side by side, 1: as in memory",
        "an axis of outputs with sliding windows of one load along it",
        "a halo: overlapping windows load each element once, and those with a stride or padding "
        "load whole SIMD values",
        "strided windows",
        "STAGE(r2,0,halo)",
    ),
    "STAGE words": OptDoc(
        "sum of CAST(a) * CAST(b) -> sum of products of words, arg neighbours of the reduction in "
        "each, both operands in packed panels",
        "one sum of products of loaded narrow numbers over one axis; arg is 1 (numbers converted "
        "once) or as many as fit in 32 bits",
        "one dot-product instruction multiplies and adds four int8, or two bfloat16, a lane",
        "int8 product",
        "VECTOR(r1,8) UPCAST(r0,4) STAGE(r2,1,words)",
    ),
    "STAGE row": OptDoc(
        "v(k) in a reduction over k, and v(i) along the outputs arg -> LOADs of a STAGE over a row",
        "a value that takes long, of a row that a reduction and loops of outputs read",
        "each element is computed once, not twice",
        "softmax",
        "STAGE(r3,r1,row)",
    ),
    "STAGE panel": OptDoc(
        "load from slot arg in a reduction -> load of a packed panel in scratch, filled beforehand",
        "a load with SIMD lanes of outputs at constant steps, of memory that nobody stores to, in "
        "the one reduction of a kernel",
        "lanes that are gathered once can be loaded whole from then on; and rows far apart fall on "
        "the same few places of a cache, while packed they are one stream",
        "product",
        "VECTOR(r1,8) UPCAST(r0,4) STAGE(0,2,panel)",
    ),
    "STAGE tile": OptDoc(
        "store(f(reduction)) over lanes -> scratch = reduction over lanes, and a loop of "
        "store(f(scratch)); arg: SIMD lanes at a time, 0 for all",
        "one store of one register tile, whose lanes the reduction has all",
        "an epilogue in a loop: what is written out many times over takes a compiler as long as "
        "all of the sum; fewer SIMD lanes at a time are transposed where they lie apart",
        "product",
        "VECTOR(r1,8) UPCAST(r0,4) STAGE(0,0,tile)",
    ),
    "STAGE results": OptDoc(
        "as STAGE tile, but f(scratch) goes through scratch too, in all SIMD lanes, before it is "
        "stored arg lanes at a time",
        "as STAGE tile, where arg is less than the SIMD lanes",
        "what takes long is computed in all lanes, though they are stored a few at a time",
        "product",
        "VECTOR(r0,8) UPCAST(r1,4) STAGE(0,4,results)",
    ),
    "STAGE out": OptDoc(
        "store(value) of all work-items -> local memory = value; a barrier; pieces of local memory "
        "are stored, boxes where boxes of tensors bring operands; arg 1: in the memory of operands",
        "a product on tensor cores with one store, of a tensor that it does not read and whose "
        "strides are multiples of 16 bytes; with a producer, which fills the memory of operands "
        "on, arg is 0",
        "results leave in whole sectors of memory, where registers of a warp have halves of them; "
        "boxes are on their way while the block goes on with its next tile",
        "product of boxes",
        "TC(r2,13) STAGE(r2,4,local) PIPELINE(r2,2,producer) STAGE(0,0,out)",
    ),
    "PREFETCH": OptDoc(
        "loads of a step of the axis -> loads that also ask for what comes arg steps later",
        "rows that are read twice in a step, columns or a tile of rows in a reduction, or blocks "
        "of a transpose",
        "memory that the hardware does not foresee is in the cache when it is wanted",
        "column sums",
        "VECTOR(r0,8) KBLOCK(r1,4,row) PREFETCH(r0,1)",
    ),
    "PIPELINE stores": OptDoc(
        "for row: fill scratch; store -> for row: fill scratch, storing the row before",
        "each step of the axis keeps a row in scratch and stores one",
        "software pipelining: stores to memory and arithmetic overlap",
        "softmax",
        "STAGE(r3,r1,row) VECTOR(r1,8) VECTOR(r2,8) VECTOR(r3,8) PIPELINE(r0,0,stores)",
    ),
    "PIPELINE folds": OptDoc(
        "for row: fold A; fold B -> for row: fold B with fold A of the next row",
        "each step of the axis folds twice in loops of as many iterations, first a row of memory",
        "software pipelining: neither fold waits alone for its last additions, nor for memory",
        "distances",
        "VECTOR(r1,8) VECTOR(r2,8) PIPELINE(r0,0,folds)",
    ),
    "PIPELINE copies": OptDoc(
        "for k: fill local; wait; use -> fill for arg - 1 steps; for k: wait; fill for step "
        "k + arg - 1; use",
        "an axis of a reduction whose loads STAGE local takes through local memory, of arg steps "
        "or more; arg is 2 or more; without copies that go on by themselves it is 2",
        "software pipelining: memory is on its way while what came before is multiplied",
        "product",
        "UPCAST(r0,4) LOCAL(r1,8) STAGE(r2,4,local) PIPELINE(r2,2,copies)",
    ),
    "PIPELINE producer": OptDoc(
        "for k: fill local; wait; use -> in a warp of its own: for k: wait until free; fill; in "
        "all others: for k: wait; use; release",
        "as PIPELINE copies, of a product whose operands boxes of tensors bring",
        "warp specialisation: no warp that multiplies waits for the others of its block",
        "product of boxes",
        "TC(r2,13) STAGE(r2,4,local) PIPELINE(r2,2,producer)",
    ),
    "BLOCKS order": OptDoc(
        "block b -> of strips of arg steps of the axis, step b % arg, and b / arg of other axes",
        "an axis of outputs that blocks are numbered by",
        "blocks that run at once read few rows and columns of tiles, which stay in the cache that "
        "they share",
        "product of boxes",
        "LOCAL(r0,8) BLOCKS(r0,2,order)",
    ),
    "BLOCKS loop": OptDoc(
        "a block for each tile -> arg blocks, for t: tile t * arg + block",
        "PIPELINE producer",
        "persistent blocks: what the next tile reads is on its way while the last results are "
        "stored",
        "product of boxes",
        "TC(r2,13) STAGE(r2,4,local) PIPELINE(r2,2,producer) BLOCKS(0,2,loop)",
    ),
    "BLOCKS cluster": OptDoc(
        "each of arg blocks copies its tiles -> arg blocks along the axis are a cluster, each of "
        "which copies a part of the tile that all of them read to all of them",
        "PIPELINE producer, of a product, and its axis m or n; arg is 2 or 4",
        "the cache that blocks share is read once for what two or four blocks multiply",
        "product of boxes",
        "TC(r2,13) STAGE(r2,4,local) PIPELINE(r2,2,producer) BLOCKS(r0,2,cluster)",
    ),
    "NONTEMPORAL": OptDoc(
        "stores -> non-temporal stores",
        "stores of SIMD lanes that are neighbours in memory, without a mask",
        "results that no cache holds until they are read: memory is not read before it is written",
        "elementwise",
        "VECTOR(r0,8) NONTEMPORAL(0,0)",
    ),
}


class Opt(NamedTuple):
    """`axis` is the name of an axis, or its position. `arg` is the number of lanes, steps or
    work-items (0: all of the axis), the multiple, or the other axis; `how` one of the ways in which
    the Opt can be done.
    """

    op: OptOps
    axis: int | str = 0
    arg: Any = 0
    how: str = ""

    @property
    def kind(self) -> str:
        """Kind and way in one text: `UPCAST`, `SPLIT loop`."""
        how = self.how or WAYS.get(self.op, ("",))[0]
        return f"{self.op.name} {how}" if how else self.op.name

    def __repr__(self) -> str:
        words = [str(self.axis), str(self.arg), *self.kind.split(" ")[1:]]
        return f"{self.op.name}({','.join(words)})"


def axis_name(axis: UOp) -> str:
    """Name of an axis in Opts: that of its range."""
    return f"r{axis.arg.id}"


def wanted_of(op: OptOps) -> str:
    """The ways in which an Opt can be done, for errors."""
    ways = " or ".join(repr(how) for how in WAYS.get(op, ()) if how)
    return f"how it is done is one of {ways}" if ways else f"there is no {op.name} on this device"


def parse_opts(text: str) -> tuple[Opt, ...]:
    """The Opts of a text such as `VECTOR(r1,8) SPLIT(r0,64,loop)`, or `VECTOR(1,8)` by position.

    Raises: ArgumentError at what is no Opt, KernelOptError at one that no device here can do.
    """
    result = []
    for word in text.split():
        match = re.fullmatch(r"([A-Z]+)\((r?\d+),(r?\d+)(?:,([a-z]+))?\)", word)
        if match is not None and match[1] in ELSEWHERE:
            raise KernelOptError(f"{word}: there is no {match[1]} on this device")
        if match is None or match[1] not in OptOps.__members__:
            raise ArgumentError(
                f"{word!r} is no Opt; one looks like VECTOR(r1,8) or SPLIT(r0,64,loop), with one "
                f"of {', '.join(op.name for op in OptOps)}"
            )
        axis, arg = [int(x) if x.isdigit() else x for x in match.group(2, 3)]
        opt = Opt(OptOps[match[1]], axis, arg, match[4] or "")
        if isinstance(arg, str) and opt.kind not in WITH_OTHER:
            raise ArgumentError(f"{word!r} is no Opt: a number is wanted in place of {arg}")
        if opt.how and opt.how not in WAYS.get(opt.op, ()):
            raise ArgumentError(f"{word!r} is no Opt: {wanted_of(opt.op)}")
        result.append(opt)
    return tuple(result)
