"""The search space: schedules near a given one, which a search tries next.

Receives a kernel AST, a Target and Opts; returns lists of Opts that can be applied to the kernel,
each one change away, and the schedules from which a search sets out. Which of them is faster is not
known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.passes import schedule_kernel
from aster_ml.codegen.plans import Fragments
from aster_ml.codegen.policy.cpu.costs import MAX_BODY
from aster_ml.codegen.policy.gpu import moves
from aster_ml.codegen.tails import can_overlap, shifted_lanes
from aster_ml.errors import InternalError, KernelOptError
from aster_ml.helpers import ceildiv, prod
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import VALUES, Ops
from aster_ml.uop.ranges import size_of

Opts = tuple[Opt, ...]
# Lanes that are tried along one axis, and the numbers of them next to each other.
LANES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)
SIDES = frozenset({"UPCAST", "UPCAST shift", "UNROLL"})
# What comes in powers of two, or as half and double.
HALVED = frozenset({"VECTOR", "KBLOCK output", "KBLOCK row", "SPLIT loop", "PREFETCH"})
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
# SIMD axes, by price, that a search sets out from besides the default one; and tiles of tensor
# cores, with stages.
RANKS, TILE_RANKS = 4, 25


def starts(ast: UOp, target: Target) -> Iterator[Opts]:
    """Whole schedules by the cost, for each of the SIMD axes that it found dearer than the best.

    On devices with tensor cores, for each of the block tiles and numbers of stages.
    """
    found = {tuple(schedule_kernel(ast, target).applied)}
    for rank in range(1, TILE_RANKS if target.tensor_cores else RANKS):
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
    found = {start.value}
    busy = None if most is None else most * busy_for(start, target)
    for candidate in changed(start, opts, target):
        kernel = applied(ast, target, candidate)
        if kernel is None or kernel.value in found or not is_small(kernel):
            continue
        found.add(kernel.value)
        if target.has_local and not moves.fits(kernel, target):
            continue
        if busy is None or busy_for(kernel, target) <= busy:
            yield candidate


def busy_for(kernel: Kernel, target: Target) -> float:
    """The estimate by which candidates are told apart; on work-groups with what stands idle."""
    cycles = estimate(kernel, target).busy
    return cycles * moves.idle(kernel, target) if target.has_local else cycles


def applied(ast: UOp, target: Target, opts: Opts) -> Kernel | None:
    """The kernel with these Opts; None where one of them does not fit."""
    try:
        return schedule_kernel(ast, target, opts)
    except (KernelOptError, InternalError):
        return None


def is_small(kernel: Kernel) -> bool:
    """Whether the loop body stays within bounds; lanes of a tensor core are few instructions."""
    if kernel.plan(Fragments) is not None:
        return True
    nodes = kernel.facts.order
    lanes = [int(r.src[0].vmax) for r in nodes if r.op is Ops.RANGE and r.arg.kind.is_lane]
    work = sum(1 for u in nodes if u.op in VALUES)
    return bool(prod(lanes) // max(lanes, default=1) * work <= 4 * MAX_BODY)


def changed(kernel: Kernel, opts: Opts, target: Target) -> Iterator[Opts]:
    """Every single change: another size, one Opt less, one Opt more."""
    for i, opt in enumerate(opts):
        for other in moves.others(opt, target) if target.has_local else sizes_near(opt):
            yield (*opts[:i], other, *opts[i + 1 :])
    for i, opt in enumerate(opts):
        if opt.kind not in KEPT:
            yield (*opts[:i], *opts[i + 1 :])
    had = {opt.kind for opt in opts} & ONCE
    for more in moves.additions(kernel, target) if target.has_local else additions(kernel):
        if not any(opt.kind in had for opt in more):
            yield moves.inserted(opts, more) if target.has_local else (*opts, *more)


def sizes_near(opt: Opt) -> list[Opt]:
    """An Opt that has a size with others."""
    if opt.kind in SIDES:
        sizes = near(opt.arg)
    else:
        sizes = [n for n in (opt.arg // 2, opt.arg * 2) if n > 1] if opt.kind in HALVED else []
    return [opt._replace(arg=n) for n in sizes]


def near(n: int) -> list[int]:
    """Sizes next to one; for large ones, half and double."""
    if n > LANES[-1]:
        return [n // 2, n * 2]
    smaller = [x for x in LANES if x < n][-2:]
    return [*smaller, *[x for x in LANES if x > n][:2]]


def additions(kernel: Kernel) -> Iterator[Opts]:
    """Opts that may still come on SIMD registers and threads."""
    outputs = {axis_name(r): r for r in kernel.output_loops}
    reduced = {axis_name(r): r for r in kernel.facts.reduced}
    for axis, r in (outputs | reduced).items():
        for n in (2, 3, 4, 6, 8, 16):
            uneven = axis in outputs and size_of(r) % n and shifted_lanes(kernel, r) is None
            yield (Opt(OptOps.UPCAST, axis, n, "shift" if uneven else ""),)
    for axis, r in reduced.items():
        for n in (2, 3, 4, 5, 7, 8):
            yield (Opt(OptOps.UNROLL, axis, n),)
        for n in (2, 4, 8):
            yield (Opt(OptOps.KBLOCK, axis, ceildiv(size_of(r), n), how="output"),)
        yield (Opt(OptOps.KBLOCK, axis, 8, how="row"),)
    for i, j in combinations(outputs, 2):
        yield (Opt(OptOps.SWAP, i, j),)
    for axis, r in outputs.items():
        yield (Opt(OptOps.THREAD, axis),)
        yield (Opt(OptOps.PREFETCH, axis, 2),)
        yield (Opt(OptOps.PIPELINE, axis, how="stores"),)
        yield (Opt(OptOps.PIPELINE, axis, how="folds"),)
        for n in (16, 64, 256):
            if n < size_of(r):
                yield (Opt(OptOps.SPLIT, axis, n, how="loop"),)
    if outputs:
        yield (Opt(OptOps.NONTEMPORAL),)
    for axis, r in (outputs | reduced).items():
        size = size_of(r)
        for n in (4, 8, 16):
            # Lanes of an output may start early; all else has to divide.
            if size % n and (axis in reduced or not can_overlap(kernel) or size < n):
                padded = Opt(OptOps.SPLIT, axis, ceildiv(size, n) * n, how="mask")
                yield (padded, Opt(OptOps.VECTOR, axis, n))
            else:
                yield (Opt(OptOps.VECTOR, axis, n),)
