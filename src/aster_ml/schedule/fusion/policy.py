"""Fusion policy: whether a value is materialized or recomputed where it is read.

Receives a node and its readings; answers with a bool, and notes why something is stored. The
weights are in `schedule/fusion/costs.py`, the walk that asks in `schedule/fusion/materialize.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from aster_ml.dtype import dtypes
from aster_ml.helpers import all_int, prod
from aster_ml.schedule.fusion import costs
from aster_ml.schedule.fusion.body import Body
from aster_ml.schedule.fusion.unpacked import nodes_of_unpacked
from aster_ml.schedule.fusion.uses import (
    DATA_DEPENDENT,
    AccessPath,
    Reading,
    estimate,
    reach_of_columns,
)
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, AxisType, Ops
from aster_ml.uop.ranges import iterations

# Values that may be stored or computed where they are read.
DECIDED = ELEMENTWISE | {Ops.PAD, Ops.RESHAPE, Ops.INDEX, Ops.REDUCE}
# Nodes below one that is weighed which are looked at for what others read too.
MAX_SEEN = 64

# What cuts bits out of bytes and joins them, and where bytes lie.
BITS = frozenset({Ops.AND, Ops.OR, Ops.XOR, Ops.SHL, Ops.SHR})
MEMORY = frozenset({Ops.PARAM, Ops.CONTIGUOUS, Ops.AFTER})
NUMBERS = ("int", "uint", "float")

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
CAST, PAD, REDUCE, RESHAPE = Ops.CAST, Ops.PAD, Ops.REDUCE, Ops.RESHAPE


class Decisions(Body):
    """The questions of the walk down."""

    def decide(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether to store `u`, read so, rather than compute it at each reading.

        why: in place of a RESHAPE what it shows is stored, in the axes in which it is computed: the
        view costs nothing then, and over its own axes the kernel would divide; and in place of what
        a CAST makes wider what tensor cores multiply
        """
        if not self.wants_memory(u, readings):
            return False
        below, is_wider = u, False
        while below.op is RESHAPE or self.is_made_wider(below):
            is_wider = is_wider or below.op is CAST
            below = below.src[0]
        is_padded = is_wider and below.op is PAD
        if below is u or not (below.op is REDUCE or below.op in ELEMENTWISE or is_padded):
            # What is memory, narrow as it is, stays the only copy of it.
            return not is_wider
        self.forced.add(below)
        self.why[below] = self.why.pop(u)
        return False

    def is_made_wider(self, u: UOp) -> bool:
        """Whether a CAST is of numbers as tensor cores of the device multiply them."""
        if u.op is not CAST or not self.multiplied:
            return False
        narrow = u.src[0].dtype
        there = self.multiplied.get(str(u.device), ())
        return narrow.name in there and narrow.itemsize < u.dtype.itemsize

    def wants_memory(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether `u`, read so, is better stored, or what is below it in another shape."""
        op, first = u.op, readings[0]
        why: str | None
        if u in self.unpacked or u in self.inside:
            return False
        if op is REDUCE:
            if not self.fuse:
                return self.store_because(u, "FUSE=0 stores every reduction")
            if self.may_fuse_reduce(u, readings) or self.cheap_again(u, readings):
                return False
            return self.store_because(u, "a reduction that its readers would do more than once")
        shape = u.shape
        numel = self.numel(shape) or 1
        if op in ELEMENTWISE and len(readings) == 1 and first.way.turns <= numel:
            # Most nodes: computed once for each element at most. A kernel may still be full.
            if self.stored[first.root].size <= self.max_nodes:
                return False
        if u.dtype is dtypes.index or u.device is None:
            return False
        if op is CAST and u.src[0].dtype is dtypes.index:
            return False
        if self.is_unpacked(u, readings) or self.is_field(u, readings):
            return False
        for r in readings:
            if r.way.idxs is DATA_DEPENDENT:
                return False
        if op is RESHAPE or op is PAD:
            for r in readings:
                if self.has_large_index(r.way):
                    why = "views of views whose indices would grow too long"
                    return self.store_because(u, why)
            if op is RESHAPE and self.in_memory(u):
                return False
        roots: Collection[UOp] = (first.root,)
        if len(readings) > 1:
            roots = dict.fromkeys([r.root for r in readings])
            most = costs.MAX_READINGS * len(roots)
            many = len(readings) > most and sum([1 / r.way.share for r in readings]) > most
            written = len(readings) * sum(self.costs[u])
            if many or written > costs.MANY_KERNELS * self.max_nodes:
                ways = f"read in {len(readings)} ways, too many to write out"
                return self.worth_storing(u) and self.store_because(u, ways)
        for root in roots:
            if self.stored[root].size > self.max_nodes:
                full = f"its reader has {self.max_nodes} nodes without it"
                return op in ELEMENTWISE and self.store_because(u, full)
        compute, loads = self.costs[u]
        if op is RESHAPE:
            # A plain view costs nothing; one that divides in an inner loop may.
            compute += 8
        if compute == 0 or self.fuse >= 2 or (op is CAST and self.is_widened(u, readings)):
            return False
        if loads == 0 and compute <= ASSUMED.as_a_load:
            return False
        if len(readings) == 1 and first.way.turns <= numel and op is not PAD:
            return False
        if op is PAD:
            why = self.weigh(u, readings, (compute, loads), numel)
        else:
            # Layers that are alike ask the same once more.
            asked = tuple([(r.way, self.stored[r.root].outer) for r in readings])
            below = u.src[0].shape if op is RESHAPE else None
            key = (asked, len(roots), shape, compute, loads, below)
            if key in self.weighed:
                why = self.weighed[key]
            else:
                why = self.weighed[key] = self.weigh(u, readings, (compute, loads), numel)
        if why is not None and len(readings) > 1 and op is not PAD:
            beside = self.costs_beside(u, roots)
            if beside != self.costs[u]:
                why = self.weigh(u, readings, beside, numel)
        return why is not None and self.store_because(u, why)

    def weigh(
        self, u: UOp, readings: list[Reading], each: tuple[int, int], numel: int
    ) -> str | None:
        """Why a value of so many elements is better stored, or None where it is not."""
        op, (compute, loads) = u.op, each
        turns = [r.way.turns for r in readings]
        if sum(turns) <= numel:
            # It is computed once for each element at most.
            return None
        if op is PAD:
            if not any(self.reads_padding(u, r.way) for r in readings):
                # What is below it is as large or smaller, and decides for itself.
                return None
            if all([self.slides(u, r.way) for r in readings]) or is_mostly_around(u):
                return None
        repeats = sum([self.times(r) for r in readings]) - numel
        spared = repeats * (compute + ASSUMED.extra_load * max(loads - 1, 0))
        bonus = ASSUMED.same_kernel if len({r.root for r in readings}) == 1 else 0
        price = numel * (ASSUMED.store_and_load + bonus) + ASSUMED.launch
        if not (spared > price and spared * 10 > max(turns) and self.worth_storing(u)):
            return None
        if op is RESHAPE and not self.divides_below(u, readings):
            return None
        times = f"computing it {repeats + numel:,} times for {numel:,} elements"
        return f"{times} would cost {spared:,}, storing it {price:,}"

    def costs_beside(self, u: UOp, roots: Collection[UOp]) -> tuple[int, int]:
        """The cost of `u`, read by these roots, where what others compute besides is loaded.

        why: what several stored values read is likely stored, as the sum in a network that is both
        normed and added to later; counted with all that it is made of, what little is done to it
        looked worth storing too
        """
        loaded: set[UOp] = set()
        left = MAX_SEEN

        def enter(s: UOp) -> bool:
            nonlocal left
            left -= 1
            uses = self.readings.get(s) if s is not u and s.op in ELEMENTWISE else None
            if s in self.forced or (uses and any([r.root not in roots for r in uses])):
                loaded.add(s)
            return left > 0 and s not in loaded and s.op not in costs.LOADED

        order = list(toposort(u, enter=enter))
        return costs.fused_costs(order, loaded)[u] if left > 0 and loaded else self.costs[u]

    def is_widened(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether a CAST is of memory to a wider dtype, summed along one of its axes and no more.

        why: a product takes its operands through panels anyway, and converts them there; what
        several products read is stored where it is small
        """
        narrow = u.src[0].dtype
        if not narrow.itemsize < u.dtype.itemsize or narrow.kind not in NUMBERS:
            return False
        if len(readings) > 1 and self.numel(u.shape) <= ASSUMED.small_work:
            return False
        return self.costs[u] == (1, 1) and all([is_along_axes(r.way) for r in readings])

    def is_unpacked(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether sums read a value that is made of at most half its bytes, along its own axes.

        why: a product takes such an operand through a panel, where it is made once, or makes each
        element once; storing it would write and read what is larger than all that it is made of
        """
        if u.dtype.kind != "float" or not all([is_along_axes(r.way) for r in readings]):
            return False
        found = nodes_of_unpacked(u, self.forced)
        if found is None:
            return False
        self.unpacked.update(found)
        return True

    def is_field(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether sums read some bits of bytes, or a byte as int32.

        why: cutting them out takes no longer than loading them does, and four bytes at once less
        """
        is_wide = u.op is CAST and u.dtype is dtypes.int32
        field = u.src[0] if is_wide else u
        if field.dtype.itemsize != 1 or (not is_wide and field.op not in BITS):
            return False
        if not self.is_cut_from_bytes(field) or any([r.way.valid is not None for r in readings]):
            return False
        return all([any(map(is_summed, self.used(r.way))) for r in readings])

    def is_cut_from_bytes(self, field: UOp) -> bool:
        """Whether bitwise ops and views alone make a value, of few bytes of memory."""
        stack, left = [field], MAX_SEEN
        while stack and left:
            left -= 1
            x = stack.pop()
            if x in self.forced or x.op in MEMORY or x.op is Ops.CONST:
                continue
            if x.op not in BITS and x.op not in MOVEMENT:
                return False
            stack.extend(x.src if x.op in BITS else x.src[:1])
        return not stack

    def slides(self, u: UOp, way: AccessPath) -> bool:
        """Whether memory with its padding is read by small windows, for few results each.

        why: codegen keeps what such windows meet in scratch, and pads it there
        """
        sums = [r for r in way.nest if r.arg.kind is AxisType.REDUCE]
        used = self.used(way)
        return (
            bool(sums)
            and used.issuperset(sums)
            and self.costs[u] == (costs.own_cost(u), 1)
            and iterations(sums) <= costs.MAX_WINDOW
            and way.turns < costs.FEW_RESULTS * iterations(used)
        )

    def store_because(self, u: UOp, why: str) -> bool:
        """Notes why a value is stored; true."""
        self.why[u] = why
        return True

    def has_large_index(self, way: AccessPath) -> bool:
        """Whether the indices of a way, written out, have grown past what a kernel should hold.

        why: views of views of views, each dividing what the last one multiplied, grow without end
        """
        if way.is_long is not None:
            return way.is_long
        parts = way.idxs if way.valid is None else (*way.idxs, way.valid)
        sizes = self.index_sizes
        stack = [i for i in parts if i not in sizes]
        while stack:
            u = stack[-1]
            total = 1
            for s in u.src:
                size = sizes.get(s)
                if size is None:
                    stack.append(s)
                else:
                    total += size
            if stack[-1] is u:
                sizes[u] = total
                stack.pop()
        way.is_long = sum(map(sizes.__getitem__, parts)) > self.max_nodes
        return way.is_long

    def worth_storing(self, u: UOp) -> bool:
        """Constants, however large, are cheaper to make than to load."""
        return self.costs[u][1] > 0 or self.costs[u][0] >= 2 * ASSUMED.store_and_load

    def times(self, r: Reading) -> int:
        """Counts how often a value read so is computed.

        Loops that it does not depend on and that run inside of those that it does, do not repeat
        it: it is computed before them.
        """
        way = r.way
        # Layers that are alike ask the same once more.
        key = way, self.stored[r.root].outer
        found = self.repeated.get(key)
        if found is None:
            found = self.repeated[key] = max(self.turns(self.nest_of(r)) // way.share, 1)
        return found

    def nest_of(self, r: Reading) -> tuple[UOp, ...]:
        """The loops inside of which a value read so is computed."""
        used = self.used(r.way)
        nest = r.way.nest
        if used <= self.stored[r.root].outer:
            return tuple([n for n in nest if n in used])
        last = len(nest)
        while last and nest[last - 1] not in used:
            last -= 1
        return nest[:last]

    def used(self, way: AccessPath) -> frozenset[UOp]:
        """The ranges that a way of reading depends on."""
        if way.used is None:
            parts = [i.ranges for i in way.idxs]
            if way.valid is not None:
                parts.append(way.valid.ranges)
            way.used = frozenset().union(*parts)
        return way.used

    def divides_below(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether the source indices of a RESHAPE hold divisions that its own have not."""
        for r in readings:
            own = r.way.idxs
            if any([self.divides(i) and i not in own for i in self.source_of(u, own)[0]]):
                return True
        return False

    def may_fuse_reduce(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether a reduction can be computed inside the one kernel that reads it.

        It can where each of its elements is computed once: at the loops over all of its reader's
        outputs, or at some outer ones of them, the others running inside.
        """
        first = readings[0]
        stored = self.stored[first.root]
        if stored.node.op is Ops.SCATTER or stored.size > self.max_nodes:
            return False
        used = self.used(first.way)
        numel = self.numel(u.shape)
        if any([r.way.share > 1 for r in readings]):
            return False
        if len(readings) == 1 and self.is_block_sum(u, first):
            stored.has_reduce = True
            return True
        if self.waits_for_sums(u, readings):
            return False
        if len(readings) == 1 and first.way.summed and u.arg.op is Ops.ADD and not stored.outer:
            # Terms of another sum: fused when few of them are computed more than once, or not at
            # all, since steps of a sum at which windows meet nothing are left out.
            most = costs.MAX_PADDED if meets_in_windows(first.way.valid) else costs.MAX_AGAIN
            if iterations(used) <= most * numel:
                stored.has_reduce = True
                return True
        for r in readings:
            if r.root is not first.root or r.way.idxs != first.way.idxs or r.way.valid is not None:
                return False
        outputs = frozenset([r for r in stored.ranges if r.op is Ops.RANGE])
        if not used <= outputs or iterations(used) > numel:
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
        rows = iterations(used)
        work = max(iterations(outputs), estimate(prod(u.src[0].shape)))
        if rows < ASSUMED.few_rows and work > ASSUMED.small_work:
            return False
        if reach_of_columns(stored.ranges, used) > ASSUMED.near_elements:
            return False
        stored.outer = used
        return True

    def waits_for_sums(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether one result would wait for many steps of `u`, at each step of another sum.

        why: work-items share out results and the terms of one sum, not those of sums inside of it
        """
        limit = self.nested.get(str(u.device), 0) if self.nested else 0
        if not limit or self.fuse >= 2:
            return False
        length = estimate(prod([u.src[0].shape[a] for a in u.arg.axes]))
        for r in readings:
            outer = [n for n in self.nest_of(r) if is_summed(n)]
            if outer and iterations(outer) * length > limit:
                return True
        return False

    def is_block_sum(self, u: UOp, r: Reading) -> bool:
        """Whether a sum of products of bytes is a term of another sum, each computed once.

        why: scales of blocks are factors of such terms; an instruction adds four products up, so
        storing a sum takes longer than computing it
        """
        if u.dtype is not dtypes.int32 or u.arg.op is not Ops.ADD or r.way.valid is not None:
            return False
        used = self.used(r.way)
        if not any(map(is_summed, used)):
            return False
        return iterations(used) <= self.numel(u.shape) and is_product_of_bytes(u.src[0])

    def cheap_again(self, u: UOp, readings: list[Reading]) -> bool:
        """Whether a small reduction costs less at each reading in one kernel than a launch.

        why: where floats are compared no sum is computed twice: other loops add up in another
        order, and a row whose maximum is found nowhere in it has no place of its maximum
        """
        stored = self.stored[readings[0].root]
        if len(readings) > 1 and is_rounded(u) and self.has_comparison:
            return False
        if stored.outer or stored.node.op is Ops.SCATTER or self.waits_for_sums(u, readings):
            return False
        if any([r.root is not readings[0].root for r in readings]):
            return False
        if u.device is None or any([r.way.idxs is DATA_DEPENDENT for r in readings]):
            return False
        if stored.size > self.max_nodes:
            return False
        if self.fuse >= 2:
            stored.has_reduce = True
            return True
        length = estimate(prod([u.src[0].shape[a] for a in u.arg.axes]))
        times = [max(r.way.turns, 1) for r in readings]
        if max(times) * length > ASSUMED.small_work:
            return False
        compute, loads = self.costs[u.src[0]]
        again = sum(times) - self.numel(u.shape)
        if again * length * (compute + loads) > ASSUMED.launch:
            return False
        stored.has_reduce = True
        return True


def is_rounded(u: UOp) -> bool:
    """Whether a reduction has another result in another order."""
    return u.dtype.kind == "float" and u.arg.op is not Ops.MAX


def is_along_axes(way: AccessPath) -> bool:
    """Whether a reading follows the axes of a value, one of them as a sum goes along it."""
    idxs = [i for i in way.idxs if i.op is not Ops.CONST]
    if way.valid is not None or not all([i.op is Ops.RANGE for i in idxs]):
        return False
    return any([i.arg.kind is AxisType.REDUCE for i in idxs])


def is_summed(axis: UOp) -> bool:
    """Whether an axis is one that a sum goes along."""
    return axis.op is Ops.RANGE and axis.arg.kind is AxisType.REDUCE


def is_product_of_bytes(u: UOp) -> bool:
    """Whether an integer adds up products of two numbers that were bytes."""
    for term in u.split_uop(Ops.ADD):
        if term.op is not Ops.MUL:
            return False
        for x in term.src:
            while x.op in MOVEMENT:
                x = x.src[0]
            if x.op is not CAST or x.src[0].dtype.itemsize != 1:
                return False
    return True


def meets_in_windows(valid: UOp | None) -> bool:
    """Whether a condition says of places, by comparisons alone, that they are within bounds."""
    return valid is not None and not any([x.op in (Ops.IDIV, Ops.MOD) for x in toposort(valid)])


def is_mostly_around(u: UOp) -> bool:
    """Whether the most of a PAD lies around what it pads, on both sides of it.

    why: sums over it have few terms, and codegen leaves out the steps that have none
    """
    source, margins = u.src[0].shape, [m for m in u.marg if m != (0, 0)]
    if len(u.src) > 1 or not all_int(source) or not all([low and high for low, high in margins]):
        return False
    return bool(prod(source) * costs.MAX_PADDED <= prod(u.shape))
