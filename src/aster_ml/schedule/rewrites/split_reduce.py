"""Long reductions with few results, in two steps, so that every thread has a part.

rewrite: REDUCE(x, axes) -> REDUCE(CONTIGUOUS(REDUCE(x', axes')), axes'')
when: several workers share a kernel, there are not enough results for them, and enough is reduced;
    or a sum has more steps than a device makes in a loop
why: a kernel is shared out over its outputs only
"""

from __future__ import annotations

import functools
import itertools

from aster_ml.config import SPLIT_REDUCE
from aster_ml.helpers import all_int, ceildiv, divisors, prod
from aster_ml.schedule.work import Work, Workers, WorkersOf
from aster_ml.uop.graph import rebuilt
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Parts of an axis that none fits are whole multiples of so many elements, if they are much longer.
EVEN, MUCH = 128, 16
# Most parts, and most of them for each worker: what is left of a slow one's others take over, and
# more are hardly better balanced.
PARTS, PARTS_EACH = 256, 8
# Parts that divide are left alone where somebody waits for longer, or where what lies in one piece
# is shorter: then a rest costs less.
MOST_WAITING, RUN = 1.1, 1024
# A rest is reduced by one worker: this part of what each of the others has, or less.
LITTLE = 16


def split_long_reductions(body: UOp, order: list[UOp], work: Work) -> UOp:
    """A long reduction with few results becomes two, so that every thread has a part of it."""
    if not SPLIT_REDUCE:
        return body
    workers = functools.cache(work.workers)
    return rebuilt(body, (Ops.REDUCE,), lambda old, u: split_one(u, workers), order)


def split_one(u: UOp, workers: WorkersOf) -> UOp:
    """One REDUCE, split along an axis that has enough parts, an outer one first; or as it was."""
    x = u.src[0]
    shape = x.shape
    if not all_int(shape):
        return u
    kept = prod([s for i, s in enumerate(shape) if i not in u.arg.axes])
    # What only repeats is multiplied, not added up.
    long = [a for a in u.arg.axes if x.op is not Ops.EXPAND or not x.src[0].shape[a] == 1]
    length = prod([shape[a] for a in long])
    if not long or kept * length == 0 or not isinstance(u.device, str):
        return u
    shared = workers(u.device)
    count = shared.number
    is_endless = bool(shared.turns) and length > shared.turns
    if count < 2 or not (is_endless or is_shared_badly(kept, length, shared)):
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
    partial = x.stretch(axis, 0, main).mop(Ops.RESHAPE, split_shape).rop(u.arg.op, axes)
    stored = UOp(Ops.CONTIGUOUS, u.dtype, (partial,))
    total = stored.rop(u.arg.op, (axis,)).mop(Ops.RESHAPE, u.shape)
    if main == shape[axis]:
        return total
    # What is over is reduced with the parts.
    rest = x.stretch(axis, main, shape[axis]).rop(u.arg.op, u.arg.axes)
    return total.alu(u.arg.op, rest)


def is_shared_badly(kept: int, length: int, shared: Workers) -> bool:
    """Whether a long reduction has too few results for those who share a kernel."""
    return kept <= shared.results and kept * length >= shared.least


def split_of(shape: tuple[int, ...], long: list[int], workers: int) -> tuple[int, int, int]:
    """The axis to split, into how many parts, and the length of each: what is over is a rest.

    Parts are runs of memory that are long enough, and take equally long: those of an axis that
    divides so, an outer one first, else of one of which little is left over, else of the longest.
    """
    first = next(a for a, s in enumerate(shape) if s != 1)

    def in_one_piece(axis: int, inner: int) -> bool:
        return axis == first or inner * prod(shape[axis + 1 :]) >= RUN

    for a in long:
        parts = parts_of(shape[a], workers)
        if parts and waiting(parts, workers) <= MOST_WAITING:
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
    """Into how many parts to split an axis: those that leave nobody waiting; 0 if there are none.

    A multiple of the workers leaves nobody, many parts hardly anybody.
    """
    fitting = [d for d in divisors(size) if workers <= d <= max(PARTS, workers)]
    enough = [d for d in fitting if d >= min(PARTS_EACH * workers, PARTS)]
    return min(fitting, key=lambda d: (waiting(d, workers), d not in enough[:1], d), default=0)


def waiting(parts: int, workers: int) -> float:
    """How many times as long so many parts take as they would if they were shared out evenly."""
    return float(round(ceildiv(parts, workers) * workers / parts, 1))
