"""Makes variables of the offsets of slices, so that bodies which differ in them alone share a plan.

Receives what was captured and is not planned yet; returns it as it is, or, from the third offset on
of the same slices, with variables for their offsets. Their numbers go with the values of users'
variables.

rewrite: SHRINK(x, ((3, 35),)) -> SHRINK(SHRINK(x, ((start, size of x),)), ((0, 32),)), start = 3
when: the slice is one of memory that the body does not write, on a device whose kernels read it
why: a loop over `X[i : i + 32]` compiles its kernels twice, and not once for each i; a program that
slices in one place or two keeps kernels whose indices are numbers
"""

from __future__ import annotations

from collections.abc import Callable

from aster_ml.schedule.capture import Captured
from aster_ml.schedule.rewrites.copies import DATA_ONLY
from aster_ml.schedule.rewrites.parts import is_part, place_of
from aster_ml.uop.graph import rebuilt, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# How many bodies that differ in offsets alone are planned with numbers.
WITH_NUMBERS = 2
# Longer bodies, and those with more offsets, are planned as they are.
MAX_NODES, MAX_OFFSETS = 5_000, 16


def with_variables(
    captured: Captured, planned_of: Callable[[UOp, int], list[dict[str, int]]]
) -> Captured:
    """Replaces offsets of slices by variables where others of the same slices were planned.

    `planned_of` gives the list of these by the body with variables and the count of its nodes, and
    keeps it.
    """
    order = captured.order()
    slices = slices_of(order) if len(order) <= MAX_NODES else []
    if not slices:
        return captured
    body, values = with_offsets(captured.body, order, slices, captured.values)
    planned = planned_of(body, len(order))
    # By offsets and not by how often: one body is planned again for other settings.
    offsets = {name: n for name, n in values.items() if name not in captured.values}
    if offsets not in planned and len(planned) < WITH_NUMBERS:
        planned.append(offsets)
    if offsets in planned:
        return captured
    # Sources first, as whoever plans a body goes through it; what is left of it has its names.
    closed = {u: u for u in toposort(body)}
    closed.update({u: made for u, made in captured.closed.items() if made in closed})
    return captured._replace(body=body, values=values, closed=closed)


def slices_of(order: list[UOp]) -> list[UOp]:
    """The slices that may begin elsewhere; none where values go from one device to another."""
    cut = [u for u in order if u.op is Ops.SHRINK and len(u.src) == 1 and is_of_memory(u)]
    if not cut or any([u.op is Ops.COPY for u in order]):
        return []
    written = {place_of(u) for u in order if u.op is Ops.STORE}
    found = [u for u in cut if place_of(u) not in written and not is_part(u)]
    return found if len(found) <= MAX_OFFSETS else []


def is_of_memory(u: UOp) -> bool:
    """Whether a slice is one of memory, through views of fixed sizes."""
    if not all([isinstance(n, int) for n in u.src[0].shape]):
        return False
    base = u.base
    return base.op is Ops.PARAM and not str(base.arg.device).startswith(DATA_ONLY)


def with_offsets(
    body: UOp, order: list[UOp], slices: list[UOp], values: dict[str, int]
) -> tuple[UOp, dict[str, int]]:
    """A body with a variable for each place where one of these slices begins, and all values."""
    values, wanted = dict(values), set(slices)

    def change(u: UOp, fresh: UOp) -> UOp:
        if u not in wanted:
            return fresh
        sizes, starts, counts = u.src[0].shape, [], []
        for (start, stop), size in zip(u.arg, sizes, strict=True):
            first = start
            if stop - start < size:
                name = f"start{len(values)}"
                first = UOp.variable(name, 0, size - (stop - start))
                values[name] = start
            starts.append((first, size))
            counts.append((0, stop - start))
        return fresh.src[0]._mop(Ops.SHRINK, tuple(starts))._mop(Ops.SHRINK, tuple(counts))

    return rebuilt(body, (Ops.SHRINK,), change, order), values
