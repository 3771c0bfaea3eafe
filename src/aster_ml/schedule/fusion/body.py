"""Analyses the body that is being planned, and finds values that must be stored.

Receives a captured body; `Body` is the state that both walks of `schedule/fusion/materialize.py`
share. It takes no cost-based decisions.
"""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any

from aster_ml.config import FUSE, MAX_KERNEL_NODES
from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.helpers import all_int, prod
from aster_ml.kernel_library.rows import Kept
from aster_ml.schedule.fusion import costs
from aster_ml.schedule.fusion.uses import (
    MARKS,
    READ_IN_PLACE,
    VIEWS_OF_MEMORY,
    ZERO,
    AccessPath,
    Materialized,
    Reading,
    Use,
    changes_width,
    estimate,
    memory_leaf,
    without_effects,
)
from aster_ml.schedule.hazards import Effects
from aster_ml.schedule.rewrites.disjoint_pads import find_joins
from aster_ml.schedule.rewrites.parts import parts_of_memory
from aster_ml.schedule.rewrites.stacks import read_stack, stacked_axes
from aster_ml.uop.graph import holds
from aster_ml.uop.infer import max_shape
from aster_ml.uop.movement import NO_MARGINS, Indices, flat_index, slice_of_base, source_index
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import DIVISIONS, MOVEMENT, AxisType, Ops
from aster_ml.uop.ranges import iterations
from aster_ml.uop.rules.symbolic import plain_form, simplify_around

# Ops that may force memory for themselves or for their source.
ASKING = frozenset({Ops.BITCAST, Ops.CONTIGUOUS, Ops.COPY, Ops.SCATTER})
COMPARISONS = frozenset({Ops.CMPEQ, Ops.CMPNE, Ops.CMPLT})
# No stored value has so many ranges of its own.
BEYOND = 1 << 20
# A stored value or parameter, and the STOREs that have to have happened when it is read.
Memory = tuple[UOp, tuple[UOp, ...]]


