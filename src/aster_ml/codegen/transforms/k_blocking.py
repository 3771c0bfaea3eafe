"""Blocking of reductions: strips of steps, with partial results in between.

Receives a kernel and the axis of a reduction; changes the kernel's graph as the Opts KBLOCK say.
When it pays is decided in `policy/cpu/k_blocking` and `policy/cpu/heuristic`.
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel, identity
from aster_ml.codegen.plans import PackedWords, RowSums, ShiftedTile, Strips
from aster_ml.codegen.tails import first_time, overlaps, store_where
from aster_ml.dtype import dtypes
from aster_ml.errors import KernelOptError
from aster_ml.helpers import ceildiv
from aster_ml.uop.graph import substitute, toposort
from aster_ml.uop.node import UOp, index_alu
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of, steps_left
from aster_ml.uop.rules.symbolic import simplify_around


def can_block(kernel: Kernel) -> bool:
    """Whether sums may lie in the output between strips of their reduction."""
    # What runs twice would add up twice.
    if overlaps(kernel) or len(kernel.stores) != 1 or len(kernel.reduces) != 1:
        return False
    # Those that start early have to be told from those before them.
    sizes = {r.arg.id: size_of(r) for r in kernel.outputs}
    for tail in kernel.plans_of(ShiftedTile):
        if sizes.get(tail.axis) != ceildiv(tail.size, tail.count):
            return False
    (store,), (reduce,) = kernel.stores, kernel.reduces
    return (
        reduce.arg.op in (Ops.ADD, Ops.MAX)
        and reduce.dtype is store.src[1].dtype
        and not kernel.facts.stores_over_reads
        and set(kernel.outputs) <= reduce.ranges
    )


def block_in_output(kernel: Kernel, axis: UOp, length: int) -> None:
    """`length` steps of a reduction at a time; between strips its sums lie in the output.

    The strips are the outermost output axis: what they load is used by all outputs while it is
    in the cache. Where all is loaded but once, they stand within all outputs but the last.
    What follows the reduction is stored with the last strip. Lanes that start early add up and
    store what the ones before them have not.
    """
    size = size_of(axis)
    if not 0 < length < size:
        raise KernelOptError(f"strips of {length} of {size} steps; 1 to {size - 1} would do")
    if not can_block(kernel):
        raise KernelOptError("one store of one sum in the sum's own dtype is wanted")
    (store,), (old,) = kernel.stores, kernel.reduces
    strip = kernel.new_range(ceildiv(size, length), AxisType.LOOP)
    start = index_alu(Ops.MUL, strip, UOp.index_const(length))
    inner = kernel.new_range(steps_left(start, length, size), AxisType.REDUCE)
    summed = substitute(old.src[0], {axis: index_alu(Ops.ADD, start, inner)})
    closed = [inner if r is axis else r for r in old.src[1:]]
    strip_sum = UOp(Ops.REDUCE, old.dtype, (summed, *closed), old.arg)
    # A masked load gives zero: the sums before the first strip.
    again = UOp.index_const(0) < strip
    before = UOp(Ops.LOAD, old.dtype, (store.src[0], kernel.both(again, *store.src[2:])))
    if old.arg.op is not Ops.ADD:
        before = again.where(before, UOp.const(old.dtype, identity(old.arg.op, old.dtype)))
    total = before.alu(old.arg.op, strip_sum)
    value = total
    if store.src[1] is not old:
        last = strip.alu(Ops.CMPEQ, UOp.index_const(ceildiv(size, length) - 1))
        value = last.where(substitute(store.src[1], {old: total}), total)
    end = UOp(store.op, store.dtype, (store.src[0], value, *store.src[2:]), store.arg)
    kernel.add(Strips(axis=strip.arg.id))
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    once = all(set(loops) <= a.strides.keys() for a in kernel.accesses())
    kernel.outputs.insert(kernel.outputs.index(loops[-1]) if once and loops else 0, strip)
    kernel.sink = kernel.sink.replace(src=(end.end(*kernel.outputs),))
    by_id = {r.arg.id: r for r in kernel.outputs}
    for tail in kernel.plans_of(ShiftedTile):
        outer, lanes = by_id[tail.axis], by_id[tail.inner]
        store_where(kernel, first_time(outer, lanes, tail.size, tail.count))


def can_sum_rows(kernel: Kernel) -> bool:
    """Whether one reduction over one loop is all that runs in the output loops."""
    if (
        len(kernel.reduces) != 1
        or kernel.plan(Strips) is not None
        or kernel.facts.stores_over_reads
    ):
        return False
    if len(kernel.stores) != 1 or kernel.facts.by_op[Ops.STAGE]:
        return False
    (u,) = kernel.reduces
    return (
        len(u.src) == 2
        and u.src[1].arg.kind is AxisType.REDUCE
        and u.src[1].src[0].op is Ops.CONST
        and bool(kernel.outputs)
        and set(kernel.outputs) <= u.ranges
    )


def block_rows(kernel: Kernel, axis: UOp, count: int) -> None:
    """Sums of a whole row of outputs are in scratch; `staging/accumulators` puts them there."""
    words = kernel.plan(PackedWords) is not None
    if words or not can_sum_rows(kernel) or not 0 < count <= size_of(axis):
        raise KernelOptError(
            f"one reduction over this axis alone, in all output axes, of memory and not of "
            f"panels, and 1 to {size_of(axis)} steps of it are wanted; {count} are given"
        )
    kernel.add(RowSums(count=count))


def can_nest(kernel: Kernel, axis: UOp) -> bool:
    """Whether the sum over an axis may become a sum of sums: of floats, each step on its own."""
    mine = [u for u in kernel.reduces if axis in u.src[1:]]
    if axis.src[0].op is not Ops.CONST or len(mine) != 1 or mine[0].arg.op is not Ops.ADD:
        return False
    if mine[0].dtype not in (dtypes.float32, dtypes.float64):
        return False
    others = [u for u in kernel.reduces if u is not mine[0] and axis in u.ranges]
    # Those that its value is made of change with the axis.
    return not others or toposort(mine[0]).keys() >= set(others)


def block_wide(kernel: Kernel, axis: UOp, length: int) -> None:
    """A sum of sums: over `length` steps of the axis at a time, and over these sums.

    Rounding errors grow with the number of additions one after the other: the inner sums are
    short, and the outer ones lose nothing, having twice the bits. Loops within the axis and
    lanes that are no SIMD lanes belong to the inner sums, all else to the outer ones.
    """
    old = next((u for u in kernel.reduces if axis in u.src[1:]), None)
    size = size_of(axis)
    if old is None or not can_nest(kernel, axis) or not 0 < length <= size:
        raise KernelOptError(
            f"1 to {size} steps of one sum of floats are wanted, and {length} are given"
        )
    closed = list(old.src[1:])
    place = closed.index(axis)
    within = [r for r in closed[place + 1 :] if not r.arg.kind.is_lane]
    outer = [r for r in closed[:place] if not r.arg.kind.is_lane]
    inner: UOp = axis
    value = old.src[0]
    if length < size:
        far = kernel.new_range(ceildiv(size, length), AxisType.REDUCE)
        start = index_alu(Ops.MUL, far, UOp.index_const(length))
        inner = kernel.new_range(steps_left(start, length, size), AxisType.REDUCE)
        step = {axis: index_alu(Ops.ADD, start, inner)}
        # Loops within may run to what is left of this axis.
        sized = [r for r in toposort(value) if r.op is Ops.RANGE and axis in toposort(r.src[0])]
        fresh = {r: r.replace(src=(simplify_around(substitute(r.src[0], step)),)) for r in sized}
        value = substitute(value, {**step, **fresh})
        outer.append(far)
    lanes = [r for r in closed if r.arg.kind.is_lane]
    simd = [r for r in lanes if r.arg.kind is AxisType.VECTOR]
    side_by_side = [r for r in lanes if r.arg.kind is not AxisType.VECTOR]
    part = UOp(Ops.REDUCE, old.dtype, (value, inner, *within, *side_by_side), old.arg)
    wide = part if old.dtype is dtypes.float64 else part.cast(dtypes.float64)
    total = UOp(Ops.REDUCE, wide.dtype, (wide, *outer, *simd), old.arg)
    kernel.sink = substitute(kernel.sink, {old: total.cast(old.dtype)})
