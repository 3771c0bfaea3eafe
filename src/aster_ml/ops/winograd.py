"""Computes 3x3 convolutions with fewer multiplications (Winograd).

Tiles of the input and weights are transformed, multiplied as matrices for each place of a
transformed tile, and the products are transformed back.

Receives nodes of an input that is padded and a weight; returns the node of the result. Whether this
is quicker than the plain way is said here too, by what either has to multiply and to move.

A tile of m x m results takes (m + 2) x (m + 2) inputs. Rows are transformed, then columns, each by
sums that are written out: no matrix of the transforms appears in the graph. In memory the channels
come last until the results are put in their places, so that every kernel has its SIMD lanes along
channels, whatever the sizes of the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aster_ml.dtype import DType, dtypes
from aster_ml.helpers import all_int, ceildiv, divisors, prod, round_up
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ANEW, Ops

Vector = Sequence[UOp]
Transform = Callable[[Vector], Vector]


def scaled(x: UOp, factor: float) -> UOp:
    """`x * factor`."""
    return x.alu(Ops.MUL, UOp.const(x.dtype, factor))


def plus(x: UOp, y: UOp) -> UOp:
    """`x + y`."""
    return x.alu(Ops.ADD, y)


def minus(x: UOp, y: UOp) -> UOp:
    """`x - y`."""
    return x.alu(Ops.SUB, y)


# Transforms of one axis, for tiles of 2 and 4 results, at the points 0, 1, -1 (2, -2) and infinity.


def inputs_for_2(d: Vector) -> Vector:
    """4 inputs."""
    return minus(d[0], d[2]), plus(d[1], d[2]), minus(d[2], d[1]), minus(d[1], d[3])


def weights_for_2(g: Vector) -> Vector:
    """3 weights -> 4."""
    ends, middle = scaled(plus(g[0], g[2]), 0.5), scaled(g[1], 0.5)
    return g[0], plus(ends, middle), minus(ends, middle), g[2]


def results_for_2(m: Vector) -> Vector:
    """4 products -> 2 results."""
    return plus(m[0], plus(m[1], m[2])), minus(minus(m[1], m[2]), m[3])


def inputs_for_4(d: Vector) -> Vector:
    """6 inputs."""
    even, odd = minus(d[4], scaled(d[2], 4)), minus(d[3], scaled(d[1], 4))
    near, far = minus(d[4], d[2]), scaled(minus(d[3], d[1]), 2)
    return (
        plus(minus(scaled(d[0], 4), scaled(d[2], 5)), d[4]),
        plus(even, odd),
        minus(even, odd),
        plus(near, far),
        minus(near, far),
        plus(minus(scaled(d[1], 4), scaled(d[3], 5)), d[5]),
    )


def weights_for_4(g: Vector) -> Vector:
    """3 weights -> 6."""
    ends, middle = scaled(plus(g[0], g[2]), -1 / 6), scaled(g[1], 1 / 6)
    far, odd = plus(scaled(g[0], 1 / 24), scaled(g[2], 1 / 6)), scaled(g[1], 1 / 12)
    return (
        scaled(g[0], 1 / 4),
        minus(ends, middle),
        plus(ends, middle),
        plus(far, odd),
        minus(far, odd),
        g[2],
    )


def results_for_4(m: Vector) -> Vector:
    """6 products -> 4 results."""
    near, near_odd = plus(m[1], m[2]), minus(m[1], m[2])
    far, far_odd = plus(m[3], m[4]), minus(m[3], m[4])
    return (
        plus(plus(m[0], near), far),
        plus(near_odd, scaled(far_odd, 2)),
        plus(near, scaled(far, 4)),
        plus(plus(near_odd, scaled(far_odd, 8)), m[5]),
    )


TRANSFORMS: dict[int, tuple[Transform, Transform, Transform]] = {
    2: (inputs_for_2, weights_for_2, results_for_2),
    4: (inputs_for_4, weights_for_4, results_for_4),
}


def part(x: UOp, cuts: dict[int, tuple[int, int]]) -> UOp:
    """Part between two places of some axes."""
    return x._mop(Ops.SHRINK, tuple([cuts.get(i, (0, s)) for i, s in enumerate(x.shape)]))


def stacked(parts: Vector, axis: int) -> UOp:
    """Values whose `axis` has one element, side by side along it."""
    result: UOp | None = None
    for i, x in enumerate(parts):
        pairs = [(0, 0)] * len(x.shape)
        pairs[axis] = (i, len(parts) - 1 - i)
        wide = x._mop(Ops.PAD, tuple(pairs))
        result = wide if result is None else plus(result, wide)
    return parts[0] if result is None else result


def along(x: UOp, axis: int, transform: Transform) -> UOp:
    """An axis transformed."""
    places = [part(x, {axis: (i, i + 1)}) for i in range(x.shape[axis])]
    return stacked(transform(places), axis)


def along_windows(x: UOp, axis: int, tiles: int, transform: Transform) -> UOp:
    """Windows along axes of blocks and of the places in a block, transformed.

    A window is a block with the first 2 places of the next.
    """
    m = x.shape[axis + 1]
    places = []
    for i in range(m + 2):
        block, place = divmod(i, m)
        places.append(part(x, {axis: (block, block + tiles), axis + 1: (place, place + 1)}))
    return stacked(transform(places), axis + 1)


def stored(x: UOp) -> UOp:
    """`x` in memory, in the order of its axes."""
    return UOp(Ops.CONTIGUOUS, x.dtype, (x,))


def gradient_stored(x: UOp) -> UOp:
    """`x`, whose gradient will be memory."""
    return UOp(Ops.CONTIGUOUS_BACKWARD, x.dtype, (x,))


def transformed_weights(w: UOp, groups: int, m: int) -> UOp:
    """Weights [o, c / groups, 3, 3] -> [m + 2, m + 2, groups, o / groups, c / groups].

    The product takes either order of channels; in this one weights are read as they lie.
    """
    o, c = w.shape[:2]
    w = w._mop(Ops.RESHAPE, (groups, o // groups, c, 3, 3))._mop(Ops.PERMUTE, (3, 4, 0, 1, 2))
    for axis in (0, 1):
        w = along(w, axis, TRANSFORMS[m][1])
    return stored(w)


class Way(NamedTuple):
    """Tiles of m x m results, and what a block of them has of each channel.

    That is some rows of tiles of one image, or all rows of some images.
    """

    m: int
    images: int
    rows: int


def convolve(x: UOp, u: UOp, pads: Sequence[tuple[int, int]], way: Way) -> UOp:
    """The convolution of an input with transformed weights, in blocks of tiles.

    Blocks come first in memory, so that what is made of one block is all that the next kernel needs
    of it: the kernels run block by block (`schedule/kernels/kernel_tiling.py`), each block on one
    processor.
    """
    n, c, *image = x.shape
    groups, o_group, c_group = u.shape[2:]
    m, images, rows = way
    a = m + 2
    for_inputs, _, for_results = TRANSFORMS[m]
    sizes = result_sizes(x, pads)
    th, tw = round_up(ceildiv(sizes[0], m), rows), ceildiv(sizes[1], m)
    blocks = n // images, th // rows
    tiles = images * rows * tw
    around = [
        (before, (t + 1) * m - s - before)
        for s, t, (before, _) in zip(image, (th, tw), pads, strict=True)
    ]
    x = stored(x._mop(Ops.PERMUTE, (0, 2, 3, 1)))._mop(Ops.PAD, ((0, 0), *around, (0, 0)))
    x = gradient_stored(x._mop(Ops.RESHAPE, (n, th + 1, m, tw + 1, m, c)))
    x = along_windows(x, 1, th, for_inputs)
    x = along_windows(x, 3, tw, for_inputs)
    # Of the blocks of images and of rows, the weights' gradient adds up some, and then these sums.
    few = blocks_of_sum(*blocks, tiles, prod(u.shape) * u.dtype.itemsize) or (1, 1)
    sums = [whole // part for whole, part in zip(blocks, few, strict=True)]
    apart = sums[0], few[0], sums[1], few[1]
    # [blocks, places of a tile, tiles, c].
    x = x._mop(Ops.RESHAPE, (blocks[0], images, blocks[1], rows, a, tw, a, c))
    x = x._mop(Ops.PERMUTE, (0, 2, 4, 6, 1, 3, 5, 7))
    x = stored(x._mop(Ops.RESHAPE, (*apart, a, a, tiles, c)))
    if prod(x.shape) * x.dtype.itemsize >= LARGE_NBYTES:
        # The gradient of the weights transforms the input once more.
        x = UOp(Ops.CONTIGUOUS_BACKWARD, x.dtype, (x,), ANEW)
    # As matrices.
    full = (*apart, a, a, groups, tiles, o_group, c_group)
    x = x._mop(Ops.RESHAPE, (*apart, a, a, tiles, groups, c_group))
    x = x._mop(Ops.PERMUTE, (0, 1, 2, 3, 4, 5, 7, 6, 8))
    x = x._mop(Ops.RESHAPE, (*full[:-2], 1, c_group))._mop(Ops.EXPAND, full)
    if prod(sums) > 1:
        u = u._mop(Ops.RESHAPE, (1, 1, *u.shape))._mop(Ops.EXPAND, (*sums, *u.shape))
        u = gradient_stored(u)
    u = u._mop(Ops.RESHAPE, (sums[0], 1, sums[1], 1, a, a, groups, 1, o_group, c_group))
    y = x.alu(Ops.MUL, u._mop(Ops.EXPAND, full))._rop(Ops.ADD, (9,))
    y = y._mop(Ops.RESHAPE, (*apart, a, a, groups, tiles, o_group))
    y = y._mop(Ops.PERMUTE, (0, 1, 2, 3, 4, 5, 7, 6, 8))
    y = stored(y._mop(Ops.RESHAPE, (*apart, a, a, tiles, groups * o_group)))
    y = y._mop(Ops.RESHAPE, (*blocks, a, a, tiles, groups * o_group))
    for axis in (2, 3):
        y = along(y, axis, for_results)
    y = y._mop(Ops.RESHAPE, (*blocks, m, m, images, rows, tw, groups * o_group))
    y = gradient_stored(y._mop(Ops.PERMUTE, (0, 4, 1, 5, 2, 6, 3, 7)))
    y = y._mop(Ops.PERMUTE, (0, 1, 7, 2, 3, 4, 5, 6))
    return y._mop(Ops.RESHAPE, (n, groups * o_group, th * m, tw * m))


def blocks_of_sum(images: int, rows: int, tiles: int, nbytes: int) -> tuple[int, int] | None:
    """The blocks that one sum of the weights' gradient adds up; None if they have too few tiles.

    They are so many of the blocks of images, and of those of an image's rows; `tiles` are those of
    a block, `nbytes` those of a sum. Rounding errors grow with the root of the number of tiles. So
    many keep them below those of the plain way, in whose sums four times as many places are added
    up; sums that a cache holds are several, which threads share out.
    """
    limit = MOST_SUMMED
    if nbytes <= BLOCK_NBYTES:
        limit = min(limit, max(images * rows * tiles // MANY_SUMS, LEAST_SUMMED))

    def most(blocks: int, tiles: int) -> int:
        return max([d for d in divisors(blocks) if d * tiles <= limit], default=1)

    of_rows = most(rows, tiles)
    of_images = most(images, rows * tiles) if of_rows == rows else 1
    together = of_images * of_rows * tiles
    short = 2 * together < LEAST_SUMMED and of_images * of_rows < images * rows
    return None if short or together > MOST_SUMMED else (of_images, of_rows)


def winograd(x: UOp, w: UOp, pads: Sequence[tuple[int, int]], groups: int, way: Way) -> UOp:
    """The convolution of an input with 3x3 weights, by tiles of m x m results.

    Shapes: x [n, c, h + 3, w + 3], w [o, c, 3, 3] -> [n, o, h + 2, w + 2].
    Error: relative to the largest result, about 1e-6 for m = 2 and 1e-5 for m = 4 in float32.
    Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308.
    """
    sizes = result_sizes(x, pads)
    y = convolve(x, transformed_weights(w, groups, way.m), pads, way)
    if y.shape[2:] == sizes:
        return y
    # why: stored whole, since only a tile that is whole is stored in runs
    return part(stored(y), {i: (0, s) for i, s in enumerate(sizes, 2)})


def result_sizes(x: UOp, pads: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Height and width of what a padded input gives with weights of 3x3."""
    return tuple([s + b + a - 2 for s, (b, a) in zip(x.shape[2:], pads, strict=True)])


