"""Infers the axis along which a value is sharded from op, sources and argument.

Receives nodes (anything with op, dtype, src, arg and the inferred properties of its sources);
returns the axis, or one of the marks below. `uop.multi` builds the nodes of each device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aster_ml.helpers import prod
from aster_ml.uop.ops import ELEMENTWISE, Ops

if TYPE_CHECKING:
    from aster_ml.uop.node import UOp

# Not empty once a value on several devices exists; before, no node needs to be checked.
MULTI_SEEN: list[bool] = []

# Values on one device, or without a device: with no MULTI below, and with one.
PLAIN, GATHERED = -1, -2


def same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal."""
    return a is b or bool(isinstance(a, int) and isinstance(b, int) and a == b)


def shard_bounds(size: int, count: int) -> list[tuple[int, int]]:
    """(start, stop) of each of `count` equal parts of an axis."""
    step = size // count
    return [(i * step, (i + 1) * step) for i in range(count)]


def infer_axis(u: UOp) -> int | None:
    """The sharded axis of a node; None for a replicated value; or a mark."""
    op = u.op
    if op is Ops.MULTI:
        axis: int | None = u.arg.axis
        return axis
    if not any(s._axis != PLAIN for s in u.src):
        return None if u.device.__class__ is tuple else PLAIN
    if u.device.__class__ is not tuple:
        return GATHERED
    if op in ELEMENTWISE:
        return axis_of_alu(u)
    rule = AXIS_RULES.get(op)
    return own_axis(u.src[0]) if rule is None else rule(u)


def own_axis(u: UOp) -> int | None:
    """The sharded axis of a source; a value on one device counts as replicated."""
    axis: int | None = u._axis
    return None if axis is None or axis < 0 else axis


def last_axis(nodes: tuple[UOp, ...]) -> int | None:
    """The axis of the last sharded node; the others are resharded to it."""
    for u in reversed(nodes):
        axis = own_axis(u)
        if axis is not None:
            return axis
    return None


def axis_of_alu(u: UOp) -> int | None:
    """The axis of an elementwise op; a BITCAST to another width keeps it if parts are whole."""
    axis = last_axis(u.src)
    if axis is None or u.op is not Ops.BITCAST or u.dtype.itemsize == u.src[0].dtype.itemsize:
        return axis
    return axis if u.shape[axis] % len(u.device) == 0 else None


def axis_of_reshape(u: UOp) -> int | None:
    """The axis of the result with as many elements before it, if it divides evenly."""
    axis = own_axis(u.src[0])
    if axis is None:
        return None
    return reshaped_axis(u.src[0].shape, u.shape, axis, len(u.device))


def reshaped_axis(old: Any, new: Any, axis: int, count: int) -> int | None:
    """The axis to which a reshape maps one sharded over `count` devices; None if it breaks."""
    before = prod(old[:axis])
    found = None
    for place in range(len(new)):
        size = new[place]
        if same_size(prod(new[:place]), before) and isinstance(size, int) and size % count == 0:
            found = place
    return found


def axis_of_pad(u: UOp) -> int | None:
    """The axis of the source; None (replicated) if it is padded."""
    axis = own_axis(u.src[0])
    return axis if axis is None or tuple(u.marg[axis]) == (0, 0) else None


def axis_of_shrink(u: UOp) -> int | None:
    """The axis of the source; None (replicated) if it is cut."""
    axis = own_axis(u.src[0])
    return axis if axis is None or tuple(u.marg[axis]) == (0, u.src[0].shape[axis]) else None


def axis_of_permute(u: UOp) -> int | None:
    """The permuted axis."""
    axis = own_axis(u.src[0])
    return None if axis is None else u.arg.index(axis)


def axis_of_reduce(u: UOp) -> int | None:
    """The axis of the source; None if it is reduced, so that each device has the result."""
    axis = own_axis(u.src[0])
    return None if axis in u.arg.axes else axis


def walked_axis(index: UOp, size: Any) -> int | None:
    """The axis along which an index counts 0, 1, 2, ... `size` - 1; else None."""
    spread = index
    while spread.op is Ops.EXPAND:
        spread = spread.src[0]
    if spread.op is not Ops.RESHAPE or spread.src[0].op is not Ops.IOTA:
        return 0 if spread.op is Ops.IOTA and same_size(spread.shape[0], size) else None
    if not same_size(spread.src[0].shape[0], size):
        return None
    axes = [i for i, s in enumerate(spread.shape) if not same_size(s, 1)]
    return axes[0] if len(axes) == 1 and same_size(spread.shape[axes[0]], size) else None


def axis_of_index(u: UOp) -> int | None:
    """The axis of a gather: that of the indices, or the axis that counts along the sharded one."""
    source, idxs = u.src[0], u.src[1:]
    axis = own_axis(source)
    asked = last_axis(idxs)
    if axis is None:
        return asked
    walked = walked_axis(idxs[axis], source.shape[axis])
    return walked if asked is None or asked == walked else None


def axis_of_scatter(u: UOp) -> int | None:
    """The axis of a scatter: the axis along which the indices count on the values' sharded axis."""
    axis = last_axis(u.src)
    if axis is None:
        return None
    for place, index in enumerate(u.src[1:]):
        if walked_axis(index, u.arg.shape[place]) == axis:
            return place
    return None


AXIS_RULES: dict[Ops, Callable[[UOp], int | None]] = {
    Ops.RESHAPE: axis_of_reshape,
    Ops.PAD: axis_of_pad,
    Ops.SHRINK: axis_of_shrink,
    Ops.PERMUTE: axis_of_permute,
    Ops.REDUCE: axis_of_reduce,
    Ops.CALL: lambda u: own_axis(u.src[u.arg.output]),
    Ops.INDEX: axis_of_index,
    Ops.SCATTER: axis_of_scatter,
}


def breaks_up_axis(u: UOp) -> bool:
    """Whether a RESHAPE or SHRINK breaks the sharding.

    A SHRINK to the part of one device does not.
    """
    axis = own_axis(u.src[0])
    if axis is None or own_axis(u) is not None or u.op not in (Ops.RESHAPE, Ops.SHRINK):
        return False
    if u.op is Ops.RESHAPE:
        return True
    shape = u.src[0].shape
    others = [tuple(pair) == (0, s) for i, (pair, s) in enumerate(zip(u.marg, shape)) if i != axis]
    return tuple(u.marg[axis]) not in shard_bounds(shape[axis], len(u.device)) or not all(others)
