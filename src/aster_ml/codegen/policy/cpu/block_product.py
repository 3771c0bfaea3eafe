"""Default schedules of sums of products of bytes within blocks: SIMD lanes along the results whose
bytes lie four by four side by side, the words of a block and a few results at once.

Receives a Plan; applies Opts to its Kernel. How four bytes of a lane are multiplied at once is said
in `transforms/block_products`.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply
from aster_ml.codegen.estimate import pays_threads
from aster_ml.codegen.kernel import Decision, Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.cpu.costs import Plan
from aster_ml.codegen.policy.cpu.loop_order import set_order
from aster_ml.codegen.policy.cpu.prefetch import ask_for_words
from aster_ml.codegen.transforms.block_products import (
    GROUP,
    BlockProduct,
    find_block_product,
    has_bytes,
)
from aster_ml.helpers import divisors
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import size_of

# Words of a block that stand side by side, and rows of the other operand that share what is
# unpacked of one.
MOST_WORDS, MOST_ROWS = 16, 8


def choose_blocks(plan: Plan) -> bool:
    """Gives sums of products of bytes within blocks their schedule; false for other kernels."""
    kernel, target = plan.kernel, plan.target
    if not has_bytes(kernel, target):
        return False
    found = [find_block_product(u) for u in kernel.reduces]
    products = [p for p in found if p is not None]
    if not products or not all([kernel.may_reorder(r) for r in kernel.outputs]):
        return False
    lanes = target.lanes(4)
    lane = lane_of(kernel, products, lanes)
    if lane is None:
        return False
    packed = {r for p in products for x in p.loads for r in x.ranges}
    ids = {r.arg.id for p in products for r in p.reduce.src[1:] if r is not p.group}
    apply(kernel, Opt(OptOps.VECTOR, axis_name(lane), lanes))
    for r in list(kernel.facts.reduced):
        if r.arg.id in ids and r.src[0].op is Ops.CONST and size_of(r) <= MOST_WORDS:
            apply(kernel, Opt(OptOps.UNROLL, axis_name(r), size_of(r)))
    rows = widen_rows(kernel, packed)
    kernel.notes.append(
        Decision("lanes along words of blocks, rows at once", str(rows), (("", float(rows)),))
    )
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    set_order(kernel, sorted(loops, key=lambda r: r not in packed))
    ask_for_words(plan)
    share(plan)
    return True


def lane_of(kernel: Kernel, products: list[BlockProduct], lanes: int) -> UOp | None:
    """The output axis along which the words of all products lie side by side."""
    loads = {x for p in products for x in p.loads}
    mine = [a for a in kernel.accesses() if a.node in loads]
    for r in kernel.outputs:
        if r.src[0].op is Ops.CONST and size_of(r) % lanes == 0:
            if all([a.stride(r) == GROUP for a in mine]):
                return r
    return None


def widen_rows(kernel: Kernel, packed: set[UOp]) -> int:
    """Results side by side that share what is unpacked; how many."""
    total = 1
    for r in [r for r in kernel.outputs if r not in packed and not r.arg.kind.is_lane]:
        fitting = [n for n in divisors(int(r.src[0].const_factor())) if total * n <= MOST_ROWS]
        if fitting[-1] > 1:
            apply(kernel, Opt(OptOps.UPCAST, axis_name(r), fitting[-1]))
            total *= fitting[-1]
    return total


def share(plan: Plan) -> None:
    """Threads share the longest output axis out, where there is enough to do."""
    kernel, target = plan.kernel, plan.target
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and r.src[0].op is Ops.CONST]
    if target.threads < 2 or not loops or not pays_threads(kernel, target):
        return
    longest = max(loops, key=size_of)
    if size_of(longest) >= target.threads:
        apply(kernel, Opt(OptOps.THREAD, axis_name(longest)))
