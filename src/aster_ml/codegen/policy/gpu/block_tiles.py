"""Block tiles of matrix products: which there are, what each costs, and the Opts of the cheapest.

Receives a kernel; applies Opts to it where it is a product. A tile is work-items (of a tensor
core: warps) times lanes (of a tensor core: products) along two axes of outputs, and a strip of
steps of the reduction, whose operands all work-items load into local memory together.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.pipeline.plan import is_innermost
from aster_ml.codegen.policy.gpu.edges import fill_up, is_at_least
from aster_ml.codegen.work_groups.tensor_cores import Product, product_of
from aster_ml.codegen.work_groups.tma_epilogue import can_leave, fills_sectors
from aster_ml.codegen.work_groups.tma_tiles import can_be_boxes
from aster_ml.codegen.work_groups.vector_epilogue import PIECE_NBYTES
from aster_ml.config import ALLOW_TF32, BOXES
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import UNTRIED, Target
from aster_ml.target.costs import A100, H100
from aster_ml.target.tensor_cores import ROWS, TensorCore
from aster_ml.target.tensor_maps import MOST_BOX, ROW_NBYTES
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import iterations, size_of


class Tile(NamedTuple):
    """Work-items and lanes along two axes, and steps of a strip."""

    items: tuple[int, int]
    lanes: tuple[int, int]
    strip: int

    def sides(self, unit: tuple[int, int]) -> tuple[int, int]:
        """Results of a block along both axes, of `unit` results a lane."""
        first, second = [i * n * u for i, n, u in zip(self.items, self.lanes, unit, strict=True)]
        return first, second


TILES = (
    Tile((8, 8), (4, 4), 8), Tile((8, 8), (2, 2), 8), Tile((16, 16), (4, 4), 8),
    Tile((16, 16), (8, 8), 8),
)  # fmt: skip
# Where a kernel may run on any card, and nobody knows how many registers a work-item has; each
# work-item fills four neighbours of a strip.
PORTABLE_TILES = (
    Tile((8, 8), (4, 4), 8), Tile((8, 8), (2, 2), 16), Tile((16, 16), (4, 4), 16),
    Tile((16, 16), (8, 4), 16),
)  # fmt: skip
# So many are tried where nothing is known of warps and registers. Measured: on PoCL, 2026-11-26,
# with 128 x 128 results of 8 x 8 lanes a product of 512 takes four times as long as with the first.
UNKNOWN = 2
# A strip may be longer than the reduction by one in so many of its steps, which are masked.
SPARE = 4
# Results of a work-item that are neighbours: an operand of 16 bytes.
# Source: PTX ISA 8.7, "ld" (vectors of 128 bits).
NEAR_LANES = 4
# Of warps and products; a strip is of so many times the k of the tensor core.
WARP_TILES = (
    Tile((1, 1), (1, 1), 1), Tile((1, 1), (1, 2), 1), Tile((1, 1), (2, 2), 2),
    Tile((2, 2), (1, 2), 2), Tile((2, 2), (2, 4), 2), Tile((2, 2), (4, 4), 2),
    Tile((2, 2), (4, 8), 2), Tile((2, 4), (4, 8), 2), Tile((1, 4), (1, 1), 4),
    Tile((1, 4), (1, 2), 4),
)  # fmt: skip
# Of a longer axis than this a tensor core multiplies with few rows, which are filled up.
LONG = 64
# Of groups of four warps and products, of which a work-item has 128 sums at most.
GROUP_TILES = (
    Tile((2, 1), (1, 1), 1), Tile((1, 1), (1, 1), 1), Tile((2, 1), (2, 1), 1),
)  # fmt: skip
# Stages of local memory, where copies go on by themselves: two are read and filled, the others are
# on their way.
MAX_STAGES = 4
# Bytes that a processor has to have on their way, so that memory is busy.
ON_THEIR_WAY = 48 << 10
# What one multiplication and addition of float32 takes on an A100 is 1: what it takes on a tensor
# core, and to read four bytes of local memory.
ON_CORE = A100.multiplications / A100.on_cores
LOCAL_READ = A100.multiplications / (A100.local_nbytes // 4)
# The same on an H100, where operands lie in local memory, which is read once for four warps.
FROM_BOXES = A100.multiplications / H100.on_cores
# Blocks of a cluster: processors stand in pairs, and by four some of them would have no block.
# Source: NVIDIA H100 Tensor Core GPU Architecture (white paper): two SMs a TPC, 66 TPCs.
PAIR = 2
# Accumulators of a work-item: half of the registers that it can have.
MAX_SUMS = ceildiv(A100.own_registers, 2)
# The same where a product of fp8 is made of several instructions, with operands of their own: those
# that leave room for all other work-items.
MAX_SUMS_APART = A100.registers // A100.items


def price(
    tile: Tile, unit: tuple[int, int], sizes: tuple[int, int], itemsize: int, others: int,
    units: int, rate: float = 1.0, own: int = 0,
) -> float:  # fmt: skip
    """Cost of a step of the reduction for all results, in multiplications.

    `own` numbers are read from local memory for the results of a work-item, or of a warp, where
    each of them is not read once.
    What is beyond the end of an axis is computed too, and processors that have no block left wait
    for the others.
    """
    sides = tile.sides(unit)
    blocks = others * prod([ceildiv(n, side) for n, side in zip(sizes, sides, strict=True)])
    blocks = ceildiv(blocks, units) * units if units else blocks
    own = own or sum([n * u for n, u in zip(tile.lanes, unit, strict=True)])
    own *= prod(tile.items)
    reads = (LOCAL_READ * own + A100.far_read * sum(sides)) * itemsize / 4
    return float(blocks * (prod(sides) * rate + reads))


def tile_block(kernel: Kernel, target: Target, outputs: list[UOp], rank: int = 0) -> bool:
    """The tile of a matrix product, if the kernel is one and the sizes fit.

    With a `rank` not the cheapest, but one of the next, for a search.
    """
    main = [u for u in kernel.reduces if set(kernel.outputs) <= u.ranges]
    if len(main) != 1 or len(kernel.reduces) != 1 or not main[0].src[1:]:
        return False
    depth = max(main[0].src[1:], key=size_of)
    boxes = box_choices(kernel, target, depth)
    if rank < len(boxes):
        use_boxes(kernel, target, depth, boxes[rank])
        return True
    rank -= len(boxes)
    return use_core(kernel, target, depth, rank) or stage_tile(
        kernel, target, main[0], depth, outputs, rank
    )


def is_allowed(core: TensorCore, target: Target) -> bool:
    """Whether a target has a tensor core, and numbers may be rounded as it does."""
    return core.name in target.tensor_cores and bool(ALLOW_TF32 or not core.rounds)


class Choice(NamedTuple):
    """A product on a tensor core that reads boxes: the number of its row, the product, a tile."""

    number: int
    product: Product
    tile: Tile

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns of one product."""
        core = ROWS[self.number]
        return core.size("m"), core.size("n")


