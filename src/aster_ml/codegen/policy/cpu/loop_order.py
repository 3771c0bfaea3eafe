"""Loop interchange of the outputs: what is packed or loaded from afar is so as seldom as can be.

Receives a Plan whose SIMD axis and tile are chosen; applies SWAP alone.
"""

from __future__ import annotations

import itertools

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.cpu.costs import Plan, execution_count
from aster_ml.codegen.staging.panel import panel_of
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.ranges import iterations, size_of


def set_order(kernel: Kernel, wanted: list[UOp]) -> None:
    """Brings these output loops into this order, by swaps."""
    for i, r in enumerate(wanted):
        now = [x for x in kernel.outputs if x in wanted]
        if now[i] is not r:
            apply(kernel, Opt(OptOps.SWAP, axis_name(now[i]), axis_name(r)))


def hoist_axes(kernel: Kernel) -> set[UOp]:
    """Output axes that some reduction runs directly inside of, with others further in."""
    outputs = {r for r in kernel.outputs if not r.arg.kind.is_lane}
    result: set[UOp] = set()
    for u in kernel.reduces:
        mine = {r for r in u.ranges if r in outputs}
        if mine != outputs:
            result |= mine
    return result


def order_for_slab(plan: Plan) -> None:
    """The loops that a slab depends on come first, so that it is filled once for all others.

    Those that a packed panel changes with stand before them: that takes longer to fill.
    """
    kernel, stage = plan.kernel, plan.kernel.slab_stage()
    assert stage is not None
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    a = panel_of(kernel)
    packed = {} if a is None else a.strides
    set_order(kernel, sorted(loops, key=lambda r: (r not in packed, r not in stage.ranges)))


def order_loops(plan: Plan) -> None:
    """The order of the output loops in which least is loaded again from beyond the second cache.

    At each depth, what the loops further in touch either stays in the cache or does not; from the
    outermost depth at which it does, each loop further out loads again what depends on it, save
    that what does not depend on the nearest such loop is still there. What is loaded again after so
    much else that the last cache does not hold it any more comes from memory, and counts as more.
    """
    kernel = plan.kernel
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane and kernel.may_reorder(r)]
    loads = set().union(*[kernel.facts.inside[u] for u in kernel.reduces])
    # Scratch stays in the nearest caches.
    accesses = [a for a in plan.accesses if a.node in loads and a.buffer.op is Ops.PARAM]
    cache = plan.target.cache_bytes[1] // 2
    total = sum(
        min(execution_count(a), a.buffer.arg.size) * a.buffer.dtype.itemsize for a in accesses
    )
    if not 2 <= len(loops) <= 4 or total <= cache:
        return

    # Half of it, as of the second one above.
    last_cache = max(plan.target.cache_bytes) // 2
    costs = plan.target.costs
    dearer = costs.cache_bytes[-1] / costs.memory_bytes - 1

    sizes = {r: size_of(r) for r in loops}
    # What an access touches within all of the loops.
    within = [
        iterations([r for r in a.strides if r not in sizes]) * a.buffer.dtype.itemsize
        for a in accesses
    ]

    def traffic(order: tuple[UOp, ...]) -> float:
        # By access and depth: what is touched from there on inwards.
        touched = []
        for a, nbytes in zip(accesses, within, strict=True):
            row = [float(nbytes)]
            for r in reversed(order):
                row.append(row[-1] * sizes[r] if r in a.strides else row[-1])
            touched.append(row[::-1])
        inside = list(map(sum, zip(*touched, strict=True)))
        depth = len(order)
        while depth and inside[depth - 1] <= cache:
            depth -= 1
        result = 0.0
        for a, row in zip(accesses, touched, strict=True):
            # How often its first loads, all of them, and those from memory are made.
            once = again = far = 1
            near = True
            for i in reversed(range(depth)):
                size, changes = sizes[order[i]], order[i] in a.strides
                near = near and not changes
                once *= size if changes else 1
                again *= 1 if near else size
                far *= size if changes or (inside[i + 1] > last_cache and not near) else 1
            result += row[depth] * (again + dearer * (far - once))
        return result

    best = min(itertools.permutations(loops), key=traffic)
    if traffic(best) < 0.8 * traffic(tuple(loops)):
        set_order(kernel, list(best))


def order_for_hoisting(plan: Plan) -> None:
    """Brings the loops that a reduction depends on outside of those that it does not.

    why: inside of the others it would run again for each of their steps
    """
    kernel = plan.kernel
    outer = hoist_axes(kernel)
    loops = [r for r in kernel.outputs if not r.arg.kind.is_lane]
    if outer and all(map(kernel.may_reorder, loops)):
        uses = {r: sum(r in u.ranges for u in kernel.reduces) for r in loops}
        set_order(kernel, sorted(loops, key=lambda r: -uses[r]))
