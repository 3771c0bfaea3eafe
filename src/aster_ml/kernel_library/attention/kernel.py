"""Builds attention on tensor cores: two products in a row, whose scores stay in registers.

Receives a kernel of which the Opt TC chain has said what it is (`parts`), and a target;
returns its graph in program order. Each warp has some rows of queries and goes through the keys
once, a tile at a time, which all warps of a block load into local memory together. What lies in the
registers of a result is what operand A of the next product wants there (`TensorCore.chains`).
Operands that lie in local memory are read by LDMATRIX out of an XOR layout, values turned around.

rewrite, for each tile of keys: s = q @ k^T; n = max(m, rows of s); p = power(s, n); a = power(m, n)
l = l * a + rows of p; o = o * a + p @ v; m = n; behind the loop what the kernel makes of o and l
why: scores go to no memory, and are computed once and not three times
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.staging.stage import Stage, new_stage, position
from aster_ml.codegen.work_groups.numbering import delinearize
from aster_ml.codegen.work_groups.staged_tiles import Layout, fill_tile, layout_of, padding
from aster_ml.codegen.work_groups.swizzle import Xor, xor_of_rows
from aster_ml.codegen.work_groups.tensor_cores import matrices_of, moved
from aster_ml.dtype import DType, dtypes
from aster_ml.helpers import ceildiv, prod
from aster_ml.kernel_library.attention.parts import Attention
from aster_ml.target import Target
from aster_ml.target.tensor_cores import TensorCore
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu, index_sum, index_times
from aster_ml.uop.ops import AxisType, KernelArg, MmaArg, Ops, PowerArg, ReduceArg
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import simplify

# Warps of a block.
WARPS = 4
# Keys of a tile by how wide a query and a value together are at most: of wider ones registers have
# fewer. Past all of these there are the last's, or half of them where ends and masks take registers
# too.
TILES = {192: 64, 224: 32}
# Past this, half of the last, and operands of rows stay in local memory.
WIDE = 256
# Products along a head whose sums are begun at once.
TOGETHER = 4
# The widest piece that a work-item loads. Source: PTX ISA 8.7, "ld" (vectors of 128 bits).
NBYTES = 16
# Blocks along all dimensions of a launch but the first. Source: CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability".
MOST_BLOCKS = 65535
MINUS_INFINITY = UOp.const(dtypes.float32, -math.inf)
NOTHING = UOp.const(dtypes.float32, 0.0)


class Tile(NamedTuple):
    """Local memory for rows of queries, keys or values, its axes, how they lie, what fills it."""

    memory: UOp
    row: UOp
    head: UOp
    layout: Layout
    fill: UOp


def room_of(r: UOp, core: TensorCore) -> int:
    """The size of an axis of heads in local memory: what is behind its end is 0."""
    step = core.size("k")
    return int(ceildiv(size_of(r), step) * step)


def most_keys(keys: UOp, core: TensorCore) -> int:
    """The keys of a tile that has all of them: the last ones are masked.

    why: the work-items of a block fill a tile in equal parts, however wide heads are
    """
    step = core.size("k")
    whole = max(step, WARPS * core.warp // step)
    return int(ceildiv(size_of(keys), whole) * whole)


def keys_of_tile(parts: Attention, core: TensorCore) -> int:
    """Number of keys in local memory at a time."""
    width = room_of(parts.depth, core) + room_of(parts.columns, core)
    most = most_keys(parts.keys, core)
    short = min(TILES.values())
    ends = size_of(parts.keys) % short or size_of(parts.rows) % (WARPS * core.size("m"))
    is_full = ends or parts.score.op is not Ops.REDUCE or width > WIDE
    past = short // 2 if is_full else short
    tile = next((keys for widest, keys in TILES.items() if width <= widest), past)
    return int(min(tile, most))


def stages_of(parts: Attention, core: TensorCore, target: Target) -> int:
    """Number of tiles of keys and values that fit while they are copied; 1 where none does."""
    widths = [room_of(r, core) for r in (parts.depth, parts.columns)]
    nbytes = sum(widths) * parts.k.dtype.itemsize
    return stages_beside(parts, keys_of_tile(parts, core), nbytes, target)


def stages_beside(parts: Any, tile: int, row: int, target: Target) -> int:
    """Number of tiles that fit while they are copied, of so many keys with rows of so many bytes.

    why: with two, the copies of a tile have the time of all products of the one before
    """
    there = target.copies.go_on and 2 * tile * row <= target.local_bytes
    keys = size_of(parts.keys)
    keys = min(keys, size_of(parts.rows)) if parts.is_triangular else keys
    return 2 if there and keys > tile else 1


def bits_along(axes: Mapping[str, UOp], axis: str) -> list[UOp]:
    """The places along an axis that bits of an operand stand for."""
    return [index_times(r, 1 << int(w[1:])) for w, r in axes.items() if w[0] == axis]


def below(u: UOp, n: int) -> UOp:
    """Tests whether an index is less than a number."""
    return u.alu(Ops.CMPLT, UOp.index_const(n))


class Builder:
    """One kernel while it is being built."""

    def __init__(self, kernel: Kernel, parts: Any, core: TensorCore, target: Target) -> None:
        self.kernel, self.parts, self.core, self.target = kernel, parts, core, target
        self.scratch: list[UOp] = []
        self.heads = size_of(parts.depth), size_of(parts.columns)
        n_rows = size_of(parts.rows)
        self.step, self.tile = core.size("k"), self.keys_of_tile()
        # What multiplies queries and keys.
        self.score_core = self.core_of_scores()
        most = self.most_warps
        self.warps = min(most, 1 << (ceildiv(n_rows, core.size("m")) - 1).bit_length())
        height = self.warps * core.size("m")
        new = kernel.new_range
        # Blocks: queries are the dimension whose neighbours run side by side, and share keys.
        others = [r for r in kernel.output_loops if r not in (parts.rows, parts.columns)]
        count = prod([size_of(r) for r in others])
        first = new(count, AxisType.GLOBAL) if count > MOST_BLOCKS else None
        block = new(ceildiv(n_rows, height), AxisType.GLOBAL)
        whole = first or new(count, AxisType.GLOBAL)
        self.item = new(core.warp * self.warps, AxisType.LOCAL)
        self.outside = delinearize(whole, others)
        self.loop = new(self.iterations(block, height), AxisType.LOOP)
        # Bits of registers, by their words: rows of all products, keys, places along a head, of
        # which the sum of scores has some and results have others.
        a, c, scores = core.bits("a")[1], core.bits("c")[1], self.score_core.bits("c")[1]

        def bits(words: list[str], axis: str) -> list[str]:
            return sorted({w[1:] for w in words if w[0] == axis})

        keys = sorted({*bits(a, "k"), *bits(scores, "n")})
        self.row_bits = {w: new(2, AxisType.UPCAST) for w in bits([*a, *c], "m")}
        self.key_bits = {w: new(2, AxisType.UNROLL) for w in keys}
        self.depth_bits = {w: new(2, AxisType.UNROLL) for w in bits(a, "k")}
        self.column_bits = {w: new(2, AxisType.UPCAST) for w in bits(c, "n")}
        # Products along the keys of a tile, where scores are no single one, and along a head.
        chunks = self.tile // max(self.step, self.score_core.size("n"))
        self.chunk = new(chunks, AxisType.UNROLL)
        self.piece = new(ceildiv(self.heads[0], self.step), AxisType.UNROLL)
        # Operands of two products side by side are loaded at once. Sums of few products are done
        # before the next ones are begun: each has registers beside those of results.
        count = ceildiv(self.heads[1], core.size("n"))
        together = math.gcd(count, self.most_together)
        halves = (together // 2, 2) if together % 2 == 0 else (1, together)
        self.columns = [new(n, AxisType.UPCAST) for n in halves if n > 1]
        self.groups = [
            index_alu(Ops.ADD, position(self.columns), UOp.index_const(i))
            for i in range(0, count, together)
        ]
        self.warp = index_alu(Ops.IDIV, self.item, UOp.index_const(core.warp))
        self.start = index_times(block, height)
        start = index_alu(Ops.ADD, self.start, index_times(self.warp, core.size("m")))
        self.row = index_alu(Ops.ADD, start, self.along("c", "m", self.row_bits))

    def iterations(self, block: UOp, height: int) -> UOp:
        """Number of tiles of keys for a block: with a triangular mask those up to its last row.

        why: of the others each power is 0
        """
        most = ceildiv(size_of(self.parts.keys), self.tile)
        if not self.parts.is_triangular:
            return UOp.index_const(most)
        last = index_alu(Ops.ADD, index_times(block, height), UOp.index_const(height - 1))
        left = index_alu(Ops.IDIV, last, UOp.index_const(self.tile))
        left = index_alu(Ops.SUB, UOp.index_const(most - 1), left)
        left = index_alu(Ops.MAX, left, UOp.index_const(0))
        # In simplest form, as it is wherever an index with the loop in it is simplified.
        return simplify(index_alu(Ops.SUB, UOp.index_const(most), left))

    def keys_of_tile(self) -> int:
        """Number of keys in local memory at a time."""
        return keys_of_tile(self.parts, self.core)

    def core_of_scores(self) -> TensorCore:
        """The row that multiplies queries and keys: the same."""
        return self.core

    # Most warps, or groups of them, and products whose sums are begun at once.
    most_warps, most_together = WARPS, TOGETHER

    def along(self, operand: str, axis: str, bits: Mapping[str, UOp], scores: bool = False) -> UOp:
        """The place along an axis of what a work-item has in a register of an operand."""
        items, registers = (self.score_core if scores else self.core).bits(operand)
        terms: list[UOp] = []
        i = 0
        while i < len(items):
            count = 1
            if items[i][0] == axis:
                low = int(items[i][1:])
                while i + count < len(items) and items[i + count] == f"{axis}{low + count}":
                    count += 1
                part = index_alu(Ops.IDIV, self.item, UOp.index_const(1 << i))
                part = index_alu(Ops.MOD, part, UOp.index_const(1 << count))
                terms.append(index_times(part, 1 << low))
            i += count
        for word in registers:
            if word[0] == axis:
                terms.append(index_times(bits[word[1:]], 1 << int(word[1:])))
        return index_sum(terms)

    def build(self) -> UOp:
        """The graph."""
        parts, core = self.parts, self.core
        self.fill()
        scores = self.scores()
        score = self.score(scores)
        start = self.row_memory(-math.inf), self.row_memory(0.0)
        most, total = (self.now(memory, init) for memory, init in start)
        new = self.over_row(self.sum_of(score, Ops.MAX), Ops.MAX)
        new = most.alu(Ops.MAX, new)
        # Of a row that looks at nothing so far no power is 1.
        top = new.alu(Ops.CMPEQ, MINUS_INFINITY).where(NOTHING, new)
        power = self.power(score, top)
        again = self.power(most, top)
        sums = total.alu(Ops.MULACC, again, self.sum_of(power, Ops.ADD))
        narrow = UOp(Ops.CAST, parts.v.dtype, (power,))
        seen = self.changed(start[0][0], new, self.rows)
        added = self.changed(start[1][0], sums, self.rows)
        total = self.over_row(self.loaded(start[1][0].after(added), self.rows), Ops.ADD)
        effects: list[UOp] = []
        known = dict.fromkeys(parts.totals, total)
        of_rows = [u for u in parts.stores if parts.columns not in u.src[0].ranges]
        stores = [by_products(u, parts.totals) for u in parts.stores if u not in of_rows]
        for column in self.groups:
            results = self.summed_up(self.mixed(narrow, column), again)
            effects += self.stored(stores, {**known, parts.product: results}, column)
        if of_rows:
            tops = dict.fromkeys(parts.tops, self.loaded(start[0][0].after(seen), self.rows))
            effects += self.stored(of_rows, {**known, **tops}, None)
        name = f"attend_{'_'.join(str(size_of(r)) for r in (parts.rows, parts.keys))}"
        arg = KernelArg(f"{name}_{'_'.join(map(str, self.heads))}_{core.dtype}", in_order=True)
        # First what powers are added up in: as operands they take half of the registers.
        return UOp(Ops.SINK, dtypes.void, (added, *effects, seen), arg)

    def power(self, score: UOp, top: UOp) -> UOp:
        """The power of a score less the maximum of its row, which is never above 1.

        rewrite: exp2((s - m) * a * b) -> exp2(s * c - m * c), where c = a * b
        when: 0 < c <= 1, so that no product is beyond what a float holds
        why: m * c is computed once for a row, and a product and a sum are one instruction
        """
        factor, exponent = 1.0, self.parts.power.src[0]
        while exponent.op is Ops.MUL and exponent.src[1].op is Ops.CONST:
            factor, exponent = factor * exponent.src[1].arg, exponent.src[0]
        difference = (self.parts.score, self.parts.top)
        if exponent.op is not Ops.SUB or exponent.src != difference or factor <= 0:
            return substitute(self.parts.power, {self.parts.score: score, self.parts.top: top})
        scale = UOp.const(score.dtype, factor)
        if factor <= 1:
            offset = top.alu(Ops.MUL, UOp.const(score.dtype, -factor))
            exponent = score.alu(Ops.MULACC, scale, offset)
        else:
            exponent = score.alu(Ops.SUB, top).alu(Ops.MUL, scale)
        return UOp(Ops.EXP2, score.dtype, (exponent,), PowerArg(falls=True))

    def fill(self) -> None:
        """Fills local memory with the keys and values of a tile."""
        parts, first = self.parts, index_times(self.loop, self.tile)
        self.keys = self.staged(parts.k, parts.keys, parts.depth, first, self.tile)
        self.values = self.staged(parts.v, parts.keys, parts.columns, first, self.tile)
        self.barrier = UOp(Ops.BARRIER, dtypes.void, (self.keys.fill, self.values.fill))

    def scores(self) -> UOp:
        """Queries times the keys of a tile."""
        place = [index_times(self.chunk, self.step), *self.more_keys]
        depth, lanes = index_times(self.piece, self.step), self.lanes_of(scores=True)
        mine = self.read("b", self.keys, (self.barrier,), "nk", lanes, (place, depth))
        parts = self.parts
        is_wide = sum([room_of(r, self.core) for r in (parts.depth, parts.columns)]) > WIDE
        queries = self.of_rows(parts.q, parts.depth, self.piece, is_wide)
        return self.product(queries, mine, scores=True, steps=self.piece)

    def mixed(self, powers: UOp, column: UOp) -> UOp:
        """Powers times some columns of the values of a tile."""
        place = [index_times(self.chunk, self.step)], index_times(column, self.core.size("n"))
        lanes = self.lanes_of(scores=False)
        mine = self.read("b", self.values, (self.barrier,), "kn", lanes, place)
        return self.product(powers, mine, scores=False, steps=self.chunk)

    @staticmethod
    def added(results: UOp, again: UOp, mixed: UOp) -> UOp:
        """Results so far, rescaled, and those of a tile."""
        return results.alu(Ops.MULACC, again, mixed)

    def summed_up(self, product: UOp, again: UOp | None = None) -> UOp:
        """Results behind the loop over tiles, each of which adds a product to those so far.

        Those are rescaled before, where `again` says by what.
        """
        axes = self.lanes_of_results
        results = self.memory(dtypes.float32, axes)
        init = results.index(position(axes)).store(NOTHING).end(*axes)
        old = self.now(results, init, axes)
        new = old.alu(Ops.ADD, product) if again is None else self.added(old, again, product)
        return self.loaded(results.after(self.changed(results, new, axes)), axes)

    @property
    def lanes_of_results(self) -> tuple[UOp, ...]:
        """The registers of a work-item that hold different results."""
        return (*self.columns, *self.column_bits.values(), *self.rows)

    @property
    def rows(self) -> tuple[UOp, ...]:
        """The registers of a work-item that lie in different rows."""
        return tuple(self.row_bits.values())

    # memory

    def memory(
        self, dtype: DType, axes: Iterable[UOp], size: int = 0, xor: Xor | None = None
    ) -> UOp:
        """A place for values of a work-item's own along some axes, or for so many of a block."""
        made = new_stage(self.scratch, dtype, axes, size or None, xor, private=not size).memory
        self.scratch.append(made)
        return made

    def row_memory(self, value: float) -> tuple[UOp, UOp]:
        """A number for each row, and the effect that gives it a first value."""
        memory = self.memory(dtypes.float32, self.rows)
        first = UOp.const(dtypes.float32, value)
        return memory, memory.index(position(self.rows)).store(first).end(*self.rows)

    def now(self, memory: UOp, init: UOp, axes: tuple[UOp, ...] | None = None) -> UOp:
        """Content of memory at the beginning of an iteration of the loop over tiles."""
        return self.loaded(memory.after(init, self.loop), self.rows if axes is None else axes)

    def changed(self, memory: UOp, value: UOp, axes: tuple[UOp, ...]) -> UOp:
        """Content of memory at the end of an iteration."""
        return memory.index(position(axes)).store(value).end(self.loop, *axes)

    @staticmethod
    def loaded(memory: UOp, axes: tuple[UOp, ...]) -> UOp:
        """A value of each lane of some axes."""
        return memory.index(position(axes)).load()

    def staged(self, load: UOp, axis: UOp, along: UOp, start: UOp, rows: int) -> Tile:
        """Local memory for so many rows of what a LOAD reads, which lie along two of its axes."""
        kernel = self.kernel
        # Of which one is a sum's, so that rows end where that ends.
        kinds = (AxisType.UPCAST, AxisType.UNROLL)
        kinds = kinds if along is not self.parts.columns else kinds[::-1]
        sizes = (rows, room_of(along, self.core))
        row, head = (kernel.new_range(n, kind) for n, kind in zip(sizes, kinds, strict=True))
        at = index_alu(Ops.ADD, start, row)
        moved = substitute(load, {**self.outside, axis: at, along: head})
        if size_of(axis) % rows:
            moved = masked(moved, below(at, size_of(axis)))
        if size_of(along) != sizes[1]:
            moved = masked(moved, below(head, size_of(along)))
        layout = layout_of(moved, size_of(self.item), NBYTES, on_cores=True)
        pad, xor = padding(layout, load.dtype.itemsize), None
        if pad and self.loads_matrices:
            xor = xor_of_rows(layout.run, load.dtype.itemsize)
        layout = layout._replace(pad=0 if xor else pad, xor=xor)
        memory = self.memory(load.dtype, (), (layout.run + layout.pad) * layout.rows, xor)
        fill = fill_tile(kernel, moved, layout, Stage(memory), [self.item])
        return Tile(memory, row, head, layout, fill)

    @property
    def loads_matrices(self) -> bool:
        """Whether a warp loads operands from local memory together."""
        return "ldmatrix" in self.target.features

    def read(
        self, operand: str, tile: Tile, after: tuple[UOp, ...], axes: str,
        lanes: dict[str, dict[str, UOp]], start: tuple[list[UOp], UOp],
    ) -> UOp:  # fmt: skip
        """An operand out of a tile, whose rows and heads lie along two axes of a product."""
        items, registers = self.core.bits(operand)
        own = {w: lanes[w[0]][w[1:]] for w in registers}
        # Bits of a work-item's number, until it is known which of them read what.
        own |= {w: self.kernel.new_range(2, AxisType.LOCAL) for w in items}
        place = {
            tile.row: index_sum([*start[0], *bits_along(own, axes[0])]),
            tile.head: index_sum([start[1], *bits_along(own, axes[1])]),
        }
        layout = tile.layout
        at = layout.at(position(layout.far, place), position(layout.near, place))
        value = tile.memory.after(*after).index(at).load()
        together = matrices_of(self.core, operand, value, own, self.numbers, self.target)
        if together is not None:
            return together[0]
        return moved(value, {own[w]: self.numbers[i] for i, w in enumerate(items)})

    @property
    def numbers(self) -> list[UOp]:
        """The bits of a work-item's number in its warp."""
        bits = range(self.core.warp.bit_length() - 1)
        parts = [index_alu(Ops.IDIV, self.item, UOp.index_const(1 << i)) for i in bits]
        return [index_alu(Ops.MOD, part, UOp.index_const(2)) for part in parts]

    @property
    def more_keys(self) -> list[UOp]:
        """Where the keys of a product lie behind those of the one before."""
        return [index_times(r, 1 << int(w)) for w, r in self.key_bits.items() if self.is_more(w)]

    def is_more(self, word: str) -> bool:
        """Whether a bit of keys tells results of one product from those of the next."""
        return 1 << int(word) >= self.score_core.size("n")

    # values

    def of_rows(self, load: UOp, depth: UOp, piece: UOp, anew: bool) -> UOp:
        """An operand A: each warp has rows of its own, which stay in registers.

        With `anew` they stay in local memory, from where each iteration takes them.
        """
        core, rows = self.core, self.parts.rows
        height = self.warps * core.size("m")
        room = height * sum([room_of(r, core) for r in self.depths]) * load.dtype.itemsize
        if self.loads_matrices and 2 * room <= self.target.local_bytes:
            tile = self.staged(load, rows, depth, self.start, height)
            ready = UOp(Ops.BARRIER, dtypes.void, (tile.fill,))
            after = (ready, self.loop) if anew else (ready,)
            first = [index_times(self.warp, core.size("m"))], index_times(piece, self.step)
            return self.read("a", tile, after, "mk", self.lanes_of(scores=True), first)
        at = index_sum([index_times(piece, self.step), self.along("a", "k", self.depth_bits)])
        moved = substitute(load, {**self.outside, rows: self.row, depth: at})
        is_inside = below(at, size_of(depth)) if size_of(depth) % self.step else None
        return masked(masked(moved, self.row_gate), is_inside)

    @property
    def row_gate(self) -> UOp | None:
        """Tests whether a row is one of the kernel's, where blocks have more."""
        n, height = size_of(self.parts.rows), self.warps * self.core.size("m")
        return below(self.row, n) if n % height else None

    def column_gate(self, column: UOp) -> UOp | None:
        """Tests whether a column is one of the kernel's, where products have more."""
        n = self.heads[1]
        return below(column, n) if n % self.core.size("n") else None

    def product(self, a: UOp, b: UOp, scores: bool, steps: UOp) -> UOp:
        """The sum of products of a tile, of which each work-item has the lanes of a result."""
        core, axes = self.core, self.lanes_of(scores)
        lanes = [[axes[w[0]][w[1:]] for w in core.bits(x)[1]] for x in "abc"]
        arg = MmaArg(core.name, len(lanes[0]), len(lanes[1]))
        made = UOp(Ops.MMA, dtypes.float32, (a, b, *lanes[0], *lanes[1], *lanes[2]), arg)
        return self.folded(made, Ops.ADD, steps)

    def folded(self, u: UOp, op: Ops, *lanes: UOp) -> UOp:
        """A fold over lanes, in a loop of one iteration, whose accumulators registers are."""
        once = self.kernel.new_range(1, AxisType.REDUCE)
        return UOp(Ops.REDUCE, u.dtype, (u, once, *lanes), ReduceArg(op))

    def lanes_of(self, scores: bool) -> dict[str, dict[str, UOp]]:
        """By axis of a product, the lanes of bits of registers."""
        if scores:
            return {"m": self.row_bits, "k": self.depth_bits, "n": self.key_bits}
        return {"m": self.row_bits, "k": self.key_bits, "n": self.column_bits}

    def sum_of(self, u: UOp, op: Ops) -> UOp:
        """A fold of what a work-item has of each row of a tile."""
        own = [w[1:] for w in self.score_core.bits("c")[1] if w[0] == "n"]
        lanes = [r for w, r in self.key_bits.items() if w in own or self.is_more(w)]
        return self.folded(u, op, self.chunk, *lanes)

    def over_row(self, u: UOp, op: Ops) -> UOp:
        """A fold of what the work-items of a warp have that share a row."""
        for i, word in enumerate(self.core.bits("c")[0]):
            if word[0] == "n":
                u = u.alu(op, UOp(Ops.SHUFFLE, u.dtype, (u,), 1 << i))
        return u

    @property
    def depths(self) -> list[UOp]:
        """The axes along which rows are multiplied."""
        return [self.parts.depth]

    def key_of(self, tile: UOp) -> tuple[UOp, UOp | None]:
        """The key of a score that a work-item has, and whether it is one, where tiles have more."""
        start = [index_times(tile, self.tile), index_times(self.chunk, self.step)]
        key = self.along("c", "n", self.key_bits, scores=True)
        key = index_sum([*start, *self.more_keys, key])
        n = size_of(self.parts.keys)
        return key, below(key, n) if n % self.tile else None

    def score(self, scores: UOp) -> UOp:
        """Computes what the kernel makes of a score, at the place where a work-item has it."""
        parts = self.parts
        key, inside = self.key_of(self.loop)
        place = {**self.outside, parts.rows: self.row, parts.keys: key, parts.scores: scores}
        ends = frozenset({parts.scores})
        self.mask_loads([parts.score], ends, place, [inside, self.row_gate])
        score = substitute(parts.score, place)
        return score if inside is None else inside.where(score, MINUS_INFINITY)

    def stored(self, stores: Iterable[UOp], sums: dict[UOp, UOp], first: UOp | None) -> list[UOp]:
        """Stores some columns, or rows, by one work-item of each."""
        parts, core = self.parts, self.core
        place, axes = {**self.outside, parts.rows: self.row, **sums}, self.lanes_of_results
        if first is None:
            axes = self.rows
            words = enumerate(core.bits("c")[0])
            beside = [self.numbers[i] for i, word in words if word[0] == "n"]
            gates = [self.row_gate, below(index_sum(beside), 1)]
        else:
            start = index_times(first, core.size("n"))
            column = index_sum([start, self.along("c", "n", self.column_bits)])
            place[parts.columns] = column
            gates = [self.row_gate, self.column_gate(column)]
        self.mask_loads([u.src[1] for u in stores], frozenset(sums), place, gates)
        found = []
        for u in stores:
            src = [substitute(s, place) for s in u.src]
            for gate in gates:
                if gate is not None:
                    src[2:] = [s.alu(Ops.AND, gate) for s in src[2:]] or [gate]
            found.append(UOp(Ops.STORE, dtypes.void, tuple(src)).end(*axes))
        return found

    def mask_loads(
        self, values: list[UOp], ends: frozenset[UOp], place: dict[UOp, UOp],
        gates: list[UOp | None],
    ) -> None:  # fmt: skip
        """Lets what is loaded besides the operands, as a mask is, not be loaded where it is not."""
        for value in values:
            for u in toposort(value, enter=lambda u: u not in ends):
                if u.op is Ops.LOAD and u not in place:
                    moved = substitute(u, place)
                    for gate in gates:
                        moved = masked(moved, gate)
                    place[u] = moved


def by_products(store: UOp, divisors: Iterable[UOp]) -> UOp:
    """A STORE in which what is divided by a divisor is multiplied by its reciprocal.

    why: each row has one divisor, and a work-item many results of it
    when: it is 0, of a row that looks at nothing, or from 1 to the number of keys
    """
    shared = [u for u in toposort(store) if u.op is Ops.FDIV and u.src[1] in divisors]
    return substitute(
        store, {u: u.src[0].alu(Ops.MUL, u.src[1].alu(Ops.RECIPROCAL)) for u in shared}
    )


def masked(load: UOp, gate: UOp | None) -> UOp:
    """A load where a condition holds, beside those that it has."""
    if gate is None:
        return load
    both = gate if len(load.src) < 2 else load.src[1].alu(Ops.AND, gate)
    return UOp(Ops.LOAD, load.dtype, (load.src[0], both), load.arg)
