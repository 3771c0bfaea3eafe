"""Default panels of CPUs: which operand of a product is packed, at what cost.

Receives a Plan or a kernel; says in cycles what a panel takes to fill, orders loops for it, and
applies STAGE panel where scratch has room. What a panel is stands in `codegen/staging/panel`.
"""

from __future__ import annotations

from typing import NamedTuple

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.codegen.plans import Halo, RowSums, UnpackedOperand
from aster_ml.codegen.policy.cpu.costs import TILE_REUSE, Plan, ends_masked, widths
from aster_ml.codegen.policy.cpu.loop_order import set_order
from aster_ml.codegen.staging.panel import (
    can_pack,
    least_uses,
    max_nbytes,
    panel_nbytes,
    panel_of,
    run_of,
    uses_of,
)
from aster_ml.codegen.transforms.k_blocking import can_block
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ranges import iterations


class Packing(NamedTuple):
    """Cost of loading SIMD values from a packed panel: filling it, and strips."""

    cycles: float
    strips: int


def packing_cost(
    plan: Plan, axis: UOp | None, lanes: int, a: Access, reduce: UOp, early: bool = False
) -> Packing | None:
    """The cost of a panel for an access that goes along `axis` in far steps.

    With `early`, the last lanes of a long axis start early, and are not masked.
    """
    kernel = plan.kernel
    if (
        axis is None
        or a.stride(axis) in (0, 1, None)
        or len(kernel.reduces) != 1
        or not can_pack(a)
    ):
        return None
    wide, costs = widths(plan.target, axis, lanes)[0], plan.target.costs
    if not set(kernel.outputs) <= reduce.ranges:
        return None
    if uses_of(a, kernel.outputs) < least_uses(a, reduce.src[1:], wide):
        return None
    width = wide
    if axis in reduce.src[1:]:
        # One register tile has to take in the whole panel, else the other operand is read again;
        # each of a batch of products has a panel of its own.
        owner = kernel.facts.owners
        others = [b.strides for b in plan.accesses if b.node in owner and b.node is not a.node]
        mine = [r for r in kernel.outputs if r in a.strides]
        width = iterations([r for r in mine if not all([r in s for s in others])])
        if width > TILE_REUSE:
            return None
    reduced = iterations([r for r in reduce.src[1:] if r in a.strides])
    nbytes = reduced * width * a.buffer.dtype.itemsize
    strips = ceildiv(nbytes, max_nbytes(plan.target))
    if strips > 1 and not can_block(kernel):
        return None
    by_runs = run_of(a, reduce.src[1:], wide) is not None
    each = costs.transposed if by_runs else costs.gather
    if a.node.src[1:] or (not by_runs and ends_masked(plan.target, axis, lanes, early)):
        each *= costs.masked_gather / plan.target.instruction
    return Packing(each * iterations(list(a.strides)), strips)


def order_for_panel(plan: Plan) -> None:
    """The loops that a panel changes with come first, so that it is filled least often."""
    kernel = plan.kernel
    memory = {p.memory for p in kernel.plans_of(UnpackedOperand)}
    packed = [a for a in plan.accesses if a.buffer in memory]
    a = panel_of(kernel)
    if a is not None and not packed and kernel.plan(Halo) is None:
        packed = [a] if panel_nbytes(kernel, a) <= max_nbytes(plan.target) else []
    walked = {r for a in packed for r in a.strides}
    if packed:
        loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
        set_order(kernel, sorted(loops, key=lambda r: r not in walked))


def choose_panel(kernel: Kernel, target: Target) -> None:
    """The operand that a register tile reads most often is packed, where scratch has room."""
    # Sums of a whole row are made in loops of their own, which know nothing of a panel.
    # Neither do unpacked operands, which have panels of their own.
    otherwise = kernel.plan(RowSums) or kernel.plan(UnpackedOperand)
    a = panel_of(kernel) if otherwise is None else None
    if a is not None and panel_nbytes(kernel, a) <= max_nbytes(target):
        apply(kernel, Opt(OptOps.STAGE, arg=a.buffer.arg.slot, how="panel"))
