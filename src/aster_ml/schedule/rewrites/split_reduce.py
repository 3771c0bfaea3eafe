"""Splits long reductions with few results in two, so that every thread has work (split-K).

rewrite: REDUCE(x, axes) -> REDUCE(CONTIGUOUS(REDUCE(x', axes')), axes'')
when: several workers share a kernel, there are too few results for them, and the sum is long; or a
    sum has more steps than a device allows in a loop
why: only output axes of a kernel are divided among workers
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from aster_ml.config import SPLIT_REDUCE
from aster_ml.helpers import all_int, ceildiv, divisors, prod
from aster_ml.schedule.work import Work, Workers, WorkersOf
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Parts of an axis without a fitting divisor are multiples of EVEN elements, if much longer.
EVEN, MUCH = 128, 16
# Maximum number of parts.
PARTS = 256
# Maximum number of parts for each worker: other workers steal parts of a slow one, and more parts
# hardly improve the balance. Measured: on two cores of a Zen 4, 2026-11-23
# (docs/explanation/tuning/threads.md).
PARTS_EACH = 8
# A divisor is not used as number of parts where it takes MAX_WAITING times the balanced time, or
# where contiguous runs are shorter than RUN: then a remainder costs less.
MAX_WAITING, RUN = 1.1, 1024
# Approximate results along a side of a product's tile; few rows; and minimum steps of a part.
TILE, FEW_ROWS, MIN_STEPS = 64, 16, 512
VIEWS = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE})
# One worker reduces the remainder, which is at most this fraction of a part.
LITTLE = 16


def split_long_reductions(body: UOp, order: list[UOp], work: Work) -> UOp:
    """Splits long reductions with few results in two, so that every thread has a part."""
    if not SPLIT_REDUCE:
        return body
    workers = functools.cache(work.workers)
    return rebuilt(body, (Ops.REDUCE,), lambda old, u: split_one(u, workers), order)


def split_one(u: UOp, workers: WorkersOf) -> UOp:
    """A REDUCE split along an axis with enough parts, outer axes first; or the unchanged node."""
    x = u.src[0]
    shape = x.shape
    if not all_int(shape):
        return u
    kept = prod([s for i, s in enumerate(shape) if i not in u.arg.axes])
    # A sum over an expanded axis is a multiplication.
    long = [a for a in u.arg.axes if x.op is not Ops.EXPAND or not x.src[0].shape[a] == 1]
    length = prod([shape[a] for a in long])
    if not long or kept * length == 0 or not isinstance(u.device, str):
        return u
    shared = workers(u.device)
    if shared.units and (sides := sides_of_product(u)):
        split = split_product(u, sides, long, shared.units)
        if split is not u:
            return split
    count = shared.number
    is_endless = bool(shared.turns) and length > shared.turns
    if count < 2 or not (is_endless or has_too_few_results(kept, length, shared)):
        return u
    rows = prod([s for i, s in enumerate(shape[: long[-1]]) if i not in u.arg.axes])
    if rows >= 2 * count and not is_endless:
        return u
    axis, parts, inner = split_of(shape, long, count)
    if not inner:
        return u
    main = parts * inner
    split_shape = (*shape[:axis], parts, inner, *shape[axis + 1 :])
    axes = tuple(sorted([a if a < axis else a + 1 for a in u.arg.axes if a != axis] + [axis + 1]))
    partial = x.stretch(axis, 0, main)._mop(Ops.RESHAPE, split_shape)._rop(u.arg.op, axes)
    stored = UOp(Ops.CONTIGUOUS, u.dtype, (partial,))
    total = stored._rop(u.arg.op, (axis,))._mop(Ops.RESHAPE, u.shape)
    if main == shape[axis]:
        return total
    # The remainder is reduced with the parts.
    rest = x.stretch(axis, main, shape[axis])._rop(u.arg.op, u.arg.axes)
    return total.alu(u.arg.op, rest)


def has_too_few_results(kept: int, length: int, shared: Workers) -> bool:
    """Whether a long reduction has too few results for the workers of a kernel."""
    return kept <= shared.results and kept * length >= shared.least


def sides_of_product(u: UOp) -> tuple[int, int] | None:
    """The results along axes that only one factor has, for both factors of a sum of products."""
    x = u.src[0]
    if u.arg.op is not Ops.ADD or x.op is not Ops.MUL:
        return None
    repeats = [repeated(f) for f in x.src]
    kept = [i for i in range(len(x.shape)) if i not in u.arg.axes]
    sides = [
        prod([x.shape[i] for i in kept if i in mine and i not in other])
        for mine, other in (repeats, repeats[::-1])
    ]
    return (sides[0], sides[1]) if min(sides) > 1 else None


def repeated(factor: UOp) -> set[int]:
    """The axes along which a value is constant."""
    while factor.op is Ops.CAST:
        factor = factor.src[0]
    if factor.op is not Ops.EXPAND:
        return set()
    return {i for i, n in enumerate(factor.src[0].shape) if n == 1 and factor.shape[i] != 1}


def split_product(u: UOp, sides: tuple[int, int], long: list[int], units: int) -> UOp:
    """Splits the sum of a product with few tiles of results into parts for several processors.

    rewrite: REDUCE(a * b, axes) -> REDUCE(CONTIGUOUS(REDUCE(a' * b', axes')) of [parts, ...], 0)
    why: a tile runs on one processor, which uses a small part of the memory bandwidth
    """
    x = u.src[0]
    kept = [i for i in range(len(x.shape)) if i not in u.arg.axes]
    others = prod([x.shape[i] for i in kept]) // prod(sides)
    narrow = min(sides) <= FEW_ROWS
    tile = (FEW_ROWS, 2 * FEW_ROWS) if narrow else (TILE, TILE)
    tiles = others * prod([ceildiv(n, t) for n, t in zip(sorted(sides), tile, strict=True)])
    axis = max(long, key=lambda a: int(x.shape[a]))
    size = x.shape[axis]
    most = min(2 * units // max(tiles, 1), size // MIN_STEPS)
    fitting = [d for d in divisors(size) if d <= most and size // d % EVEN == 0]
    if 4 * tiles > 3 * units or not fitting or fitting[-1] < 2:
        return u
    parts = fitting[-1]
    shape = (*x.shape[:axis], parts, size // parts, *x.shape[axis + 1 :])
    order = (axis, *[i for i in range(len(shape)) if i != axis])

    def apart(factor: UOp) -> UOp:
        return factor._mop(Ops.RESHAPE, shape)._mop(Ops.PERMUTE, order)

    a, b = (below_cast(f, apart) for f in x.src)
    partial = a.alu(Ops.MUL, b)._rop(Ops.ADD, tuple([i + 1 for i in u.arg.axes]))
    stored = UOp(Ops.CONTIGUOUS, u.dtype, (partial,))
    return stored._rop(Ops.ADD, (0,))._mop(Ops.RESHAPE, u.shape)


def below_cast(value: UOp, change: Callable[[UOp], UOp]) -> UOp:
    """A value with movement applied below its CAST, if it is a view of one.

    why: a product then reads the narrow operand from memory
    """
    views = []
    u = value
    while u.op in VIEWS:
        views.append(u)
        u = u.src[0]
    if u.op is not Ops.CAST:
        return change(value)
    inner = u.src[0]
    for view in reversed(views):
        inner = inner._mop(view.op, view.arg)
    return UOp(Ops.CAST, u.dtype, (change(inner),))


def split_of(shape: tuple[int, ...], long: list[int], workers: int) -> tuple[int, int, int]:
    """The axis to split, the number of parts, and the length of each; the rest is a remainder.

    Parts are long contiguous runs of equal length: of an axis that divides so, outer axes first;
    else of an axis with a small remainder; else of the longest axis.
    """
    first = next(a for a, s in enumerate(shape) if s != 1)

    def in_one_piece(axis: int, inner: int) -> bool:
        return axis == first or inner * prod(shape[axis + 1 :]) >= RUN

    for a in long:
        parts = parts_of(shape[a], workers)
        if parts and waiting(parts, workers) <= MAX_WAITING:
            if in_one_piece(a, shape[a] // parts):
                return a, parts, shape[a] // parts
    for a, each in itertools.product(long, range(PARTS_EACH, 0, -1)):
        inner = shape[a] // (each * workers)
        rest = shape[a] - inner * each * workers
        if inner and rest * workers * LITTLE <= shape[a] and in_one_piece(a, inner):
            return a, each * workers, inner - (inner % EVEN if inner >= MUCH * EVEN else 0)
    longest = max(long, key=lambda a: shape[a])
    return longest, PARTS_EACH * workers, shape[longest] // (PARTS_EACH * workers)


def parts_of(size: int, workers: int) -> int:
    """The number of parts of an axis that keeps all workers busy; 0 if there is none.

    A multiple of the workers is perfectly balanced, many parts nearly so.
    """
    fitting = [d for d in divisors(size) if workers <= d <= max(PARTS, workers)]
    enough = [d for d in fitting if d >= min(PARTS_EACH * workers, PARTS)]
    return min(fitting, key=lambda d: (waiting(d, workers), d not in enough[:1], d), default=0)


def waiting(parts: int, workers: int) -> float:
    """Ratio of the time of this many parts to the time of a perfect balance."""
    return float(round(ceildiv(parts, workers) * workers / parts, 1))
