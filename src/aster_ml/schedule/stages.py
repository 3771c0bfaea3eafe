"""Which values are stored: from a body of tensors to one graph of STAGEs.

Hop 3, first half. Receives the captured body (SINK of STOREs over tensor-stage nodes); returns for
every value that gets memory of its own a `Stored`: its expression over ranges, in which other
stored values are read through INDEX. Movement ops, IOTA and axes are gone afterwards.

Two passes. Downwards from the outputs, each node learns how it is read: by which stored value, at
which indices, inside which loops; and a cost decides whether it is stored. Upwards, each reading
becomes an expression. Nothing here knows of devices beyond their names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aster_ml.config import FUSE, MAX_KERNEL_NODES
from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.helpers import all_int, prod
from aster_ml.schedule import cost
from aster_ml.schedule.effects import Effects
from aster_ml.schedule.joins import find_joins, is_inside
from aster_ml.schedule.stacks import read_pad, stacked_size
from aster_ml.uop.graph import consumers, toposort
from aster_ml.uop.infer import max_shape
from aster_ml.uop.movement import (
    Indices,
    both,
    flat_index,
    slice_of_base,
    source_index,
)
from aster_ml.uop.node import UOp, index_alu, need
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, AxisType, Ops, ParamArg
from aster_ml.uop.symbolic import simplify_around


class Reading(NamedTuple):
    """How a node is read: by the stored value `root`, at `idxs`, where `valid` holds.

    `nest` are the ranges of all loops around the reading; `after` the STOREs that it has to see.
    `summed` says that a sum reads it through nothing but movement. Of so many turns of the loops
    as `share` says, one reads it: the others have what lies beside it in a stack.
    """

    root: UOp
    idxs: Indices
    valid: UOp | None
    nest: tuple[UOp, ...]
    after: tuple[UOp, ...] = ()
    summed: bool = False
    share: int = 1


@dataclass
class Stored:
    """A value with memory: `value` over `ranges`; where it goes, and what it must wait for.

    `target` is the STORE of the body that names the memory, or None for a temporary.
    """

    node: UOp
    ranges: tuple[UOp, ...]
    target: UOp | None = None
    value: UOp | None = None
    outer: frozenset[UOp] = frozenset()
    size: int = 0
    has_reduce: bool = False


def estimate(size: int | UOp) -> int:
    """A size as a number; of a symbolic one, its largest."""
    return size if isinstance(size, int) else int(size.vmax)


def volume(ranges: Iterable[UOp]) -> int:
    """Number of iterations of a set of loops."""
    return prod([estimate_range(r) for r in ranges])  # type: ignore[no-any-return]


def reach_of_columns(outputs: Sequence[UOp], used: frozenset[UOp]) -> int:
    """Elements between the first and the last of what loops outside of `used` run over.

    Where the last axis of the outputs is one of `used` these go down columns; else 0.
    """
    ranges = [r for r in outputs if r.op is Ops.RANGE]
    if not ranges or ranges[-1] not in used:
        return 0
    first = next((i for i, r in enumerate(ranges) if r not in used), len(ranges))
    return volume(ranges[first:]) if first < len(ranges) else 0


def meets_in_windows(valid: UOp | None) -> bool:
    """Whether a condition says of places, by comparisons alone, that they are within bounds."""
    return valid is not None and not any([x.op in (Ops.IDIV, Ops.MOD) for x in toposort(valid)])


def estimate_range(r: UOp) -> int:
    """Size of a range as a number."""
    return int(r.src[0].vmax)


class StagePlanner:
    """State of the two passes over one body."""

    def __init__(self, body: UOp) -> None:
        self.order = list(toposort(body))
        self.consumers = consumers(self.order)
        self.stored: dict[UOp, Stored] = {}
        self.readings: dict[UOp, dict[Reading, None]] = {}
        self.derived: dict[tuple[UOp, Reading], tuple[Reading, ...]] = {}
        self.ids = itertools.count()
        self.token_of: dict[tuple[UOp, tuple[UOp, ...]], UOp] = {}
        self.memory_behind: dict[UOp, tuple[UOp, tuple[UOp, ...]]] = {}
        self.memo: dict[UOp, UOp] = {}
        self.targets: dict[UOp, UOp] = {}
        # The STOREs to new memory.
        self.fresh = frozenset(body.src[: body.arg.fresh])
        # For each STORE of the body the node that has its value, below views that change nothing.
        self.value_of: dict[UOp, UOp] = {}
        self.forced: set[UOp] = set()
        self.index_sizes: dict[UOp, int] = {}
        # Why a value was stored that could have been computed where it is read.
        self.why: dict[UOp, str] = {}
        self.effects = Effects()
        self.place_of: dict[tuple[UOp, Reading], UOp] = {}
        self.joins = find_joins(self.order)
        self.find_forced(body)
        self.costs = cost.fused_costs(self.order, self.forced)

    def simple(self, u: UOp) -> UOp:
        """`simplify_around`, remembered for this body."""
        found = self.memo.get(u)
        if found is None:
            found = self.memo[u] = u if not u.src else simplify_around(u)
        return found

    def find_forced(self, body: UOp) -> None:
        """Marks what has to be stored whatever it costs."""
        for number, store in enumerate(body.src):
            if store.op is not Ops.STORE:
                raise InternalError(f"stages: a body holds STOREs, found {store!r}")
            # A fresh output is the memory of its value for every other reader too. Memory that
            # existed before may be overwritten again, so an assign is a reader like any other.
            value = self.value_of[store] = self.laid_out_alike(store.src[1])
            if number < body.arg.fresh and value.op not in READ_IN_PLACE:
                self.targets.setdefault(value, store)
        self.forced |= set(self.targets)
        for u in self.order:
            if u.op is Ops.COPY or (u.op is Ops.BITCAST and changes_width(u)):
                self.forced.add(u)
                if slice_of_base(without_effects(u.src[0])) is None:
                    self.forced.add(u.src[0])
            elif u.op is Ops.SCATTER:
                self.forced.add(u)
        for u in self.order:
            if u.op is Ops.CONTIGUOUS and not self.in_memory(u.src[0]):
                self.forced.add(u)

    def laid_out_alike(self, value: UOp) -> UOp:
        """What has the same elements in the same order below the views of a value.

        Views that lead elsewhere, and views of memory, are left as they are.
        """
        x = value
        while x.op in (Ops.RESHAPE, Ops.PERMUTE, *MARKS):
            x = x.src[0]
        if x is value or x.op in READ_IN_PLACE or not all_int((*value.shape, *x.shape)):
            return value
        ranges = idxs = self.new_ranges(value.shape, AxisType.LOOP)
        y = value
        while y is not x:
            if y.op in MOVEMENT:
                idxs = source_index(y, idxs)[0]
            y = y.src[0]
        same = self.simple(flat_index(idxs, x.shape)) is self.simple(
            flat_index(ranges, value.shape)
        )
        return x if same else value

    def in_memory(self, u: UOp) -> bool:
        """Whether `u` is memory, whole and in order."""
        while u not in self.forced and u.op in (*VIEWS_OF_MEMORY, Ops.CONTIGUOUS):
            if u.op is Ops.RESHAPE and len(u.src) > 1:
                return False  # rows of a symbolic size lie apart, each with room for the largest
            u = u.src[0]
        return u.op is Ops.PARAM or u in self.forced

    def is_target(self, store: UOp) -> bool:
        """Whether a STORE names the memory that its value is computed into."""
        value = self.value_of.get(store)
        return value is not None and self.targets.get(value) is store

    # downwards

    def new_ranges(self, shape: tuple[int | UOp, ...], kind: AxisType) -> tuple[UOp, ...]:
        """Fresh ranges over a shape; axes of size 1 need none."""
        # Sizes in simplest form: simplifying an index must not make another range of one.
        return tuple(
            [
                ZERO
                if isinstance(s, int) and s == 1
                else UOp.range(s if isinstance(s, int) else self.simple(s), next(self.ids), kind)
                for s in shape
            ]
        )

    def go_down(self) -> None:
        """Consumers first: how is each node read, and is it stored?"""
        for u in reversed(self.order):
            op = u.op
            if op is Ops.STORE:
                if not self.is_target(u):
                    self.read_by_store(u, u)
                continue
            if u in self.forced:
                self.read_by_store(u, self.targets.get(u))
                continue
            readings = self.readings.get(u)
            if not readings or op in LEAVES:
                continue
            if self.decide(u, list(readings)):
                self.read_by_store(u, None)
                continue
            # A reduction that is not stored is computed once for all its readings at one place.
            made: dict[tuple[object, ...], Reading] = {}
            for reading in readings:
                if op is Ops.REDUCE:
                    first = made.setdefault((reading.root, reading.idxs, reading.valid), reading)
                    if first is not reading:
                        self.derived[u, reading] = self.derived[u, first]
                        continue
                self.stored[reading.root].size += op not in MOVEMENT
                self.pass_on(u, reading)

    def read_by_store(self, u: UOp, target: UOp | None) -> None:
        """`u` is stored: its own sources are read over its own ranges."""
        value = u.src[1] if u.op is Ops.STORE else u
        shape = value.src[0].shape if value.op is Ops.SCATTER else value.shape
        ranges = self.new_ranges(shape, AxisType.LOOP)
        self.stored[u] = Stored(u, ranges, target, has_reduce=u.op in (Ops.REDUCE, Ops.SCATTER))
        if u.op is Ops.COPY or (u.op is Ops.BITCAST and changes_width(u)):
            self.readings.setdefault(u.src[0], {})
            return
        reading = Reading(u, ranges, None, tuple([r for r in ranges if r.op is Ops.RANGE]))
        if u.op is Ops.STORE:
            self.derived[u, reading] = (self.add(value, reading),)
        elif u.op is Ops.SCATTER:
            self.derived[u, reading] = tuple([self.add(s, scalar_aware(s, reading)) for s in u.src])
        else:
            self.pass_on(u, reading)

    def add(self, source: UOp, reading: Reading) -> Reading:
        """Notes that `source` is read so."""
        self.readings.setdefault(source, {})[reading] = None
        return reading

    def pass_on(self, u: UOp, reading: Reading) -> None:
        """How the sources of `u` are read when `u` is read so."""
        op = u.op
        if op in MOVEMENT:
            share = reading.share
            if op is Ops.PAD:
                idxs, valid, _ = read_pad(u, reading.idxs)
                share *= stacked_size(u)
            else:
                idxs, valid = source_index(u, reading.idxs)
            idxs = tuple([self.simple(i) for i in idxs])
            if valid is not None:
                valid = self.simple(both(reading.valid, valid))  # type: ignore[arg-type]
                if valid.op is Ops.CONST and valid.arg:
                    valid = None
            else:
                valid = reading.valid
            result: tuple[Reading, ...] = (
                self.add(u.src[0], reading._replace(idxs=idxs, valid=valid, share=share)),
            )
        elif op is Ops.REDUCE:
            axes = self.new_ranges(tuple([u.src[0].shape[a] for a in u.arg.axes]), AxisType.REDUCE)
            place = dict(zip(u.arg.axes, axes, strict=True))
            idxs = tuple([place.get(i, idx) for i, idx in enumerate(reading.idxs)])
            nest = (*self.nest_of(reading), *[a for a in axes if a.op is Ops.RANGE])
            result = (
                self.add(
                    u.src[0], reading._replace(idxs=idxs, nest=nest, summed=u.arg.op is Ops.ADD)
                ),
            )
        elif op is Ops.INDEX:
            # The indices are values read here; what they select from is read from memory.
            parts = [self.add(s, scalar_aware(s, reading)) for s in u.src[1:]]
            if not self.in_memory(u.src[0]):
                self.forced.add(u.src[0])
            self.add(u.src[0], reading._replace(idxs=DATA_DEPENDENT))
            result = (reading, *parts)
        elif op is Ops.AFTER:
            memory, below = self.read_place(u, reading)
            self.place_of[u, reading] = memory
            result = (self.add(memory, below),)
        else:
            result = tuple([self.add(s, scalar_aware(s, reading)) for s in u.src])
        self.derived[u, reading] = result

    def read_place(self, u: UOp, reading: Reading) -> tuple[UOp, Reading]:
        """The memory that an AFTER stands for, and how it is read.

        Goes down to the memory at once: what a view in between had been stored as before the
        effects is another value.
        """
        after = list(reading.after)
        idxs = reading.idxs
        while u.op is not Ops.PARAM:
            if u.op is Ops.AFTER:
                seen = self.effects.of(tuple(after))
                after.extend([s for s in u.src[1:] if s not in seen])
            elif u.op in MOVEMENT and idxs is not DATA_DEPENDENT:
                idxs, valid = source_index(u, idxs)
                need(valid is None, f"stages: {u!r} is no place to write to")
                idxs = tuple([self.simple(i) for i in idxs])
            u = u.src[0]
        return u, reading._replace(idxs=idxs, after=tuple(after))

    def decide(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether to store `u`, read so, rather than compute it at each reading."""
        if u.op is Ops.REDUCE:
            if not FUSE:
                return self.store_because(u, "FUSE=0 stores every reduction")
            if self.may_fuse_reduce(u, readings) or self.cheap_again(u, readings):
                return False
            return self.store_because(u, "a reduction that its readers would do more than once")
        if u.op not in ELEMENTWISE and u.op not in (Ops.PAD, Ops.RESHAPE, Ops.INDEX):
            return False
        if u.dtype is dtypes.index or (u.op is Ops.CAST and u.src[0].dtype is dtypes.index):
            return False
        if u.device is None or any(r.idxs is DATA_DEPENDENT for r in readings):
            return False
        if u.op in (Ops.RESHAPE, Ops.PAD) and any(self.has_large_index(r) for r in readings):
            return self.store_because(u, "views of views whose indices would grow too long")
        if u.op is Ops.RESHAPE and self.in_memory(u):
            return False
        roots = {r.root for r in readings}
        if sum([1 / r.share for r in readings]) > cost.MAX_READINGS * len(roots):
            ways = f"read in {len(readings)} ways, too many to write out"
            return self.worth_storing(u) and self.store_because(u, ways)
        if any(self.stored[root].size > int(MAX_KERNEL_NODES.value) for root in roots):
            full = f"its reader has {MAX_KERNEL_NODES.value} nodes without it"
            return u.op in ELEMENTWISE and self.store_because(u, full)
        compute, loads = self.costs[u]
        if u.op is Ops.RESHAPE:
            # A plain view costs nothing; one that divides in an inner loop may.
            if not self.divides(u, readings):
                return False
            compute += 8
        if compute == 0 or FUSE >= 2 or self.is_widened(u, readings):
            return False
        if loads == 0 and compute <= cost.AS_GOOD_AS_A_LOAD:
            return False
        if u.op is Ops.PAD and not any([self.reads_padding(u, r) for r in readings]):
            # What is below it is as large or smaller, and decides for itself.
            return False
        numel = max(estimate(prod(u.shape)), 1)
        repeats = sum(self.times(r) for r in readings) - numel
        spared = repeats * (compute + cost.EXTRA_LOAD * max(loads - 1, 0))
        price = (
            numel * (cost.STORE_AND_LOAD + (cost.SAME_KERNEL_BONUS if len(roots) == 1 else 0))
            + cost.LAUNCH
        )
        work = max(volume(r.nest) for r in readings)
        if not (spared > price and spared * 10 > work and self.worth_storing(u)):
            return False
        times = f"computing it {repeats + numel:,} times for {numel:,} elements"
        return self.store_because(u, f"{times} would cost {spared:,}, storing it {price:,}")

    def is_widened(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether `u` is memory in a wider dtype, summed along one of its axes and nothing else.

        why: a product takes its operands through panels anyway, and converts them there
        """
        narrow = u.src[0].dtype
        if u.op is not Ops.CAST or not narrow.itemsize < u.dtype.itemsize or len(readings) != 1:
            return False
        if narrow.kind not in ("int", "uint", "float") or self.costs[u] != (1, 1):
            return False
        idxs, valid = readings[0].idxs, readings[0].valid
        kinds = [i.arg.kind for i in idxs if i.op is Ops.RANGE]
        plain = valid is None and all([i.op in (Ops.RANGE, Ops.CONST) for i in idxs])
        return plain and AxisType.REDUCE in kinds

    def store_because(self, u: UOp, why: str) -> bool:
        """Notes why a value is stored; true."""
        self.why[u] = why
        return True

    def reads_padding(self, u: UOp, reading: Reading) -> bool:
        """Whether a reading of a PAD goes beyond the elements of its source."""
        valid = source_index(u, reading.idxs)[1]
        if valid is None:
            return False
        valid = self.simple(valid)
        return valid.op is not Ops.CONST or not valid.arg

    def has_large_index(self, reading: Reading) -> bool:
        """Whether the indices of a reading, written out, have grown past what a kernel should hold.

        why: views of views of views, each dividing what the last one multiplied, grow without end
        """
        parts = reading.idxs if reading.valid is None else (*reading.idxs, reading.valid)
        stack = [i for i in parts if i not in self.index_sizes]
        while stack:
            u = stack[-1]
            missing = [s for s in u.src if s not in self.index_sizes]
            if missing:
                stack.extend(missing)
                continue
            self.index_sizes[u] = 1 + sum([self.index_sizes[s] for s in u.src])
            stack.pop()
        return sum([self.index_sizes[i] for i in parts]) > cost.MAX_INDEX_NODES

    def worth_storing(self, u: UOp) -> bool:
        """Constants, however large, are cheaper to make than to load."""
        return self.costs[u][1] > 0 or self.costs[u][0] >= 2 * cost.STORE_AND_LOAD

    def times(self, r: Reading) -> int:
        """How often a value read so is computed.

        Loops that it does not depend on and that run inside of those that it does, do not repeat
        it: it is computed before them.
        """
        return max(int(volume(self.nest_of(r))) // r.share, 1)

    def nest_of(self, r: Reading) -> tuple[UOp, ...]:
        """The loops inside of which a value read so is computed."""
        used = self.used(r)
        if used <= self.stored[r.root].outer:
            return tuple([n for n in r.nest if n in used])
        last = max([i for i, n in enumerate(r.nest) if n in used], default=-1)
        return r.nest[: last + 1]

    def used(self, r: Reading) -> frozenset[UOp]:
        """The ranges that a reading depends on."""
        parts = [i.ranges for i in r.idxs]
        if r.valid is not None:
            parts.append(r.valid.ranges)
        return frozenset().union(*parts)

    def divides(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether the source indices of a RESHAPE hold divisions."""
        return any(
            x.op in (Ops.IDIV, Ops.MOD)
            for r in readings
            for i in source_index(u, r.idxs)[0]
            for x in toposort(self.simple(i))
        )

    def may_fuse_reduce(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether a reduction can be computed inside the one kernel that reads it.

        It can where each of its elements is computed once: at the loops over all of its reader's
        outputs, or at some outer ones of them, the others running inside.
        """
        first = readings[0]
        stored = self.stored[first.root]
        if stored.node.op is Ops.SCATTER or stored.size > int(MAX_KERNEL_NODES.value):
            return False
        used = self.used(first)
        numel = estimate(prod(u.shape))
        if any([r.share > 1 for r in readings]):
            return False
        if len(readings) == 1 and first.summed and u.arg.op is Ops.ADD and not stored.outer:
            # Terms of another sum: fused when few of them are computed more than once, or not at
            # all, since steps of a sum at which windows meet nothing are left out.
            most = cost.MOST_PADDED if meets_in_windows(first.valid) else cost.MOST_AGAIN
            if volume(used) <= most * numel:
                stored.has_reduce = True
                return True
        for r in readings:
            if r.root is not first.root or r.idxs != first.idxs or r.valid is not None:
                return False
        outputs = frozenset([r for r in stored.ranges if r.op is Ops.RANGE])
        if not used <= outputs or volume(used) > numel:
            return False
        if used == outputs:
            if stored.outer and stored.outer != outputs:
                return False
            stored.has_reduce = True
            return True
        # The rest of the outputs run inside the loops over `used`. A kernel that is a reduction
        # over all its outputs needs its loop order for itself.
        if stored.has_reduce or (stored.outer and stored.outer != used):
            return False
        rows = volume(used)
        work = max(volume(outputs), estimate(prod(u.src[0].shape)))
        if rows < cost.MIN_ROWS and work > cost.SMALL_WORK:
            return False
        if reach_of_columns(stored.ranges, used) > cost.MAX_COLUMNS:
            return False
        stored.outer = used
        return True

    def cheap_again(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether a small reduction costs less at each reading in one kernel than a launch."""
        stored = self.stored[readings[0].root]
        if stored.outer or stored.node.op is Ops.SCATTER:
            return False
        if any([r.root is not readings[0].root for r in readings]):
            return False
        if u.device is None or any([r.idxs is DATA_DEPENDENT for r in readings]):
            return False
        if stored.size > int(MAX_KERNEL_NODES.value):
            return False
        if FUSE >= 2:
            stored.has_reduce = True
            return True
        length = estimate(prod([u.src[0].shape[a] for a in u.arg.axes]))
        times = [max(volume(r.nest), 1) for r in readings]
        if max(times) * length > cost.SMALL_WORK:
            return False
        compute, loads = self.costs[u.src[0]]
        again = sum(times) - estimate(prod(u.shape))
        if again * length * (compute + loads) > cost.LAUNCH:
            return False
        stored.has_reduce = True
        return True

    # upwards

    def go_up(self) -> None:
        """Sources first: each reading as an expression."""
        values: dict[tuple[UOp, Reading], UOp] = {}
        for u in self.order:
            stored = self.stored.get(u)
            if stored is not None and not is_moved(u):
                nest = tuple([r for r in stored.ranges if r.op is Ops.RANGE])
                reading = Reading(u, stored.ranges, None, nest)
                stored.value = self.express(u, reading, values)
            for reading in self.readings.get(u, ()):
                if reading.idxs is DATA_DEPENDENT:
                    continue
                if stored is not None or u.op is Ops.PARAM:
                    values[u, reading] = self.read_memory(u, u.shape, reading)
                else:
                    values[u, reading] = self.express(u, reading, values)

    def read_memory(self, source: UOp, shape: tuple[int | UOp, ...], reading: Reading) -> UOp:
        """A load from a stored value or a parameter, which is to be seen as of this shape."""
        flat = self.simple(flat_index(reading.idxs, max_shape(shape)))
        token = self.token(source, reading.after)
        # A place that is always inside needs no gate: padding masks its value where it matters.
        inside = flat.vmin >= 0 and flat.vmax < token.arg.size
        valid = (
            reading.valid if inside or reading.valid is not None else kept_in(flat, token.arg.size)
        )
        return token.index(flat).load(None if inside else valid)

    def token(self, source: UOp, after: tuple[UOp, ...] = ()) -> UOp:
        """A leaf that stands for memory, read once some STOREs have happened.

        why: an expression then ends at its loads, for every walk and rewrite
        """
        key = (source, after)
        found = self.token_of.get(key)
        if found is None:
            arg = ParamArg(len(self.memory_behind), max(prod(max_shape(source.shape)), 1), "memory")
            found = self.token_of[key] = UOp(Ops.PARAM, source.dtype, (), arg)
            self.memory_behind[found] = key
        return found

    def express(self, u: UOp, reading: Reading, values: dict[tuple[UOp, Reading], UOp]) -> UOp:
        """The value of `u` at a reading, from those of its sources."""
        op = u.op
        if op is Ops.CONST:
            return UOp(Ops.CONST, u.dtype, (), u.arg)
        if op is Ops.DEFINE_VAR:
            return u
        if op is Ops.IOTA:
            return reading.idxs[0]
        below = self.derived[u, reading]
        if op is Ops.AFTER:
            return values[self.place_of[u, reading], below[0]]
        if op is Ops.INDEX:
            idxs = tuple([values[s, r] for s, r in zip(u.src[1:], below[1:], strict=True)])
            memory, after = self.memory_of(u.src[0])
            return self.read_memory(
                memory, u.src[0].shape, reading._replace(idxs=idxs, after=(*reading.after, *after))
            )
        if op is Ops.STORE:
            return values[u.src[1], below[0]]
        src = [values[s, r] for s, r in zip(u.src, below, strict=False)]
        if op in ELEMENTWISE:
            if u.dtype is dtypes.index or (u.dtype is dtypes.bool and src[0].dtype is dtypes.index):
                return self.simple(
                    src[0].alu(op, *src[1:]) if op is not Ops.CAST else src[0].cast(u.dtype)
                )
            join = self.joins.get(u)
            if join is not None:
                inside = self.simple(is_inside(join.boxes, reading.idxs, u.shape))
                return inside.where(src[join.chosen], src[1 - join.chosen])
            return plain(UOp(op, u.dtype, tuple(src), u.arg))
        if op is Ops.PAD:
            if not self.reads_padding(u, reading):
                return src[0]
            _, valid, chosen = read_pad(u, reading.idxs)
            value = src[0] if valid is None else mask_terms(self.simple(valid), src[0])
            if chosen is None:
                return value
            chosen, nothing = self.simple(chosen), value.const_like(0)
            if chosen.op is Ops.CONST:
                return value if chosen.arg else nothing
            return chosen.where(value, nothing)
        if op is Ops.REDUCE:
            idxs = below[0].idxs
            ranges = [idxs[a] for a in u.arg.axes if idxs[a].op is Ops.RANGE]
            idle = [r for r in ranges if r not in src[0].ranges]
            if idle:
                times = repeated(u, idle)
                if times is not None:
                    ranges = [r for r in ranges if r not in idle]
                    made = src[0]
                    if ranges:
                        arg = u.arg._replace(axes=())
                        made = UOp(Ops.REDUCE, u.dtype, (made, *ranges), arg)
                    return made if times == 1 else made.alu(Ops.MUL, UOp.const(u.dtype, times))
            if src[0].op is Ops.REDUCE and src[0].arg.op is u.arg.op is Ops.ADD:
                # A sum of sums is one sum.
                return src[0].replace(src=(src[0].src[0], *ranges, *src[0].src[1:]))
            return (
                src[0]
                if not ranges
                else UOp(Ops.REDUCE, u.dtype, (src[0], *ranges), u.arg._replace(axes=()))
            )
        if op is Ops.SCATTER:
            return UOp(Ops.SCATTER, u.dtype, tuple(src), u.arg)
        return src[0]

    def memory_of(self, u: UOp) -> tuple[UOp, tuple[UOp, ...]]:
        """The memory behind row-major views, and the STOREs that it has to be read after."""
        after: tuple[UOp, ...] = ()
        # Below an effect it is the memory that counts, whatever a view of it was stored as before.
        while u.op is not Ops.PARAM and (after or u not in self.stored):
            after += u.src[1:] if u.op is Ops.AFTER else ()
            u = u.src[0]
        return u, after


ZERO = UOp.index_const(0)
# Stands for indices that are data: any element may be read.
DATA_DEPENDENT: Indices = (UOp.index_const(-1),) * 99
LEAVES = frozenset({Ops.PARAM, Ops.CONST, Ops.DEFINE_VAR, Ops.IOTA, Ops.DEVICE, Ops.SINK})
MARKS = (Ops.DETACH, Ops.CONTIGUOUS_BACKWARD)
VIEWS_OF_MEMORY = (Ops.AFTER, Ops.RESHAPE, Ops.DETACH, Ops.CONTIGUOUS_BACKWARD)
# Values that already are memory or make none worth sharing: an output of them is a copy.
READ_IN_PLACE = frozenset({Ops.PARAM, Ops.CONST, Ops.AFTER, *MOVEMENT, Ops.DETACH})


def kept_in(flat: UOp, size: int) -> UOp | None:
    """The condition under which a place lies inside of memory, where a variable may put it outside.

    Places that loaded numbers decide are theirs to keep inside.
    """
    if flat.vmin >= 0 and flat.vmax < size:
        return None
    order = toposort(flat)
    if not any([u.op is Ops.DEFINE_VAR for u in order]) or any([u.op is Ops.LOAD for u in order]):
        return None
    above = None if flat.vmin >= 0 else index_alu(Ops.CMPLT, UOp.index_const(-1), flat)
    below = None if flat.vmax < size else index_alu(Ops.CMPLT, flat, UOp.index_const(size))
    return both(above, below)


def changes_width(u: UOp) -> bool:
    """Whether a BITCAST changes the number of elements."""
    return u.dtype.itemsize != u.src[0].dtype.itemsize


def without_effects(u: UOp) -> UOp:
    """A view of memory without the effects that it has to see; anything else as it is."""
    views: list[UOp] = []
    x = u
    while x.op in MOVEMENT or x.op is Ops.AFTER:
        if x.op is not Ops.AFTER:
            views.append(x)
        x = x.src[0]
    if x.op is not Ops.PARAM:
        return u
    for v in reversed(views):
        x = v.replace(src=(x, *v.src[1:]))
    return x


def is_moved(u: UOp) -> bool:
    """Whether the memory of `u` is made without a kernel."""
    return u.op is Ops.COPY or (u.op is Ops.BITCAST and changes_width(u))


def scalar_aware(source: UOp, reading: Reading) -> Reading:
    """The reading of an operand; a scalar beside a shaped value has no indices."""
    if source.shape:
        return reading._replace(summed=False) if reading.summed else reading
    return reading._replace(idxs=(), summed=False)


def mask_terms(valid: UOp, value: UOp) -> UOp:
    """`value` where `valid` holds, else 0; of a sum, each term so.

    A product with a load that is 0 there already is left as it is where the other factor is made of
    loads without division and the like (as with padding by stored zeros, one that is infinite then
    gives NaN).
    """
    if value.op is Ops.REDUCE and value.arg.op is Ops.ADD:
        return value.replace(src=(mask_terms(valid, value.src[0]), *value.src[1:]))
    if is_gated(value):
        return value
    if value.op is Ops.MUL and any(is_gated(s) for s in value.src) and all(map(tame, value.src)):
        return value
    return valid.where(value, value.const_like(0))


def plain(u: UOp) -> UOp:
    """An elementwise node without a 0 that is added to an integer, or a choice by what is not so.

    Such a 0 says in a tensor's graph on which device an arange is.
    """
    if u.op is Ops.ADD and u.dtype.kind in ("int", "uint"):
        for zero, other in (u.src, u.src[::-1]):
            if zero.op is Ops.CONST and zero.arg == 0:
                return other
    if u.op is Ops.WHERE and u.src[0].op is Ops.CMPNE and u.src[0].src[0].dtype is dtypes.bool:
        condition, true = u.src[0].src
        if true.op is Ops.CONST and true.arg is True:
            return UOp(Ops.WHERE, u.dtype, (condition, u.src[2], u.src[1]))
    return u


def repeated(u: UOp, ranges: list[UOp]) -> int | None:
    """By what a reduction multiplies a value that is the same all along these ranges.

    None where that is no number, or none that its dtype holds.
    """
    if u.arg.op in (Ops.MAX, Ops.AND, Ops.OR):
        return 1
    if u.arg.op is not Ops.ADD or any([r.src[0].op is not Ops.CONST for r in ranges]):
        return None
    times = int(volume(ranges))
    if u.dtype.kind == "float":
        return times if times <= 1 << dtypes.finfo(u.dtype)[1] else None
    return times if times <= dtypes.max(u.dtype) else None


def is_gated(u: UOp) -> bool:
    """Whether `u` is a load that gives 0 where its gate fails."""
    return u.op is Ops.LOAD and len(u.src) > 1


def tame(value: UOp) -> bool:
    """Whether an expression of finite loads is finite."""
    order = toposort(value, enter=lambda u: u.op not in (Ops.LOAD, Ops.REDUCE))
    return not any([u.op in UNBOUNDED for u in order])


UNBOUNDED = frozenset(
    {
        Ops.RECIPROCAL,
        Ops.FDIV,
        Ops.IDIV,
        Ops.MOD,
        Ops.LOG2,
        Ops.EXP2,
        Ops.POW,
        Ops.SQRT,
        Ops.BITCAST,
    }
)


def plan_stages(body: UOp) -> StagePlanner:
    """Decides and expresses; the result holds one `Stored` for each value with memory."""
    planner = StagePlanner(body)
    planner.go_down()
    planner.go_up()
    return planner
