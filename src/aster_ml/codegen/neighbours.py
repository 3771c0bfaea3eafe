"""Schedules near a given one: what a search tries next.

Receives a kernel AST, a Target and Opts; returns lists of Opts that can be applied to the kernel,
each one change away. Which of them is faster is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.lower import schedule_kernel
from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.errors import InternalError, KernelOptError
from aster_ml.helpers import prod
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, Ops

Opts = tuple[Opt, ...]
# Lanes that are tried along one axis, and the numbers of them next to each other.
LANES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)
SIZED = frozenset({OptOps.UPCAST, OptOps.UNROLL, OptOps.VECTOR, OptOps.BLOCK})
# Nodes times lanes of a loop body, past which compiling takes long and registers overflow.
MAX_BODY = 2048


def neighbours(ast: UOp, target: Target, opts: Opts) -> list[Opts]:
    """What one change makes of a schedule; equal kernels come once."""
    found: dict[UOp, Opts] = {}
    start = applied(ast, target, opts)
    if start is None:
        return []
    for candidate in changed(start, opts):
        kernel = applied(ast, target, candidate)
        if kernel is not None and kernel.sink is not start.sink and is_small(kernel):
            found.setdefault(kernel.sink, candidate)
    return list(found.values())


def applied(ast: UOp, target: Target, opts: Opts) -> Kernel | None:
    """The kernel with these Opts; None where one of them does not fit."""
    try:
        return schedule_kernel(ast, target, opts)
    except (KernelOptError, InternalError):
        return None


def is_small(kernel: Kernel) -> bool:
    """Whether the loop body stays within bounds."""
    nodes = kernel.facts.order
    lanes = [int(r.src[0].vmax) for r in nodes if r.op is Ops.RANGE and r.arg.kind.is_lane]
    work = sum(1 for u in nodes if u.op in ELEMENTWISE or u.op is Ops.LOAD)
    return bool(prod(lanes) // max(lanes, default=1) * work <= MAX_BODY)


def changed(kernel: Kernel, opts: Opts) -> Iterator[Opts]:
    """Every single change: another size, one Opt less, one Opt more."""
    for i, opt in enumerate(opts):
        if opt.op in SIZED:
            for n in near(opt.arg):
                yield (*opts[:i], opt._replace(arg=n), *opts[i + 1 :])
    for i in range(len(opts)):
        yield (*opts[:i], *opts[i + 1 :])
    for more in additions(kernel, opts):
        yield (*opts, more)


def near(n: int) -> list[int]:
    """Sizes next to one; for large ones, half and double."""
    if n > LANES[-1]:
        return [n // 2, n * 2]
    smaller = [x for x in LANES if x < n][-2:]
    return [*smaller, *[x for x in LANES if x > n][:2]]


def additions(kernel: Kernel, opts: Opts) -> Iterator[Opt]:
    """Opts that may still come."""
    outputs, count = kernel.first_reduction, len(kernel.axes)
    for axis in range(count):
        for n in (2, 3, 4, 6, 8):
            yield Opt(OptOps.UPCAST, axis, n)
    for axis in range(count - outputs):
        for n in (2, 4, 8):
            yield Opt(OptOps.UNROLL, axis, n)
    for i, j in combinations(range(outputs), 2):
        yield Opt(OptOps.SWAP, i, j)
    if not any(opt.op is OptOps.THREAD for opt in opts):
        for axis in range(outputs):
            yield Opt(OptOps.THREAD, axis)
    if not any(opt.op is OptOps.VECTOR for opt in opts):
        for axis in range(count):
            for n in (4, 8, 16):
                yield Opt(OptOps.VECTOR, axis, n)
