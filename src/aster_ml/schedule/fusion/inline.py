"""Inlines: writes each stored value as an expression over ranges that reads others by INDEX.

The upward walk, sources first: receives a body whose readings are known; fills the `value` of each
`Materialized`. Afterwards there are no movement ops, IOTAs or axes.
"""

from __future__ import annotations

from collections.abc import Sequence

from aster_ml.dtype import dtypes
from aster_ml.schedule.fusion.body import Body
from aster_ml.schedule.fusion.uses import DATA_DEPENDENT, MARKS, Reading, Use, kept_in
from aster_ml.schedule.rewrites.disjoint_pads import is_inside
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, Ops, ReduceArg
from aster_ml.uop.ranges import iterations

# Ops whose value is that of their first source, at the index that they pass on.
SEEN_THROUGH = (MOVEMENT - {Ops.PAD}) | {*MARKS, Ops.AFTER}


# Globals are faster to look up than members of an Enum, and every node is tested for its op.
ADD, CONST, DEFINE_VAR, INDEX, IOTA, PAD, PARAM, RANGE, REDUCE, WHERE = (
    Ops.ADD, Ops.CONST, Ops.DEFINE_VAR, Ops.INDEX, Ops.IOTA, Ops.PAD, Ops.PARAM, Ops.RANGE,
    Ops.REDUCE, Ops.WHERE,
)  # fmt: skip


class Expressions(Body):
    """The upward walk."""

    def go_up(self, order: Sequence[UOp], root: UOp | None = None) -> None:
        """Writes each reading as an expression, sources first; only readings of `root` if given."""
        all_stored, readings = self.stored, self.readings
        for u in order:
            stored = all_stored.get(u)
            if stored is not None and stored.use is not None and (root is None or u is root):
                stored.value = self.express(u, stored.use)
            uses = readings.get(u)
            if not uses:
                continue
            if root is not None:
                uses = {reading: use for reading, use in uses.items() if reading.root is root}
            op = u.op
            if stored is not None or op is PARAM:
                for reading, use in uses.items():
                    if reading.way.idxs is not DATA_DEPENDENT:
                        use.value = self.read_memory(u, u.shape, reading)
            elif op in SEEN_THROUGH:
                for reading, use in uses.items():
                    if reading.way.idxs is not DATA_DEPENDENT:
                        use.value = use.below[0].value
            else:
                for reading, use in uses.items():
                    if reading.way.idxs is not DATA_DEPENDENT:
                        use.value = self.express(u, use)

    def read_memory(self, source: UOp, shape: tuple[int | UOp, ...], reading: Reading) -> UOp:
        """A load from a stored value or a parameter that is indexed as this shape."""
        token, way = self.token(reading.root, source, reading.after), reading.way
        flat = self.place_in(source, way.idxs, shape)
        found = self.loaded.get((token, flat, way))
        if found is not None:
            return found
        # An index that is always in bounds needs no gate: padding masks the value where it matters.
        inside = flat.vmin >= 0 and flat.vmax < token.arg.size
        valid = way.valid
        if valid is None and not inside:
            valid = kept_in(flat, token.arg.size)
        dtype = token.dtype.base
        at = UOp(Ops.INDEX, dtype, (token, flat))
        found = UOp(Ops.LOAD, dtype, (at,) if inside or valid is None else (at, valid))
        self.loaded[token, flat, way] = found
        return found

    def express(self, u: UOp, use: Use) -> UOp:
        """The value of `u` at a reading, from those of its sources."""
        op, dtype, way, below = u.op, u.dtype, use.reading.way, use.below
        if op is CONST:
            return UOp(op, dtype, (), u.arg) if u.src else u
        if op is INDEX:
            memory, after = self.memory_of(u.src[0])
            at = self.at(way, tuple([b.value for b in below[1:]]))
            reading = self.reading(use.reading.root, at, (*use.reading.after, *after))
            return self.read_memory(memory, u.src[0].shape, reading)
        src = tuple([b.value for b in below])
        if op in ELEMENTWISE:
            if dtype is dtypes.index or (dtype is dtypes.bool and src[0].dtype is dtypes.index):
                return self.simple(
                    src[0].alu(op, *src[1:]) if op is not Ops.CAST else src[0].cast(u.dtype)
                )
            join = self.joins.get(u)
            if join is not None and len(src) == 1:
                return src[0]
            if join is not None:
                inside = self.simple(is_inside(join.boxes, way.idxs, u.shape))
                return inside.where(src[join.chosen], src[1 - join.chosen])
            made = UOp(op, dtype, src, u.arg)
            return plain(made) if op is ADD or op is WHERE else made
        if op is DEFINE_VAR:
            return u
        if op is IOTA:
            return way.idxs[0]
        if op is PAD:
            if not below:
                return UOp.const(dtype, 0)
            if not self.reads_padding(u, way):
                return src[0]
            _, valid, chosen = self.below_pad(u, way.idxs)
            value = src[0] if valid is None else mask_terms(self.simple(valid), src[0])
            if chosen is None:
                return value
            chosen, nothing = self.simple(chosen), value.const_like(0)
            if chosen.op is Ops.CONST:
                return value if chosen.arg else nothing
            return chosen.where(value, nothing)
        if op is REDUCE:
            idxs = below[0].reading.way.idxs
            ranges = [idxs[a] for a in u.arg.axes if idxs[a].op is RANGE]
            used = src[0].ranges
            idle = [r for r in ranges if r not in used]
            if idle:
                times = repeated(u, idle)
                if times is not None:
                    ranges = [r for r in ranges if r not in idle]
                    made = src[0]
                    if ranges:
                        made = UOp(Ops.REDUCE, u.dtype, (made, *ranges), ReduceArg(u.arg.op))
                    return made if times == 1 else made.alu(Ops.MUL, UOp.const(u.dtype, times))
            if src[0].op is Ops.REDUCE and src[0].arg.op is u.arg.op is Ops.ADD:
                # A sum of sums is one sum.
                return src[0].replace(src=(src[0].src[0], *ranges, *src[0].src[1:]))
            if not ranges:
                return src[0]
            return UOp(Ops.REDUCE, u.dtype, (src[0], *ranges), ReduceArg(u.arg.op))
        if op is Ops.SCATTER:
            return UOp(Ops.SCATTER, u.dtype, src, u.arg)
        return src[0]

    def memory_of(self, u: UOp) -> tuple[UOp, tuple[UOp, ...]]:
        """The memory below row-major views, and the STOREs after which it is read."""
        after: tuple[UOp, ...] = ()
        # Below an effect the memory itself is read, not a value stored for a view of it before.
        while u.op is not Ops.PARAM and (after or u not in self.stored):
            after += u.src[1:] if u.op is Ops.AFTER else ()
            u = u.src[0]
        return u, after


