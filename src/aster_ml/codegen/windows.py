"""Windows in one load: pairs of an output axis and a reduced one that step through the same places.

Receives what is known of a kernel's graph; finds the load that slides windows along an output axis,
and says it anew in terms of the places that windows meet. What is done with that is the business of
`kernel` and `slabs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import NamedTuple

from aster_ml.codegen.facts import Access, Facts
from aster_ml.dtype import dtypes
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.linear_form import Form, form_of, node_of
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops

# How many more places windows may have between them than elements that they meet.
MOST_SKIPPED = 2


class Window(NamedTuple):
    """Windows `out` meet, in their steps `inner`, the places `stride * out + dilation * inner`.

    Without `inner` each meets one place, and `dilation` is 0.
    """

    out: UOp
    inner: UOp | None
    stride: int
    dilation: int

    @property
    def places(self) -> int:
        """How many places there are from the first to the last."""
        steps = 0 if self.inner is None else length(self.inner) - 1
        return self.stride * (length(self.out) - 1) + self.dilation * steps + 1

    def place(self) -> UOp:
        """The place of a window's step."""
        terms = {self.out: self.stride}
        if self.inner is not None:
            terms[self.inner] = self.dilation
        return node_of(Form(terms, 0))


class Windowed(NamedTuple):
    """A load through windows along its `columns`, and along its `rows` if it has some."""

    access: Access
    columns: Window
    rows: Window | None
    # Other axes of the reduction that the load depends on.
    others: tuple[UOp, ...]

    @property
    def row_count(self) -> int:
        """Rows that its windows meet."""
        return 1 if self.rows is None else self.rows.places


def length(r: UOp) -> int:
    """Steps of an axis of known size."""
    return int(r.src[0].arg)


def find_windowed(facts: Facts, outputs: list[UOp], axis: UOp) -> Windowed | None:
    """The load in the kernel's one reduction whose windows lie along an output axis."""
    if len(facts.reduces) != 1 or axis not in outputs or facts.stores_over_reads:
        return None
    (u,) = facts.reduces
    if not set(outputs) <= u.ranges or any(r.arg.kind.is_lane for r in (*outputs, *u.src[1:])):
        return None
    if any(r.src[0].op is not Ops.CONST for r in u.ranges.union(u.src[1:])):
        return None
    mine = [
        a
        for a in facts.accesses
        if not a.is_store and (a.stride(axis) or 0) > 0 and any(r in a.strides for r in u.src[1:])
    ]
    if len(mine) != 1 or mine[0].buffer.op is not Ops.PARAM:
        return None
    (a,) = mine
    reduced = [r for r in u.src[1:] if r in a.strides and r.arg.kind is AxisType.REDUCE]
    reduced.sort(key=lambda r: abs(a.stride(r) or 0))
    columns = pair(a, axis, reduced, MOST_SKIPPED) or Window(axis, None, 1, 0)
    left = [r for r in reduced if r is not columns.inner]
    found = [pair(a, r, left, 1) for r in outputs if r is not axis and r in a.strides]
    rows = next((w for w in found if w is not None), None)
    others = tuple([r for r in left if rows is None or r is not rows.inner])
    windowed = Windowed(a, columns, rows, others)
    probe = {w: w.out for w in (columns, rows) if w is not None}
    return windowed if moved_load(a.node, probe) is not None else None


def pair(a: Access, out: UOp, reduced: Iterable[UOp], most: int) -> Window | None:
    """An axis of the reduction whose steps meet what neighbours along `out` meet."""
    far = a.stride(out)
    for r in reduced:
        near = a.stride(r)
        if not far or not near or far < 0 or near < 0:
            continue
        g = gcd(far, near)
        w = Window(out, r, far // g, near // g)
        shared = w.places < length(out) * length(r) or most > 1
        if shared and w.places <= most * length(out) * length(r):
            return w
    return None


def moved_load(load: UOp, places: dict[Window, UOp]) -> UOp | None:
    """The load with each window's place as one node; None where it is more than these places."""
    index = load.src[0]
    parts = [moved(part, places) for part in (index.src[1], *load.src[1:])]
    if any(p is None for p in parts):
        return None
    at, *gates = [p for p in parts if p is not None]
    return UOp(Ops.LOAD, load.dtype, (index.src[0].index(at), *gates), load.arg)


def moved(u: UOp, places: dict[Window, UOp]) -> UOp | None:
    """An index, or a condition on indices, in terms of places."""
    axes = {r for w in places for r in (w.out, w.inner) if r is not None}
    changes: dict[UOp, UOp] = {}
    for x in toposort(u, enter=lambda n: n.dtype is not dtypes.index):
        if x.dtype is not dtypes.index or not axes & x.ranges:
            continue
        form = form_of(x)
        terms = dict(form.terms)
        for w, place in places.items():
            times, rest = divmod(terms.pop(w.out, 0), w.stride)
            inner = 0 if w.inner is None else terms.pop(w.inner, 0)
            if rest or inner != times * w.dilation:
                return None
            if times:
                terms[place] = terms.get(place, 0) + times
        if any(axes & t.ranges for t in terms if t not in places.values()):
            return None
        changes[x] = node_of(Form(terms, form.const))
    return substitute(u, changes)
