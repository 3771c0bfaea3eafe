"""Lists a kernel's late nodes as the reference does, from Aster's own.

`get_uops` receives a kernel of the dialect (or values under a SINK); translates, simplifies and
lowers it with the code generator's own passes, and writes the result in the dialect again:
pointers, SPECIAL, gates on INDEX, IF around gated stores.
"""

from __future__ import annotations

from typing import Any

from aster_ml.compat.translate import Translator, effect_sources
from aster_ml.dtype import AddrSpace, dtypes
from aster_ml.extend import lower_index_dtype, simplify
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

WORK_ITEMS = {AxisType.GLOBAL: "gidx", AxisType.LOCAL: "lidx"}
CONTAINERS = frozenset({Ops.SINK, Ops.END, Dialect.GROUP})


def value_roots(sink: UOp) -> list[UOp]:
    """Nodes with a value that stand where effects are."""
    found: dict[UOp, None] = {}
    stack = [sink]
    while stack:
        u = stack.pop()
        if u.op in CONTAINERS:
            stack.extend(reversed(effect_sources(u)))
        elif u.dtype is not dtypes.void and u.op is not Ops.AFTER:
            found[u] = None
    return list(found)


def lowered(sink: UOp) -> tuple[UOp, Translator]:
    """The kernel as it stands before it is put in order; index arithmetic in 32 bits."""
    t = Translator(sink)
    values = [x for u in value_roots(sink) for x in t.lanes(u)]
    root = t.with_sizes(UOp.sink(*t.effects(sink), *values))
    return lower_index_dtype(with_alternatives(simplify(root)), dtypes.int32), t


def gated_load(value: UOp, condition: UOp, holds: bool) -> UOp | None:
    """The load, cast or not, that is made only where the condition holds (or fails)."""
    load = value.src[0] if value.op is Ops.CAST else value
    if load.op is not Ops.LOAD or len(load.src) != 2:
        return None
    wanted = condition if holds else simplify(condition.logical_not())
    return load if load.src[1] is wanted else None


def with_alternatives(root: UOp) -> UOp:
    """A choice between a gated load and something else as one LOAD, whose third source is that."""
    new: dict[UOp, UOp] = {}
    for u in toposort(root):
        src = tuple([new[s] for s in u.src])
        new[u] = u if src == u.src else UOp(u.op, u.dtype, src, u.arg)
        if u.op is not Ops.WHERE:
            continue
        for value, other, holds in ((u.src[1], u.src[2], True), (u.src[2], u.src[1], False)):
            load = gated_load(value, u.src[0], holds)
            if load is None:
                continue
            if value is load:
                new[u] = UOp(Ops.LOAD, u.dtype, (*new[load].src, new[other]))
            elif other.op is Ops.CONST and float(other.arg).is_integer():
                instead = UOp.const(load.dtype, int(other.arg))
                new[u] = UOp(Ops.LOAD, load.dtype, (*new[load].src, instead)).cast(u.dtype)
    return new[root]


