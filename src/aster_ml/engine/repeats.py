"""Values that repeat along axes, as what is computed from an expanded tensor alone does.

Receives a value that is to be computed; returns the part of it that differs, all that there is to
compute and store: expanded, it is the value again. What is asked of several values at once does not
belong here.
"""

from __future__ import annotations

from aster_ml.engine import storage
from aster_ml.helpers import all_int
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, GRADIENT_MARKS, MOVEMENT, Ops

# What has, along each axis, the same elements again wherever all its sources have.
ALIKE = ELEMENTWISE | GRADIENT_MARKS


def without_repeats(root: UOp) -> UOp:
    """The value with size 1 along axes where all its elements are the same.

    Itself where there is no such axis, or where elementwise ops and movement do not show it.
    """
    shape = root.shape
    order = toposort(root, enter=is_computed)
    axes = {i for i, size in enumerate(shape) if isinstance(size, int) and size > 1}
    for u in order:
        if not axes or (u.shape and u.shape != shape):
            return root
        if u.shape and not is_computed(u):
            axes &= repeated_axes(u)
    if not axes or not all_int(shape):
        return root
    part = tuple([(0, 1 if i in axes else size) for i, size in enumerate(shape)])
    new: dict[UOp, UOp] = {}
    for u in order:
        if is_computed(u):
            new[u] = UOp(u.op, u.dtype, tuple([new[s] for s in u.src]), u.arg)
        else:
            new[u] = u._mop(Ops.SHRINK, part) if u.shape else u
    return new[root]


def is_computed(u: UOp) -> bool:
    """Whether a value is made element by element, and not there yet."""
    return u.op in ALIKE and storage.realized_view(u) is None


def repeated_axes(u: UOp) -> set[int]:
    """The axes along which a value that is made by movement repeats its elements."""
    way: list[UOp] = []
    while True:
        found = storage.realized_view(u)
        u = u if found is None else found
        if u.op not in MOVEMENT or u.op is Ops.PAD or len(u.src) > 1:
            break
        way.append(u)
        u = u.src[0]
    axes: set[int] = set()
    for step in reversed(way):
        below = step.src[0].shape
        if step.op is Ops.PERMUTE:
            axes = {i for i, axis in enumerate(step.arg) if axis in axes}
        elif step.op is Ops.EXPAND:
            if not (all_int(below) and all_int(step.shape)):
                return set()
            axes |= {i for i, size in enumerate(below) if size == 1 and step.shape[i] != 1}
        elif step.op is Ops.RESHAPE:
            # Axes of one element come and go; where others change nothing is said.
            if not (all_int(below) and all_int(step.shape)):
                return set()
            old, new = ([i for i, s in enumerate(x) if s != 1] for x in (below, step.shape))
            same = [below[i] for i in old] == [step.shape[i] for i in new]
            axes = {b for a, b in zip(old, new) if a in axes} if same else set()
    return axes
