"""Default schedules of products with few results of each unpacked number: SIMD lanes along the
bytes of a block, the bits of a byte and the rest of its block side by side, a few rows at once.

Receives a Plan whose sums are split at the blocks; applies Opts to its Kernel. What is taken out of
the sum over a block is said in `transforms/factored_sums`.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply, upcast
from aster_ml.codegen.estimate import pays_threads
from aster_ml.codegen.kernel import Decision, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.plans import UnpackedOperand
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import Plan
from aster_ml.codegen.policy.cpu.loop_order import set_order
from aster_ml.codegen.tails import can_overlap
from aster_ml.codegen.transforms.unpacked import FEW_USES, Operand, find_operands, is_unpacked
from aster_ml.helpers import divisors
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, Ops
from aster_ml.uop.ranges import size_of

# Steps of a sum that stand side by side, in SIMD values; and rows that share the other operand.
MOST_STEPS, MOST_ROWS = 32, 4


def choose_unpacked(plan: Plan) -> bool:
    """Gives products of few results with unpacked numbers their schedule; false for others."""
    kernel = plan.kernel
    if not is_unpacked(kernel):
        return False
    operands = find_operands(kernel)
    if not operands or any([operand.uses > FEW_USES for operand in operands]):
        return False
    if len(operands) != len(kernel.reduces) or not can_overlap(kernel):
        return False
    lanes = plan.target.lanes(4)
    if lanes < 2:
        return False
    walked = [lane_of(kernel, operand, lanes) for operand in operands]
    if None in walked:
        return False
    outputs = [r for r in kernel.outputs if r.src[0].op is Ops.CONST and kernel.may_reorder(r)]
    if len(outputs) < len(kernel.outputs):
        return False
    for operand, lane in zip(operands, walked, strict=True):
        assert lane is not None
        write_out(plan, operand, lane, lanes)
    rows = widen_rows(plan, operands)
    kernel.notes.append(
        Decision("lanes along the bytes of blocks, rows at once", str(rows), (("", float(rows)),))
    )
    share_rows(plan)
    return True


def lane_of(kernel: Kernel, operand: Operand, lanes: int) -> UOp | None:
    """The axis of a sum along which bytes lie side by side, if it has whole SIMD values."""
    inside = kernel.facts.inside[operand.reduce]
    mine = [a for a in kernel.accesses() if a.node in inside and a.buffer.dtype.itemsize == 1]
    fitting = [
        r
        for r in operand.reduce.src[1:]
        if r.src[0].op is Ops.CONST
        and size_of(r) % lanes == 0
        and any([a.stride(r) == 1 for a in mine])
        and all([a.stride(r) in (0, 1) for a in mine])
    ]
    return max(fitting, key=size_of, default=None)


def write_out(plan: Plan, operand: Operand, lane: UOp, lanes: int) -> None:
    """SIMD lanes along one axis; the rest of it, and short axes of the block, side by side."""
    kernel = plan.kernel
    closed = [r.arg.id for r in operand.reduce.src[1:]]
    nodes = work_of(operand.reduce)
    apply(kernel, Opt(OptOps.VECTOR, axis_name(lane), lanes))
    written = 1
    # The innermost first: what is left of the lanes, then the axes around them.
    for number in reversed(closed):
        r = next((r for r in kernel.facts.reduced if r.arg.id == number), None)
        if r is None or r.src[0].op is not Ops.CONST or number == closed[0]:
            continue
        size = size_of(r)
        if written * size > MOST_STEPS or nodes * written * size > 4 * MAX_BODY:
            break
        apply(kernel, Opt(OptOps.UNROLL, axis_name(r), size))
        written *= size


def work_of(u: UOp) -> int:
    """Operations and loads of a step of a sum."""
    return len([x for x in toposort(u.src[0]) if x.op in VALUES and x.dtype.kind != "index"])


def widen_rows(plan: Plan, operands: list[Operand]) -> int:
    """Results side by side that share what the other operand loads; how many."""
    kernel = plan.kernel
    total = 1
    for r in list(kernel.outputs):
        others = [o for o in operands if r not in o.axes]
        most = FEW_USES if others else MOST_ROWS
        fitting = [n for n in divisors(size_of(r)) if n <= most and total * n <= FEW_USES]
        if fitting[-1] > 1:
            upcast(kernel, r, fitting[-1])
            total *= fitting[-1]
    return total


def share_rows(plan: Plan) -> None:
    """Threads share the longest output axis out, where there is enough to do."""
    kernel, target = plan.kernel, plan.target
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if target.threads < 2 or not loops or not pays_threads(kernel, target):
        return
    longest = max(loops, key=size_of)
    if size_of(longest) >= target.threads:
        apply(kernel, Opt(OptOps.THREAD, axis_name(longest)))


def order_for_unpacked(plan: Plan) -> None:
    """The loops that a panel of unpacked numbers changes with come first: it is filled seldom."""
    kernel = plan.kernel
    memory = {p.memory for p in kernel.plans_of(UnpackedOperand)}
    walked = {r for a in plan.accesses if a.buffer in memory for r in a.strides}
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    if memory:
        set_order(kernel, sorted(loops, key=lambda r: r not in walked))
