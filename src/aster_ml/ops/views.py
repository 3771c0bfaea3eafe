"""Tracks which tensors show the same elements: cells, and the steps from a cell to each of its
tensors.

Receives nodes and ways of looking at them; returns nodes. A `Cell` has the node of a whole, which
is another one after each write; a tensor that shows it names the cell and the steps from the whole
to itself, and builds its node from these when it is asked for it after a write. What is written,
and where it lies, stand in `ops.assign`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml.engine.multi import parts
from aster_ml.errors import UnsupportedError
from aster_ml.helpers import prod
from aster_ml.ops.live import wake
from aster_ml.uop.infer import show_shape
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import GRADIENT_MARKS, MOVEMENT, Ops

# From a whole to what a tensor shows: the steps before, and op, dtype, further sources and argument
# of the last one. None for the whole itself.
Steps = tuple[Any, ...] | None

# Movement without repetition or padding, and marks on a value: each element is one of those below.
ONE_TO_ONE = MOVEMENT - {Ops.PAD, Ops.EXPAND} | GRADIENT_MARKS | {Ops.AFTER}
# What may stand between memory and a value that is the same elements.
SHOWING = MOVEMENT - {Ops.PAD} | GRADIENT_MARKS | {Ops.AFTER, Ops.BITCAST, Ops.BUFFER, Ops.MULTI}
REPEATING = frozenset({Ops.EXPAND, Ops.PAD})


# So many tensors a cell knows before it looks for those that are gone.
ROOM = 64


class Cell:
    """A whole that several tensors show, each in its own way.

    `root` is its node as it is now. `fresh` has those tensors, known weakly, whose node was built
    from it; a tensor that is not among them has none, and builds it when it is asked for. Tensors
    that are gone stay there until there are more than `room`.

    why: were they taken out by a callback of the reference, that would hold the dict which holds
    the reference, and a cell that is gone before its tensors would be a circle; Python 3.11 crashes
    when its collector meets one while an object with another such reference goes (it asks for a
    tuple in the middle of `PyObject_ClearWeakRefs`)
    """

    __slots__ = ("fresh", "room", "root", "without")
    root: UOp
    fresh: dict[weakref.ref[Any], None]
    room: int
    # Tensors that had no node after the last change of the root; others may have none as well.
    without: tuple[weakref.ref[Any], ...]

    def note(self, handle: Any) -> None:
        """The node of a tensor was built from the root as it is."""
        fresh = self.fresh
        fresh[weakref.ref(handle)] = None
        if len(fresh) > self.room:
            self.sweep()

    def sweep(self) -> None:
        """Forgets tensors that are gone, at a constant cost for each that was noted."""
        fresh = self.fresh
        for ref in list(fresh):
            if ref() is None:
                fresh.pop(ref, None)
        self.room = max(ROOM, 2 * len(fresh))

    def renew(self, root: UOp) -> None:
        """The whole is another node: tensors that show it build theirs anew when asked."""
        self.root = root
        known, self.fresh = self.fresh, {}
        without = []
        for ref in dict.fromkeys((*known, *self.without)):
            handle = ref()
            if handle is not None and handle._cell is self:
                if ref in known:
                    del handle.uop
                # Who reads the new root is asked again.
                without.append(ref)
                wake(handle)
        self.without = tuple(without)


def new_cell(root: UOp) -> Cell:
    """A cell that nobody shows yet."""
    cell = Cell()
    cell.root, cell.fresh, cell.room, cell.without = root, {}, ROOM, ()
    return cell


class GradientCell(Cell):
    """A cell to which a value that requires a gradient was written, through one of its tensors."""

    __slots__ = ()


def steps_to(node: UOp, whole: UOp, before: Steps = None) -> Steps:
    """The steps from `whole`, which stands below `node`, behind those `before`."""
    chain = []
    while node is not whole:
        chain.append(node)
        node = node.src[0]
    for u in reversed(chain):
        before = (before, u.op, u.dtype, u.src[1:], u.arg)
    return before


def steps_after(steps: Steps, before: Steps) -> tuple[Steps] | None:
    """The steps that follow on those `before`, in a tuple; None where they follow on others."""
    chain = []
    while steps is not before:
        if steps is None:
            return None
        chain.append(steps[1:])
        steps = steps[0]
    found: Steps = None
    for step in reversed(chain):
        found = (found, *step)
    return (found,)


def joined(before: Steps, steps: Steps) -> Steps:
    """The steps with others before them."""
    for step in listed(steps):
        before = (before, *step)
    return before


def listed(steps: Steps) -> list[Any]:
    """The steps, first one first, each as op, dtype, further sources and argument."""
    found = []
    while steps is not None:
        found.append(steps[1:])
        steps = steps[0]
    return found[::-1]


def shown(whole: UOp, steps: Steps) -> UOp:
    """Applies the steps to a whole."""
    for op, dtype, rest, arg in listed(steps):
        whole = UOp(op, dtype, (whole, *rest), arg)
    return whole


def target_in(place: UOp, steps: Steps) -> UOp | None:
    """The part of a place that the steps show, to be written to; bits and marks left aside.

    None where an element of it is shown more than once, or something that is no element.
    """
    for op, _, rest, arg in listed(steps):
        if op in REPEATING:
            return None
        if op in MOVEMENT and op is not Ops.NAME:
            place = UOp(op, place.dtype, (place, *rest), arg)
    return place


def is_view(uop: UOp) -> bool:
    """Whether the value is memory under movement ops, so that it can be written in place."""
    u = under_view(uop)
    if u.op is Ops.MULTI:
        return all([is_view(part) for part in parts(uop)])
    return u.op is Ops.BUFFER


def under_view(u: UOp) -> UOp:
    """Node under movement ops, each of whose elements stands for one element below."""
    while u.op in ONE_TO_ONE:
        u = u.src[0]
    return u


def shows_memory(u: UOp) -> bool:
    """Whether a node is memory as it is now, seen in some way, so that writes there change it."""
    while u.op in SHOWING:
        if u.op is Ops.BUFFER:
            return not u.arg.device.startswith("DISK")
        if u.op is Ops.MULTI:
            return any([shows_memory(s) for s in u.src])
        u = u.src[0]
    return False


def unnamed(u: UOp) -> UOp:
    """A value, whichever tensor names it."""
    while u.op is Ops.NAME:
        u = u.src[0]
    return u


def own_value(u: UOp) -> UOp:
    """Copies what a node shows to a value that later writes to the memory below do not change.

    A CAST to the dtype that it has: the body of a schedule has none of these, so it costs nothing
    where the value is only computed with, and realized it has memory of its own.
    """
    return UOp(Ops.CAST, u.dtype, (u,))


MOVES: dict[Ops, Callable[[Any, Any], Any]] = {
    Ops.RESHAPE: lambda a, arg: a.reshape(arg),
    Ops.EXPAND: np.broadcast_to,
    Ops.PERMUTE: np.transpose,
    Ops.PAD: lambda a, arg: np.pad(a, arg, constant_values=-1),
    Ops.SHRINK: lambda a, arg: a[tuple([slice(low, high) for low, high in arg])],
    Ops.FLIP: np.flip,
}


def places_in(shape: tuple[Any, ...], steps: Steps) -> np.ndarray[Any, Any]:
    """For each element that the steps show, its number in a whole of this shape.

    Raises: UnsupportedError where an element is shown more than once, which no write can honour,
    and where sizes are symbolic.
    """
    chain = listed(steps)
    sized = all([isinstance(s, int) for s in shape]) and not any([rest for _, _, rest, _ in chain])
    if not sized:
        raise UnsupportedError(
            f"assign: to a view with symbolic sizes of {show_shape(shape)} that is cut in steps; "
            "write to a copy (x + 0), or to a view of fixed size"
        )
    total = prod(shape)
    places = np.arange(total).reshape(shape)
    for op, _, _, arg in chain:
        if op in MOVES:
            places = MOVES[op](places, arg)
    named = places.reshape(-1)
    if len(named) > total or len(np.unique(named)) < len(named) or (named < 0).any():
        raise UnsupportedError(
            f"assign: {show_shape(places.shape)} shows elements of {show_shape(shape)} more than "
            "once (expand, overlapping windows), so that it cannot hold a value for each place; "
            "write to a copy (x + 0, x.contiguous()), or to what it is a view of"
        )
    return named
