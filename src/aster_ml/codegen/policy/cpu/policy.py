"""The policy for CPUs: the default schedule, and what a search may change.

Receives a kernel and a Target; `policy/protocol` says what its functions answer. Loops are chosen
in `heuristic`, scratch in `staging`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.given_opts import apply_given
from aster_ml.codegen.kernel import Kernel
from aster_ml.codegen.opts import Opt, OptOps, axis_name
from aster_ml.codegen.policy.body_size import is_small
from aster_ml.codegen.policy.cpu.heuristic import choose_opts
from aster_ml.codegen.policy.cpu.staging import choose_row, choose_staging
from aster_ml.codegen.tails import can_overlap, shifted_lanes
from aster_ml.config import DETERMINISTIC, NOOPT, SAME_THREADS
from aster_ml.helpers import ceildiv
from aster_ml.target import Target
from aster_ml.uop.ranges import size_of

Opts = tuple[Opt, ...]
# Lanes that are tried along one axis, and the numbers of them next to each other.
LANES = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 24, 32)
SIDES = frozenset({"UPCAST", "UPCAST shift", "UNROLL"})
# What comes in powers of two, or as half and double.
HALVED = frozenset({"VECTOR", "KBLOCK output", "KBLOCK row", "SPLIT loop", "PREFETCH"})
# SIMD axes, by price, that a search sets out from.
RANKS = 4


def choose(kernel: Kernel, target: Target, rank: int = 0, by_hand: Opts | None = None) -> None:
    """Loops by price, or as Opts written by hand have them, and scratch around them."""
    if target.is_cpu:
        choose_row(kernel, target)
    if by_hand is not None:
        apply_given(kernel, by_hand, target, by_hand=True)
    else:
        if DETERMINISTIC:
            # The same choices whatever the number of threads, so the same order of additions.
            target = replace(target, threads=SAME_THREADS)
        choose_opts(kernel, target, rank)
    if target.is_cpu and not NOOPT:
        choose_staging(kernel, target)


def ranks(target: Target) -> int:
    """One for each SIMD axis that is tried."""
    return RANKS


def sizes(opt: Opt, target: Target) -> list[Opt]:
    """An Opt that has a size with others."""
    if opt.kind in SIDES:
        numbers = near(opt.arg)
    else:
        numbers = [n for n in (opt.arg // 2, opt.arg * 2) if n > 1] if opt.kind in HALVED else []
    return [opt._replace(arg=n) for n in numbers]


def near(n: int) -> list[int]:
    """Sizes next to one; for large ones, half and double."""
    if n > LANES[-1]:
        return [n // 2, n * 2]
    smaller = [x for x in LANES if x < n][-2:]
    return [*smaller, *[x for x in LANES if x > n][:2]]


def additions(kernel: Kernel, target: Target) -> Iterator[Opts]:
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


def insert(opts: Opts, more: Opts) -> Opts:
    """Behind all others: what is left of each axis keeps its name."""
    return (*opts, *more)


def fits(kernel: Kernel, target: Target) -> bool:
    """Whether the loop body stays within bounds."""
    return is_small(kernel)


def cycles(kernel: Kernel, target: Target) -> float:
    """Cycles of the resource that takes longest."""
    return estimate(kernel, target).busy
