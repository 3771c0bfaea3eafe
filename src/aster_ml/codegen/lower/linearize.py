"""Linearization: a kernel graph becomes a list of instructions in running order.

Every node is placed in the outermost loop nest in which all the ranges that it depends on run, so
what does not change in a loop is computed before it. A REDUCE becomes an accumulator, its loops and
an ACCUMULATE. Receives a graph without index dtype; returns a Linear (see `uop/linear.py`).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

from aster_ml.codegen.kernel import Kernel, identity
from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError, KernelOptError
from aster_ml.target import Target
from aster_ml.uop.graph import rebuilt, substitute
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp, new_node
from aster_ml.uop.ops import AxisType, Ops, RangeArg, ScratchArg

# Names of a module are found faster than members of an Enum, and every node is asked for its op.
AFTER, END, INDEX = Ops.AFTER, Ops.END, Ops.INDEX
RANGE, REDUCE, STORE = Ops.RANGE, Ops.REDUCE, Ops.STORE
STORES = frozenset({STORE, Ops.TMA_STORE})
# Read where they are used, so never listed.
INLINE = frozenset({Ops.CONST, Ops.INDEX, Ops.END, Ops.SINK})
FIRST = frozenset({Ops.PARAM, Ops.DEFINE_VAR, Ops.DEFINE_LOCAL})
# What no scope holds as an item of its own.
UNLISTED = INLINE | FIRST | {Ops.RANGE}
WITHOUT_LOOP = frozenset({AxisType.GLOBAL, AxisType.LOCAL, AxisType.GROUP})


BY_ID = operator.attrgetter("arg.id")


class Scope:
    """The body of a loop (or of the kernel), and what stands in it."""

    __slots__ = ("after", "depth", "items", "loop", "parent", "reduce")

    def __init__(self, loop: UOp | None, parent: Scope | None, reduce: UOp | None = None) -> None:
        self.loop = loop
        self.parent: Scope | None = parent
        self.reduce = reduce
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.items: list[object] = []
        # For each item, the items of the same scope that it waits for.
        self.after: dict[object, dict[object, None]] = {}


def holds_barrier(scope: Scope) -> bool:
    """Whether the work-items of a block wait for one another in each turn of a loop."""
    return any([isinstance(x, UOp) and x.op is Ops.BARRIER for x in scope.items])


def in_order(scope: Scope) -> list[object]:
    """The items of a scope, each after what it waits for, else in graph order."""
    done: dict[object, None] = {}
    entered: set[object] = set()
    for item in scope.items:
        after = scope.after.get(item)
        if item not in done and (not after or done.keys() >= after.keys()):
            # Nearly all of them: what they wait for stands before them.
            done[item] = None
            continue
        stack: list[object] = [item]
        while stack:
            top = stack[-1]
            if top in done:
                stack.pop()
                continue
            after = scope.after.get(top)
            waiting = [x for x in after if x not in done] if after else ()
            if waiting:
                if top in entered:
                    raise InternalError(
                        f"linearize: items of a loop wait for one another: {top!r} for {waiting!r}"
                    )
                entered.add(top)
                stack.extend(reversed(waiting))
                continue
            done[stack.pop()] = None
    return list(done)


class Linearizer:
    """State of one linearization."""

    def __init__(self, sink: UOp, outputs: list[UOp]) -> None:
        self.sink = sink
        self.order = listed_order(sink)
        # What is asked for by op: arguments and scratch, ranges, what closes loops, stores.
        self.first: list[UOp] = []
        self.ranges: list[UOp] = []
        self.closing: list[UOp] = []
        stores: list[UOp] = []
        lists = {**dict.fromkeys(FIRST, self.first), RANGE: self.ranges}
        lists |= dict.fromkeys(STORES, stores)
        barriers: list[UOp] = []
        lists |= {REDUCE: self.closing, END: self.closing, Ops.BARRIER: barriers}
        for u in self.order:
            if u.op in lists:
                lists[u.op].append(u)
        self.stores = [u for u in stores if is_output(u)]
        self.has_barriers = bool(barriers)
        self.root = Scope(None, None)
        self.scope_of_loop: dict[UOp, Scope] = {}
        self.loop_of_reduce: dict[UOp, Scope] = {}
        self.new: dict[UOp, UOp] = {}
        self.uops: list[UOp] = []
        self.regs = 0
        scope = self.root
        for r in outputs:
            if not r.arg.kind.is_lane and r.arg.kind not in WITHOUT_LOOP:
                scope = self.scope_of_loop[r] = Scope(r, scope)
        self.innermost = scope
        self.scopes: dict[UOp, Scope] = {}

    def scope_for(self, u: UOp) -> Scope:
        """The deepest of the loops that `u` depends on."""
        best = self.root
        for r in u.ranges:
            scope = self.scope_of_loop.get(r)
            if scope is None:
                if r.arg.kind.is_lane or r.arg.kind in WITHOUT_LOOP:
                    continue
                raise InternalError(f"linearize: {u!r} depends on {r!r}, which no loop runs")
            if scope.depth > best.depth:
                best = scope
        return best

    def place(self) -> None:
        """Gives each node its scope; loops of reductions get theirs as they are met."""
        # From the outside in: the loops of one may run inside those of another.
        for u in reversed(self.closing):
            if u.op is REDUCE or not is_output(u.src[0]):
                loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
                if not loops:
                    continue
                scope = self.scope_for(u)
                for r in loops:
                    scope = self.scope_of_loop[r] = Scope(r, scope, u)
                if u.op is REDUCE:
                    self.loop_of_reduce[u] = scope
        scopes = self.scopes
        # Many nodes depend on the same loops.
        of_ranges: dict[frozenset[UOp], Scope] = {}
        for u in self.order:
            if u.op in UNLISTED:
                continue
            if u.op in STORES and is_output(u):
                scope = self.innermost
            else:
                ranges = u.ranges
                known = of_ranges.get(ranges)
                scope = of_ranges[ranges] = self.scope_for(u) if known is None else known
            scopes[u] = scope
            scope.items.append(u)
            body = self.loop_of_reduce.get(u)
            for s in self.real_sources(u):
                other = scopes[s]
                if body is not None and (s is u.src[0] or s in self.inline_sources(u.src[0])):
                    self.wait(body, ("accumulate", u), other, s)
                elif other is scope:
                    # As `wait` does, which would be called for each edge.
                    scope.after.setdefault(u, {})[s] = None
                else:
                    self.wait(scope, u, other, s)
            if body is not None:
                body.items.append(("accumulate", u))
                self.wait(scope, u, body, ("accumulate", u))
        self.read_before_written()
        for r, scope in self.scope_of_loop.items():
            assert scope.parent is not None
            scope.parent.items.append(scope)
            # A loop's size may be an expression.
            for s in self.inline_sources(r.src[0]):
                self.wait(scope, ("size", r), self.scopes[s], s)

    def read_before_written(self) -> None:
        """Of several stores, each waits for whoever reads what its memory held before."""
        if len(self.stores) < 2:
            return
        loads: dict[UOp, list[UOp]] = {}
        for u in self.order:
            if u.op is Ops.LOAD:
                loads.setdefault(u.src[0].src[0], []).append(u)
        for store in self.stores:
            for u in loads.get(written_by(store), ()):
                self.wait(self.scopes[store], store, self.scopes[u], u)

    def real_sources(self, u: UOp) -> list[UOp]:
        """The listed nodes that `u` reads, through what is read inline."""
        result: list[UOp] = []
        for s in u.src:
            if s.op is INDEX or s.op is END:
                result.extend(self.inline_sources(s))
            elif s.op not in UNLISTED:
                result.append(s)
        return result

    def inline_sources(self, s: UOp) -> list[UOp]:
        """`s` when it is listed, else the listed nodes below it."""
        found: list[UOp] = []
        stack = [s]
        while stack:
            u = stack.pop()
            if u.op is INDEX:
                stack += (u.src[1], u.src[0])
            elif u.op is END:
                stack.append(u.src[0])
            elif u.op not in UNLISTED:
                found.append(u)
        return found

    def wait(self, scope: Scope, item: object, other_scope: Scope, other: object) -> None:
        """`item` of `scope` needs `other`: noted where their ways part."""
        a, b = scope, other_scope
        while a is not b:
            if a.depth >= b.depth and a.parent is not None:
                item, a = a, a.parent
            elif b.parent is not None:
                other, b = b, b.parent
        if item is not other:
            a.after.setdefault(item, {})[other] = None

    def emit_scope(self, scope: Scope) -> None:
        """Lists the items of a scope, and of each loop in it where it stands."""
        # The scopes that are open, each with the items that are left.
        stack = [(scope, iter(in_order(scope)))]
        while stack:
            scope, items = stack[-1]
            for item in items:
                if item.__class__ is Scope:
                    self.begin_loop(item)
                    stack.append((item, iter(in_order(item))))
                    break
                self.emit_item(item)
            else:
                # A scope and those in it hold each other: nothing of them outlives the list.
                scope.items.clear()
                scope.after.clear()
                stack.pop()
                if stack:
                    assert scope.loop is not None
                    self.uops.append(UOp(Ops.END, dtypes.void, (self.new[scope.loop],)))

    def emit_item(self, item: object) -> None:
        """Lists one node, or one accumulation."""
        if isinstance(item, UOp):
            self.emit_node(item)
        elif isinstance(item, tuple) and item[0] == "accumulate":
            u = item[1]
            unrolled = [self.map(r) for r in u.src[1:] if r.arg.kind is AxisType.UNROLL]
            self.uops.append(
                UOp(Ops.ACCUMULATE, u.dtype, (self.reg[u], self.map(u.src[0]), *unrolled), u.arg.op)
            )

    reg: dict[UOp, UOp]

    def begin_loop(self, scope: Scope) -> None:
        """Opens a loop; the accumulator of a reduction starts before its first loop."""
        u, r = scope.reduce, scope.loop
        assert r is not None and scope.parent is not None
        if u is not None and u.op is Ops.REDUCE and scope.parent.reduce is not u:
            lanes = sorted(
                [
                    x
                    for x in u.src[0].ranges
                    if x.arg.kind.is_lane and not (x in u.src[1:] and x.arg.kind is AxisType.UNROLL)
                ],
                key=lambda x: x.arg.id,
            )
            start = UOp.const(u.dtype, identity(u.arg.op, u.dtype))
            self.reg[u] = UOp(Ops.DEFINE_REG, u.dtype, (start, *lanes), ScratchArg(self.regs))
            self.regs += 1
            self.uops.append(self.reg[u])
        self.uops.append(self.map(r))
        if self.has_barriers and holds_barrier(scope):
            # Local memory is filled again in each turn: all have to be done with the last one.
            self.uops.append(UOp(Ops.BARRIER, dtypes.void, ()))

    def emit_node(self, u: UOp) -> None:
        """Lists a node over what its sources have become."""
        if u.op is REDUCE and u in self.loop_of_reduce:
            lanes = [
                r for r in u.src[1:] if r.arg.kind.is_lane and r.arg.kind is not AxisType.UNROLL
            ]
            if not lanes:
                self.new[u] = self.reg[u]
                return
            made = new_node(REDUCE, u.dtype, (self.reg[u], *lanes), u.arg)
        elif u.op is AFTER:
            self.new[u] = self.map(u.src[0])
            return
        else:
            new, made = self.new, u
            for s in u.src:
                if new.get(s) is not s:
                    src = tuple([new[x] if x in new else self.map(x) for x in u.src])
                    made = u if src == u.src else new_node(u.op, u.dtype, src, u.arg)
                    break
        self.new[u] = made
        self.uops.append(made)

    def map(self, u: UOp) -> UOp:
        """Lowered form of a source."""
        new = self.new
        stack = [u]
        while u not in new:
            x = stack[-1]
            if x.op is RANGE:
                below = x.src[:1]
            elif x.op is INDEX:
                # The lanes' part is never listed, though a value may be the same expression.
                below = x.src[:2]
            elif not x.src or x.op in INLINE or x not in self.scopes:
                below = x.src
            else:
                raise InternalError(f"linearize: {x!r} is used before it is listed")
            waiting = [s for s in below if s not in new]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            src = tuple([new[s] for s in below])
            src += x.src[2:] if x.op is INDEX else ()
            new[x] = new_node(x.op, x.dtype, src, x.arg) if x.src else x
        return new[u]

    def run(self, name: str) -> Linear:
        """The list."""
        self.reg = {}
        self.place()
        first, ranges = self.first, sorted(self.ranges, key=BY_ID)
        self.uops.extend(first)
        self.uops.extend([u for u in ranges if u.arg.kind in WITHOUT_LOOP])
        self.emit_scope(self.root)
        params = sorted([u for u in first if u.op is Ops.PARAM], key=lambda u: u.arg.slot)
        variables = sorted([u for u in first if u.op is Ops.DEFINE_VAR], key=lambda u: u.arg.name)
        written = frozenset([written_by(u).arg.slot for u in self.stores])
        blocks = [u for u in ranges if u.arg.kind is AxisType.GLOBAL]
        items = [u for u in ranges if u.arg.kind is AxisType.LOCAL]
        threads = [u for u in ranges if u.arg.kind is AxisType.THREAD]
        # A launch has as many numbers of blocks as of work-items.
        dims = max(len(blocks), len(items), 1)
        return Linear(
            name,
            tuple(self.uops),
            tuple(params),
            tuple(variables),
            written,
            threads[0] if threads else None,
            tuple([self.size(b) for b in blocks] + [1] * (dims - len(blocks))),
            tuple([int(i.src[0].arg) for i in items] + [1] * (dims - len(items))),
        )

    def size(self, r: UOp) -> UOp | int:
        """Size of a range as an int or an expression."""
        return r.src[0].arg if r.src[0].op is Ops.CONST else self.map(r.src[0])


def listed_order(sink: UOp) -> list[UOp]:
    """Sources first; what only an INDEX's lane offset needs is left out, it is never computed."""
    done: dict[UOp, None] = {}
    # Nodes with those of their sources that are left.
    stack: list[tuple[UOp, Iterator[UOp]]] = []
    u, left = sink, iter(sink.src)
    while True:
        for s in left:
            if s not in done:
                src = s.src
                if src:
                    stack.append((u, left))
                    u, left = s, iter(src[:2] if s.op is INDEX else src)
                    break
                done[s] = None
        else:
            done[u] = None
            if not stack:
                return list(done)
            u, left = stack.pop()


