"""Tails: what becomes of the end of an axis that lanes do not divide.

Receives a kernel, an axis and a number of lanes; changes the kernel's graph. Which tail a split
gets is decided in `policy/cpu/tails`, once, and said by its Opt:

exact: the lanes divide the axis (UPCAST, UNROLL, VECTOR)
shift inwards: the last lanes start at size - lanes, and what they have in common with those before
    is done twice; nobody may read what is stored (VECTOR of outputs, UPCAST shift, SPLIT loop)
mask: the axis grows to a multiple; loads and stores beyond its end are tested (SPLIT mask)
peel: the rest of a reduction is one of its own; it alone may run over the axis (SPLIT peel, or
    SPLIT last for one masked step, once panels are filled for both parts)
"""

from __future__ import annotations

import math
from dataclasses import replace

from aster_ml.codegen.kernel import Kernel, identity
from aster_ml.codegen.plans import (
    MaskedTail,
    PeeledStep,
    ShiftedLanes,
    ShiftedLoop,
    ShiftedTail,
    ShiftedTile,
    Strips,
)
from aster_ml.codegen.prefetch import own_nodes
from aster_ml.codegen.transforms.trip_counts import masks_of_last, without_conditions
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.uop.graph import holds, substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import before_last, size_of
from aster_ml.uop.rules.conditions import conditions_of

# What a tail is that starts early, by the kind of the steps that are split off; else a loop's.
SHIFTED: dict[AxisType, type[ShiftedTail]] = {
    AxisType.VECTOR: ShiftedLanes,
    AxisType.UPCAST: ShiftedTile,
}
# Of zeros they make zeros.
KEEP_ZERO = frozenset({Ops.MUL, Ops.ADD, Ops.SUB, Ops.NEG, Ops.CAST})


def can_overlap(kernel: Kernel) -> bool:
    """Whether the same element may be computed twice: of strips it is stored the first time."""
    return kernel.plan(Strips) is not None or not kernel.facts.stores_over_reads


def can_peel(kernel: Kernel, axis: UOp) -> bool:
    """Whether one reduction alone runs over an axis, and no other depends on it."""
    mine = [u for u in kernel.reduces if axis in u.src[1:]]
    return len(mine) == 1 and not any(axis in u.ranges for u in kernel.reduces if u is not mine[0])


def shifted_lanes(kernel: Kernel, axis: UOp) -> ShiftedLanes | None:
    """The tail of the SIMD lanes of an axis, if that starts early and nothing else is split off."""
    for tail in kernel.plans_of(ShiftedLanes):
        if tail.axis == axis.arg.id and axis.src[0].arg == ceildiv(tail.size, tail.count):
            return tail if before_last(axis, tail.size, tail.count) in kernel.facts.order else None
    return None


def overlaps(kernel: Kernel) -> bool:
    """Whether some elements are computed twice, those of register tiles aside."""
    return any([not isinstance(p, ShiftedTile) for p in kernel.plans_of(ShiftedTail)])


def may_split(kernel: Kernel, axis: UOp, lanes: int) -> bool:
    """Whether UPCAST may split so many lanes off an axis."""
    size, tail = axis.src[0], shifted_lanes(kernel, axis)
    if kernel.fills_slab(axis):
        return False
    if tail is not None:
        return 1 < lanes <= tail.size // tail.count
    return size.const_factor() % lanes == 0


def split_lanes(kernel: Kernel, axis: UOp, lanes: int, kind: AxisType) -> None:
    """Splits lanes off an axis; SIMD lanes that do not divide it start early at its end."""
    size = axis.src[0]
    uneven = size.op is Ops.CONST and 0 < lanes < size.arg and size.arg % lanes
    tail = shifted_lanes(kernel, axis) if kind is AxisType.UPCAST else None
    if tail is not None:
        widen_shifted(kernel, axis, tail, lanes)
    elif kind is AxisType.VECTOR and uneven and axis in kernel.outputs:
        shift_inwards(kernel, axis, lanes, kind)
    else:
        kernel.split(axis, lanes, kind)


def shift_inwards(kernel: Kernel, axis: UOp, lanes: int, kind: AxisType) -> None:
    """`axis` -> `min(outer * lanes, size - lanes) + inner`, `inner` a part of an output axis.

    What the last part has in common with the one before is computed and stored twice, which
    nobody sees as long as the kernel does not read what it stores. Strips do, so they store it
    once.
    """
    strips = kernel.plan(Strips)
    is_strip = strips is not None and axis.arg.id == strips.axis
    if axis not in kernel.outputs or is_strip or not can_overlap(kernel):
        raise KernelOptError("an output axis of a kernel that reads no output is wanted")
    size = axis.src[0]
    if size.op is not Ops.CONST or not 0 < lanes <= size.arg:
        raise KernelOptError(
            f"1 to {int(size.vmax)} steps of an axis of a fixed size are wanted, and {lanes} "
            "are given"
        )
    if size.arg % lanes == 0:
        return kernel.split(axis, lanes, kind)
    inner = kernel.new_range(lanes, kind)
    shifted = SHIFTED.get(kind, ShiftedLoop)
    kernel.add(shifted(axis=axis.arg.id, count=lanes, size=size.arg, inner=inner.arg.id))
    steps = UOp.index_const(ceildiv(size.arg, lanes))
    outer = UOp(Ops.RANGE, axis.dtype, (steps,), axis.arg)
    short = before_last(outer, size.arg, lanes)
    start = index_alu(Ops.SUB, UOp.index_const(size.arg - lanes), short)
    kernel.outputs = [x for r in kernel.outputs for x in ((outer, inner) if r is axis else (r,))]
    kernel.rewrite({axis: index_alu(Ops.ADD, start, inner)}, {axis: (outer, inner)})
    if strips is not None:
        store_where(kernel, first_time(outer, inner, size.arg, lanes))


