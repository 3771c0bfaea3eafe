"""What follows from one graph of a kernel: order, reductions, stores, and accesses with strides.

Receives a kernel graph and never changes it; each answer is worked out when it is first asked for.
Axes that can be named, and what is done to them, are the business of `kernel`.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.symbolic import affine_form


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


class Facts:
    """Answers about one graph.

    why: choices ask for the same things of a graph many times between two changes
    """

    def __init__(self, sink: UOp) -> None:
        self.sink = sink

    @functools.cached_property
    def order(self) -> dict[UOp, None]:
        """All nodes, sources first."""
        return toposort(self.sink)

    @functools.cached_property
    def reduces(self) -> list[UOp]:
        """The REDUCE nodes, sources first."""
        return [u for u in self.order if u.op is Ops.REDUCE]

    @functools.cached_property
    def reduced(self) -> list[UOp]:
        """The loops of reductions, in order of id."""
        found = {r for u in self.reduces for r in u.src[1:] if r.arg.kind is AxisType.REDUCE}
        return sorted(found, key=lambda r: r.arg.id)

    @functools.cached_property
    def stores(self) -> list[UOp]:
        """The STORE nodes."""
        return [end.src[0] if end.op is Ops.END else end for end in self.sink.src]

    @functools.cached_property
    def stores_over_reads(self) -> list[UOp]:
        """The stores to memory that some stored value, its own or another, is made from."""
        written = {store.src[0].src[0] for store in self.stores}
        if not any([u.op is Ops.LOAD and u.src[0].src[0] in written for u in self.order]):
            return []
        # Gates of the stores may read, too, which is another matter.
        values = toposort(*[store.src[1] for store in self.stores])
        read = {u.src[0].src[0] for u in values if u.op is Ops.LOAD}
        return [store for store in self.stores if store.src[0].src[0] in read]

    @functools.cached_property
    def accesses(self) -> list[Access]:
        """Every load and store with its strides."""
        result = []
        strides_of: dict[UOp, dict[UOp, int | None]] = {}
        for u in self.order:
            if u.op is not Ops.LOAD and u.op is not Ops.STORE:
                continue
            at = u.src[0]
            index = at.src[1]
            # Buffers that are walked alike share their index.
            if index not in strides_of:
                known = strides_of[index] = {}
                if index.ranges:
                    rest, found = affine_form(index, index.ranges)
                    known.update(found)
                    for t in rest.terms:
                        known.update(dict.fromkeys(t.ranges))
            strides = dict(strides_of[index])
            # What a gate depends on changes with the axis too, though not the address.
            for gate in u.src[2:] if u.op is Ops.STORE else u.src[1:]:
                for r in gate.ranges:
                    strides.setdefault(r, 0)
            result.append(Access(u, at.src[0], u.op is Ops.STORE, strides))
        return result