def memory_of(u: UOp) -> UOp:
    """The memory that a LOAD or STORE goes to."""
    memory = u.src[0].src[0]
    while memory.op is Ops.AFTER:
        memory = memory.src[0]
    return memory


def is_output(u: UOp) -> bool:
    """Whether a STORE goes to a buffer of the caller."""
    return written_by(u).op is Ops.PARAM


def written_by(u: UOp) -> UOp:
    """The memory that a STORE or a TMA_STORE writes to."""
    return u.src[1] if u.op is Ops.TMA_STORE else memory_of(u)


def loops_of(u: UOp) -> list[UOp]:
    """The loops that a REDUCE runs."""
    kinds = [(r, r.arg.kind) for r in u.src[1:]]
    return [r for r, kind in kinds if not kind.is_lane and kind not in WITHOUT_LOOP]


def with_own_loops(sink: UOp) -> UOp:
    """The graph in which no two reductions run over the same RANGE.

    rewrite: REDUCE(a, r), REDUCE(b, r) -> REDUCE(a, r), REDUCE(b with s for r, s)
    when: a RANGE stands in two REDUCEs
    why: a loop of the list belongs to one accumulator, and is told from others by its RANGE
    """
    order = listed_order(sink)
    number = itertools.count(1 + max([u.arg.id for u in order if u.op is RANGE], default=-1))
    taken: set[UOp] = set()

    def own(old: UOp, u: UOp) -> UOp:
        value, closed = u.src[0], list(u.src[1:])
        for r in loops_of(u):
            if r in taken:
                fresh = UOp(RANGE, r.dtype, r.src, RangeArg(next(number), r.arg.kind))
                value = substitute(value, {r: fresh}, lambda x, r=r: r in x.ranges)  # type: ignore[misc]
                closed[closed.index(r)] = r = fresh
            taken.add(r)
        return u if value is u.src[0] else new_node(REDUCE, u.dtype, (value, *closed), u.arg)

    return rebuilt(sink, frozenset({REDUCE}), own)


def check_scratch(linear: Linear, kernel: Kernel, target: Target) -> Linear:
    """Refuses a kernel with more scratch than fits on a stack beside the rest.

    Raises: KernelOptError.
    """
    scratch = [u for u in linear.uops if u.op is Ops.DEFINE_LOCAL]
    nbytes = sum([u.arg.size * u.dtype.itemsize for u in scratch])
    if nbytes > target.costs.scratch_nbytes:
        opts = " ".join(map(repr, kernel.applied))
        raise KernelOptError(
            f"{linear.name}: {opts} want {nbytes:,} bytes of scratch, and a stack has room for "
            f"{target.costs.scratch_nbytes:,}; smaller tiles or panels would do"
        )
    return linear


def linearize(sink: UOp, outputs: list[UOp], name: str) -> Linear:
    """Lists the kernel in running order; `outputs` are its output ranges, outermost first."""
    linearizer = Linearizer(sink, outputs)
    loops = [r for u in linearizer.closing if u.op is REDUCE for r in loops_of(u)]
    if len(loops) > len(set(loops)):
        linearizer = Linearizer(with_own_loops(sink), outputs)
    return linearizer.run(name)