def widen_shifted(kernel: Kernel, axis: UOp, tail: ShiftedLanes, count: int) -> None:
    """`count` SIMD values side by side, the last of which start early together."""
    size, lanes = tail.size, tail.count
    wide = count * lanes
    if not lanes < wide <= size:
        raise KernelOptError(
            f"{count} times {lanes} lanes of an axis of {size}; 2 to {size // lanes} times "
            "would fit"
        )
    inner = kernel.new_range(count, AxisType.UPCAST)
    outer = UOp(Ops.RANGE, axis.dtype, (UOp.index_const(ceildiv(size, wide)),), axis.arg)
    held = before_last(outer, size, wide)
    kernel.plans = tuple([replace(p, count=wide) if p is tail else p for p in kernel.plans])
    # size - lanes - short is to become size - wide - held + inner * lanes.
    before = index_alu(Ops.SUB, UOp.index_const(count - 1), inner)
    before = index_alu(Ops.ADD, held, index_alu(Ops.MUL, before, UOp.index_const(lanes)))
    # Strips ask which steps are the first to compute an element.
    lane = next(r for r in kernel.outputs if r.arg.id == tail.inner)
    step = index_alu(Ops.ADD, index_alu(Ops.MUL, inner, UOp.index_const(lanes)), lane)
    changes = {
        before_last(axis, size, lanes): before,
        first_time(axis, lane, size, lanes): first_time(outer, step, size, wide),
    }
    kernel.outputs = [x for r in kernel.outputs for x in ((outer, inner) if r is axis else (r,))]
    kernel.rewrite(changes, {axis: (outer, inner)})


def first_time(outer: UOp, inner: UOp, size: int, lanes: int) -> UOp:
    """Tests that no step of `outer` before has computed this one of lanes that start early."""
    begun = index_alu(Ops.MUL, outer, UOp.index_const(lanes))
    at = index_alu(Ops.ADD, inner, UOp.index_const(size - lanes + 1))
    return begun.alu(Ops.CMPLT, at)


def store_where(kernel: Kernel, gate: UOp) -> None:
    """The one result is stored where this holds, too, and nowhere else."""
    (store,) = kernel.stores
    gated = UOp(store.op, store.dtype, (*store.src[:2], kernel.both(gate, *store.src[2:])))
    kernel.sink = substitute(kernel.sink, {store: gated})


def mask_tail(kernel: Kernel, axis: UOp, multiple: int) -> None:
    """The axis grows to a multiple; loads and stores beyond its end are masked."""
    size = axis.src[0]
    if size.op is not Ops.CONST or multiple < 1:
        raise KernelOptError(
            f"an axis of a fixed size and a multiple from 1 on are wanted, and {multiple} is given"
        )
    grown = UOp.index_const(ceildiv(size.arg, multiple) * multiple)
    new = UOp(Ops.RANGE, axis.dtype, (grown,), axis.arg)
    if new is axis:
        return
    if axis in kernel.outputs and kernel.may_reorder(axis):
        kernel.add(MaskedTail(axis=axis.arg.id))
    inside = new < size
    changes: dict[UOp, UOp] = {}
    for u in kernel.facts.order:
        if u in changes:
            continue
        src = tuple(map(changes.get, u.src, u.src))
        if u is axis:
            fresh = new
        elif u.op is Ops.LOAD and axis in u.ranges:
            fresh = UOp(Ops.LOAD, u.dtype, (src[0], kernel.both(inside, *src[1:])), u.arg)
        elif u.op is Ops.STORE and axis in u.ranges:
            src = (src[0], src[1], kernel.both(inside, *src[2:]))
            fresh = UOp(Ops.STORE, u.dtype, src, u.arg)
        elif u.op is Ops.REDUCE and axis in u.src[1:]:
            value = src[0]
            if u.arg.op is not Ops.ADD or not is_zero_unloaded(u.src[0], axis):
                value = inside.where(value, UOp.const(u.dtype, identity(u.arg.op, u.dtype)))
            fresh = UOp(u.op, u.dtype, (value, *src[1:]), u.arg)
        else:
            fresh = u if src == u.src else UOp(u.op, u.dtype, src, u.arg)
        changes[u] = fresh
    kernel.outputs = [new if r is axis else r for r in kernel.outputs]
    kernel.sink = changes[kernel.sink]


