"""Default schedules of products with stored narrow numbers: words of blocks, panels of words, and
floats that serve few results.

Receives a Plan; applies Opts to its Kernel. Where codes are decoded as they are read, SIMD lanes
run where codes lie side by side: along the results for words of four, along the sum for floats.
Steps of a block, and a few results that share what is decoded or what is multiplied, are written
out. Panels of words are priced in `dot_product`. How words are multiplied is said in
`transforms/block_products`, what is taken out of a sum of floats in `transforms/factored_sums`.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply, upcast
from aster_ml.codegen.estimate import pays_threads
from aster_ml.codegen.kernel import Decision, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import Plan
from aster_ml.codegen.policy.cpu.dot_product import choose_dot
from aster_ml.codegen.policy.cpu.loop_order import set_order
from aster_ml.codegen.policy.cpu.prefetch import ask_for_words
from aster_ml.codegen.tails import can_overlap
from aster_ml.codegen.transforms.block_products import (
    GROUP,
    BlockProduct,
    find_block_product,
    has_bytes,
)
from aster_ml.codegen.transforms.decoded import FEW_USES, DecodedOperand, find_operands, is_unpacked
from aster_ml.helpers import divisors
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, Ops
from aster_ml.uop.ranges import size_of

# Words of a block that stand side by side; steps of a sum of floats, in SIMD values.
MOST_WORDS, MOST_STEPS = 16, 32
# Results of a tile that share what is decoded, and those that share what is multiplied.
MOST_ROWS, MOST_COLUMNS = 8, 4


def choose_decoded(plan: Plan) -> bool:
    """Gives products with stored narrow numbers their schedule; false for other kernels."""
    return choose_words(plan) or choose_dot(plan) or choose_floats(plan)


def choose_words(plan: Plan) -> bool:
    """Gives sums of products of bytes within blocks their schedule; false for other kernels."""
    kernel, target = plan.kernel, plan.target
    if not has_bytes(kernel, target):
        return False
    found = [find_block_product(u) for u in kernel.reduces]
    products = [p for p in found if p is not None]
    if not products or not all([kernel.may_reorder(r) for r in kernel.outputs]):
        return False
    lanes = target.lanes(4)
    lane = lane_of_words(kernel, products, lanes)
    if lane is None:
        return False
    packed = {r for p in products for x in p.loads for r in x.ranges}
    ids = {r.arg.id for p in products for r in p.reduce.src[1:] if r is not p.group}
    apply(kernel, Opt(OptOps.VECTOR, axis_name(lane), lanes))
    for r in list(kernel.facts.reduced):
        if r.arg.id in ids and r.src[0].op is Ops.CONST and size_of(r) <= MOST_WORDS:
            apply(kernel, Opt(OptOps.UNROLL, axis_name(r), size_of(r)))
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    write_out_rows(plan, {r: MOST_ROWS for r in loops if r not in packed})
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    set_order(kernel, sorted(loops, key=lambda r: r not in packed))
    ask_for_words(plan)
    share(plan)
    return True


def lane_of_words(kernel: Kernel, products: list[BlockProduct], lanes: int) -> UOp | None:
    """The output axis along which the words of all products lie side by side."""
    loads = {x for p in products for x in p.loads}
    mine = [a for a in kernel.accesses() if a.node in loads]
    for r in kernel.outputs:
        if r.src[0].op is Ops.CONST and size_of(r) % lanes == 0:
            if all([a.stride(r) == GROUP for a in mine]):
                return r
    return None


def choose_floats(plan: Plan) -> bool:
    """Gives products of few results with decoded floats their schedule; false for others."""
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
    walked = [lane_of_bytes(kernel, operand, lanes) for operand in operands]
    if None in walked:
        return False
    if not all([r.src[0].op is Ops.CONST and kernel.may_reorder(r) for r in kernel.outputs]):
        return False
    for operand, lane in zip(operands, walked, strict=True):
        assert lane is not None
        write_out(plan, operand, lane, lanes)
    shared = {r for o in operands for r in kernel.outputs if r not in o.axes}
    write_out_rows(plan, {r: MOST_ROWS if r in shared else MOST_COLUMNS for r in kernel.outputs})
    share(plan)
    return True


def lane_of_bytes(kernel: Kernel, operand: DecodedOperand, lanes: int) -> UOp | None:
    """The axis of a sum along which bytes lie side by side, if it has whole SIMD values."""
    mine = [a for a in kernel.accesses() if a.node in operand.codes]
    fitting = [
        r
        for r in operand.reduce.src[1:]
        if r.src[0].op is Ops.CONST
        and size_of(r) % lanes == 0
        and any([a.stride(r) == 1 for a in mine])
        and all([a.stride(r) in (0, 1) for a in mine])
    ]
    return max(fitting, key=size_of, default=None)


def write_out(plan: Plan, operand: DecodedOperand, lane: UOp, lanes: int) -> None:
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


def write_out_rows(plan: Plan, most: dict[UOp, int]) -> None:
    """Results side by side along axes, at most so many of each, and MOST_ROWS together."""
    kernel = plan.kernel
    total = 1
    for r, side in most.items():
        sides = divisors(int(r.src[0].const_factor()))
        n = max([n for n in sides if n <= side and total * n <= MOST_ROWS])
        if n > 1:
            upcast(kernel, r, n)
            total *= n
    kernel.notes.append(
        Decision(
            "lanes where codes lie side by side, rows at once", str(total), (("", float(total)),)
        )
    )


def share(plan: Plan) -> None:
    """Threads share the longest output axis out, where there is enough to do."""
    kernel, target = plan.kernel, plan.target
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and r.src[0].op is Ops.CONST]
    if target.threads < 2 or not loops or not pays_threads(kernel, target):
        return
    longest = max(loops, key=size_of)
    if size_of(longest) >= target.threads:
        apply(kernel, Opt(OptOps.THREAD, axis_name(longest)))
