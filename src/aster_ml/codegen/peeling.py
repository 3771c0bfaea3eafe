"""Loop peeling: the last step of a reduction, when it alone is masked, runs on its own.

Receives a kernel whose Opts are applied; returns its graph. What is padded, and which steps run on
their own from the start (`SPLIT peel`), is decided in `cpu/vectorize`.

rewrite: REDUCE(v, k < n) with v masked at k = n - 1 alone -> REDUCE(v, k < n - 1) + v at k = n - 1
when: lanes of a loop are masked at its last step alone, and the body is short enough to be written
twice
why: a mask takes a comparison at every step, and that of one known step is a number. A panel is
filled for both parts at once, which two reductions could not have
"""

from __future__ import annotations

from aster_ml.codegen.cpu.costs import MAX_BODY
from aster_ml.codegen.kernel import Kernel, can_peel
from aster_ml.codegen.prefetch import own_nodes
from aster_ml.codegen.transforms.trip_counts import masks_of_last, without_conditions
from aster_ml.target import Target
from aster_ml.uop.graph import holds, substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import iterations, size_of
from aster_ml.uop.rules.conditions import conditions_of


def run_last_steps_apart(kernel: Kernel, target: Target) -> None:
    """Takes the masked step off each loop of a reduction that has one."""
    changes: dict[UOp, UOp] = {}
    for u in kernel.reduces:
        for r in u.src[1:]:
            conditions = masks_of(u, r)
            if conditions and u not in changes and can_peel(kernel, r):
                changes[u] = in_two(kernel, u, r, conditions)
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def masks_of(u: UOp, r: UOp) -> frozenset[UOp]:
    """What masks SIMD lanes of a reduction at the last step of a loop and at no other; or nothing.

    Nothing too where the body is long, or goes through scratch that all of the row shares.
    """
    lane = next((x for x in u.src[1:] if x.arg.kind is AxisType.VECTOR), None)
    if lane is None or r.arg.kind.is_lane or holds(u.src[0], {Ops.STAGE}):
        return frozenset()
    inside = own_nodes(u.src[0])
    if iterations([x for x in u.ranges if x.arg.kind is AxisType.UPCAST]) * len(inside) > MAX_BODY:
        return frozenset()
    gates = [x.src[1] for x in inside if x.op is Ops.LOAD and x.src[1:]]
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
