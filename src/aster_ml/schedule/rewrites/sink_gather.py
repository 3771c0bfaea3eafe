"""Moves gathers below arithmetic: only the gathered elements of a computed value are computed.

rewrite: INDEX(f(a, b), i) -> f(INDEX(a, i), INDEX(b, i)); INDEX(movement of a, i) -> INDEX(a, j);
INDEX(INDEX(a, i), j) -> INDEX(a, INDEX(i, j)); INDEX(IOTA, i) -> i
when: that is less work than to compute and store all elements
why: a gather reads any element, so its source has to be memory, or be computed at the index
"""

from __future__ import annotations

from aster_ml.dtype import dtypes
from aster_ml.helpers import all_int, prod
from aster_ml.schedule.fusion import costs
from aster_ml.schedule.work import Work
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.graph import rebuilt, toposort
from aster_ml.uop.infer import Shape, max_shape
from aster_ml.uop.movement import is_row_major_view, source_index
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, Ops

# Nodes of one source that a gather moves through: enough to unpack a quantised weight.
MAX_NODES = 512


def gather_before_storing(body: UOp, order: list[UOp], work: Work) -> UOp:
    """Moves gathers of computed values towards the sources, to the memory that they read."""
    stored = {store.src[1] for store in body.src}

    def move(old: UOp, u: UOp) -> UOp:
        if old.src[0] in stored or not all_int(old.src[0].shape):
            return u
        found = Picking(u.shape).pick(u.src[0], u.src[1:])
        return found if found is not None and is_less(u, found) else u

    return rebuilt(body, (Ops.INDEX,), move, order)


class Picking:
    """Moves a gather of some shape through its source."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        # Cache of `pick`, for shared sources.
        self.known: dict[tuple[UOp, tuple[UOp, ...]], UOp | None] = {}

    def pick(self, x: UOp, idxs: tuple[UOp, ...]) -> UOp | None:
        """The elements of `x` at these indices; None beyond MAX_NODES nodes."""
        key = x, idxs
        if key not in self.known:
            self.known[key] = None
            if len(self.known) <= MAX_NODES:
                self.known[key] = self.picked(x, idxs)
        return self.known[key]

    def picked(self, x: UOp, idxs: tuple[UOp, ...]) -> UOp | None:
        """`pick` without the cache."""
        op = x.op
        if is_memory(x):
            return x.gather_at(*idxs)
        if op is Ops.IOTA:
            return idxs[0]
        if op is Ops.CONST or not x.shape:
            return x if x.shape == () else None
        if op in MOVEMENT and len(x.src) == 1:
            below, valid = source_index(x, idxs)
            below = tuple([filled(i, self.shape) for i in below])
            if valid is None:
                return self.pick(x.src[0], below)
            # Padding is not read, since its index may be out of bounds.
            valid = filled(valid, self.shape)
            inside = tuple([valid.alu(Ops.WHERE, i, UOp.index_const(0)) for i in below])
            found = self.pick(x.src[0], inside)
            return None if found is None else valid.alu(Ops.WHERE, found, UOp.const(x.dtype, 0))
        if (op in ELEMENTWISE and keeps_elements(x)) or op is Ops.INDEX:
            parts = []
            for s in x.src[1 if op is Ops.INDEX else 0 :]:
                part = s if not s.shape else self.pick(s, idxs)
                if part is None:
                    return None
                parts.append(part)
            if op is Ops.INDEX:
                return self.pick(x.src[0], tuple(parts))
            return UOp(op, x.dtype, tuple(parts), x.arg)
        return x.gather_at(*idxs)


def keeps_elements(x: UOp) -> bool:
    """Whether element i of a node depends only on elements i of its sources, unlike a BITCAST to
    another size.
    """
    return x.op is not Ops.BITCAST or x.dtype.itemsize == x.src[0].dtype.itemsize


def is_memory(x: UOp) -> bool:
    """Whether a gather may read `x` from memory."""
    while x.op is Ops.AFTER:
        x = x.src[0]
    return is_row_major_view(x)


def filled(index: UOp, shape: Shape) -> UOp:
    """An index or condition, broadcast to the shape of the gather."""
    if index.shape == shape:
        return index
    if index.op is Ops.CONST:
        return index
    return index.reshape((1,) * (len(shape) - len(index.shape)) + index.shape)._broadcast_to(shape)


def is_less(stored: UOp, found: UOp) -> bool:
    """Whether computing the gathered elements costs less than storing all elements."""
    if found.shape != stored.shape or found.device != stored.device:
        return False
    inner = toposort(found)
    outer = set(toposort(stored))
    each = sum([costs.own_cost(u) for u in inner if u not in outer and u.dtype is not dtypes.index])
    before = sum([costs.own_cost(u) for u in toposort(stored.src[0])])
    numel, wanted = prod(stored.src[0].shape), prod(max_shape(stored.shape))
    return bool(wanted * each <= numel * (before + ASSUMED.store_and_load) + ASSUMED.launch)