class Body:
    """State of the two passes over one body."""

    def __init__(self, body: UOp, order: list[UOp]) -> None:
        self.order = order
        self.stored: dict[UOp, Materialized] = {}
        # Node -> its readings, in the order of discovery.
        self.readings: dict[UOp, dict[Reading, Use]] = {}
        self.ways: dict[tuple[object, ...], AccessPath] = {}
        self.interned: dict[tuple[object, ...], Reading] = {}
        # (view, access path) -> access path of the view's source.
        self.below_views: dict[tuple[object, ...], AccessPath] = {}
        # Numbers of ranges, counted for each stored value, so that equal values have equal indices
        # and share cached results; and for drafts.
        self.numbers: dict[UOp, int] = {}
        self.ranges_of: dict[tuple[object, ...], tuple[tuple[UOp, ...], int]] = {}
        self.ids = itertools.count(BEYOND)
        # The leaves of each stored value's expression, counted in the same way: leaf by memory, and
        # memory by leaf.
        self.token_of: dict[tuple[UOp, UOp, tuple[UOp, ...]], UOp] = {}
        self.memory_behind: dict[UOp, dict[UOp, Memory]] = {}
        self.leaves: dict[tuple[object, ...], UOp] = {}
        self.loaded: dict[tuple[object, ...], UOp] = {}
        self.memo: dict[UOp, UOp] = {}
        self.sources: dict[tuple[Any, ...], tuple[Indices, UOp | None]] = {}
        self.stacks: dict[tuple[Any, ...], tuple[Indices, UOp | None, UOp | None]] = {}
        # For each PAD that is read the axes along which it is a stack.
        self.stacked: dict[UOp, list[int]] = {}
        self.flats: dict[tuple[Indices, tuple[int | UOp, ...]], UOp] = {}
        self.divided: dict[UOp, bool] = {}
        self.volumes: dict[tuple[UOp, ...], int] = {}
        self.numels: dict[tuple[int | UOp, ...], int] = {}
        self.max_nodes = int(MAX_KERNEL_NODES.value)
        self.fuse = int(FUSE.value)
        self.targets: dict[UOp, UOp] = {}
        # The STOREs to new memory.
        self.fresh = frozenset(body.src[: body.arg.fresh])
        # For each STORE of the body the node that has its value, below views that change nothing.
        self.value_of: dict[UOp, UOp] = {}
        self.forced: set[UOp] = set()
        # Device -> 16-bit dtypes that its tensor cores multiply.
        self.multiplied: dict[str, frozenset[str]] = {}
        # Device -> largest number of steps of nested sums, where there is a limit.
        self.nested: dict[str, int] = {}
        # Values that rows of the kernel library keep inside a kernel.
        self.inside: frozenset[UOp] = frozenset()
        # Pairs of stored values that rows of the kernel library compute in one kernel.
        self.together: tuple[tuple[UOp, UOp], ...] = ()
        # Views that are memory of their own (`schedule.rewrites.parts`).
        self.parts: set[UOp] = set()
        # Nodes of values that are unpacked from fewer bytes (`schedule.fusion.unpacked`).
        self.unpacked: set[UOp] = set()
        self.index_sizes: dict[UOp, int] = {}
        # Stored value -> why it is not recomputed where it is read.
        self.why: dict[UOp, str] = {}
        # The same, cached by all that a decision depends on; None for values that are not stored.
        self.weighed: dict[tuple[object, ...], str | None] = {}
        # (access path, outer loops) -> how often a value read there is computed.
        self.repeated: dict[tuple[AccessPath, frozenset[UOp]], int] = {}
        self.effects = Effects()
        self.joins = find_joins(self.order)
        self.find_forced(body)
        self.costs = costs.fused_costs(self.order, self.forced)

    @cached_property
    def has_comparison(self) -> bool:
        """Whether floats are compared anywhere."""
        return any([compares_floats(u) for u in self.order if u.op in COMPARISONS])

    def keep_inside(self, kept: Kept) -> None:
        """Applies the kernel library's decisions: values inside of kernels, and stored values."""
        if not kept.inside:
            return
        self.inside, self.together = kept.inside, kept.together
        self.forced |= {u for u in kept.stored if not self.in_memory(u)}
        self.costs = costs.fused_costs(self.order, self.forced)

    def way(
        self,
        idxs: Indices,
        valid: UOp | None,
        nest: tuple[UOp, ...],
        summed: bool = False,
        share: int = 1,
    ) -> AccessPath:
        """The access path with these parts: the same object for the same parts."""
        key = (idxs, valid, nest, summed, share)
        found = self.ways.get(key)
        if found is None:
            found = self.ways[key] = AccessPath(*key, self.turns(nest))
        return found

    def reading(self, root: UOp, way: AccessPath, after: tuple[UOp, ...] = ()) -> Reading:
        """The reading with these parts: the same object for the same parts."""
        key = (root, way, after)
        found = self.interned.get(key)
        if found is None:
            found = self.interned[key] = Reading(root, way, after)
        return found

    def for_operand(self, source: UOp, reading: Reading) -> Reading:
        """The reading of an operand; a scalar beside a shaped value has no indices."""
        way = reading.way
        if not source.shape:
            if way.of_scalar is None:
                way.of_scalar = self.way((), way.valid, way.nest, False, way.share)
            way = way.of_scalar
        elif not way.summed:
            return reading
        else:
            way = self.way(way.idxs, way.valid, way.nest, False, way.share)
        return self.reading(reading.root, way, reading.after)

    def at(self, way: AccessPath, idxs: Indices) -> AccessPath:
        """The access path at other indices."""
        return self.way(idxs, way.valid, way.nest, way.summed, way.share)

    def turns(self, nest: tuple[UOp, ...]) -> int:
        """The product of the trip counts of these loops."""
        found = self.volumes.get(nest)
        if found is None:
            found = self.volumes[nest] = iterations(nest)
        return found

    def numel(self, shape: tuple[int | UOp, ...]) -> int:
        """Elements of a shape; of a symbolic one, at most."""
        found = self.numels.get(shape)
        if found is None:
            found = self.numels[shape] = estimate(prod(shape))
        return found

    def simple(self, u: UOp) -> UOp:
        """`simplify_around`, cached for this body."""
        found = self.memo.get(u)
        if found is None:
            found = self.memo[u] = u if not u.src else simplify_around(u)
        return found

    def simple_all(self, idxs: Indices) -> Indices:
        """`simple` of each index; ranges and constants need none."""
        memo = self.memo
        result = []
        for i in idxs:
            if i.op is not Ops.RANGE and i.op is not Ops.CONST:
                found = memo.get(i)
                i = self.simple(i) if found is None else found
            result.append(i)
        return tuple(result)

    def source_of(self, u: UOp, idxs: Indices) -> tuple[Indices, UOp | None]:
        """`source_index` with simplified indices, cached for equal views."""
        source = u.src[0]
        key = (u.op, u.arg, u.src[1:], source.shape, idxs)
        found = self.sources.get(key)
        if found is None:
            below, valid = source_index(u, idxs)
            found = self.sources[key] = self.simple_all(below), valid
        return found

    def below_pad(self, u: UOp, idxs: Indices) -> tuple[Indices, UOp | None, UOp | None]:
        """`source_of` a PAD, and of a stack, the condition that an element is the padded one."""
        axes = self.stacked.get(u)
        if axes is None:
            axes = self.stacked[u] = stacked_axes(u)
        if not axes:
            return (*self.source_of(u, idxs), None)
        key = (u.marg, u.src[0].shape, tuple(axes), idxs)
        found = self.stacks.get(key)
        if found is None:
            below, valid, chosen = read_stack(u, axes, idxs)
            found = self.stacks[key] = self.simple_all(below), valid, chosen
        return found

    def place_in(self, memory: UOp, idxs: Indices, shape: tuple[int | UOp, ...]) -> UOp:
        """The offset of an element of a stored value or parameter that is indexed as `shape`."""
        stored = self.stored.get(memory)
        if stored is not None and stored.layout is not None:
            idxs = tuple([idxs[a] for a in stored.layout])
            shape = tuple([shape[a] for a in stored.layout])
        return self.flat_place(idxs, shape)

    def flat_place(self, idxs: Indices, shape: tuple[int | UOp, ...]) -> UOp:
        """The row-major offset of an element, simplified and cached."""
        found = self.flats.get((idxs, shape))
        if found is None:
            found = self.flats[idxs, shape] = self.simple(sum_of_steps(idxs, max_shape(shape)))
        return found

    def divides(self, u: UOp) -> bool:
        """Whether an index contains a division."""
        found = self.divided.get(u)
        if found is None:
            found = self.divided[u] = holds(u, DIVISIONS)
        return found

    def find_forced(self, body: UOp) -> None:
        """Marks values that must be stored, at any cost."""
        for number, store in enumerate(body.src):
            if store.op is not Ops.STORE:
                raise InternalError(f"stages: a body holds STOREs, found {store!r}")
            # A fresh output is the memory of its value for every other reader too. Memory that
            # existed before may be overwritten again, so an assign is a reader like any other.
            value = self.value_of[store] = self.laid_out_alike(store.src[1])
            if number < body.arg.fresh and value.op not in READ_IN_PLACE:
                self.targets.setdefault(value, store)
        self.forced |= set(self.targets)
        self.parts = parts_of_memory(body, self.order)
        self.forced |= self.parts
        asking = [u for u in self.order if u.op in ASKING]
        for u in asking:
            if u.op is Ops.COPY or (u.op is Ops.BITCAST and changes_width(u)):
                self.forced.add(u)
                if slice_of_base(without_effects(u.src[0])) is None:
                    self.forced.add(u.src[0])
            elif u.op is Ops.SCATTER:
                self.forced.add(u)
        for u in asking:
            if u.op is Ops.CONTIGUOUS and not self.in_memory(u.src[0]):
                self.forced.add(u)

    def laid_out_alike(self, value: UOp) -> UOp:
        """The value below views that keep all elements in the same order.

        Other views, and views of memory, are returned as they are.
        """
        x = value
        while x.op in (Ops.RESHAPE, Ops.PERMUTE, *MARKS):
            x = x.src[0]
        if x is value or x.op in READ_IN_PLACE or not all_int((*value.shape, *x.shape)):
            return value
        ranges = idxs = self.ranges_over(value.shape, AxisType.LOOP)[0]
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
        while u not in self.forced and u.op in VIEWS_OF_MEMORY:
            if u.op is Ops.RESHAPE and len(u.src) > 1:
                return False  # rows of a symbolic size lie apart, each with room for the largest
            u = u.src[0]
        return u.op is Ops.PARAM or u in self.forced

    def is_target(self, store: UOp) -> bool:
        """Whether a STORE names the memory into which its value is computed."""
        value = self.value_of.get(store)
        return value is not None and self.targets.get(value) is store

    def new_ranges(
        self, shape: tuple[int | UOp, ...], kind: AxisType, root: UOp
    ) -> tuple[UOp, ...]:
        """New ranges over a shape, for the stored value `root`."""
        ranges, self.numbers[root] = self.ranges_over(shape, kind, self.numbers.get(root, 0))
        return ranges

    def ranges_over(
        self, shape: tuple[int | UOp, ...], kind: AxisType, first: int = 0
    ) -> tuple[tuple[UOp, ...], int]:
        """Ranges over a shape, numbered from `first` on, and the next number.

        Axes of size 1 need no range.
        """
        key = (shape, kind, first)
        found = self.ranges_of.get(key)
        if found is None:
            made = []
            for s in shape:
                if s.__class__ is int and s == 1:
                    made.append(ZERO)
                    continue
                # Sizes are simplified: simplifying an index must not make a different range.
                made.append(UOp.range(s if isinstance(s, int) else self.simple(s), first, kind))
                first += 1
            found = self.ranges_of[key] = tuple(made), first
        return found

    def reads_padding(self, u: UOp, way: AccessPath) -> bool:
        """Whether a reading of a PAD goes beyond the elements of its source."""
        for margins, size, i in zip(u.marg, u.src[0].shape, way.idxs, strict=True):
            before = margins[0]
            if margins == NO_MARGINS or not before.__class__ is size.__class__ is int:
                continue
            # A sum of ranges takes its least and greatest value independently of other axes.
            form = plain_form(i)
            if form is not None and all([t.op is Ops.RANGE for t in form.terms]):
                low, high = form.bounds()
                if low < before or high >= before + size:
                    return True
        valid = self.source_of(u, way.idxs)[1]
        if valid is None:
            return False
        valid = self.simple(valid)
        return valid.op is not Ops.CONST or not valid.arg

    def token(self, root: UOp, source: UOp, after: tuple[UOp, ...] = ()) -> UOp:
        """A leaf that stands for memory, read by `root` once some STOREs have happened.

        why: an expression then ends at its loads, for every walk and rewrite
        """
        key = (root, source, after)
        found = self.token_of.get(key)
        if found is None:
            behind = self.memory_behind.setdefault(root, {})
            # Leaves of layers that are alike are the same.
            like = (len(behind), source.shape, source.dtype)
            leaf = self.leaves.get(like)
            if leaf is None:
                size = max(prod(max_shape(source.shape)), 1)
                leaf = self.leaves[like] = memory_leaf(len(behind), size, source.dtype)
            found = self.token_of[key] = leaf
            behind[found] = (source, after)
        return found


def sum_of_steps(idxs: Indices, shape: tuple[int, ...]) -> UOp:
    """`flat_index` as a sum of index * stride, the form that simplifying would give."""
    total, step = ZERO, 1
    for i, size in zip(reversed(idxs), reversed(shape), strict=True):
        if i is not ZERO:
            term = i if step == 1 else index_alu(Ops.MUL, i, UOp.index_const(step))
            total = term if total is ZERO else UOp(Ops.ADD, dtypes.index, (term, total))
        step *= size
    return total


def compares_floats(u: UOp) -> bool:
    """Whether a comparison is between two computed floats."""
    a, b = u.src
    return a is not b and a.dtype.kind == "float" and Ops.CONST not in (a.op, b.op)
