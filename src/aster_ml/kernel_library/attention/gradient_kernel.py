"""Builds dQ, dK and dV on tensor cores: scores and their gradients stay in registers.

Receives a kernel of which the Opt TC chain has said that it is a gradient of attention; returns its
graph in program order. It is made as attention is (`kernel`): of
queries each warp has rows of these and goes through the keys once, of keys and values rows of keys,
and goes through the queries. What is kept of each row of attention says the powers at once, so that
nothing is rescaled on the way.

rewrite, of queries, for each tile of keys: p = power(q @ k^T) / total; dp = g @ v^T;
dq = dq + (p * (dp - rows)) @ k
"""

from __future__ import annotations

from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv
from aster_ml.kernel_library.attention.gradient_parts import Mixed, Slopes
from aster_ml.kernel_library.attention.kernel import (
    TOGETHER,
    Builder,
    Tile,
    most_keys,
    room_of,
    stages_beside,
)
from aster_ml.target import Target
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu, index_times
from aster_ml.uop.ops import AxisType, KernelArg, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import simplify

# Registers that sums, scores and what is rounded of them may take of a work-item's 255, and those
# that operands of rows may take beside these.
MOST_REGISTERS, MOST_OPERANDS, ENDS = 152, 32, 16
# Wider heads than these are wide.
WIDE = 128
# Keys of a tile, the most first.
TILES = (64, 32, 16)


def registers_of(parts: Slopes, tile: int) -> int:
    """Registers of a work-item for sums, scores of a tile and what is rounded of them.

    A work-item has of 16 rows half a number for each column. Ends take registers, too, and
    so do addresses along wide heads.
    """
    ends = ENDS if size_of(parts.keys) % TILES[0] or size_of(parts.rows) % TILES[0] else 0
    widths = [size_of(x.depth) for x in parts.inner]
    addresses = sum(widths) // 8 if max(widths) > WIDE else 0
    sums = len(parts.mixed) * size_of(parts.columns) // 2 + ends + addresses
    return sums + len(parts.inner) * tile // 2 + len(parts.mixed) * tile // 4


def stages_of(parts: Slopes, core: TensorCore, target: Target) -> int:
    """Number of tiles along keys that fit while they are copied; 1 where none does."""
    axes = [x.depth for x in parts.inner]
    axes += [parts.columns for m in parts.mixed if shared_tile(parts, m) is None]
    row = sum([room_of(r, core) for r in axes]) * parts.inner[0].b.dtype.itemsize
    return stages_beside(parts, keys_of_tile(parts, core), row, target)


def keys_of_tile(parts: Slopes, core: TensorCore) -> int:
    """Number of keys in local memory at a time."""
    fitting = [n for n in TILES if registers_of(parts, n) <= MOST_REGISTERS]
    return min((fitting or TILES[-1:])[0], most_keys(parts.keys, core))


def shared_tile(parts: Slopes, mixed: Mixed) -> int | None:
    """The inner product that reads along keys what a sum multiplies, too; None where there is none.

    why: both read it out of the same tile
    """
    for i, x in enumerate(parts.inner):
        if size_of(x.depth) == size_of(parts.columns):
            if simplify(substitute(mixed.load, {parts.columns: x.depth})) is simplify(x.b):
                return i
    return None


