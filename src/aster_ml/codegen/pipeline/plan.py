"""Checks what the Opt PIPELINE asks for, and leaves the plan that `pipeline/loop` carries out.

Receives a kernel and the axis that the Opt names: of outputs, whose steps are rows of which parts
run a row apart (folds, stores); or of a reduction whose strips are copied to local memory (copies,
producer). Which kernels are worth it is chosen in `policy/cpu/elementwise` and `gpu/heuristic`.
"""

from __future__ import annotations

from aster_ml.codegen.analysis import Facts
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.plans import (
    ChainedProducts,
    CopiesAhead,
    CopyPipeline,
    PipelinedFolds,
    PipelinedStores,
    SharedTile,
)
from aster_ml.errors import KernelOptError
from aster_ml.helpers import prod
from aster_ml.uop.graph import holds, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


def row_stage(facts: Facts, outputs: list[UOp], axis: UOp) -> tuple[UOp, UOp] | None:
    """The STAGE of a row that each step of an output axis has, and where its stores read it.

    They read every element of it once, lane by lane, in one loop inside of the axis.
    """
    loops = [r for r in outputs if not r.arg.kind.is_lane]
    stages = facts.by_op[Ops.STAGE]
    if facts.stores_over_reads or len(stages) != 1 or loops[-2:-1] != [axis]:
        return None
    (stage,) = stages
    reads = [a for a in facts.accesses if a.buffer is stage and loops[-1] in a.strides]
    rows = [r for r in outputs if r not in stage.ranges]
    lanes = any(r.arg.kind.is_lane for r in stage.ranges)
    if lanes or len(reads) != 1 or set(rows) != set(reads[0].strides):
        return None
    # Each axis goes on where those before it end.
    run = 1
    for r in sorted(rows, key=lambda r: reads[0].stride(r) or 0):
        if reads[0].stride(r) != run or r.src[0].op is not Ops.CONST:
            return None
        run *= r.src[0].arg
    whole = stage.src[1].src[0]
    return (stage, reads[0].node) if whole.op is Ops.CONST and run == whole.arg else None


def folds_of_next(facts: Facts, axis: UOp) -> tuple[UOp, UOp] | None:
    """The first and the last fold in a step of an output axis, if the first of the next step can
    share the loops of the last one.

    It gives one number out of SIMD lanes, reads nothing but memory that the kernel does not store,
    each element in its own loops, and these have as many iterations as those of the last fold.
    """
    folds = [u for u in facts.reduces if axis in u.ranges]
    if len(folds) < 2 or axis.src[0].op is not Ops.CONST:
        return None
    first, last = folds[0], folds[-1]
    loops, others = ([r for r in u.src[1:] if not r.arg.kind.is_lane] for u in (first, last))
    if not loops or any([r.src[0].op is not Ops.CONST for r in loops + others]):
        return None
    if not any([r.arg.kind.is_lane for r in first.src[1:]]):
        return None
    # Of more than two, one comes before all others, and one after them.
    leaves = [u for u in folds if not holds(u.src[0], {Ops.REDUCE})]
    roots = [u for u in folds if not any([u in toposort(x.src[0]) for x in folds if x is not u])]
    if len(folds) > 2 and (leaves != [first] or roots != [last]):
        return None
    sizes, wanted = [size_of(r) for r in loops], [size_of(r) for r in others]
    if sizes not in (wanted, [prod(wanted)]) or any([r.arg.kind.is_lane for r in first.ranges]):
        return None
    stored = {u.src[0].src[0] for u in facts.stores}
    for u in toposort(first.src[0]):
        if u.op is Ops.REDUCE or u.op is Ops.STAGE:
            return None
        if u.op is Ops.LOAD and (
            u.src[0].src[0] in stored or (axis in u.ranges and u.ranges.isdisjoint(loops))
        ):
            return None
    return first, last


def pipeline_stores(kernel: Kernel, axis: UOp) -> None:
    """Rows along an output axis are stored while the next is made (`row_stores`)."""
    if row_stage(kernel.facts, kernel.outputs, axis) is None:
        raise KernelOptError(
            "an output axis is wanted each step of which keeps a row in scratch and stores one"
        )
    kernel.add(PipelinedStores(axis=axis.arg.id))


def pipeline_folds(kernel: Kernel, axis: UOp) -> None:
    """Rows along an output axis are first folded beside the row before."""
    if axis not in kernel.outputs or folds_of_next(kernel.facts, axis) is None:
        raise KernelOptError(
            "an output axis is wanted each step of which folds twice in loops of as many "
            "iterations, first a row of memory into one number"
        )
    kernel.add(PipelinedFolds(axis=axis.arg.id))


def stored_row(kernel: Kernel) -> tuple[UOp, UOp] | None:
    """Of rows that are stored one step later, the STAGE and where stores read it."""
    axes = [r for r in kernel.outputs if kernel.plan_of(PipelinedStores, r) is not None]
    return row_stage(kernel.facts, kernel.outputs, axes[0]) if axes else None


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
            "iteration; the innermost axis that is summed is wanted"
        )
    kernel.add(kind(axis=axis.arg.id, count=stages))


def is_innermost(kernel: Kernel, axis: UOp) -> bool:
    """Whether no other axis of a sum is gone along inside of each iteration of this one."""
    loops = [[r for r in u.src[1:] if not r.arg.kind.is_lane] for u in kernel.facts.reduces]
    return not any([axis in own[:-1] for own in loops])
