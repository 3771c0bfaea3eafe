"""Expands values that are sharded over several devices to one value on each.

Receives a tensor-stage node with MULTI at or below it; returns a node for each device without any
MULTI, so that later stages know a single device. A rule for each group of ops: most ops run on each
device's part; COPY moves elements between devices where needed. `uop.sharding` gives the sharded
axis of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aster_ml.errors import DeviceError
from aster_ml.helpers import prod
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, GRADIENT_MARKS, MOVEMENT, DeviceArg, Ops, ScatterArg
from aster_ml.uop.sharding import shard_bounds, walked_axis

# From this many elements on, each device reduces a part and copies it to the others (reduce-scatter
# and all-gather), instead of reducing everything.
MIN_SPLIT_REDUCE = 1 << 18


class Spread(NamedTuple):
    """A source: its sharded axis (None: replicated), and the parts."""

    axis: int | None
    parts: Sequence[UOp]
    shape: tuple[Any, ...] | None


# moving


def copied(u: UOp, device: str) -> UOp:
    """A value copied to a device; itself where it is there, or has no device."""
    return u if u.device in (None, device) else u.copy_to(device)


def shows_memory(u: UOp) -> bool:
    """Whether a node is memory under movement ops and effects."""
    while u.op in MOVEMENT or u.op in GRADIENT_MARKS or u.op is Ops.AFTER:
        u = u.src[0]
    return u.op is Ops.BUFFER


def joined(parts: Sequence[UOp], axis: int) -> UOp:
    """Parts on one device concatenated along an axis, bitwise unchanged."""
    size = parts[0].shape[axis]
    total = size * len(parts)
    shape = tuple([total if i == axis else s for i, s in enumerate(parts[0].shape)])
    place = UOp.iota(total).reshape(tuple([total if i == axis else 1 for i in range(len(shape))]))
    result: UOp | None = None
    for i in range(len(parts) - 1, -1, -1):
        edges = [
            (i * size, total - (i + 1) * size) if a == axis else (0, 0) for a in range(len(shape))
        ]
        wide = parts[i]._mop(Ops.PAD, tuple(edges))
        if result is None:
            result = wide
        else:
            here = place.alu(Ops.CMPLT, UOp.index_const((i + 1) * size))._broadcast_to(shape)
            result = here.alu(Ops.WHERE, wide, result)
    assert result is not None
    return result


def gathered(s: Spread, device: str) -> UOp:
    """All of a value on one device."""
    if s.axis is not None:
        return joined([copied(p, device) for p in s.parts], s.axis)
    for part in s.parts:
        if part.device in (None, device):
            return part
    return s.parts[0].copy_to(device)


def whole(s: Spread, devices: tuple[str, ...]) -> Sequence[UOp]:
    """All of a value on each device."""
    return s.parts if s.axis is None else [gathered(s, d) for d in devices]


def split(s: Spread, axis: int | None, devices: tuple[str, ...]) -> Sequence[UOp]:
    """A value sharded along `axis`; scalars broadcast."""
    if s.axis == axis or not s.shape:
        return s.parts
    if axis is None:
        return whole(s, devices)
    count = len(devices)
    if s.axis is None:
        return [p.shard_part(axis, i, count) for i, p in enumerate(s.parts)]
    # Each device copies only what it lacks.
    return [
        joined([copied(p.shard_part(axis, i, count), d) for p in s.parts], s.axis)
        for i, d in enumerate(devices)
    ]


def folded(parts: Sequence[UOp], op: Ops, devices: tuple[str, ...]) -> list[UOp]:
    """The parts of all devices folded by `op` on each device, in the same order (all-reduce)."""
    count, size = len(parts), prod(parts[0].shape)
    if count == 2 or not isinstance(size, int) or size < MIN_SPLIT_REDUCE or size % count:
        return [fold(parts, op, d) for d in devices]
    flat = [p.reshape((size,)) for p in parts]
    pieces = [fold([p.shard_part(0, i, count) for p in flat], op, d) for i, d in enumerate(devices)]
    spread = Spread(0, [UOp(Ops.CONTIGUOUS, p.dtype, (p,)) for p in pieces], (size,))
    return [gathered(spread, d).reshape(parts[0].shape) for d in devices]


def fold(parts: Sequence[UOp], op: Ops, device: str) -> UOp:
    """Parts folded on one device."""
    total = copied(parts[0], device)
    for part in parts[1:]:
        total = total.alu(op, copied(part, device))
    return total


# the rules: parts of the result, given those of the sources

Rule = Callable[[UOp, list[Spread], tuple[str, ...]], Sequence[UOp]]


def rebuilt(u: UOp, columns: Sequence[Sequence[UOp]], arg: Any) -> list[UOp]:
    """The node on each device, given each source's parts."""
    return [UOp(u.op, u.dtype, src, arg) for src in zip(*columns)]


