"""Kernels in program order: stores have an order, so loops nest as they are written.

Receives a kernel graph in which an AFTER makes memory that has been written, and an END closes
loops inside of others; returns a Linear. Kernels that people write by hand are of this kind, where
they go through memory or registers; what the scheduler makes never is.
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower.linearize import (
    FIRST,
    INLINE,
    WITHOUT_LOOP,
    Linearizer,
    Scope,
    memory_of,
)
from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, DeviceError
from aster_ml.target import Target
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.linear import Linear
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, RangeArg


class InOrder(Linearizer):
    """Places each node in the loops that it depends on, each effect behind those it waits for."""

    def __init__(self, sink: UOp) -> None:
        super().__init__(sink, [])
        # For each axis, those that an END or REDUCE of it leaves open around it.
        self.around: dict[UOp, set[UOp]] = {}
        self.owner: dict[UOp, UOp] = {}
        self.versions = 0
        self.find_loops()

    def find_loops(self) -> None:
        """Reads the nesting of loops off the ENDs and REDUCEs, and makes their scopes."""
        for u in self.order:
            if u.op not in (Ops.END, Ops.REDUCE):
                continue
            loops = [r for r in u.src[1:] if has_loop(r)]
            for position, r in enumerate(loops):
                open_here = {x for x in u.ranges if has_loop(x)} | set(loops[:position])
                self.around.setdefault(r, set()).update(open_here - {r})
                if u.op is Ops.REDUCE:
                    self.owner[r] = u
        waiting = list(self.around)
        while waiting:
            ready = [r for r in waiting if all(x in self.scope_of_loop for x in self.around[r])]
            if not ready:
                raise ArgumentError(
                    f"loops of a kernel each stand inside of the other: {waiting}; "
                    "make a second axis for the second loop over the same size"
                )
            for r in ready:
                self.open_loop(r)
            waiting = [r for r in waiting if r not in self.scope_of_loop]

    def open_loop(self, r: UOp) -> None:
        """The scope of an axis, in the deepest of the loops around it."""
        parent = self.deepest(self.around[r])
        owner = self.owner.get(r)
        scope = self.scope_of_loop[r] = Scope(r, parent, owner)
        if owner is not None:
            self.loop_of_reduce[owner] = scope

    def deepest(self, axes: set[UOp]) -> Scope:
        """The innermost of some loops, which all stand around one another."""
        best = self.root
        for r in axes:
            scope = self.scope_of_loop[r]
            if scope.depth > best.depth:
                best = scope
        return best

    def place(self) -> None:
        """Gives each node its scope, and notes what it waits for."""
        stores_below: dict[UOp, frozenset[UOp]] = {}
        for u in self.order:
            below = frozenset[UOp]().union(*[stores_below.get(s, frozenset()) for s in u.src])
            stores_below[u] = below | {u} if u.op is Ops.STORE else below
            if u.op in INLINE or u.op in FIRST or u.op is Ops.RANGE:
                continue
            scope = self.scopes[u] = self.scope_for(u)
            scope.items.append(u)
            for s in self.real_sources(u):
                if u in self.loop_of_reduce and (s is u.src[0] or s in self.value_of(u)):
                    self.wait(self.loop_of_reduce[u], ("accumulate", u), self.scopes[s], s)
                else:
                    self.wait(scope, u, self.scopes[s], s)
            if u in self.loop_of_reduce:
                body = self.loop_of_reduce[u]
                body.items.append(("accumulate", u))
                self.wait(scope, u, body, ("accumulate", u))
        self.read_before_overwritten(stores_below)
        for r, scope in self.scope_of_loop.items():
            assert scope.parent is not None
            scope.parent.items.append(scope)
            for s in self.inline_sources(r.src[0]):
                self.wait(scope, ("size", r), self.scopes[s], s)

    def value_of(self, u: UOp) -> list[UOp]:
        """The listed nodes that the value of a REDUCE is made of."""
        return self.inline_sources(u.src[0])

    def read_before_overwritten(self, stores_below: dict[UOp, frozenset[UOp]]) -> None:
        """A STORE waits for the loads beside it that want what was there before."""
        loads: dict[tuple[UOp, Scope], list[UOp]] = {}
        for u in self.order:
            if u.op is Ops.LOAD:
                loads.setdefault((memory_of(u), self.scopes[u]), []).append(u)
        for u in self.order:
            if u.op is Ops.STORE:
                for load in loads.get((memory_of(u), self.scopes[u]), ()):
                    if u not in stores_below[load]:
                        self.wait(self.scopes[u], u, self.scopes[load], load)

    def emit_node(self, u: UOp) -> None:
        """As everywhere; an AFTER gets a number, so that loads at two times are two loads."""
        if u.op is Ops.AFTER:
            self.versions += 1
            version = UOp.const(dtypes.int32, self.versions)
            memory = self.map(u.src[0])
            while memory.op is Ops.AFTER:
                memory = memory.src[0]
            self.new[u] = UOp(Ops.AFTER, u.dtype, (memory, version))
            return
        super().emit_node(u)


def has_loop(r: UOp) -> bool:
    """Whether an axis is run by a loop."""
    return r.op is Ops.RANGE and not r.arg.kind.is_lane and r.arg.kind not in WITHOUT_LOOP


def without_work_groups(sink: UOp) -> UOp:
    """The kernel for a device without work-groups: blocks and work-items are loops.

    Raises: DeviceError where work-items wait for one another.
    """
    items = [
        u
        for u in toposort(sink)
        if u.op is Ops.RANGE and u.arg.kind in (AxisType.GLOBAL, AxisType.LOCAL)
    ]
    if any(r.arg.kind is AxisType.LOCAL for r in items) and any(
        u.op is Ops.BARRIER for u in toposort(sink)
    ):
        raise DeviceError(
            "this kernel's work-items wait for one another at a barrier; the device has no "
            "work-groups, so write their axis as a loop: UOp.range(size, id)"
        )
    loops = {r: r.replace(arg=RangeArg(r.arg.id, AxisType.LOOP)) for r in items}
    if not loops:
        return sink
    ends = tuple([substitute(s, loops).end(*loops.values()) for s in sink.src])
    return sink.replace(src=ends)


def drop_work_groups(kernel: Kernel, target: Target) -> None:
    """Work-items of a kernel written by hand become loops; the interpreter runs them by itself."""
    kernel.sink = without_work_groups(kernel.sink)


def linearize_in_order(kernel: Kernel, name: str) -> Linear:
    """The kernel as a list, in the order that its author gave."""
    return InOrder(kernel.sink).run(name)