def mask_terms(valid: UOp, value: UOp) -> UOp:
    """`value` where `valid` holds, else 0; of a sum, each term is masked.

    A product with a load that is gated to 0 needs no mask if the other factor is made of loads
    without division and the like (an infinite factor then gives NaN, as with stored zeros).
    """
    # A sum of sums, the outermost first.
    sums: list[UOp] = []
    while value.op is Ops.REDUCE and value.arg.op is Ops.ADD:
        sums.append(value)
        value = value.src[0]
    product = value.op is Ops.MUL and any(is_gated(s) for s in value.src)
    if not is_gated(value) and not (product and all(map(is_finite, value.src))):
        value = valid.where(value, value.const_like(0))
    for u in reversed(sums):
        value = u.replace(src=(value, *u.src[1:]))
    return value


def plain(u: UOp) -> UOp:
    """An elementwise node without an integer + 0, or a WHERE with a negated condition.

    Such a 0 gives an arange its device in a tensor graph.
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
    """The factor by which a sum multiplies a value that is constant along these ranges.

    None where the factor is symbolic, or does not fit the dtype.
    """
    if u.arg.op in (Ops.MAX, Ops.AND, Ops.OR):
        return 1
    if u.arg.op is not Ops.ADD or any([r.src[0].op is not Ops.CONST for r in ranges]):
        return None
    times = int(iterations(ranges))
    if u.dtype.kind == "float":
        return times if times <= 1 << dtypes.finfo(u.dtype)[1] else None
    return times if times <= dtypes.max(u.dtype) else None


def is_gated(u: UOp) -> bool:
    """Whether `u` is a gated load."""
    return u.op is Ops.LOAD and len(u.src) > 1


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


def is_finite(value: UOp) -> bool:
    """Whether an expression of finite loads is finite."""
    order = toposort(value, enter=lambda u: u.op not in (Ops.LOAD, Ops.REDUCE))
    return not any([u.op in UNBOUNDED for u in order])