class SlopeBuilder(Builder):
    """A gradient of attention while it is being built."""

    def keys_of_tile(self) -> int:
        """Number of keys in local memory at a time."""
        return keys_of_tile(self.parts, self.core)

    @property
    def most_together(self) -> int:  # type: ignore[override]
        """Fewer products are begun at once where registers are full."""
        taken = registers_of(self.parts, self.tile)
        return TOGETHER >> (taken >= MOST_REGISTERS) + (taken > MOST_REGISTERS)

    @property
    def depths(self) -> list[UOp]:
        """The axes along which rows are multiplied."""
        return [x.depth for x in self.parts.inner]

    @property
    def begins_at_row(self) -> bool:
        """Whether powers of keys before a row are 0, which are queries then."""
        return bool(self.parts.is_nothing(self.parts.keys, self.parts.rows))

    def iterations(self, block: UOp, height: int) -> UOp:
        """Number of tiles for a block: with a triangular mask those that have exponentials."""
        iterations = super().iterations(block, height)
        if not self.begins_at_row:
            return iterations
        return simplify(index_alu(Ops.SUB, iterations, self.first_tile(index_times(block, height))))

    def first_tile(self, start: UOp) -> UOp:
        """The tile of the first row of a block; of rows behind all keys the last."""
        most = ceildiv(size_of(self.parts.keys), self.tile)
        first = index_alu(Ops.IDIV, start, UOp.index_const(self.tile))
        beyond = index_alu(Ops.SUB, first, UOp.index_const(most - 1))
        beyond = index_alu(Ops.MAX, beyond, UOp.index_const(0))
        return simplify(index_alu(Ops.SUB, first, beyond))

    def build(self) -> UOp:
        """The graph."""
        parts, core, tile = self.parts, self.core, self.loop
        if self.begins_at_row:
            tile = index_alu(Ops.ADD, tile, self.first_tile(self.start))
        first = index_times(tile, self.tile)
        tiles = [self.staged(x.b, parts.keys, x.depth, first, self.tile) for x in parts.inner]
        own: list[Tile] = []
        for m in parts.mixed:
            i = shared_tile(parts, m)
            if i is None:
                tiles.append(self.staged(m.load, parts.keys, parts.columns, first, self.tile))
            own.append(tiles[-1 if i is None else i])
        barrier = UOp(Ops.BARRIER, dtypes.void, tuple([t.fill for t in tiles]))
        place = self.inner_products(tiles, barrier)
        key, inside = self.key_of(tile)
        place |= {**self.outside, parts.rows: self.row, parts.keys: key}
        narrow = [m.narrow for m in parts.mixed]
        ends = frozenset([x.node for x in parts.inner])
        self.mask_loads(narrow, ends, place, [inside, self.row_gate])
        effects: list[UOp] = []
        for m, values in zip(parts.mixed, own, strict=True):
            value = substitute(m.narrow, place)
            if inside is not None:
                value = inside.where(value, UOp.const(value.dtype, 0.0))
            effects += self.added_up(m, value, values, barrier)
        name = f"attend_back_{size_of(parts.rows)}_{size_of(parts.keys)}"
        arg = KernelArg(f"{name}_{'_'.join(map(str, self.heads))}_{core.dtype}", in_order=True)
        return UOp(Ops.SINK, dtypes.void, tuple(effects), arg)

    def inner_products(self, tiles: list[Tile], barrier: UOp) -> dict[UOp, UOp]:
        """Lists a work-item's elements of each product of rows with a tile."""
        parts, core = self.parts, self.core
        lanes, chunk = self.lanes_of(scores=True), index_times(self.chunk, self.step)
        depths = [room_of(x.depth, core) for x in parts.inner]
        # Operands of rows take a register for each four numbers of a head.
        anew = sum(depths) // 4 > MOST_OPERANDS
        found: dict[UOp, UOp] = {}
        for x, tile, width in zip(parts.inner, tiles, depths, strict=False):
            is_first = x is parts.inner[0]
            new = self.kernel.new_range
            piece = self.piece if is_first else new(width // self.step, AxisType.UNROLL)
            place = [chunk, *self.more_keys], index_times(piece, self.step)
            b = self.read("b", tile, (barrier,), "nk", lanes, place)
            a = self.of_rows(x.a, x.depth, piece, anew)
            found[x.node] = self.product(a, b, scores=True, steps=piece)
        return found

    def added_up(self, m: Mixed, narrow: UOp, values: Tile, barrier: UOp) -> list[UOp]:
        """The effects that add up a sum over keys and store what the kernel makes of it."""
        core, lanes = self.core, self.lanes_of(scores=False)
        chunk = index_times(self.chunk, self.step)
        stores = [u for u in self.parts.stores if m.node in toposort(u.src[1])]
        effects = []
        for column in self.groups:
            place = [chunk], index_times(column, core.size("n"))
            b = self.read("b", values, (barrier,), "kn", lanes, place)
            added = self.product(narrow, b, scores=False, steps=self.chunk)
            effects += self.stored(stores, {m.node: self.summed_up(added)}, column)
        return effects
