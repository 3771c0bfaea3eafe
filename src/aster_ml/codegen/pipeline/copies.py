"""Checks what PIPELINE copies and PIPELINE producer ask for: strips of a reduction, and stages.

Receives a kernel whose Opt STAGE local has an axis staged, or that TC chain computes, and the axis
over its strips; leaves the plan that `pipeline/loop` carries out once the kernel is a list.
"""

from __future__ import annotations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import ChainedProducts, CopiesAhead, CopyPipeline, SharedTile
from aster_ml.errors import KernelOptError
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops


def pipeline_copies(
    kernel: Kernel, axis: UOp, stages: int, kind: type[CopyPipeline] = CopiesAhead
) -> None:
    """The strips along an axis of a reduction are copied to local memory ahead of their use."""
    staged = kernel.plan(SharedTile) or kernel.plan(ChainedProducts)
    if axis.arg.kind is not AxisType.REDUCE or staged is None:
        raise KernelOptError("a reduction is wanted whose loads STAGE local takes through memory")
    if stages < 2:
        raise KernelOptError("2 stages are the fewest: one is filled while another is used")
    if axis.src[0].op is Ops.CONST and axis.src[0].arg < stages:
        raise KernelOptError(f"{stages} stages are more than the {axis.src[0].arg} strips")
    if not is_innermost(kernel, axis):
        raise KernelOptError(
            f"r{axis.arg.id} has another loop of its sum inside, which fills local memory at each "
            "turn; the innermost axis that is summed is wanted"
        )
    kernel.add(kind(axis=axis.arg.id, count=stages))


def is_innermost(kernel: Kernel, axis: UOp) -> bool:
    """Whether no other axis of a sum is gone along inside of each turn of this one."""
    for u in kernel.facts.reduces:
        loops = [r for r in u.src[1:] if not r.arg.kind.is_lane]
        if axis in loops[:-1]:
            return False
    return True
