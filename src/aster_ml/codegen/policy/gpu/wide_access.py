"""Widens loads and stores to 16 bytes: adds lanes along axes that are contiguous in memory.

Lanes are SIMD lanes, or, on targets without SIMD, single values that the language loads together.

Receives a kernel whose axes have no lanes yet; gives them to the innermost axis of outputs, or to
that of each reduction. Where an access does not begin at a multiple of the lanes, as in many views,
it stays one of single elements: half of a wide access is two accesses on a graphics processor.
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Access
from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.work_groups.staged_tiles import WIDE_NBYTES
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.symbolic import affine_form, simplify

# Steps of an axis that are left for work-items, at least.
MIN_STEPS = 16


def widen_outputs(kernel: Kernel, target: Target, axes: list[UOp]) -> bool:
    """Lanes along the one of these axes of outputs that all stores walk as neighbours."""
    for axis in reversed(axes):
        # A reduction over it, and another beside it: lanes of both are chosen by themselves.
        mine = [a for a in kernel.accesses() if axis in a.node.ranges]
        stores = [a for a in kernel.accesses() if a.is_store]
        if not all([a.stride(axis) == 1 for a in stores]) or not kernel.may_reorder(axis):
            continue
        lanes = lanes_along(target, axis, mine)
        if lanes > 1:
            op = OptOps.VECTOR if target.vector_bits else OptOps.UPCAST
            apply(kernel, Opt(op, axis_name(axis), lanes))
            return True
    return False


def widen_reductions(kernel: Kernel, target: Target) -> None:
    """Lanes along each reduction whose loads are neighbours along its longest axis."""
    longest = [max(u.src[1:], key=size_of) for u in kernel.reduces if u.src[1:]]
    for axis in dict.fromkeys(longest):
        mine = [a for a in kernel.accesses() if axis in a.node.ranges]
        lanes = lanes_along(target, axis, mine)
        if lanes > 1:
            op = OptOps.VECTOR if target.vector_bits else OptOps.UNROLL
            apply(kernel, Opt(op, axis_name(axis), lanes))


def lanes_along(target: Target, axis: UOp, accesses: list[Access]) -> int:
    """Counts the steps of an axis that these accesses can take at a time, each all or one."""
    wide = [a for a in accesses if a.stride(axis) == 1]
    if not wide or axis.src[0].op is not Ops.CONST:
        return 1
    gates = [g for a in accesses for g in a.node.src[2 if a.is_store else 1 :]]
    if any([axis in g.ranges for g in gates]) or any(
        [a.stride(axis) not in (0, 1) for a in accesses]
    ):
        return 1
    nbytes = min(WIDE_NBYTES, target.moved_nbytes)
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
