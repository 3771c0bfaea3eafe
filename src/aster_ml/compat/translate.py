"""Translates a hand-written kernel to Aster's kernel form; the one place that knows the dialect.

Receives the SINK that a kernel's author returns, of `Ops` and `Dialect`; returns a SINK of STOREs
over PARAMs and scratch with flat indices, scalar values and a `KernelArg`, which codegen takes like
any other kernel. Lanes become values of their own, views of memory become index arithmetic, an
index that may be invalid becomes a gate. Nothing is optimised here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from aster_ml.compat.index_values import (
    BOOL,
    FALSE,
    INDEX,
    TRUE,
    ZERO,
    as_dtype,
    as_index,
    join,
    sum_of_indices,
)
from aster_ml.compat.kernels import KernelInfo
from aster_ml.compat.nest import (
    WORK_ITEMS,
    as_loops,
    check_closed,
    is_one_nest,
    numbered,
)
from aster_ml.compat.symbolic import simplify_lanes
from aster_ml.dtype import AddrSpace, PtrDType, dtypes
from aster_ml.errors import ArgumentError, UnsupportedError
from aster_ml.extend import Handwritten, flat_index, simplify_around, source_index
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.graph import reaches, substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import (
    ELEMENTWISE,
    MOVEMENT,
    AxisType,
    KernelArg,
    Ops,
    ParamArg,
    RangeArg,
    ReduceArg,
    ScratchArg,
    VarArg,
)

MEMORY = frozenset({Ops.PARAM, Dialect.DEFINE_GLOBAL, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})


class Place(NamedTuple):
    """An element of memory: which, where, and when the access is made at all."""

    at: UOp
    gate: UOp


class Translator:
    """State of translating one kernel."""

    def __init__(self, sink: UOp) -> None:
        self.sink = sink
        self.values: dict[UOp, tuple[UOp, ...]] = {}
        self.done: dict[UOp, tuple[UOp, ...]] = {}
        self.leaves: dict[UOp, UOp] = {}
        self.ids = itertools.count()
        self.scratch_ids = itertools.count()
        order = toposort(sink)
        self.reduced = {r for u in order if u.op is Ops.REDUCE for r in u.src[1:]}
        self.bound: dict[str, int] = {}
        # Memory of unknown size is as long as its largest index asks.
        self.reach: dict[UOp, int] = {}

    # values: one node for each lane

    def scalar(self, u: UOp) -> UOp:
        """The value of a node without lanes."""
        found = self.lanes(u)
        if len(found) != 1:
            raise ArgumentError(f"{u!r} is a vector of {len(found)}; a scalar is wanted here")
        return found[0]

    def lanes(self, root: UOp) -> tuple[UOp, ...]:
        """The value of a node, lane by lane."""
        stack = [root]
        while stack:
            u = stack[-1]
            if u in self.values:
                stack.pop()
                continue
            pending = [s for s in self.value_sources(u) if s not in self.values]
            if pending:
                stack.extend(pending)
            else:
                self.values[u] = self.value_of(u)
                stack.pop()
        return self.values[root]

    def value_sources(self, u: UOp) -> tuple[UOp, ...]:
        """Sources that are values too: what memory and effects stand for is looked up apart."""
        if u.op in ELEMENTWISE or u.op in (Dialect.VECTORIZE, Dialect.GEP):
            return u.src
        if u.op in (Ops.REDUCE, Ops.RANGE, Dialect.SPECIAL, Ops.BIND):
            return u.src[:1]
        return ()

    def value_of(self, u: UOp) -> tuple[UOp, ...]:
        """The lanes of one node whose sources have theirs."""
        op, count = u.op, u.dtype.vcount
        if op is Ops.CONST:
            return (UOp.const(u.dtype.scalar(), u.arg),) * count
        if op is Dialect.VCONST:
            return tuple([UOp.const(u.dtype.scalar(), v) for v in u.arg])
        if op is Dialect.VECTORIZE:
            return tuple([x for s in u.src for x in self.values[s]])
        if op is Dialect.GEP:
            lanes = u.arg if isinstance(u.arg, tuple) else (u.arg,)
            return tuple([self.values[u.src[0]][i] for i in lanes])
        if op is Dialect.CONTRACT:
            return self.contract(u)
        if op in ELEMENTWISE:
            return self.elementwise(u)
        if op in (Ops.INDEX, Ops.LOAD):
            return self.load(u)
        if op is Ops.RANGE:
            return (self.axis(u),)
        if op is Dialect.SPECIAL:
            return (as_dtype(self.work_item(u), u.dtype),)
        if op is Ops.DEFINE_VAR:
            arg = VarArg(*u.arg)
            return (as_dtype(UOp(op, INDEX, (), arg), u.dtype),)
        if op is Ops.BIND:
            name, value = VarArg(*u.src[0].arg).name, int(u.src[1].arg)
            if self.bound.setdefault(name, value) != value:
                raise ArgumentError(
                    f"variable {name} is bound to {self.bound[name]} and to {value} in one kernel"
                )
            return self.values[u.src[0]]
        if op is Ops.REDUCE:
            return self.reduction(u)
        if op is Ops.AFTER and self.memory_below(u) is None:
            return self.lanes(u.src[0])
        raise UnsupportedError(f"{u!r} has no value in a kernel; index memory to read it: m[i]")

    def elementwise(self, u: UOp) -> tuple[UOp, ...]:
        """The op on each lane."""
        count = u.dtype.vcount
        columns = [self.values[s] * (count if len(self.values[s]) == 1 else 1) for s in u.src]
        dtype = u.dtype.scalar()
        result = []
        for row in zip(*columns, strict=True):
            if dtype is INDEX and len(row) == 2 and u.op not in (Ops.SHL, Ops.SHR):
                result.append(index_alu(u.op, as_index(row[0]), as_index(row[1])))
            elif u.op is Ops.CAST and row[0].dtype is dtype:
                result.append(row[0])
            else:
                joined = sum_of_indices(u.op, dtype, row)
                result.append(UOp(u.op, dtype, row, u.arg) if joined is None else joined)
        return tuple(result)

    def contract(self, u: UOp) -> tuple[UOp, ...]:
        """src[0] once for every number of the axes, the last of them fastest."""
        result: list[UOp] = []
        below = toposort(u.src[0])
        for numbers in itertools.product(*[range(size) for _, size in u.arg]):
            at = dict(zip([axis for axis, _ in u.arg], numbers))
            changes: dict[UOp, UOp] = {}
            for x in below:
                if x.op is Ops.RANGE and x.arg[0] in at and x.arg[1].is_lane:
                    changes[x] = UOp.index_const(at[x.arg[0]])
                elif x.op is Dialect.UNROLL and all(axis in at for axis, _ in x.arg):
                    lane = 0
                    for axis, size in x.arg:
                        lane = lane * size + at[axis]
                    changes[x] = x.src[0].gep(lane)
            result += self.lanes(substitute(u.src[0], changes))
        return tuple(result)

    def reduction(self, u: UOp) -> tuple[UOp, ...]:
        """A REDUCE over axes, on each lane."""
        arg = u.arg if isinstance(u.arg, ReduceArg) else ReduceArg(u.arg)
        axes = tuple(dict.fromkeys([r for s in u.src[1:] for r in self.axes_of(s)]))
        return tuple([UOp(Ops.REDUCE, x.dtype, (x, *axes), arg) for x in self.values[u.src[0]]])

    # axes

    def axis(self, u: UOp) -> UOp:
        """A RANGE with a number of its own."""
        kind = u.arg[1]
        if u in self.reduced:
            kind = AxisType.REDUCE
        elif kind not in WORK_ITEMS:
            kind = AxisType.LOOP
        size = as_index(self.values[u.src[0]][0])
        return UOp(Ops.RANGE, INDEX, (size,), RangeArg(next(self.ids), kind))

    def work_item(self, u: UOp) -> UOp:
        """The number of a block or work-item."""
        kind = AxisType.LOCAL if str(u.arg).startswith("l") else AxisType.GLOBAL
        size = as_index(self.values[u.src[0]][0])
        return UOp(Ops.RANGE, INDEX, (size,), RangeArg(next(self.ids), kind))

    def axes_of(self, u: UOp) -> list[UOp]:
        """The axes that an END or REDUCE names by this source."""
        if u.op is Ops.CONST:
            return []
        found = [r for r in toposort(self.scalar(u)) if r.op is Ops.RANGE]
        if not found:
            raise ArgumentError(f"{u!r} is no axis; one is UOp.range(size, id)")
        return found[-1:]

    # memory

    def memory_below(self, u: UOp) -> UOp | None:
        """The memory that a view or AFTER is of, None of a value."""
        while u.op in MOVEMENT or u.op in (Ops.AFTER, Ops.CAST, Ops.INDEX):
            u = u.src[0]
        return u if u.op in MEMORY else None

    def leaf(self, u: UOp) -> UOp:
        """A piece of memory as Aster has it."""
        found = self.leaves.get(u)
        if found is None:
            dtype, size = u.dtype.base.scalar(), 0
            lanes = u.dtype.count
            if isinstance(u.dtype, PtrDType):
                size = max(u.dtype.size, 0) * lanes
            if u.op is Ops.PARAM:
                found = UOp(Ops.PARAM, dtype, (), ParamArg(u.arg.slot, u.arg.size))
            elif u.op is Dialect.DEFINE_GLOBAL:
                found = UOp(Ops.PARAM, dtype, (), ParamArg(u.arg, size))
            else:
                own = isinstance(u.arg, ScratchArg)
                private = u.op is Ops.DEFINE_REG or (own and u.arg.private)
                if isinstance(u.dtype, PtrDType) and u.dtype.addrspace is AddrSpace.REG:
                    private = True
                arg = ScratchArg(next(self.scratch_ids), u.arg.size if own else size, private)
                found = UOp(Ops.DEFINE_LOCAL, dtype, (), arg)
            self.leaves[u] = found
        return found

    def places(self, u: UOp, gate: UOp = TRUE) -> list[Place]:
        """The elements that a LOAD or STORE of this node goes to, one a lane."""
        lanes = u.dtype.count
        while u.op is Ops.CAST:
            u = u.src[0]
        marks: list[UOp] = []
        while u.op is Ops.AFTER and u.src[0].op is Ops.INDEX:
            marks += u.src[1:]
            u = u.src[0]
        if u.op is not Ops.INDEX:
            raise ArgumentError(f"{u!r} is no element of memory; index it first: m[i]")
        given = list(u.src[1:])
        if given and given[-1].dtype is BOOL:
            gate = join(gate, self.scalar(given.pop()))
        columns = [self.gated_index(i) for i in given]
        count = max([len(c) for c in columns], default=1)
        result: list[Place] = []
        for lane in range(count):
            row = [c[lane if len(c) > 1 else 0] for c in columns]
            valid = gate
            for _, condition in row:
                valid = join(valid, condition)
            index, valid = self.resolve(u.src[0], tuple([i for i, _ in row]), valid, marks)
            if count == 1 and lanes > 1 and u.dtype.count == lanes == u.src[0].dtype.count:
                index = index.replace(src=(index.src[0], index.src[1] * lanes))
            result.append(Place(index, valid))
        if len(result) == 1 and lanes > 1:
            (memory, first), valid = result[0].at.src, result[0].gate
            result = [Place(memory.index(first + i), valid) for i in range(lanes)]
        for place in result:
            buffer = without_effects(place.at.src[0])
            if place.gate is not FALSE:
                known = simplify_around(place.at.src[1]).vmax + 1
                self.reach[buffer] = max(self.reach.get(buffer, 1), min(known, 1 << 40))
        return result

    def gated_index(self, u: UOp) -> list[tuple[UOp, UOp]]:
        """The lanes of an index, each with the condition for it to be one."""
        if u.op is Dialect.INVALID:
            return [(ZERO, FALSE)]
        if not reaches(u, lambda x: x.op is Dialect.INVALID):
            return [(as_index(x), TRUE) for x in self.lanes(u)]
        if u.op is Ops.WHERE and u.src[2].op is Dialect.INVALID:
            condition = self.scalar(u.src[0])
            return [(i, join(condition, c)) for i, c in self.gated_index(u.src[1])]
        if u.op is Dialect.VECTORIZE:
            return [x for s in u.src for x in self.gated_index(s)]
        if u.op in ELEMENTWISE and all(s.dtype.vcount == 1 for s in u.src):
            parts = [self.gated_index(s)[0] for s in u.src]
            condition = TRUE
            for _, c in parts:
                condition = join(condition, c)
            values = tuple([i for i, _ in parts])
            if len(values) == 2:
                return [(index_alu(u.op, *values), condition)]
            return [(values[0], condition)] if len(values) == 1 else []
        raise UnsupportedError(f"{u!r}: an invalid index may stand under arithmetic alone")

    def resolve(
        self, memory: UOp, idxs: tuple[UOp, ...], gate: UOp, marks: Iterable[UOp] = ()
    ) -> tuple[UOp, UOp]:
        """INDEX of a piece of memory by one flat index, and the gate that views add."""
        effects: list[UOp] = [e for m in marks for e in self.marks_of(m)]
        u = memory
        while u.op not in MEMORY:
            if u.op in MOVEMENT:
                if len(idxs) < len(u.shape):
                    raise ArgumentError(f"{memory!r} has {len(u.shape)} axes, given {len(idxs)}")
                idxs, valid = source_index(u, idxs)
                gate = gate if valid is None else join(gate, valid)
            elif u.op is Ops.INDEX:
                idxs = (*[as_index(self.scalar(i)) for i in u.src[1:]], *idxs)
            elif u.op is Ops.AFTER:
                effects += [e for m in u.src[1:] for e in self.marks_of(m)]
            elif u.op is not Ops.CAST:
                raise ArgumentError(
                    f"{u!r} is no memory of this kernel; it has its arguments and what "
                    "UOp.placeholder makes"
                )
            u = u.src[0]
        leaf = self.leaf(u)
        flat = idxs[0] if len(idxs) == 1 else flat_index(idxs, u.shape)
        effects = list(dict.fromkeys(effects))
        return leaf.after(*effects).index(flat), gate

    def marks_of(self, u: UOp) -> tuple[UOp, ...]:
        """Lists the axes and effects that an AFTER waits for."""
        if u.op is Ops.RANGE or u.op is Dialect.SPECIAL:
            return tuple(self.axes_of(u))
        return self.effects(u)

    def load(self, u: UOp) -> tuple[UOp, ...]:
        """The lanes of what lies at an element."""
        gate, other = TRUE, None
        for s in u.src[1:] if u.op is Ops.LOAD else ():
            if s.dtype is BOOL and u.dtype is not BOOL:
                gate = self.scalar(s)
            elif s.dtype is not dtypes.void:
                other = self.lanes(s)
        result = []
        for i, place in enumerate(self.places(u.src[0] if u.op is Ops.LOAD else u, gate)):
            if place.gate is FALSE:
                found = UOp.const(place.at.dtype, 0)
            else:
                found = place.at.load(None if place.gate is TRUE else place.gate)
            if other is not None and place.gate is not TRUE:
                found = place.gate.where(found, other[i if len(other) > 1 else 0])
            result.append(found)
        return tuple(result)

    # effects

    def effects(self, root: UOp) -> tuple[UOp, ...]:
        """The STOREs, ENDs and BARRIERs that a node stands for, in order."""
        stack = [root]
        while stack:
            u = stack[-1]
            if u in self.done:
                stack.pop()
                continue
            pending = [s for s in effect_sources(u) if s not in self.done]
            if pending:
                stack.extend(reversed(pending))
            else:
                self.done[u] = self.effect_of(u)
                stack.pop()
        return self.done[root]

    def effect_of(self, u: UOp) -> tuple[UOp, ...]:
        """The effects of one node whose sources have theirs."""
        below = tuple(dict.fromkeys([e for s in effect_sources(u) for e in self.done[s]]))
        if u.op is Ops.STORE:
            return self.store(u)
        if u.op is Ops.END:
            axes = tuple(dict.fromkeys([r for s in u.src[1:] for r in self.axes_of(s)]))
            return tuple([self.ended(e, axes) for e in below])
        if u.op is Ops.BARRIER:
            return (UOp(Ops.BARRIER, dtypes.void, below),)
        return below

    def ended(self, effect: UOp, axes: tuple[UOp, ...]) -> UOp:
        """An effect in loops; an axis that a loop before it has run over already is renewed."""
        if effect.op is Ops.BARRIER:
            return effect
        closed: list[UOp] = []
        for r in axes:
            if reaches(effect, lambda x, r=r: x.op is Ops.END and r in x.src[1:]):  # type: ignore[misc]
                again = r.replace(arg=RangeArg(next(self.ids), r.arg.kind))
                effect = substitute(
                    effect,
                    {r: again},
                    lambda x, r=r: x.op is not Ops.END or r not in x.src[1:],  # type: ignore[misc]
                )
                r = again
            closed.append(r)
        return effect.end(*closed)

    def store(self, u: UOp) -> tuple[UOp, ...]:
        """A STORE for each lane."""
        gate = TRUE
        axes: list[UOp] = []
        for s in u.src[2:]:
            if s.dtype is BOOL:
                gate = join(gate, self.scalar(s))
            elif s.op is Ops.RANGE:
                axes += self.axes_of(s)
        values = self.lanes(u.src[1])
        places = self.places(u.src[0], gate)
        if len(values) > len(places) == 1:
            memory, first = places[0].at.src
            places = [Place(memory.index(first + i), places[0].gate) for i in range(len(values))]
        result = []
        for i, place in enumerate(places):
            if place.gate is FALSE:
                continue
            value = values[i if len(values) > 1 else 0]
            if value.dtype is not place.at.dtype:
                raise ArgumentError(
                    f"a {value.dtype.name} is stored to memory of {place.at.dtype.name}; "
                    "cast it first"
                )
            value, gate = kept_where(value, place)
            if gate is FALSE:
                continue
            place = Place(place.at, gate)
            stored = place.at.store(value, None if place.gate is TRUE else place.gate)
            result.append(stored.end(*axes))
        return tuple(result)

    # the whole

    def run(self) -> Handwritten:
        """The kernel in Aster's form."""
        roots = self.effects(self.sink)
        info = self.sink.arg if isinstance(self.sink.arg, KernelInfo) else KernelInfo(name="")
        opts = info.opts_to_apply
        ordered = not is_one_nest(roots)
        if not ordered:
            roots = as_loops(roots)
        name = info.function_name if info.name != "test" else ""
        arg = KernelArg(name, None if opts is None else " ".join(map(repr, opts)), ordered)
        said = None if arg == KernelArg() else arg
        sink = simplify_lanes(self.with_sizes(UOp.sink(*roots, arg=said)))
        check_closed(sink)
        ast, slots = numbered(sink)
        return Handwritten(ast, slots, tuple(sorted(self.bound.items())))

    def with_sizes(self, sink: UOp) -> UOp:
        """Memory of unknown size gets that which its indices ask for."""
        changes: dict[UOp, UOp] = {}
        for leaf in self.leaves.values():
            if leaf.op is Ops.PARAM and leaf.arg.size == 0 and leaf in self.reach:
                changes[leaf] = leaf.replace(arg=leaf.arg._replace(size=self.reach[leaf]))
        return substitute(sink, changes)


