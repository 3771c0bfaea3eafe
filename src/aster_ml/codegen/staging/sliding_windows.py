"""Sliding windows: pairs of an output and a reduced axis that step through the same elements.

Receives what is known of a kernel's graph; finds the load that slides windows along an output axis,
and says it anew in terms of the places that windows meet. What is done with that is the business of
`kernel` and `staging/halo`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import gcd
from typing import Any, NamedTuple

from aster_ml.codegen.analysis import Access, Facts
from aster_ml.codegen.staging.stage import position
from aster_ml.dtype import dtypes
from aster_ml.helpers import ceildiv
from aster_ml.target import LINE_NBYTES
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Memory, Ops, StageArg
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.linear_form import Form, form_of, node_of

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
        """Number of places from the first to the last."""
        steps = 0 if self.inner is None else size_of(self.inner) - 1
        return self.stride * (size_of(self.out) - 1) + self.dilation * steps + 1

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


class Slab(NamedTuple):
    """Layout of rows in scratch: so many phases, `pitch` elements from one to the next.

    `columns` is the id of the axis along a row; `rows` says which of them windows meet.
    """

    rows: Window | None
    columns: int
    phases: int
    pitch: int


def find_windowed(
    facts: Facts, outputs: list[UOp], axis: UOp, around: Collection[int] = ()
) -> Windowed | None:
    """The load in the kernel's one reduction whose windows lie along an output axis.

    Axes with the ids `around` are loops around parts of others: rows do not lie along them.
    """
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
    further = [r for r in outputs if r is not axis and r in a.strides and r.arg.id not in around]
    found = [pair(a, r, left, 1) for r in further]
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
        shared = w.places < size_of(out) * size_of(r) or most > 1
        if shared and w.places <= most * size_of(out) * size_of(r):
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


def slab_of(found: Windowed, number: int, whole: bool = False) -> Slab:
    """Room for SIMD lanes that reach beyond the last window, which whole cache lines give."""
    columns, line = found.columns, LINE_NBYTES // found.access.buffer.dtype.itemsize
    if whole:
        return Slab(found.rows, number, 1, ceildiv(columns.places, line) * line)
    steps = 0 if columns.inner is None else columns.dilation * (size_of(columns.inner) - 1)
    reach = ceildiv(size_of(columns.out), line) * line + steps // columns.stride
    places = ceildiv(columns.places, columns.stride)
    return Slab(found.rows, number, columns.stride, ceildiv(max(reach, places), line) * line)


def place_in_phases(columns: Window, slab: Slab) -> UOp:
    """Where in its row a window's step lies: its phase, and the windows one after the other."""
    if columns.inner is None:
        return columns.out
    step = index_alu(Ops.MUL, columns.inner, UOp.index_const(columns.dilation))
    phases = UOp.index_const(slab.phases)
    phase = index_alu(Ops.MUL, index_alu(Ops.MOD, step, phases), UOp.index_const(slab.pitch))
    first = index_alu(Ops.ADD, phase, index_alu(Ops.IDIV, step, phases))
    return index_alu(Ops.ADD, first, columns.out)


def slab_load(
    found: Windowed, slab: Slab, whole: bool, new_range: Callable[[Any, AxisType], UOp]
) -> UOp:
    """The load of windows out of a STAGE of what they meet; its rows are `whole` or in phases."""
    columns, windows = found.columns, [w for w in (found.rows, found.columns) if w is not None]
    places = {w: new_range(w.places, AxisType.LOOP) for w in reversed(windows)}
    others = {r: new_range(r.src[0], AxisType.LOOP) for r in found.others}
    value = moved_load(found.access.node, places)
    assert value is not None
    stage = UOp(
        Ops.STAGE,
        value.dtype,
        (substitute(value, others), *others.values(), *[places[w] for w in windows]),
        StageArg(Memory.LOCAL),
    )
    at = position(found.others)
    if found.rows is not None:
        at = index_alu(Ops.MUL, at, UOp.index_const(found.rows.places))
        at = index_alu(Ops.ADD, at, found.rows.place())
    at = index_alu(Ops.MUL, at, UOp.index_const(slab.phases * slab.pitch))
    at = index_alu(Ops.ADD, at, columns.place() if whole else place_in_phases(columns, slab))
    return stage.index(at).load()
