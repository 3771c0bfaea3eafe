"""Analyses of a kernel graph, cached: order, reductions, stores, accesses with their strides.

Receives a kernel graph and never changes it; each answer is worked out when it is first asked for.
Axes that can be named, and what is done to them, are the business of `kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.rules.symbolic import affine_form, plain_strides, simplify

T = TypeVar("T")
# Names of a module are found faster than members of an Enum, and every node is asked for its op.
LOAD, REDUCE, STORE = Ops.LOAD, Ops.REDUCE, Ops.STORE
IDIV, MOD, RANGE, STAGE = Ops.IDIV, Ops.MOD, Ops.RANGE, Ops.STAGE


class Access(NamedTuple):
    """A load or store: which buffer, at which index, with which stride along each axis.

    `strides` holds an int for axes that the index is affine in, None for others; axes that it does
    not depend on are absent.
    """

    node: UOp
    buffer: UOp
    is_store: bool
    strides: dict[UOp, int | None]

    def stride(self, axis: UOp) -> int | None:
        """Elements between neighbours along the axis; 0 when it does not matter."""
        return self.strides.get(axis, 0)


class Answer(Generic[T]):
    """A method whose result takes its place: a `functools.cached_property` without its lock."""

    def __init__(self, find: Callable[[Any], T]) -> None:
        self.find = find

    def __get__(self, facts: Any, owner: type) -> T:
        found = facts.__dict__[self.find.__name__] = self.find(facts)
        return found


# Of an index: its strides, as `Access` has them.
Strides = dict[UOp, "int | None"]


class Facts:
    """Answers about one graph.

    why: choices ask for the same things of a graph many times between two changes

    `strides_of` has what is known of indices, most of which outlive a change of the graph.
    """

    def __init__(self, sink: UOp, strides_of: dict[UOp, Strides] | None = None) -> None:
        self.sink = sink
        self.strides_of: dict[UOp, Strides] = {} if strides_of is None else strides_of
        # By the order of the output loops, the load worth a packed panel (`policy/cpu/costs`).
        self.panels: dict[tuple[UOp, ...], Access | None] = {}

    @Answer
    def order(self) -> dict[UOp, None]:
        """All nodes, sources first."""
        return toposort(self.sink)

    @Answer
    def by_op(self) -> dict[Ops, list[UOp]]:
        """The nodes of the ops that are asked for, sources first.

        Loads and stores are in one list, under both ops; so are quotients and remainders.
        """
        found: dict[Ops, list[UOp]] = {LOAD: [], REDUCE: [], RANGE: [], STAGE: [], IDIV: []}
        found[STORE], found[MOD] = found[LOAD], found[IDIV]
        for u in self.order:
            if u.op in found:
                found[u.op].append(u)
        return found

    @Answer
    def reduces(self) -> list[UOp]:
        """The REDUCE nodes, sources first."""
        return self.by_op[REDUCE]

    @Answer
    def reduced(self) -> list[UOp]:
        """The loops of reductions, in order of id."""
        found = {r for u in self.reduces for r in u.src[1:] if r.arg.kind is AxisType.REDUCE}
        return sorted(found, key=lambda r: r.arg.id)

    @Answer
    def inside(self) -> dict[UOp, set[UOp]]:
        """For each reduction the loads that happen in its loops."""
        result = {}
        loads = [u for u in self.by_op[LOAD] if u.op is LOAD]
        closed = [r for u in self.reduces for r in u.src[1:]]
        ended = [r for end in self.sink.src for r in end.src[1:]]
        # Where each loop ends in one reduction alone, what changes with it is below that.
        apart = len(set(closed)) == len(closed) and set(closed).isdisjoint(ended)
        for u in self.reduces:
            loops = set(u.src[1:])
            mine = loads if apart else [x for x in toposort(u.src[0]) if x.op is LOAD]
            result[u] = {x for x in mine if not loops.isdisjoint(x.ranges)}
        return result

    @Answer
    def owners(self) -> dict[UOp, UOp]:
        """The innermost reduction around each load that is inside of one."""
        result: dict[UOp, UOp] = {}
        for u in reversed(self.reduces):
            result.update(dict.fromkeys(self.inside[u], u))
        return result

    @Answer
    def divisions(self) -> list[UOp]:
        """Quotients and remainders by constants."""
        return [u for u in self.by_op[IDIV] if u.src[1].op is Ops.CONST]

    @Answer
    def stores(self) -> list[UOp]:
        """The STORE nodes."""
        return [end.src[0] if end.op is Ops.END else end for end in self.sink.src]

    @Answer
    def stores_over_reads(self) -> list[UOp]:
        """The stores to memory that some stored value, its own or another, is made from."""
        written = {store.src[0].src[0] for store in self.stores}
        if not any([u.op is LOAD and u.src[0].src[0] in written for u in self.by_op[LOAD]]):
            return []
        # Gates of the stores may read, too, which is another matter.
        values = toposort(*[store.src[1] for store in self.stores])
        read = {u.src[0].src[0] for u in values if u.op is LOAD}
        return [store for store in self.stores if store.src[0].src[0] in read]

    @Answer
    def accesses(self) -> list[Access]:
        """Every load and store with its strides."""
        result = []
        strides_of = self.strides_of
        for u in self.by_op[LOAD]:
            at = u.src[0]
            index = at.src[1]
            # Buffers that are walked alike share their index.
            strides = strides_of.get(index)
            if strides is None:
                strides = strides_of[index] = find_strides(index)
            # What a gate depends on changes with the axis too, though not the address.
            gates = u.src[2:] if u.op is STORE else u.src[1:]
            if gates:
                strides = {**dict.fromkeys([r for g in gates for r in g.ranges], 0), **strides}
            result.append(Access(u, at.src[0], u.op is STORE, strides))
        return result


def find_strides(index: UOp) -> Strides:
    """The stride of an index along each axis that it depends on; None where it is not affine."""
    found = plain_strides(index)
    if found is not None:
        return {**found}
    result: Strides = {}
    if index.ranges:
        rest, strides = affine_form(simplify(index), index.ranges)
        result.update(strides)
        for t in rest.terms:
            result.update(dict.fromkeys(t.ranges))
    return result