def effect_sources(u: UOp) -> tuple[UOp, ...]:
    """The sources whose effects are those of a node."""
    if u.op in (Ops.SINK, Dialect.GROUP, Ops.BARRIER, Ops.AFTER):
        return u.src
    if u.op is Ops.END or u.op in MOVEMENT:
        return u.src[:1]
    return ()


def kept_where(value: UOp, place: Place) -> tuple[UOp, UOp]:
    """Storing what lies there already is storing nothing: value and gate of the store."""
    if value.op is Ops.WHERE:
        condition, yes, no = value.src
        if no.op is Ops.LOAD and no.src == (place.at,):
            return yes, join(place.gate, condition)
        if yes.op is Ops.LOAD and yes.src == (place.at,):
            return no, join(place.gate, condition.logical_not())
    return value, place.gate


def without_effects(u: UOp) -> UOp:
    """The memory under an AFTER."""
    return u.src[0] if u.op is Ops.AFTER else u


def translate(sink: UOp) -> Handwritten:
    """A hand-written kernel in Aster's kernel form.

    Raises: ArgumentError or UnsupportedError where it makes no kernel.
    """
    if not isinstance(sink, UOp) or sink.op is not Ops.SINK:
        raise ArgumentError(f"a kernel is a sink of stores, UOp.sink(...); this is {sink!r}")
    return Translator(sink).run()