def is_zero_unloaded(value: UOp, axis: UOp) -> bool:
    """Whether a value is zero where all that is loaded along an axis is, without a test of its own.

    Of a product both factors have to be, but for a finite number: zero times what is not finite is
    not zero. What comes through a STAGE may be read from where it is computed, and not loaded.
    """
    for u in toposort(value, enter=lambda u: u.op in KEEP_ZERO):
        if u.op is Ops.LOAD:
            if axis not in u.ranges or u.src[0].src[0].op is not Ops.PARAM:
                return False
        elif u.op is Ops.CONST:
            if u is value or not math.isfinite(u.arg):
                return False
        elif u.op not in KEEP_ZERO:
            return False
        elif u.op is not Ops.MUL and any([s.op is Ops.CONST for s in u.src]):
            return False
    return True


def peel(kernel: Kernel, axis: UOp, length: int) -> None:
    """Two reductions instead of one: over the first `length` steps, and over the others.

    What is uneven in the second does not burden the first. Its axis is the newest.
    """
    size = axis.src[0]
    if size.op is not Ops.CONST or not 0 < length < size.arg or not can_peel(kernel, axis):
        raise KernelOptError(
            f"1 to {int(size.vmax) - 1} steps of a reduction are wanted that runs over this "
            f"axis alone, and {length} are given"
        )
    old = next(u for u in kernel.reduces if axis in u.src[1:])
    first = UOp(Ops.RANGE, axis.dtype, (UOp.index_const(length),), axis.arg)
    others = {r: kernel.new_range(r.src[0], r.arg.kind) for r in old.src[1:] if r is not axis}
    rest = kernel.new_range(size.arg - length, AxisType.REDUCE)
    value = substitute(old.src[0], {axis: first})
    closed = [first if r is axis else r for r in old.src[1:]]
    main = UOp(Ops.REDUCE, old.dtype, (value, *closed), old.arg)
    further = index_alu(Ops.ADD, rest, UOp.index_const(length))
    value = substitute(old.src[0], {**others, axis: further})
    closed = [rest if r is axis else others[r] for r in old.src[1:]]
    tail = UOp(Ops.REDUCE, old.dtype, (value, *closed), old.arg)
    kernel.sink = substitute(kernel.sink, {old: main.alu(old.arg.op, tail)})


def run_last_steps_apart(kernel: Kernel, target: Target) -> None:
    """Peels the masked last iteration off each reduction loop that `SPLIT last` names.

    Raises: KernelOptError where other Opts have left no such loop.
    """
    changes: dict[UOp, UOp] = {}
    peeled = {p.axis for p in kernel.plans_of(PeeledStep)}
    for u in kernel.reduces:
        for r in u.src[1:]:
            if r.arg.id in peeled and u not in changes and can_peel(kernel, r):
                conditions = masks_of(u, r)
                if conditions:
                    changes[u] = in_two(kernel, u, r, conditions)
    if len(changes) < len(peeled):
        raise KernelOptError(
            "SPLIT last: loops of reductions are wanted of which the last step alone is masked; "
            "other Opts have left none"
        )
    kernel.sink = substitute(kernel.sink, changes)


def masks_of(u: UOp, r: UOp, ungated: UOp | None = None) -> frozenset[UOp]:
    """Finds the masks of SIMD lanes of a reduction that close at the last step of a loop alone.

    Nothing too where the body goes through scratch that all of the row shares. An `ungated` load
    reads scratch that is filled beforehand, with the mask.
    """
    lane = next((x for x in u.src[1:] if x.arg.kind is AxisType.VECTOR), None)
    if lane is None or r.arg.kind.is_lane or holds(u.src[0], {Ops.STAGE}):
        return frozenset()
    inside = own_nodes(u.src[0])
    gates = [x.src[1] for x in inside if x.op is Ops.LOAD and x.src[1:] and x is not ungated]
    gates += [x.src[0] for x in inside if x.op is Ops.WHERE]
    return masks_of_last(gates, r, lane)


def in_two(kernel: Kernel, u: UOp, r: UOp, conditions: frozenset[UOp]) -> UOp:
    """The steps of a loop without what masks its last one, and the last one."""
    last = size_of(r) - 1
    loop = UOp(Ops.RANGE, r.dtype, (UOp.index_const(last),), r.arg)
    value = substitute(unmasked(u.src[0], conditions), {r: loop})
    main = UOp(Ops.REDUCE, u.dtype, (value, *[loop if x is r else x for x in u.src[1:]]), u.arg)
    others = {x: kernel.new_range(x.src[0], x.arg.kind) for x in u.src[1:] if x is not r}
    value = substitute(u.src[0], {**others, r: UOp.index_const(last)})
    return main.alu(u.arg.op, UOp(Ops.REDUCE, u.dtype, (value, *others.values()), u.arg))


def unmasked(value: UOp, conditions: frozenset[UOp]) -> UOp:
    """A value where these conditions hold."""
    chosen = {
        x: x.src[1]
        for x in own_nodes(value)
        if x.op is Ops.WHERE and set(conditions_of(x.src[0])) <= conditions
    }
    return without_conditions(substitute(value, chosen), conditions)
