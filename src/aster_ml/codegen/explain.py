"""The schedule of a kernel in words: what was chosen, at which cost, and what bounds the kernel.

Receives a kernel AST, a Target and maybe Opts; returns lines of text. The choices and their costs
are those that `policy/cpu/heuristic` noted while it made them; nothing is decided here.
"""

from __future__ import annotations

from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.kernel import Access, Kernel
from aster_ml.codegen.opts import Opt
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.codegen.plans import Threads
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops
from aster_ml.uop.ranges import size_of


def show_access(a: Access, lanes: list[UOp]) -> str:
    """Describes how a load or store meets the SIMD lanes."""
    verb = "stores to" if a.is_store else "loads from"
    mine = [r for r in lanes if r in a.strides]
    if not lanes:
        how = "one element at a time"
    elif not mine:
        how = "one element for all lanes"
    else:
        stride = a.strides[mine[0]]
        how = {
            None: "lanes at computed places",
            0: "one element for all lanes, masked",
            1: "neighbours",
        }.get(stride, f"lanes {stride} apart")
    times = prod([size_of(r) for r in a.strides if not r.arg.kind.is_lane])
    gate = ", masked" if len(a.node.src) > (2 if a.is_store else 1) else ""
    return f"{verb} slot {a.buffer.arg.slot}: {how}{gate}, in {times:,} places"


def explain_kernel(ast: UOp, target: Target, opts: tuple[Opt, ...] | None = None) -> list[str]:
    """Opts, why these, how memory is met, and what bounds the kernel."""
    if ast.arg is not None and ast.arg.in_order:
        return ["runs its nodes in the order in which they were given"]
    return arranged_lines(schedule_kernel(ast, target, opts), target)


def arranged_lines(kernel: Kernel, target: Target) -> list[str]:
    """The same of a kernel whose axes are arranged already."""
    lines = [f"schedule: {' '.join(map(repr, kernel.applied)) or 'plain loops'}"]
    for note in kernel.notes:
        costs = ", ".join(f"{name}: {cost:,.4g}" for name, cost in note.costs)
        lines.append(f"{note.about}: {note.chosen} ({costs})")
    lanes = [r for r in kernel.facts.by_op[Ops.RANGE] if r.arg.kind is AxisType.VECTOR]
    shown = [show_access(a, lanes) for a in kernel.accesses() if a.buffer.op is Ops.PARAM]
    lines += dict.fromkeys(shown)
    if target.is_cpu:
        threads = target.threads if kernel.plan(Threads) is not None else 1
        lines.append(f"estimate: {estimate(kernel, target).shared(threads)}")
    return lines