# When it is used. The unit of cost is a multiplication with its addition of the plain way, at 16
# SIMD lanes; the others are measured against it, an element each.

# Of the transformed input and results: made, and for the results unmade.
INPUT, RESULT = 12, 7
# Of the transformed weights: made, by the size of tiles.
WEIGHT = {2: 27, 4: 43}
# Of the transformed weights, when they are multiplied: loading them.
WEIGHT_LOAD = 5
# With less work than this one kernel is better than five, which cost so much by their number.
LITTLE_WORK = 1 << 22
LAUNCHES = 700_000
# Channels of one SIMD value.
LANES = 16
# How much of the plain way's cost it may be estimated at: estimates are that rough, and there are
# five times as many kernels to compile.
MARGIN = 0.8
# Transformed inputs of so many bytes are not kept for gradients.
LARGE_NBYTES = 4 << 20
# Tiles that one sum of the weights' gradient adds up. With up to 1536, and so all of 128 images of
# 24 x 24, its error was that of the plain way; it is 0.84 of that, and takes as long.
LEAST_SUMMED, MOST_SUMMED = 128, 1024
# Bytes of transformed inputs and results of a block, which stay in a second cache; the tiles that
# it has in any case, as weights are loaded for each block; blocks that threads want to share out,
# and the tiles that these have at least.
BLOCK_NBYTES, BLOCK_TILES = 1 << 20, 96
MANY_BLOCKS, FEW_TILES = 4, 24
# Sums of the weights' gradient that threads want to share out.
MANY_SUMS = 8
# With so many bytes of all tiles there is one block.
WHOLE_NBYTES = 4 << 20