def box_choices(kernel: Kernel, target: Target, depth: UOp) -> list[Choice]:
    """Products whose operands boxes bring to local memory, some strips ahead; the cheapest first.

    It is for products of two strips or more, whose rows and columns fill a tile.
    """
    if not BOXES or (BOXES < 0 and UNTRIED in target.features):
        return []
    choices = []
    for i, core in enumerate(ROWS):
        found = product_of(kernel, depth, core) if core.reads_shared else None
        if found is None or not is_allowed(core, target):
            continue
        pairs = ((found.a, found.m), (found.b, found.n))
        if not all([can_be_boxes(load, core, r, depth) for load, r in pairs]):
            continue
        choices += [c for t in GROUP_TILES if has_room(c := Choice(i, found, t), target, depth)]
    return sorted(choices, key=lambda c: price_of_boxes(kernel, target, c))


def use_boxes(kernel: Kernel, target: Target, depth: UOp, best: Choice) -> None:
    """Opts of such a product."""
    core, found, sides = ROWS[best.number], best.product, best.tile.sides(best.unit)
    strip = ROW_NBYTES // found.a.dtype.itemsize
    itemsize = kernel.stores[0].src[1].dtype.itemsize
    leaves = not fills_sectors(itemsize) and can_leave(kernel, (found.m, found.n))
    for r, n in ((found.m, sides[0]), (found.n, sides[1]), (depth, strip)):
        fill_up(kernel, r, n)
    apply(kernel, Opt(OptOps.TC, axis_name(depth), best.number))
    axis = axis_name(found.m)
    for op, n in ((OptOps.UPCAST, best.tile.lanes[0]), (OptOps.LOCAL, best.tile.items[0])):
        if n > 1:
            apply(kernel, Opt(op, axis, n))
    apply(kernel, Opt(OptOps.STAGE, axis_name(depth), strip // core.size("k"), how="local"))
    most = min(MAX_STAGES, ceildiv(size_of(depth), strip))
    stages = min(most, stages_in(sides, target))
    if BOXES < 2:
        apply(kernel, Opt(OptOps.PIPELINE, axis_name(depth), stages, how="copies"))
        # Nothing is copied any more by then.
        if leaves and prod(sides) * itemsize <= target.local_bytes:
            apply(kernel, Opt(OptOps.STAGE, arg=1, how="out"))
        return
    beside = min(most, stages_in(sides, target, prod(sides) * itemsize))
    leaves = leaves and beside >= min(most, MAX_STAGES - 1)
    stages = beside if leaves else stages
    apply(kernel, Opt(OptOps.PIPELINE, axis_name(depth), stages, how="producer"))
    loop_blocks(kernel, (axis, axis_name(found.n)), sides, target.units)
    if leaves:
        apply(kernel, Opt(OptOps.STAGE, arg=0, how="out"))


def loop_blocks(kernel: Kernel, axes: tuple[str, str], sides: tuple[int, int], units: int) -> None:
    """As many blocks as there are processors; at a time they compute about a square of results.

    Two blocks are a cluster, where that takes no more turns.
    """
    tiles = {axis_name(r): size_of(r) for r in kernel.output_loops}
    first, second = sides
    joined = pair_of_blocks(tiles, axes, sides, units)
    at_once = units
    if joined is not None:
        apply(kernel, Opt(OptOps.BLOCKS, joined, PAIR, how="cluster"))
        tiles[joined] = ceildiv(tiles[joined], PAIR)
        first, second = [n * (PAIR if x == joined else 1) for x, n in zip(axes, sides, strict=True)]
        at_once = units // PAIR
    rows = round((at_once * second / first) ** 0.5)
    if len(tiles) > 1 and 1 < rows < tiles.get(axes[0], 0):
        apply(kernel, Opt(OptOps.BLOCKS, axes[0], rows, how="order"))
    if tiles and units:
        apply(kernel, Opt(OptOps.BLOCKS, 0, units, how="loop"))


def pair_of_blocks(
    tiles: dict[str, int], axes: tuple[str, str], sides: tuple[int, int], units: int
) -> str | None:
    """The axis along which two blocks read one operand, the larger one where both could do."""
    count = prod(tiles.values())
    for _, axis in sorted(zip(sides, axes, strict=True)):
        n = tiles.get(axis, 1)
        pairs = count // n * ceildiv(n, PAIR)
        if n > 1 and units and units % PAIR == 0:
            if ceildiv(pairs, units // PAIR) == ceildiv(count, units):
                return axis
    return None


def stages_in(sides: tuple[int, int], target: Target, beside: int = 0) -> int:
    """For how many strips of both operands a block has room, beside their barriers and more."""
    return (target.local_bytes - ROW_NBYTES - beside) // (sum(sides) * ROW_NBYTES)


def has_room(choice: Choice, target: Target, depth: UOp) -> bool:
    """Whether a tile has room in a block, and a product is as large."""
    core, tile = ROWS[choice.number], choice.tile
    axes, sides = (choice.product.m, choice.product.n), tile.sides(choice.unit)
    sums = prod(tile.lanes) * prod(choice.unit) // core.warp
    return (
        sums <= MAX_SUMS
        and max(sides) <= MOST_BOX
        and core.warp * prod(tile.items) <= target.max_group
        and stages_in(sides, target) > 1
        and is_at_least(depth, 2 * ROW_NBYTES // choice.product.a.dtype.itemsize)
        and all([is_at_least(r, n) for r, n in zip(axes, sides, strict=True)])
    )


def price_of_boxes(kernel: Kernel, target: Target, choice: Choice) -> float:
    """The price of a tile."""
    axes = (choice.product.m, choice.product.n)
    itemsize = choice.product.a.dtype.itemsize
    others = prod([size_of(r) for r in kernel.output_loops if r not in axes])
    sizes = (size_of(axes[0]), size_of(axes[1]))
    # Each product reads both of its operands.
    reads = prod(choice.tile.lanes) * sum(choice.unit)
    units = target.units
    return price(choice.tile, choice.unit, sizes, itemsize, others, units, FROM_BOXES, reads)


def use_core(kernel: Kernel, target: Target, depth: UOp, rank: int = 0) -> bool:
    """A product on the tensor core with the longest sum that its dtypes have."""
    there = [
        (core.size("k"), i)
        for i, core in enumerate(ROWS)
        if is_allowed(core, target) and not core.in_group
    ]
    for _, number in sorted(there, reverse=True):
        core = ROWS[number]
        found = product_of(kernel, depth, core)
        if found is None:
            continue
        unit, k = (core.size("m"), core.size("n")), core.size("k")
        axes = (found.m, found.n)
        if not fills_core(axes, unit) or not is_at_least(depth, k):
            return False
        itemsize = found.a.dtype.itemsize
        tiles = [
            t
            for t in WARP_TILES
            if core.warp * prod(t.items) <= target.max_group
            and sum(t.sides(unit)) * t.strip * k * itemsize <= target.local_bytes
            and prod(t.lanes) * prod(unit) // core.warp <= most_sums(core, target)
            and all(
                [
                    is_at_least(r, n) or n == u
                    for r, n, u in zip(axes, t.sides(unit), unit, strict=True)
                ]
            )
        ]
        cheapest = by_price(kernel, target, tiles or [WARP_TILES[0]], unit, axes, itemsize, ON_CORE)
        # Each with as many stages as there is room for, then with fewer.
        choices = [(t, fewer) for fewer in range(MAX_STAGES - 1) for t in cheapest]
        tile, fewer = choices[min(rank, len(choices) - 1)]
        sides = tile.sides(unit)
        stored = kernel.stores[0].src[1].dtype.itemsize
        leaves = not fills_sectors(stored) and can_leave(kernel, axes)
        for r, n in ((axes[0], sides[0]), (axes[1], sides[1]), (depth, k * tile.strip)):
            fill_up(kernel, r, n)
        apply(kernel, Opt(OptOps.TC, axis_name(depth), number))
        for r, lanes, items in zip(axes, tile.lanes, tile.items, strict=True):
            # Operands of two products side by side are loaded at once.
            pairs = (2, lanes // 2) if lanes % 2 == 0 else (1, lanes)
            for op, n in ((OptOps.UPCAST, pairs[0]), (OptOps.UPCAST, pairs[1]),
                          (OptOps.LOCAL, items)):  # fmt: skip
                if n > 1:
                    apply(kernel, Opt(op, axis_name(r), n))
        strips = [r for r in kernel.facts.reduced if r.arg.id == depth.arg.id]
        if strips and target.has_barrier and (prod(tile.items) > 1 or target.copies.go_on):
            apply(kernel, Opt(OptOps.STAGE, axis_name(depth), tile.strip, how="local"))
            pipeline_strips(kernel, target, depth, sum(sides) * k * tile.strip * itemsize, fewer)
        if leaves and store_divides(stored, sides, core.warp * prod(tile.items), target):
            apply(kernel, Opt(OptOps.STAGE, arg=1, how="out"))
        return True
    return False


def fills_core(axes: tuple[UOp, UOp], unit: tuple[int, int]) -> bool:
    """Whether a product is large enough for a tensor core: along one axis it may be smaller.

    why: of few rows what is read of the other operand decides, and copies ahead read most at once
    """
    whole = [is_at_least(r, n) for r, n in zip(axes, unit, strict=True)]
    return all(whole) or (
        any(whole)
        and all([is_at_least(r, 2) for r in axes])
        and is_at_least(max(axes, key=size_of), LONG)
    )


def store_divides(itemsize: int, sides: tuple[int, int], items: int, target: Target) -> bool:
    """Whether results of a tile are whole pieces for each work-item, and warps store as CUDA's."""
    nbytes = int(prod(sides)) * itemsize
    whole = nbytes % (items * PIECE_NBYTES) == 0 and nbytes <= target.local_bytes
    return whole and target.has_barrier and "ldmatrix" in target.features


def most_sums(core: TensorCore, target: Target) -> int:
    """Accumulators of a work-item, at most."""
    apart = core.dtype.startswith("fp8") and "mma_fp8" not in target.features
    return MAX_SUMS_APART if apart else MAX_SUMS


def pipeline_strips(kernel: Kernel, target: Target, depth: UOp, nbytes: int, fewer: int) -> None:
    """Strips of so many bytes are copied ahead, as many as there is room for, or some fewer."""
    strips = [r for r in kernel.facts.reduced if r.arg.id == depth.arg.id]
    if not target.copies.go_on or not strips or not is_innermost(kernel, strips[0]):
        return
    blocks = iterations(kernel.output_loops)
    # Short strips of few blocks: as many as a processor has to have on its way.
    many = ceildiv(ON_THEIR_WAY, nbytes) if blocks <= target.units else 0
    wanted = max(MAX_STAGES, min(many, 2 * MAX_STAGES))
    stages = min(wanted, target.local_bytes // nbytes, size_of(strips[0])) - fewer
    if stages > 1:
        apply(kernel, Opt(OptOps.PIPELINE, axis_name(depth), stages, how="copies"))


def by_price(
    kernel: Kernel, target: Target, tiles: list[Tile], unit: tuple[int, int],
    axes: tuple[UOp, UOp], itemsize: int, rate: float,
) -> list[Tile]:  # fmt: skip
    """The tiles, the one with the lowest price first, and of those that are equal the first."""
    others = prod([size_of(r) for r in kernel.output_loops if r not in axes])
    sizes = (size_of(axes[0]), size_of(axes[1]))
    units = target.units
    return sorted(tiles, key=lambda t: price(t, unit, sizes, itemsize, others, units, rate))


def stage_tile(
    kernel: Kernel, target: Target, reduce: UOp, depth: UOp, outputs: list[UOp], rank: int = 0
) -> bool:
    """A tile of lanes, each a multiplication and addition of its own."""
    mine = kernel.facts.inside[reduce]
    loads = [a for a in kernel.accesses() if a.node in mine]
    reused = [
        r
        for r in outputs
        if any(r not in a.strides for a in loads) and any(r in a.strides for a in loads)
    ]
    staged = [a for a in loads if depth in a.node.ranges]
    # All work-items together load a strip: of what changes along neither axis it is too short.
    pairs = [
        pair
        for pair in itertools.combinations(sorted(reused, key=size_of), 2)
        if all([any([r in a.node.ranges for r in pair]) for a in staged])
    ]
    if not pairs:
        return False
    # The largest.
    pair = pairs[-1]
    known = TILES if target.warp else TILES[:UNKNOWN]
    known = known if target.vector_bits else PORTABLE_TILES
    tiles = [t for t in known if fits(t, target, staged, pair, depth)]
    if not tiles:
        return False
    itemsize = max([a.node.dtype.itemsize for a in staged])
    tile = by_price(kernel, target, tiles, (1, 1), pair, itemsize, 1.0)[min(rank, len(tiles) - 1)]
    for r, opts in zip(pair, opts_along(tile, pair, target), strict=True):
        fill_up(kernel, r, prod([n for _, n in opts]))
        for op, n in opts:
            apply(kernel, Opt(op, axis_name(r), n))
    fill_up(kernel, depth, tile.strip)
    apply(kernel, Opt(OptOps.STAGE, axis_name(depth), tile.strip, how="local"))
    if target.warp:
        pipeline_strips(kernel, target, depth, sum(strip_nbytes(tile, staged, pair)), 0)
    return True


def opts_along(tile: Tile, pair: tuple[UOp, UOp], target: Target) -> list[list[tuple[OptOps, int]]]:
    """Lists the splits of both axes of a tile, innermost first.

    A work-item has four neighbouring results along each, which are 16 bytes of an operand, and then
    those of other work-items lie between; of a warp four are along the axis that is outer in memory
    and eight along the inner one, by turns (`staged_tiles.items_in_turn`).
    """
    found = []
    inner = max(pair, key=lambda r: r.arg.id)
    for r, lanes, items in zip(pair, tile.lanes, tile.items, strict=True):
        near = min(lanes, NEAR_LANES) if target.warp else lanes
        of_warp = (2, 4) if r is inner else (2, 2)
        parts = (*of_warp, items // prod(of_warp)) if target.warp else (items,)
        opts = [(OptOps.UPCAST, near), *[(OptOps.LOCAL, n) for n in parts]]
        found.append([(op, n) for op, n in [*opts, (OptOps.UPCAST, lanes // near)] if n > 1])
    return found


def strip_nbytes(tile: Tile, staged: list[Access], pair: tuple[UOp, UOp]) -> list[int]:
    """Bytes of a strip of each operand in local memory."""
    sides = dict(zip(pair, tile.sides((1, 1)), strict=True))
    return [
        prod([side for r, side in sides.items() if r in a.node.ranges])
        * tile.strip
        * a.node.dtype.itemsize
        for a in staged
    ]


def fits(
    tile: Tile, target: Target, staged: list[Access], pair: tuple[UOp, UOp], depth: UOp
) -> bool:
    """Whether a block has room for a tile, and a kernel has as many results and steps."""
    sides = dict(zip(pair, tile.sides((1, 1)), strict=True))
    return (
        prod(tile.items) <= target.max_group
        and prod(tile.lanes) <= MAX_SUMS
        and sum(strip_nbytes(tile, staged, pair)) <= target.local_bytes
        and all([is_at_least(r, side) for r, side in sides.items()])
        and is_at_least(depth, tile.strip - tile.strip // SPARE)
        and all([size_of(r) > 0 and r.src[0].op is Ops.CONST for r in pair])
    )
