"""The search space: schedules near a given one, which a search tries next.

Receives a kernel AST, a Target and Opts; returns lists of Opts that can be applied to the kernel,
each one change away, and the schedules from which a search sets out. Which of them is faster is not
known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.codegen.policy.protocol import Opts, policy_of
from aster_ml.errors import InternalError, KernelOptError
from aster_ml.target import Target
from aster_ml.uop.node import UOp

# What sums need for their accuracy is not up for search.
KEPT = frozenset({"KBLOCK wide"})
# Opts of a whole kernel, or of its one reduction: there is one of each.
ONCE = frozenset(
    {
        "THREAD", "VECTOR", "KBLOCK output", "KBLOCK row", "NONTEMPORAL", "PIPELINE stores",
        "PIPELINE folds", "PIPELINE copies", "PIPELINE producer", "BLOCKS order",
        "BLOCKS loop", "BLOCKS cluster", "STAGE local", "STAGE out", "TC",
    }
)  # fmt: skip


def starts(ast: UOp, target: Target) -> Iterator[Opts]:
    """Whole schedules by price that the policy found dearer than the default one."""
    found = {tuple(schedule_kernel(ast, target).applied)}
    for rank in range(1, policy_of(target).ranks(target)):
        opts = tuple(schedule_kernel(ast, target, rank=rank).applied)
        if opts not in found:
            found.add(opts)
            yield opts


def neighbours(ast: UOp, target: Target, opts: Opts, most: float | None = None) -> Iterator[Opts]:
    """Yields the schedules one change away; equal kernels come once.

    With `most`, those are left out that are estimated to take more than so many times as long.
    """
    start = applied(ast, target, opts)
    if start is None:
        return
    found, policy = {start.value}, policy_of(target)
    longest = None if most is None else most * policy.cycles(start, target)
    for candidate in changed(start, opts, target):
        kernel = applied(ast, target, candidate)
        if kernel is None or kernel.value in found or not policy.fits(kernel, target):
            continue
        found.add(kernel.value)
        if longest is None or policy.cycles(kernel, target) <= longest:
            yield candidate


def applied(ast: UOp, target: Target, opts: Opts) -> Kernel | None:
    """The kernel with these Opts; None where one of them does not fit."""
    try:
        return schedule_kernel(ast, target, opts)
    except (KernelOptError, InternalError):
        return None


def changed(kernel: Kernel, opts: Opts, target: Target) -> Iterator[Opts]:
    """Every single change: another size, one Opt less, one Opt more."""
    policy = policy_of(target)
    for i, opt in enumerate(opts):
        for other in policy.sizes(opt, target):
            yield (*opts[:i], other, *opts[i + 1 :])
    for i, opt in enumerate(opts):
        if opt.kind not in KEPT:
            yield (*opts[:i], *opts[i + 1 :])
    had = {opt.kind for opt in opts} & ONCE
    for more in policy.additions(kernel, target):
        if not any(opt.kind in had for opt in more):
            yield policy.insert(opts, more)