def parts_of_alu(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Computes each part, with all sources sharded alike."""
    return rebuilt(u, [split(s, u.axis, devices) for s in src], u.arg)


def parts_of_mark(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Applies the op to each part."""
    return rebuilt(u, [s.parts for s in src], u.arg)


def parts_of_store(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Stores each device's part of the value."""
    place, value = src
    return rebuilt(u, [place.parts, split(value, place.axis, devices)], u.arg)


def parts_of_device(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Names one device each."""
    return [UOp(u.op, u.dtype, (), DeviceArg(d)) for d in devices]


def parts_of_movement(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Applies the movement to each part; elements that change devices are copied before."""
    s, rest = src[0], [s.parts for s in src[1:]]
    axis, count = u.axis, len(devices)
    if s.axis is None or s.shape is None:
        return rebuilt(u, [s.parts, *rest], u.arg)
    if axis is None:
        cut = u.marg[s.axis] if u.op is Ops.SHRINK else None
        step = s.shape[s.axis] // count
        if cut is not None and cut[0] % step == 0 and cut[1] - cut[0] == step:
            # One device has all kept elements.
            owner = s.parts[cut[0] // step]
            arg = localized(u.arg, s.axis, (0, step))
            return rebuilt(u, [[copied(owner, d) for d in devices], *rest], arg)
        return rebuilt(u, [whole(s, devices), *rest], u.arg)
    local = u.shape[axis] // count
    if u.op in (Ops.RESHAPE, Ops.EXPAND):
        return rebuilt(u, [s.parts, *rest], localized(u.arg, axis, local))
    if u.op in (Ops.PAD, Ops.SHRINK):
        pair = (0, 0) if u.op is Ops.PAD else (0, local)
        return rebuilt(u, [s.parts, *rest], localized(u.arg, axis, pair))
    parts = s.parts
    if u.op is Ops.FLIP and axis in u.arg:
        parts = [copied(p, d) for p, d in zip(reversed(parts), devices)]
    return rebuilt(u, [parts], u.arg)


def localized(arg: tuple[Any, ...], axis: int, value: Any) -> tuple[Any, ...]:
    """An argument with one axis changed."""
    return (*arg[:axis], value, *arg[axis + 1 :])


def parts_of_reduce(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Reduces each part; over the sharded axis, results of the devices are folded, too."""
    parts = rebuilt(u, [src[0].parts], u.arg)
    return folded(parts, u.arg.op, devices) if src[0].axis in u.arg.axes else parts


def parts_of_index(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Gathers on each device; for indices across devices, the devices' results are added.

    why: an element is on one device, and 0 on the others
    """
    source, idxs, axis = src[0], src[1:], u.axis
    if source.axis is None:
        return rebuilt(u, [source.parts, *[split(s, axis, devices) for s in idxs]], None)
    assert source.shape is not None
    count, size = len(devices), source.shape[source.axis]
    if axis is not None:
        columns = [split(s, axis, devices) for s in idxs]
        columns[source.axis] = [local_walk(u.shape, axis, count)] * count
        return rebuilt(u, [source.parts, *columns], None)
    columns = [whole(s, devices) for s in idxs]
    index = columns[source.axis]
    parts, zero = [], UOp.const(u.dtype, 0)
    for i, (start, stop) in enumerate(shard_bounds(size, count)):
        own = index[i].alu(Ops.SUB, UOp.index_const(start))
        inside = own.alu(Ops.CMPLT, UOp.index_const(stop - start))
        inside = inside.alu(Ops.AND, UOp.index_const(-1).alu(Ops.CMPLT, own))
        own = inside.alu(Ops.WHERE, own, ZERO)
        at = [own if k == source.axis else column[i] for k, column in enumerate(columns)]
        taken = UOp(Ops.INDEX, u.dtype, (source.parts[i], *at))
        parts.append(inside.alu(Ops.WHERE, taken, zero))
    return folded(parts, Ops.ADD, devices)


ZERO = UOp.index_const(0)


def local_walk(shape: tuple[Any, ...], axis: int, count: int) -> UOp:
    """0, 1, 2, ... along an axis, for each device's part of the axis."""
    size = shape[axis] // count
    walk = UOp.iota(size).reshape(tuple([size if i == axis else 1 for i in range(len(shape))]))
    return walk._broadcast_to(localized(shape, axis, size))


def parts_of_name(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """The parts of the named value: names matter to gradients only."""
    return src[0].parts


def parts_of_scatter(u: UOp, src: list[Spread], devices: tuple[str, ...]) -> Sequence[UOp]:
    """Scatters each device's part of the values: into its part of the result, or into zeros of the
    whole result, which are then folded.
    """
    axes = [s.axis for s in src if s.axis is not None]
    along = axes[-1] if axes else None
    columns = [split(s, along, devices) for s in src]
    place = u.axis
    if place is None:
        parts = rebuilt(u, columns, u.arg)
        return parts if along is None else folded(parts, u.arg.op, devices)
    assert along is not None and walked_axis(u.src[1 + place], u.arg.shape[place]) == along
    count = len(devices)
    columns[1 + place] = [local_walk(u.src[0].shape, along, count)] * count
    shape = localized(u.arg.shape, place, u.arg.shape[place] // count)
    return rebuilt(u, columns, ScatterArg(u.arg.op, shape))


MULTI_RULES: dict[Ops, Rule] = {
    **dict.fromkeys(ELEMENTWISE, parts_of_alu),
    Ops.DEVICE: parts_of_device,
    Ops.CONST: parts_of_mark,
    Ops.CONTIGUOUS: parts_of_mark,
    Ops.CONTIGUOUS_BACKWARD: parts_of_mark,
    Ops.DETACH: parts_of_mark,
    Ops.CUSTOM_GRADIENT: parts_of_mark,
    Ops.AFTER: parts_of_mark,
    Ops.CALL: parts_of_mark,
    Ops.STORE: parts_of_store,
    Ops.RESHAPE: parts_of_movement,
    Ops.EXPAND: parts_of_movement,
    Ops.PERMUTE: parts_of_movement,
    Ops.PAD: parts_of_movement,
    Ops.SHRINK: parts_of_movement,
    Ops.FLIP: parts_of_movement,
    Ops.NAME: parts_of_name,
    Ops.REDUCE: parts_of_reduce,
    Ops.INDEX: parts_of_index,
    Ops.SCATTER: parts_of_scatter,
}


def parts_of(u: UOp, lowered: Callable[[UOp], Sequence[UOp]]) -> Sequence[UOp]:
    """Lists the part of a node for each device, given the parts of its sources.

    Raises: DeviceError for an op that does not work on several devices.
    """
    if u.op is Ops.MULTI:
        return [lowered(s)[0] for s in u.src]
    devices = u.device
    if devices.__class__ is tuple:
        rule = MULTI_RULES.get(u.op)
        if rule is None:
            raise DeviceError(
                f"{u.op.name} of a value on {', '.join(devices)} is not possible; bring it to one "
                "device first, x.to('CPU')"
            )
        return rule(u, [spread(s, devices, lowered) for s in u.src], devices)
    if u.op is Ops.COPY and u.src[0].device.__class__ is tuple:
        device, source = u.arg.device, spread(u.src[0], u.src[0].device, lowered)
        value = gathered(source, device)
        # A copy of memory must not alias it, since the memory may be written to later.
        kept = source.axis is None and value.device == device and shows_memory(value)
        return (value.copy_to(device) if kept else value,)
    src = tuple([lowered(s)[0] for s in u.src])
    return (u if src == u.src else UOp(u.op, u.dtype, src, u.arg),)


def spread(u: UOp, devices: tuple[str, ...], lowered: Callable[[UOp], Sequence[UOp]]) -> Spread:
    """A source of a node on several devices; a value on one of them is replicated."""
    parts = lowered(u)
    if u.device.__class__ is not tuple:
        return Spread(None, [copied(parts[0], d) for d in devices], u.shape)
    if len(parts) != len(devices):
        raise DeviceError(f"values on {u.device} and on {devices} are combined; .to(...) moves one")
    return Spread(u.axis, parts, u.shape)
