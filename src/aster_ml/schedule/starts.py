"""Slices that move: bodies which differ in nothing but where their slices begin share a schedule.

Receives what was captured and is not planned yet; returns it as it is, or, from the third place on
at which the same slices begin, with variables for their starts. What a start is worth goes with the
values of users' variables.

rewrite: SHRINK(x, ((3, 35),)) -> SHRINK(SHRINK(x, ((start, size of x),)), ((0, 32),)), start = 3
when: the slice is one of memory that the body does not write, on a device whose kernels read it
why: a loop over `X[i : i + 32]` compiles its kernels twice, and not once for each i; a program that
slices in one place or two keeps kernels whose indices are numbers
"""

from __future__ import annotations

from aster_ml.schedule.capture import Captured
from aster_ml.schedule.rewrites.copies import DATA_ONLY
from aster_ml.schedule.rewrites.parts import is_part, place_of
from aster_ml.uop.graph import rebuilt, toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

# Forms of bodies that are remembered, and how many bodies of one form are planned with numbers.
MOST_FORMS, WITH_NUMBERS = 256, 2
# Longer bodies, and those with more starts, are planned as they are.
MOST_NODES, MOST_STARTS = 5_000, 16


class MovingSlices:
    """Where the slices of each form begin that is planned with numbers, the latest form last."""

    def __init__(self) -> None:
        self.places: dict[UOp, list[dict[str, int]]] = {}

    def with_variables(self, captured: Captured) -> Captured:
        """Replaces starts of slices by variables where many graphs of their form were planned."""
        order = captured.order()
        slices = slices_of(order) if len(order) <= MOST_NODES else []
        if not slices:
            return captured
        body, values = with_starts(captured.body, order, slices, captured.values)
        places = self.places[body] = self.places.pop(body, [])
        if len(self.places) > MOST_FORMS:
            del self.places[next(iter(self.places))]
        # By starts and not by how often: one body is planned again for other settings.
        starts = {name: n for name, n in values.items() if name not in captured.values}
        if starts not in places and len(places) < WITH_NUMBERS:
            places.append(starts)
        if starts in places:
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
    return found if len(found) <= MOST_STARTS else []


def is_of_memory(u: UOp) -> bool:
    """Whether a slice is one of memory, through views of fixed sizes."""
    if not all([isinstance(n, int) for n in u.src[0].shape]):
        return False
    base = u.base
    return base.op is Ops.PARAM and not str(base.arg.device).startswith(DATA_ONLY)


def with_starts(
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


MOVING = MovingSlices()
