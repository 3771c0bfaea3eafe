"""Widens loads and stores to 16 bytes: adds lanes along axes that are contiguous in memory.

Lanes are SIMD lanes, or, on targets without SIMD, single values that the language loads together.

Receives a Plan whose axes have no lanes yet; adds lanes to the innermost output axis, or to that of
each reduction. An access that is not aligned to the lanes, as in many views, stays scalar: an
unaligned wide access is two accesses on a GPU.
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.cpu.costs import Plan
from aster_ml.codegen.work_groups.staged_tiles import WIDE_NBYTES
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import affine_form, simplify

# Steps of an axis that remain for work-items, at least.
MIN_STEPS = 16


def widen_outputs(plan: Plan, axes: list[UOp]) -> bool:
    """Adds lanes along that output axis along which all stores are contiguous."""
    kernel = plan.kernel
    for axis in reversed(axes):
        # Accesses that depend on the axis; lanes of reductions are chosen separately.
        mine = [a for a in plan.accesses if axis in a.node.ranges]
        stores = [a for a in plan.accesses if a.is_store]
        if not all([a.stride(axis) == 1 for a in stores]) or not kernel.may_reorder(axis):
            continue
        lanes = lanes_along(plan, axis, mine)
        if lanes > 1:
            op = OptOps.VECTOR if plan.target.vector_bits else OptOps.UPCAST
            apply(kernel, Opt(op, axis_name(axis), lanes))
            return True
    return False


def widen_reductions(plan: Plan) -> None:
    """Adds lanes along each reduction whose loads are contiguous along its longest axis."""
    kernel = plan.kernel
    longest = [max(u.src[1:], key=size_of) for u in kernel.reduces if u.src[1:]]
    for axis in dict.fromkeys(longest):
        mine = [a for a in plan.accesses if axis in a.node.ranges]
        lanes = lanes_along(plan, axis, mine)
        if lanes > 1:
            op = OptOps.VECTOR if plan.target.vector_bits else OptOps.UNROLL
            apply(kernel, Opt(op, axis_name(axis), lanes))


def lanes_along(plan: Plan, axis: UOp, accesses: list[Access]) -> int:
    """Counts the lanes along an axis that these accesses can have, each all or one."""
    wide = [a for a in accesses if a.stride(axis) == 1]
    if not wide or axis.src[0].op is not Ops.CONST:
        return 1
    gates = [g for a in accesses for g in a.node.src[2 if a.is_store else 1 :]]
    if any([axis in g.ranges for g in gates]) or any(
        [a.stride(axis) not in (0, 1) for a in accesses]
    ):
        return 1
    nbytes = min(WIDE_NBYTES, plan.target.moved_nbytes)
    lanes = nbytes // max([a.node.src[0].dtype.itemsize for a in wide])
    while lanes > 1:
        steps = size_of(axis) / lanes
        if steps == steps // 1 >= MIN_STEPS and all([begins_at(a, axis, lanes) for a in wide]):
            return lanes
        lanes //= 2
    return 1


def begins_at(access: Access, axis: UOp, lanes: int) -> bool:
    """Whether an access at a multiple of the lanes along an axis is aligned in memory."""
    rest, _ = affine_form(simplify(access.node.src[0].src[1]), {axis})
    return all([n % lanes == 0 for n in (rest.const, *rest.terms.values())])