class Writer:
    """Writes a lowered kernel in the dialect."""

    def __init__(self, t: Translator) -> None:
        self.origin: dict[Any, UOp] = {}
        for own, made in t.leaves.items():
            key = ("param", made.arg.slot) if made.op is Ops.PARAM else ("scratch", made.arg.id)
            self.origin[key] = own
        for own, lanes in t.values.items():
            if own.op in (Dialect.SPECIAL, Ops.RANGE):
                made = lanes[0].src[0] if lanes[0].op is Ops.CAST else lanes[0]
                self.origin["range", made.arg.id] = own
        self.new: dict[UOp, UOp] = {}

    def write(self, root: UOp) -> UOp:
        """The root in the dialect."""
        for u in toposort(root):
            self.new[u] = self.node(u)
        return self.new[root]

    def node(self, u: UOp) -> UOp:
        """One node over what its sources have become."""
        src = tuple([self.new[s] for s in u.src])
        if u.op is Ops.PARAM:
            return self.memory(u, ("param", u.arg.slot), Dialect.DEFINE_GLOBAL, u.arg.slot)
        if u.op is Ops.DEFINE_LOCAL:
            return self.memory(u, ("scratch", u.arg.id), u.op, u.arg.id)
        if u.op is Ops.RANGE:
            own = self.origin.get(("range", u.arg.id))
            if own is not None and own.op is Dialect.SPECIAL:
                return UOp(Dialect.SPECIAL, dtypes.int32, src, own.arg)
            return UOp(u.op, u.dtype, src, u.arg if own is None else own.arg)
        if u.op is Ops.INDEX:
            return UOp(u.op, src[0].dtype, src[:2])
        if u.op is Ops.LOAD:
            return self.load(u)
        if u.op is Ops.STORE and len(u.src) > 2:
            gated = UOp(Ops.INDEX, src[0].dtype, (*src[0].src, src[2]))
            return UOp(u.op, u.dtype, (gated, src[1]))
        return UOp(u.op, src[0].dtype if u.op is Ops.AFTER else u.dtype, src, u.arg)

    def memory(self, u: UOp, key: Any, op: Any, arg: Any) -> UOp:
        """Memory as its author wrote it, or as a pointer."""
        own = self.origin.get(key)
        if own is not None and own.dtype.__class__ is not u.dtype.__class__:
            return own
        if op is Dialect.DEFINE_GLOBAL:
            return UOp(op, u.dtype.ptr(u.arg.size), (), arg)
        space = AddrSpace.REG if u.arg.private else AddrSpace.LOCAL
        kind = Ops.DEFINE_REG if u.arg.private else Ops.DEFINE_LOCAL
        return UOp(kind, u.dtype.ptr(u.arg.size, space), (), arg)

    def load(self, u: UOp) -> UOp:
        """A LOAD; of a gated one the second source is what it gives elsewhere."""
        place, rest = self.new[u.src[0]], [self.new[s] for s in u.src[1:]]
        if not rest:
            return UOp(Ops.LOAD, u.dtype, (place,))
        other = rest[1] if len(rest) > 1 else UOp.const(u.dtype, 0)
        return UOp(Ops.LOAD, u.dtype, (UOp(Ops.INDEX, place.dtype, (*place.src, rest[0])), other))


def with_vectors(sink: UOp, written: UOp) -> UOp:
    """The SINK with the lanes of a vector that stands under it as one VECTORIZE."""
    rest = list(written.src)
    found: list[UOp] = []
    for u in reversed(value_roots(sink)):
        count = u.dtype.vcount
        lanes = tuple(rest[len(rest) - count :])
        del rest[len(rest) - count :]
        vector = lanes[0].vectorize(*lanes[1:]) if count > 1 else lanes[0]
        found.insert(0, vector)
    return UOp(Ops.SINK, dtypes.void, (*rest, *found), written.arg)


def in_order(root: UOp) -> list[UOp]:
    """The nodes, sources first; a gated store between IF and ENDIF."""
    result: list[UOp] = []
    for u in toposort(root):
        if u.op is Ops.STORE and len(u.src[0].src) > 2:
            begin = UOp(Dialect.IF, dtypes.void, (u.src[0].src[2], u.src[0]))
            result += [begin, u, UOp(Dialect.ENDIF, dtypes.void, (begin,))]
        else:
            result.append(u)
    return result


def get_uops(ast: UOp, renderer: Any = None) -> list[UOp]:
    """The late nodes of a kernel in running order, its SINK last."""
    root, t = lowered(ast)
    return in_order(with_vectors(ast, Writer(t).write(root)))


def full_rewrite_to_sink(sink: UOp, renderer: Any = None, optimize: bool = True) -> UOp:
    """A kernel (or values under a SINK) as it stands before it is put in order."""
    root, t = lowered(sink)
    return with_vectors(sink, Writer(t).write(root))
