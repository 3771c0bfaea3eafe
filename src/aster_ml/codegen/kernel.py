"""Kernel: a kernel graph with its axes, and how each Opt is applied to it.

Receives a canonical kernel AST; every change gives a new graph in `sink`. Which Opts to apply is
not decided here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from aster_ml.codegen.analysis import Access, Facts
from aster_ml.codegen.opts import OF_OUTPUTS, OF_REDUCTIONS, Opt, axis_name, wanted_of
from aster_ml.codegen.prefetch import (
    broadcast_columns,
    broadcast_rows,
    column_loads,
    find_block,
    folds_of_next,
    longest,
    look_ahead,
    may_stream,
    prefetch_offset,
    row_passes,
    row_stage,
    run_of_lanes,
    stream_stores,
    tile_loads,
)
from aster_ml.codegen.roles import OverlappedSplit, Roles, ShiftedTail
from aster_ml.codegen.staging.sliding_windows import find_windowed, slab_load, slab_of
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv, divisors
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu, new_node
from aster_ml.uop.ops import AxisType, Ops, RangeArg, ReduceArg
from aster_ml.uop.ranges import before_last, size_of, steps_left, tells_apart
from aster_ml.uop.rules.symbolic import simplify_around
from aster_ml.watch import WATCHERS

INDEX = dtypes.index
# Names of a module are found faster than members of an Enum, and every node is asked for its op.
ADD, CONST, END, RANGE, REDUCE = Ops.ADD, Ops.CONST, Ops.END, Ops.RANGE, Ops.REDUCE
LOOP = AxisType.LOOP
# Of dtype index, but no arithmetic.
UNFOLDED = frozenset({Ops.STAGE, Ops.LOAD})


class Decision(NamedTuple):
    """A choice of the default schedule: what it is about, what was chosen, and what each costs."""

    about: str
    chosen: str
    costs: tuple[tuple[str, float], ...]


class Kernel:
    """One kernel while its axes are being arranged."""

    def __init__(self, sink: UOp) -> None:
        # What is known of the graph as it is now.
        self.facts = Facts(sink)
        self.outputs: list[UOp] = []
        self.applied: list[Opt] = []
        # Why they were chosen, where the cost did.
        self.notes: list[Decision] = []
        for end in sink.src:
            for r in end.src[1:] if end.op is Ops.END else ():
                if r not in self.outputs:
                    self.outputs.append(r)
        # What they have said of axes.
        self.roles = Roles()
        self.next_id = 1 + max([r.arg.id for r in self.facts.by_op[RANGE]], default=-1)

    # what there is

    @property
    def sink(self) -> UOp:
        """The graph as it is now."""
        return self.facts.sink

    @sink.setter
    def sink(self, sink: UOp) -> None:
        if sink is not self.facts.sink:
            self.facts = Facts(sink, self.facts.strides_of)

    @property
    def value(self) -> tuple[Any, ...]:
        """All that Opts have made of the kernel: where it is equal, so is the program."""
        return self.sink, tuple(self.outputs), self.roles.value

    @property
    def in_order(self) -> bool:
        """Whether its stores have an order, as in kernels written by hand."""
        info = self.sink.arg
        return info is not None and info.in_order

    @property
    def stores(self) -> list[UOp]:
        """The STORE nodes."""
        return self.facts.stores

    @property
    def reduces(self) -> list[UOp]:
        """The REDUCE nodes, sources first."""
        return self.facts.reduces

    @property
    def axes(self) -> list[UOp]:
        """Loops that Opts can name: outputs first, then those of reductions in order of id."""
        return self.output_loops + self.facts.reduced

    @property
    def output_loops(self) -> list[UOp]:
        """Output axes that Opts can name: all loops but the one that threads share out."""
        shared = self.roles.threads
        return [r for r in self.outputs if r.arg.kind is LOOP and r.arg.id != shared]

    @property
    def first_reduction(self) -> int:
        """Where the axes of reductions begin in `axes`."""
        return len(self.output_loops)

    def accesses(self) -> list[Access]:
        """Every load and store with its strides."""
        return self.facts.accesses

    def may_reorder(self, axis: UOp) -> bool:
        """Whether iterations of an output axis can run in any order, or at once.

        They cannot where a store writes what is read, unless different iterations are seen to store
        at different places; nor can the strips of a reduction, but all else can then.
        """
        if self.roles.strips is not None:
            return bool(axis.arg.id != self.roles.strips)
        stores = self.facts.stores_over_reads
        if not stores or axis.arg.id in self.roles.apart:
            return True
        return all([tells_apart(u.src[0].src[1], axis) for u in stores])

    # changing it

    def new_range(self, size: Any, kind: AxisType) -> UOp:
        """A fresh axis."""
        r = UOp.range(size, self.next_id, kind)
        self.next_id += 1
        return r

    def apply(self, opt: Opt) -> None:
        """Does what the Opt says.

        Raises: KernelOptError where it cannot be done to this kernel, or changes nothing of it:
            which Opt, why, and what would do.
        """
        before = (self.facts.sink, [*self.outputs], [*vars(self.roles).values()])
        axes = self.axes_of(opt)
        try:
            self.change(opt, *axes)
        except KernelOptError as error:
            raise KernelOptError(f"{opt}: {error}") from None
        if (self.facts.sink, self.outputs, [*vars(self.roles).values()]) == before:
            raise KernelOptError(f"{opt}: changes nothing of this kernel")
        self.applied.append(opt)
        for w in WATCHERS:
            w.applied(self, opt)

    def axes_of(self, opt: Opt) -> list[UOp]:
        """The axis that an Opt names, or both. Raises: KernelOptError where it is not there."""
        axes, of = self.axes, ""
        if opt.kind in OF_OUTPUTS:
            axes, of = self.output_loops, " of outputs"
        if opt.kind in OF_REDUCTIONS:
            axes, of = self.facts.reduced, " of reductions"
        names = (opt.axis, opt.arg) if opt.kind == "SWAP" else (opt.axis,)
        found = [named_axis(axes, name) for name in names]
        if None not in found:
            return [r for r in found if r is not None]
        sizes = [r.src[0].arg if r.src[0].op is Ops.CONST else "symbolic size" for r in axes]
        shown = [f"{axis_name(r)} of {size}" for r, size in zip(axes, sizes, strict=True)]
        raise KernelOptError(
            f"{opt}: the kernel has no axis {names[found.index(None)]}{of}, but "
            f"{', '.join(shown) or 'none'}; positions count from 0"
        )

    def change(self, opt: Opt, axis: UOp, *others: UOp) -> None:
        """Does to an axis, or to two, what an Opt says."""
        kind = opt.kind
        if kind == "THREAD":
            self.make_thread(axis, opt.arg)
        elif kind == "SWAP":
            self.swap(axis, *others)
        elif kind == "SPLIT mask":
            self.pad(axis, opt.arg)
        elif kind == "KBLOCK output":
            self.block(axis, opt.arg)
        elif kind == "KBLOCK row":
            self.by_rows(axis, opt.arg)
        elif kind == "KBLOCK wide":
            self.nest(axis, opt.arg)
        elif kind in LANE_KIND and self.fills_slab(axis):
            raise KernelOptError("lanes would share a slab that every step fills anew")
        elif kind == "UPCAST shift" and axis.arg.id not in self.roles.early:
            self.overlap(axis, opt.arg, AxisType.UPCAST)
        elif kind == "SPLIT loop":
            self.roles.no_early(axis.arg.id)
            self.roles.tiled |= {axis.arg.id}
            self.overlap(axis, opt.arg, AxisType.LOOP)
        elif kind == "SPLIT peel":
            self.peel(axis, opt.arg)
        elif kind == "STAGE words":
            if self.roles.row_steps:
                raise KernelOptError("sums of whole rows read memory, and no panels")
            self.roles.word = opt.arg
        elif kind == "STAGE halo":
            self.load_slab(axis, bool(opt.arg))
        elif kind == "NONTEMPORAL":
            self.stream()
        elif kind == "PREFETCH":
            self.look_ahead(axis, opt.arg)
        elif kind == "PIPELINE stores":
            self.skew(axis)
        elif kind == "PIPELINE folds":
            self.fold_next(axis)
        elif kind in LANE_KIND:
            if kind == "STAGE local":
                self.roles.staged = self.next_id
            self.split_lanes(axis, opt.arg or size_of(axis), LANE_KIND[kind])
        else:
            raise KernelOptError(wanted_of(opt.op))

    def swap(self, axis: UOp, other: UOp) -> None:
        """Two output axes change places."""
        i, j = self.outputs.index(axis), self.outputs.index(other)
        self.outputs[i], self.outputs[j] = self.outputs[j], self.outputs[i]

    def stream(self) -> None:
        """Stores of whole SIMD values go past the caches; others cannot."""
        stores = [a.node for a in self.accesses() if may_stream(a)]
        if not stores:
            raise KernelOptError(
                "stores of SIMD lanes that are neighbours in memory, without a mask, are wanted"
            )
        self.sink = stream_stores(self.sink, stores)

    def look_ahead(self, axis: UOp, steps: int) -> None:
        """The pass over rows that computes most asks for those of later steps of an output axis.

        So do loads along a tile of rows or down columns, without such rows; without sums each step
        of the axis asks for the block of rows that the next one reads across
        (`cpu/block_prefetch`).
        """
        if not self.reduces and any([find_block(self.outputs, axis, a) for a in self.accesses()]):
            self.roles.prefetched = axis.arg.id
            return
        passes = row_passes(self.facts, axis) if axis in self.outputs else []
        aside: list[tuple[Access, int]] = []
        if axis in self.outputs and not passes:
            aside = tile_loads(self.facts, axis, self.roles.row_steps) or broadcast_rows(
                self.facts, axis
            )
            aside = aside or broadcast_columns(self.facts, axis)
            aside = aside or [(a, run_of_lanes(a)) for a in column_loads(self.facts, axis)]
        if aside:
            self.sink = prefetch_offset(self.sink, aside, steps)
            return
        if not passes:
            raise KernelOptError(
                "rows that are read twice in a step of an output axis are wanted, or "
                "columns or a tile of rows in a reduction, or blocks of a transpose"
            )
        self.sink = look_ahead(self.sink, longest(passes).loads, axis, steps)

    def skew(self, axis: UOp) -> None:
        """Rows along an output axis are stored while the next is made (`codegen/pipelining`)."""
        if row_stage(self.facts, self.outputs, axis) is None:
            raise KernelOptError(
                "an output axis is wanted each step of which keeps a row in scratch and stores one"
            )
        self.roles.stored_later = axis.arg.id

    def fold_next(self, axis: UOp) -> None:
        """Rows along an output axis are first folded beside the row before (`row_pipelining`)."""
        if axis not in self.outputs or folds_of_next(self.facts, axis) is None:
            raise KernelOptError(
                "an output axis is wanted each step of which folds twice in loops of as many "
                "turns, first a row of memory into one number"
            )
        self.roles.folded_early = axis.arg.id

    def stored_row(self) -> tuple[UOp, UOp] | None:
        """Of rows that are stored one step later, the STAGE and where stores read it."""
        axes = [r for r in self.outputs if r.arg.id == self.roles.stored_later]
        return row_stage(self.facts, self.outputs, axes[0]) if axes else None

    def make_thread(self, axis: UOp, chunks: int = 0) -> None:
        """The axis becomes the outermost and is shared out, or so many chunks of it do.

        Where chunks do not share out the axis, the last of them starts early.
        """
        if self.roles.threads is not None:
            raise KernelOptError("another axis is shared out over threads already")
        if 0 < chunks < size_of(axis):
            place = self.outputs.index(axis)
            self.roles.no_early(axis.arg.id)
            length = ceildiv(size_of(axis), chunks)
            if size_of(axis) % chunks:
                self.overlap(axis, length, AxisType.LOOP)
            else:
                self.split(axis, length, AxisType.LOOP)
            axis = self.outputs[place]
        self.outputs.remove(axis)
        self.outputs.insert(0, axis)
        self.roles.threads = axis.arg.id

    def split_lanes(self, axis: UOp, lanes: int, kind: AxisType) -> None:
        """Splits lanes off an axis; SIMD lanes that do not divide it start early at its end."""
        size = axis.src[0]
        uneven = size.op is Ops.CONST and 0 < lanes < size.arg and size.arg % lanes
        if axis.arg.id in self.roles.early and kind is AxisType.UPCAST:
            self.widen_early(axis, lanes)
        elif kind is AxisType.VECTOR and uneven and axis in self.outputs:
            self.overlap(axis, lanes, kind)
        else:
            self.split(axis, lanes, kind)

    def may_split(self, axis: UOp, lanes: int) -> bool:
        """Whether UPCAST may split so many lanes off an axis."""
        size, early = axis.src[0], self.roles.early.get(axis.arg.id)
        if size.op is not Ops.CONST or self.fills_slab(axis):
            return False
        if early is not None:
            return 1 < lanes <= early.size // early.lanes
        return bool(size.arg % lanes == 0)

    def split(self, axis: UOp, lanes: int, kind: AxisType) -> None:
        """`axis` -> `outer * lanes + inner`, `inner` of the given kind."""
        size = axis.src[0]
        if size.op is not Ops.CONST or size.arg % lanes:
            if size.op is not Ops.CONST:
                raise KernelOptError("an axis of a fixed size is wanted, and this one is symbolic")
            fitting = ", ".join(map(str, divisors(size.arg)[1:]))
            raise KernelOptError(
                f"{lanes} does not divide the axis of {size.arg}; {fitting or 'nothing'} would"
            )
        inner = self.new_range(lanes, kind)
        is_output = axis in self.outputs
        if size.arg == lanes:
            whole: UOp = inner
            new_outputs = [inner if r is axis else r for r in self.outputs]
            parts: tuple[UOp, ...] = (inner,)
        else:
            outer = UOp(Ops.RANGE, axis.dtype, (UOp.index_const(size.arg // lanes),), axis.arg)
            whole = index_alu(Ops.ADD, index_alu(Ops.MUL, outer, UOp.index_const(lanes)), inner)
            new_outputs = [x for r in self.outputs for x in ((outer, inner) if r is axis else (r,))]
            parts = (outer, inner)
        if is_output:
            self.outputs = new_outputs
        self.rewrite({axis: whole}, {axis: parts})

    def peel(self, axis: UOp, length: int) -> None:
        """Two reductions instead of one: over the first `length` steps, and over the others.

        What is uneven in the second does not burden the first. Its axis is the newest.
        """
        size = axis.src[0]
        if size.op is not Ops.CONST or not 0 < length < size.arg or not can_peel(self, axis):
            raise KernelOptError(
                f"1 to {int(size.vmax) - 1} steps of a reduction are wanted that runs over this "
                f"axis alone, and {length} are given"
            )
        old = next(u for u in self.reduces if axis in u.src[1:])
        first = UOp(Ops.RANGE, axis.dtype, (UOp.index_const(length),), axis.arg)
        others = {r: self.new_range(r.src[0], r.arg.kind) for r in old.src[1:] if r is not axis}
        rest = self.new_range(size.arg - length, AxisType.REDUCE)
        value = substitute(old.src[0], {axis: first})
        closed = [first if r is axis else r for r in old.src[1:]]
        main = UOp(Ops.REDUCE, old.dtype, (value, *closed), old.arg)
        value = substitute(
            old.src[0], {**others, axis: index_alu(Ops.ADD, rest, UOp.index_const(length))}
        )
        closed = [rest if r is axis else others[r] for r in old.src[1:]]
        tail = UOp(Ops.REDUCE, old.dtype, (value, *closed), old.arg)
        self.sink = substitute(self.sink, {old: main.alu(old.arg.op, tail)})

    def nest(self, axis: UOp, length: int) -> None:
        """A sum of sums: over `length` steps of the axis at a time, and over these sums.

        Rounding errors grow with the number of additions one after the other: the inner sums are
        short, and the outer ones lose nothing, having twice the bits. Loops within the axis and
        lanes that are no SIMD lanes belong to the inner sums, all else to the outer ones.
        """
        old = next((u for u in self.reduces if axis in u.src[1:]), None)
        size = size_of(axis)
        if old is None or not can_nest(self, axis) or not 0 < length <= size:
            raise KernelOptError(
                f"1 to {size} steps of one sum of floats are wanted, and {length} are given"
            )
        closed = list(old.src[1:])
        place = closed.index(axis)
        within = [r for r in closed[place + 1 :] if not r.arg.kind.is_lane]
        outer = [r for r in closed[:place] if not r.arg.kind.is_lane]
        inner: UOp = axis
        value = old.src[0]
        if length < size:
            far = self.new_range(ceildiv(size, length), AxisType.REDUCE)
            start = index_alu(Ops.MUL, far, UOp.index_const(length))
            inner = self.new_range(steps_left(start, length, size), AxisType.REDUCE)
            step = {axis: index_alu(Ops.ADD, start, inner)}
            # Loops within may run to what is left of this axis.
            sized = [r for r in toposort(value) if r.op is Ops.RANGE and axis in toposort(r.src[0])]
            fresh = {
                r: r.replace(src=(simplify_around(substitute(r.src[0], step)),)) for r in sized
            }
            value = substitute(value, {**step, **fresh})
            outer.append(far)
        lanes = [r for r in closed if r.arg.kind.is_lane]
        simd = [r for r in lanes if r.arg.kind is AxisType.VECTOR]
        side_by_side = [r for r in lanes if r.arg.kind is not AxisType.VECTOR]
        part = UOp(Ops.REDUCE, old.dtype, (value, inner, *within, *side_by_side), old.arg)
        wide = part if old.dtype is dtypes.float64 else part.cast(dtypes.float64)
        total = UOp(Ops.REDUCE, wide.dtype, (wide, *outer, *simd), old.arg)
        self.sink = substitute(self.sink, {old: total.cast(old.dtype)})

    def overlap(self, axis: UOp, lanes: int, kind: AxisType) -> None:
        """`axis` -> `min(outer * lanes, size - lanes) + inner`, `inner` a part of an output axis.

        What the last part has in common with the one before is computed and stored twice, which
        nobody sees as long as the kernel does not read what it stores. Strips do, so they store it
        once.
        """
        if axis not in self.outputs or axis.arg.id == self.roles.strips or not can_overlap(self):
            raise KernelOptError("an output axis of a kernel that reads no output is wanted")
        size = axis.src[0]
        if size.op is not Ops.CONST or not 0 < lanes <= size.arg:
            raise KernelOptError(
                f"1 to {int(size.vmax)} steps of an axis of a fixed size are wanted, and {lanes} "
                "are given"
            )
        if size.arg % lanes == 0:
            return self.split(axis, lanes, kind)
        inner = self.new_range(lanes, kind)
        if kind is AxisType.UPCAST:
            self.roles.twice = {
                **self.roles.twice,
                axis.arg.id: OverlappedSplit(inner.arg.id, lanes, size.arg),
            }
        else:
            self.roles.overlaps = True
        steps = UOp.index_const(ceildiv(size.arg, lanes))
        outer = UOp(Ops.RANGE, axis.dtype, (steps,), axis.arg)
        short = before_last(outer, size.arg, lanes)
        start = index_alu(Ops.SUB, UOp.index_const(size.arg - lanes), short)
        if kind is AxisType.VECTOR:
            self.roles.early = {
                **self.roles.early,
                axis.arg.id: ShiftedTail(short, size.arg, lanes),
            }
        self.outputs = [x for r in self.outputs for x in ((outer, inner) if r is axis else (r,))]
        self.rewrite({axis: index_alu(Ops.ADD, start, inner)}, {axis: (outer, inner)})
        if self.roles.strips is not None:
            self.store_where(first_time(outer, inner, size.arg, lanes))

    def widen_early(self, axis: UOp, count: int) -> None:
        """`count` SIMD values side by side, the last of which start early together."""
        short, size, lanes = self.roles.early[axis.arg.id]
        wide = count * lanes
        if not lanes < wide <= size:
            raise KernelOptError(
                f"{count} times {lanes} lanes of an axis of {size}; 2 to {size // lanes} times "
                "would fit"
            )
        inner = self.new_range(count, AxisType.UPCAST)
        outer = UOp(Ops.RANGE, axis.dtype, (UOp.index_const(ceildiv(size, wide)),), axis.arg)
        held = before_last(outer, size, wide)
        self.roles.early = {**self.roles.early, axis.arg.id: ShiftedTail(held, size, wide)}
        # size - lanes - short is to become size - wide - held + inner * lanes.
        before = index_alu(Ops.SUB, UOp.index_const(count - 1), inner)
        before = index_alu(Ops.ADD, held, index_alu(Ops.MUL, before, UOp.index_const(lanes)))
        self.outputs = [x for r in self.outputs for x in ((outer, inner) if r is axis else (r,))]
        self.rewrite({short: before}, {axis: (outer, inner)})

    def pad(self, axis: UOp, multiple: int) -> None:
        """The axis grows to a multiple; loads and stores beyond its end are masked."""
        size = axis.src[0]
        if size.op is not Ops.CONST or multiple < 1:
            raise KernelOptError(
                f"an axis of a fixed size and a multiple from 1 on are wanted, and {multiple} is "
                "given"
            )
        new = UOp(
            Ops.RANGE,
            axis.dtype,
            (UOp.index_const(ceildiv(size.arg, multiple) * multiple),),
            axis.arg,
        )
        if new is axis:
            return
        if axis in self.outputs and self.may_reorder(axis):
            self.roles.apart |= {axis.arg.id}
        inside = new < size
        changes: dict[UOp, UOp] = {}
        for u in self.facts.order:
            if u in changes:
                continue
            src = tuple(map(changes.get, u.src, u.src))
            if u is axis:
                fresh = new
            elif u.op is Ops.LOAD and axis in u.ranges:
                fresh = UOp(Ops.LOAD, u.dtype, (src[0], self.both(inside, *src[1:])), u.arg)
            elif u.op is Ops.STORE and axis in u.ranges:
                src = (src[0], src[1], self.both(inside, *src[2:]))
                fresh = UOp(Ops.STORE, u.dtype, src, u.arg)
            elif u.op is Ops.REDUCE and axis in u.src[1:]:
                value = src[0]
                if u.arg.op is not Ops.ADD or not is_zero_unloaded(u.src[0], axis):
                    value = inside.where(value, UOp.const(u.dtype, identity(u.arg.op, u.dtype)))
                fresh = UOp(u.op, u.dtype, (value, *src[1:]), u.arg)
            else:
                fresh = u if src == u.src else UOp(u.op, u.dtype, src, u.arg)
            changes[u] = fresh
        self.outputs = [new if r is axis else r for r in self.outputs]
        self.sink = changes[self.sink]

    def block(self, axis: UOp, length: int) -> None:
        """`length` steps of a reduction at a time; between strips its sums lie in the output.

        The strips are the outermost output axis: what they load is used by all outputs while it is
        in the cache. Where all is loaded but once, they stand within all outputs but the last.
        What follows the reduction is stored with the last strip. Lanes that start early add up and
        store what the ones before them have not.
        """
        size = size_of(axis)
        if not 0 < length < size:
            raise KernelOptError(f"strips of {length} of {size} steps; 1 to {size - 1} would do")
        if not can_block(self):
            raise KernelOptError("one store of one sum in the sum's own dtype is wanted")
        (store,), (old,) = self.stores, self.reduces
        strip = self.new_range(ceildiv(size, length), AxisType.LOOP)
        start = index_alu(Ops.MUL, strip, UOp.index_const(length))
        inner = self.new_range(steps_left(start, length, size), AxisType.REDUCE)
        summed = substitute(old.src[0], {axis: index_alu(Ops.ADD, start, inner)})
        closed = [inner if r is axis else r for r in old.src[1:]]
        strip_sum = UOp(Ops.REDUCE, old.dtype, (summed, *closed), old.arg)
        # A masked load gives zero: the sums before the first strip.
        again = UOp.index_const(0) < strip
        before = UOp(Ops.LOAD, old.dtype, (store.src[0], self.both(again, *store.src[2:])))
        if old.arg.op is not Ops.ADD:
            before = again.where(before, UOp.const(old.dtype, identity(old.arg.op, old.dtype)))
        total = before.alu(old.arg.op, strip_sum)
        value = total
        if store.src[1] is not old:
            last = strip.alu(Ops.CMPEQ, UOp.index_const(ceildiv(size, length) - 1))
            value = last.where(substitute(store.src[1], {old: total}), total)
        end = UOp(store.op, store.dtype, (store.src[0], value, *store.src[2:]), store.arg)
        self.roles.strips = strip.arg.id
        loops = [r for r in self.outputs if not r.arg.kind.is_lane]
        once = all(set(loops) <= a.strides.keys() for a in self.accesses())
        self.outputs.insert(self.outputs.index(loops[-1]) if once and loops else 0, strip)
        self.sink = self.sink.replace(src=(end.end(*self.outputs),))
        by_id = {r.arg.id: r for r in self.outputs}
        for number, (inner_id, lanes, whole) in self.roles.twice.items():
            self.store_where(first_time(by_id[number], by_id[inner_id], whole, lanes))

    def store_where(self, gate: UOp) -> None:
        """The one result is stored where this holds, too, and nowhere else."""
        (store,) = self.stores
        gated = UOp(store.op, store.dtype, (*store.src[:2], self.both(gate, *store.src[2:])))
        self.sink = substitute(self.sink, {store: gated})

    def load_slab(self, axis: UOp, whole: bool) -> None:
        """The windows of a load along an output axis read a STAGE of what they meet.

        Its rows are `whole`, or in phases: what neighbours along the axis read lies side by side.
        """
        found = find_windowed(self.facts, self.outputs, axis, self.roles.tiled)
        if found is None or self.roles.slab is not None:
            raise KernelOptError("an output axis with windows of one load along it is wanted")
        self.roles.slab = slab = slab_of(found, self.next_id, whole)
        load = slab_load(found, slab, whole, self.new_range)
        self.sink = substitute(self.sink, {found.access.node: load})

    def slab_stage(self) -> UOp | None:
        """What windows load through scratch, if they do, with the axes that it spans there."""
        if self.roles.slab is None:
            return None
        stages = self.facts.by_op[Ops.STAGE]
        return next(u for u in stages if u.src[-1].arg.id == self.roles.slab.columns)

    def fills_slab(self, axis: UOp) -> bool:
        """Whether each step of an axis fills a slab of its own: such an axis stays a loop."""
        stage = self.slab_stage()
        return stage is not None and axis in stage.ranges

    def loads_slab(self, axis: UOp) -> bool:
        """Whether SIMD lanes along an output axis are loaded from a slab."""
        stage = self.slab_stage()
        return axis in self.outputs and any(
            a.buffer is stage and a.stride(axis) == 1 for a in self.accesses()
        )

    def by_rows(self, axis: UOp, count: int) -> None:
        """Sums of a whole row of outputs are in scratch; `staging/accumulators` puts them there."""
        if self.roles.word or not can_sum_rows(self) or not 0 < count <= size_of(axis):
            raise KernelOptError(
                f"one reduction over this axis alone, in all output axes, of memory and not of "
                f"panels, and 1 to {size_of(axis)} steps of it are wanted; {count} are given"
            )
        self.roles.row_steps = count

    def both(self, a: UOp, b: UOp | None = None) -> UOp:
        """The conjunction."""
        return a if b is None else b.alu(Ops.AND, a)

    def rewrite(
        self, changes: dict[UOp, UOp], parts: dict[UOp, tuple[UOp, ...]] | None = None
    ) -> dict[UOp, None]:
        """Substitutes axes; where an axis is closed (END, REDUCE), its parts are.

        Returns what the graph then has, sources first; and, where something folds, maybe what that
        was made of, which has fallen away.
        """
        # What becomes another node.
        new: dict[UOp, UOp] = dict(changes)
        parts = parts or {}
        order: dict[UOp, None] = {}
        # Whether nothing has fallen away, numbers aside.
        whole = all([r.op is RANGE for r in changes])
        # A view: of what is in `new` by then.
        stay = new.keys().isdisjoint
        for u in self.facts.order:
            if u in new:
                toposort(new[u], done=order)
                continue
            op, src = u.op, u.src
            if stay(src):
                order[u] = None
                continue
            if op is END or op is REDUCE:
                closed = [p for r in src[1:] for p in parts.get(r, (new.get(r, r),))]
                value = new.get(src[0], src[0])
                fresh = new_node(op, u.dtype, (value, *closed), u.arg) if closed else value
            else:
                made = tuple(map(new.get, src, src))
                if u.dtype is not INDEX or len(made) != 2 or op in UNFOLDED:
                    fresh = new_node(op, u.dtype, made, u.arg)
                elif op is ADD and made[0].op is not CONST and made[1].op is not CONST:
                    # As index arithmetic makes it, but for the order, in which it is when lowered.
                    fresh = new_node(op, INDEX, made)
                else:
                    # Index arithmetic folds.
                    fresh = index_alu(op, *made)
                    whole = whole and fresh.op is op and fresh.src in (made, made[::-1])
            new[u] = fresh
            order[fresh] = None
        self.sink = new.get(self.sink, self.sink)
        if whole:
            self.facts.order = order
        return order

    def set_kind(self, axis: UOp, kind: AxisType) -> UOp:
        """The same axis, run another way."""
        new = UOp(Ops.RANGE, axis.dtype, axis.src, RangeArg(axis.arg.id, kind))
        self.outputs = [new if r is axis else r for r in self.outputs]
        self.rewrite({axis: new})
        return new


def named_axis(axes: list[UOp], name: int | str) -> UOp | None:
    """The one of these axes that has a name, or stands at a position."""
    if isinstance(name, int):
        return axes[name] if 0 <= name < len(axes) else None
    return next((r for r in axes if axis_name(r) == name), None)


def first_time(outer: UOp, inner: UOp, size: int, lanes: int) -> UOp:
    """Whether no step of `outer` before has computed this one of lanes that start early."""
    begun = index_alu(Ops.MUL, outer, UOp.index_const(lanes))
    at = index_alu(Ops.ADD, inner, UOp.index_const(size - lanes + 1))
    return begun.alu(Ops.CMPLT, at)


# Of zeros they make zeros.
KEEP_ZERO = frozenset({Ops.MUL, Ops.ADD, Ops.SUB, Ops.NEG, Ops.CAST})


def is_zero_unloaded(value: UOp, axis: UOp) -> bool:
    """Whether a value is zero where all that is loaded along an axis is, without a test of its own.

    Of a product both factors have to be: zero times what is not finite is not zero. What comes
    through a STAGE may be read from where it is computed, and not loaded.
    """
    for u in toposort(value, enter=lambda u: u.op in KEEP_ZERO):
        if u.op is Ops.LOAD:
            if axis not in u.ranges or u.src[0].src[0].op is not Ops.PARAM:
                return False
        elif u.op not in KEEP_ZERO:
            return False
    return True


def can_peel(kernel: Kernel, axis: UOp) -> bool:
    """Whether one reduction alone runs over an axis, and no other depends on it."""
    mine = [u for u in kernel.reduces if axis in u.src[1:]]
    return len(mine) == 1 and not any(axis in u.ranges for u in kernel.reduces if u is not mine[0])


def can_nest(kernel: Kernel, axis: UOp) -> bool:
    """Whether the sum over an axis may become a sum of sums: of floats, each step on its own."""
    mine = [u for u in kernel.reduces if axis in u.src[1:]]
    if axis.src[0].op is not Ops.CONST or len(mine) != 1 or mine[0].arg.op is not Ops.ADD:
        return False
    if mine[0].dtype not in (dtypes.float32, dtypes.float64):
        return False
    others = [u for u in kernel.reduces if u is not mine[0] and axis in u.ranges]
    # Those that its value is made of change with the axis.
    return not others or toposort(mine[0]).keys() >= set(others)


def can_overlap(kernel: Kernel) -> bool:
    """Whether the same element may be computed twice: of strips it is stored the first time."""
    return kernel.roles.strips is not None or not kernel.facts.stores_over_reads


def can_block(kernel: Kernel) -> bool:
    """Whether sums may lie in the output between strips of their reduction."""
    # What runs twice would add up twice.
    if kernel.roles.overlaps or len(kernel.stores) != 1 or len(kernel.reduces) != 1:
        return False
    # Those that start early have to be told from those before them.
    sizes = {r.arg.id: size_of(r) for r in kernel.outputs}
    for number, lanes in kernel.roles.twice.items():
        if sizes.get(number) != ceildiv(lanes.size, lanes.lanes):
            return False
    (store,), (reduce,) = kernel.stores, kernel.reduces
    return (
        reduce.arg.op in (Ops.ADD, Ops.MAX)
        and reduce.dtype is store.src[1].dtype
        and not kernel.facts.stores_over_reads
        and set(kernel.outputs) <= reduce.ranges
    )


def can_sum_rows(kernel: Kernel) -> bool:
    """Whether one reduction over one loop is all that runs in the output loops."""
    if (
        len(kernel.reduces) != 1
        or kernel.roles.strips is not None
        or kernel.facts.stores_over_reads
    ):
        return False
    if len(kernel.stores) != 1 or kernel.facts.by_op[Ops.STAGE]:
        return False
    (u,) = kernel.reduces
    return (
        len(u.src) == 2
        and u.src[1].arg.kind is AxisType.REDUCE
        and u.src[1].src[0].op is Ops.CONST
        and bool(kernel.outputs)
        and set(kernel.outputs) <= u.ranges
    )


LANE_KIND = {
    "UPCAST": AxisType.UPCAST,
    "UPCAST shift": AxisType.UPCAST,
    "UNROLL": AxisType.UNROLL,
    "VECTOR": AxisType.VECTOR,
    "LOCAL": AxisType.LOCAL,
    "GROUP": AxisType.GROUP,
    "STAGE local": AxisType.UNROLL,
}


def identity(op: Ops, dtype: Any) -> Any:
    """What changes nothing when folded in."""
    return {
        Ops.ADD: 0,
        Ops.MUL: 1,
        Ops.MAX: dtypes.min(dtype),
        Ops.OR: 0,
        Ops.AND: dtypes.max(dtype),
        Ops.XOR: 0,
    }[op]


__all__ = ["Access", "Kernel", "ReduceArg", "identity"]
