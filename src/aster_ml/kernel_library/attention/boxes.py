"""Builds attention on tensor cores that read TMA tiles from local memory (Hopper).

Receives a kernel of which the Opt TC chain names a row with an operand A of a work-item's own, and
a target; returns its graph in program order, as `kernel` does for rows of registers. Boxes bring
queries, keys and values (`work_groups/tma_tiles`): queries once, the others a tile at a time, in
stages that the Opts PIPELINE copies and PIPELINE producer fill ahead. Each group of four warps
has 64 queries; it multiplies them by the keys of a tile out of local memory, and powers in its
registers by values that lie with their columns as neighbours.

rewrite: as there, with o = o * a; o += p @ v, so that the product adds to what was rescaled
when: queries, keys and values are plain loads with heads as neighbours, whose other strides are
multiples of 16 bytes; heads are filled up to whole rows of boxes, which are 0 there
"""

from __future__ import annotations

from aster_ml.codegen.staging.stage import position
from aster_ml.codegen.work_groups.tma_tiles import address_of
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.kernel_library.attention.kernel import Builder
from aster_ml.kernel_library.attention.parts import Attention
from aster_ml.target import Target
from aster_ml.target.tensor_cores import TENSOR_CORES, TensorCore
from aster_ml.target.tensor_maps import ALIGNMENT, MOST_DIMS, ROW_NBYTES
from aster_ml.uop.node import UOp, index_alu, index_sum, index_times
from aster_ml.uop.ops import MmaArg, Ops, TmaArg
from aster_ml.uop.ranges import size_of

# Groups of four warps of a block, each of which has the rows of one product.
GROUPS = 2
# Keys of a tile: as many as the widest scores that leave registers for results and powers.
MOST_KEYS, FEWEST_KEYS = 128, 64
# Columns of values that lie side by side, and places along a head of queries and keys.
ROW = ROW_NBYTES // 2
# Source: PTX ISA 8.7, "wgmma.mma_async" (N up to 256).
MOST_COLUMNS = 256
MOST_STAGES = 4
# Of heads that are together no wider, powers wait in registers for values to be multiplied.
MOST_AHEAD = 128


def whole_rows(n: int) -> int:
    """The width of a head in local memory."""
    return int(ceildiv(n, ROW) * ROW)


def keys_of_boxes(parts: Attention) -> int:
    """Number of keys in one stage."""
    return MOST_KEYS if size_of(parts.keys) > MOST_KEYS else FEWEST_KEYS


def columns_of_product(parts: Attention) -> int:
    """Columns of values that one product has: a power of two that divides all of them."""
    width = whole_rows(size_of(parts.columns))
    return min(width & -width, MOST_COLUMNS)


def why_no_boxes(parts: Attention, core: TensorCore) -> str:
    """Names what keeps TMA from bringing operands of attention to a tensor core, if anything."""
    if core.size("n") != columns_of_product(parts):
        return f"{columns_of_product(parts)} columns at a time are wanted"
    widths = size_of(parts.depth), size_of(parts.columns)
    if sum([whole_rows(n) for n in widths]) > MOST_COLUMNS:
        return "heads are too wide for the registers"
    if size_of(parts.keys) <= keys_of_boxes(parts):
        return f"more than {keys_of_boxes(parts)} keys are wanted"
    operands = (
        (parts.q, parts.rows, parts.depth), (parts.k, parts.keys, parts.depth),
        (parts.v, parts.keys, parts.columns),
    )  # fmt: skip
    for load, far, near in operands:
        try:
            terms = address_of(load, core).terms
        except KernelOptError as error:
            return str(error)
        rest = [n * load.dtype.itemsize for r, n in terms.items() if r is not near]
        fixed = all([r.src[0].op is Ops.CONST for r in terms])
        if terms.get(near) != 1 or far not in terms or not fixed or len(load.src) > 1:
            return "heads are no neighbours"
        if len(terms) > MOST_DIMS or any([n <= 0 or n % ALIGNMENT for n in rest]):
            return f"strides are no multiples of {ALIGNMENT} bytes, or too many"
    return ""