def winograd_way(
    x: UOp,
    w: UOp,
    dtype: DType,
    pads: Sequence[tuple[Any, Any]],
    groups: int,
    tiles_of: Sequence[int],
) -> Way | None:
    """The size of tiles and what a block of them is; None where the plain way is better.

    It is where sizes are known only when a kernel runs, and for what several devices share.
    """
    if w.shape[2:] != (3, 3) or dtype not in (dtypes.float32, dtypes.float64):
        return None
    if not all_int((*x.shape, *w.shape, *pads[0], *pads[1])) or x.has_multi or w.has_multi:
        return None
    n, o, c = x.shape[0], w.shape[0], w.shape[1]
    sizes = result_sizes(x, pads)
    plain = n * prod(sizes) * o * c * 9
    if min(*sizes, *pads[0], *pads[1]) < 0 or plain < LITTLE_WORK:
        return None
    costs = {}
    for m in tiles_of:
        th, tw = (ceildiv(s, m) for s in sizes)
        images, rows = block_of(n, th, tw, 4 * (m + 2) ** 2 * (x.shape[1] + o))
        of_rows = ceildiv(th, rows)
        tiles = images * rows * tw
        nbytes = (m + 2) ** 2 * o * c * dtype.itemsize
        if blocks_of_sum(n // images, of_rows, tiles, nbytes):
            blocks = n // images * of_rows
            costs[Way(m, images, rows)] = cost_of_way(m, blocks, tiles, groups, c, o)
    if not costs:
        return None
    best = min(costs, key=lambda way: costs[way])
    return best if costs[best] < MARGIN * plain else None


def block_of(n: int, th: int, tw: int, tile_nbytes: int) -> tuple[int, int]:
    """Images and rows of tiles of a block, of n images with th rows of tw tiles."""
    if n * th * tw * tile_nbytes <= WHOLE_NBYTES:
        return n, th
    wanted = max(BLOCK_NBYTES // tile_nbytes, BLOCK_TILES)
    wanted = min(wanted, max(n * th * tw // MANY_BLOCKS, FEW_TILES))
    if th * tw <= wanted:
        return max([d for d in divisors(n) if d * th * tw <= 1.25 * wanted], default=1), th
    # Rows that no image has are in the way, and less so other sizes than the wanted one.
    near = max(1, round(th * tw / max(wanted, tw)))
    some = [ceildiv(th, blocks) for blocks in range(max(near - 2, 1), min(near + 2, th) + 1)]
    return 1, min(some, key=lambda r: round_up(th, r) / th + abs(r * tw / wanted - 1) / 8)


def cost_of_way(m: int, blocks: int, tiles: int, groups: int, c: int, o: int) -> float:
    """The cost of transforms and products.

    `tiles` are those of a block, `c` the channels of a group, `o` those of all.
    """
    places = (m + 2) ** 2
    all_tiles = blocks * tiles
    inputs, results = (places * all_tiles * round_up(k, LANES) for k in (groups * c, o))
    cost: float = (
        INPUT * inputs
        + RESULT * results
        + (WEIGHT[m] + WEIGHT_LOAD * blocks) * places * o * c
        + places * all_tiles * o * c
        + LAUNCHES
    )
    return cost
