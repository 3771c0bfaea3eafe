"""Unrolls short axes along which different values stand side by side (stacks), lane by lane.

Receives the plan of a kernel and applies Opts to the kernel. What a stack is to the schedule
stands in `schedule.rewrites.stacks`.
"""

from __future__ import annotations

from aster_ml.codegen.apply import apply
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.body_size import MAX_BODY
from aster_ml.codegen.policy.cpu.costs import Plan
from aster_ml.dtype import dtypes
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.target.costs import ASSUMED
from aster_ml.uop.graph import substitute
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops
from aster_ml.uop.ranges import size_of
from aster_ml.uop.rules.linear_form import form_of

# A name of a module is found faster than a member of an Enum, and every node is asked for its op.
CMPEQ = Ops.CMPEQ


def share_loads(kernel: Kernel, target: Target) -> None:
    """Makes one load of those of a stack that read the same element.

    rewrite: LOAD(INDEX(p, f(r)), r < 1) -> WHERE(r < 1, LOAD(INDEX(p, f(0))), 0)
    when: that is loaded in any case
    """
    short = stacks_of(kernel)
    if not short:
        return
    loads = [u for u in kernel.facts.order if u.op is Ops.LOAD]
    gated = [(u, pinned_axis(u.src[1], short)) for u in loads if len(u.src) > 1]
    pinned = [(u, place) for u, place in gated if place is not None]
    if not pinned:
        return
    whole = {place_of(u.src[0].src[0], u.src[0].src[1]): u for u in loads if len(u.src) == 1}
    changes = {}
    for u, (axis, at) in pinned:
        buffer, index = u.src[0].src[:2]
        same = whole.get(place_of(buffer, substitute(index, {axis: UOp.index_const(at)})))
        if same is not None:
            changes[u] = u.src[1].where(same, UOp.const(u.dtype, 0))
    if changes:
        kernel.sink = substitute(kernel.sink, changes)


def pinned_axis(gate: UOp, short: list[UOp]) -> tuple[UOp, int] | None:
    """The axis of which a condition leaves one place, the first or the last, and that place."""
    if gate.op is Ops.CMPLT:
        x, y = gate.src
        if x in short and y.op is Ops.CONST and y.arg == 1:
            return x, 0
        if y in short and x.op is Ops.CONST and x.arg == size_of(y) - 2:
            return y, size_of(y) - 1
    return None


def place_of(buffer: UOp, index: UOp) -> tuple[UOp, int, frozenset[tuple[UOp, int]]]:
    """Key that is equal for two elements exactly where they are."""
    form = form_of(index)
    return buffer, form.const, frozenset(form.terms.items())


def stacks_of(kernel: Kernel) -> list[UOp]:
    """The axes of stacks that may be written out; none where that would be too long."""
    order = kernel.facts.order
    compared = {u.src[0] for u in order if u.op is CMPEQ and u.src[1].op is Ops.CONST}
    fixed = [r for r in kernel.outputs if r in compared and r.src[0].op is Ops.CONST]
    short = [r for r in fixed if size_of(r) <= ASSUMED.written_out]
    if not short or kernel.reduces or not all(map(kernel.may_reorder, short)):
        return []
    values = [u.ranges for u in order if u.op in ELEMENTWISE and u.dtype is not dtypes.index]
    written = sum(prod([size_of(r) for r in short if r in ranges]) for ranges in values)
    return short if written <= 4 * MAX_BODY else []


def write_out_stacks(plan: Plan) -> None:
    """Lanes along the axes of stacks: what stands in a lane is known, so that nothing chooses."""
    kernel = plan.kernel
    for r in stacks_of(kernel):
        apply(kernel, Opt(OptOps.UPCAST, axis_name(r), size_of(r)))