def stages_of(parts: Attention, core: TensorCore, target: Target) -> int:
    """Number of tiles of keys and values that fit beside queries; 1 where none does."""
    widths = [whole_rows(size_of(r)) * 2 for r in (parts.depth, parts.columns)]
    tile = keys_of_boxes(parts)
    room = target.local_bytes - GROUPS * ROW * widths[0]
    return int(min(MOST_STAGES, room // (tile * sum(widths)), ceildiv(size_of(parts.keys), tile)))


def overlaps_exp(parts: Attention) -> bool:
    """Whether powers of two tiles and results have registers at once."""
    widths = (size_of(parts.depth), size_of(parts.columns))
    return sum([whole_rows(n) for n in widths]) <= MOST_AHEAD


class BoxBuilder(Builder):
    """One kernel whose operands boxes bring, while it is being built.

    `tall` are the rows of a group, which is as many as one product has.
    """

    most_warps, most_together = GROUPS, MOST_COLUMNS

    def keys_of_tile(self) -> int:
        """Number of keys of one stage."""
        return keys_of_boxes(self.parts)

    def core_of_scores(self) -> TensorCore:
        """The row of as many columns as a tile has keys, of operands in local memory."""
        sizes = f"m{self.core.size('m')}n{self.tile}k{self.step}"
        return TENSOR_CORES[f"cuda_wgmma_{sizes}_{self.core.dtype}"]

    def boxed(
        self, load: UOp, rows: UOp, head: UOp, first: UOp, tall: int, parts: int = 1
    ) -> tuple[UOp, list[UOp]]:
        """Local memory for `tall` rows of an operand from `first` on, and what fills it.

        It has `parts` of as many rows, each of which has its columns in blocks of 128 bytes.
        """
        form = address_of(load, self.core)
        others = {r: n for r, n in form.terms.items() if r is not rows and r is not head}
        width, each = whole_rows(size_of(head)), tall // parts
        memory = self.memory(load.dtype, (), tall * width)
        arg = TmaArg(
            form.const,
            (size_of(head), size_of(rows), *[size_of(r) for r in others]),
            (1, form.terms[rows], *others.values()),
            (ROW, each, *[1] * len(others)),
        )
        places = [self.outside[r] for r in others]
        boxes = []
        for part in range(parts):
            start = index_alu(Ops.ADD, first, UOp.index_const(part * each))
            for i in range(width // ROW):
                at = memory.index(UOp.index_const((part * width + i * ROW) * each))
                column = UOp.index_const(i * ROW)
                src = (at, load.src[0].src[0], column, start, *places)
                boxes.append(UOp(Ops.TMA_LOAD, dtypes.void, src, arg))
        return memory, boxes

    def fill(self) -> None:
        """Boxes of the keys and values of a tile; values in parts of as many keys as a row has."""
        parts, first = self.parts, index_times(self.loop, self.tile)
        keys, of_keys = self.boxed(parts.k, parts.keys, parts.depth, first, self.tile)
        values, of_values = self.boxed(
            parts.v, parts.keys, parts.columns, first, self.tile, self.tile // ROW
        )
        there = UOp(Ops.BARRIER, dtypes.void, (*of_keys, *of_values))
        self.key_memory, self.value_memory = keys.after(there), values.after(there)

    def scores(self) -> UOp:
        """The queries of a group times the keys of a tile."""
        parts, tall = self.parts, self.core.size("m")
        height = tall * self.warps
        memory, boxes = self.boxed(parts.q, parts.rows, parts.depth, self.start, height)
        queries = memory.after(UOp(Ops.BARRIER, dtypes.void, tuple(boxes)))
        # Places along a head are taken some at a time, out of one block of columns after another.
        each = UOp.index_const(ROW // self.step)
        block = index_alu(Ops.IDIV, self.piece, each)
        inside = index_times(index_alu(Ops.MOD, self.piece, each), self.step)
        operands = []
        for rows, mine, first in ((height, queries, self.warp), (self.tile, self.key_memory, None)):
            terms = [index_times(block, ROW * rows), inside]
            terms += [index_times(first, tall * ROW)] if first is not None else []
            operands.append(mine.index(index_sum(terms)).load())
        own = [self.lane(word, scores=True) for word in self.score_core.bits("c")[1]]
        arg = MmaArg(self.score_core.name, 0, 0, "kk")
        made = UOp(Ops.MMA, dtypes.float32, (*operands, *own), arg)
        return self.folded(made, Ops.ADD, self.piece)

    def mixed(self, powers: UOp, column: UOp) -> UOp:
        """Powers, as a work-item has them, times all columns of the values of a tile."""
        core = self.core
        width, n = whole_rows(self.heads[1]), core.size("n")
        # Bits of keys beyond those of one product, by how far apart their values lie.
        inside = {w for w in core.bits("a")[1] if w[0] == "k"}
        more = {int(w): r for w, r in self.key_bits.items() if f"k{w}" not in inside}
        far = {w: ROW if 1 << w < ROW else width for w in more}
        terms = [index_times(r, (1 << w) * far[w]) for w, r in more.items()]
        columns = index_times(position(self.columns), n * ROW)
        value = self.value_memory.index(index_sum([*terms, columns])).load()
        of_a = [self.lane(word, scores=True) for word in core.bits("a")[1]]
        own = [self.lane(word, scores=False) for word in core.bits("c")[1]]
        arg = MmaArg(core.name, len(of_a), 0, "rn")
        made = UOp(Ops.MMA, dtypes.float32, (powers, value, *of_a, *own), arg)
        return self.folded(made, Ops.ADD, *more.values())

    def lane(self, word: str, scores: bool) -> UOp:
        """The lane of a bit of a register; along k, and along n of scores, it is one of keys."""
        if word[0] == "m":
            return self.row_bits[word[1:]]
        return (self.key_bits if scores else self.column_bits)[word[1:]]

    @staticmethod
    def added(results: UOp, again: UOp, mixed: UOp) -> UOp:
        """Results so far are rescaled first: what a product is added to (`async_mma`)."""
        return results.alu(Ops.MUL, again).alu(Ops.ADD, mixed)
