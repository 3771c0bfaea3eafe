"""Writes products of matrices that a warp multiplies together: lanes become one call of the
language.

Receives the cell of an ACCUMULATE of an MMA; writes a call for each product, with the accumulators
and the parts of both operands that a work-item has, each in the order of its registers. What the
call is called, and how it does it, is the language's affair.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aster_ml.renderer.cell import Cell
from aster_ml.renderer.lanes import size_of
from aster_ml.renderer.language import Language
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

Place = dict[UOp, int]


def parts_of(u: UOp) -> tuple[list[UOp], list[UOp], list[UOp]]:
    """The lanes of both operands of an MMA and of its result, lowest bits of a register first."""
    a, b = 2 + u.arg.a, 2 + u.arg.a + u.arg.b
    return list(u.src[2:a]), list(u.src[a:b]), list(u.src[b:])


def places(lanes: Sequence[UOp]) -> Iterator[Place]:
    """All values of some lanes, those of the first one fastest."""
    for values in itertools.product(*[range(size_of(r)) for r in reversed(lanes)]):
        yield dict(zip(reversed(lanes), values, strict=True))


def instance_at(c: Cell, place: Place) -> int:
    """The instance of a value at these values of lanes."""
    number = 0
    for r in c.lanes:
        number = number * size_of(r) + place[r]
    return number


def place_of(c: Cell, k: int) -> Place:
    """The values of lanes at an instance of a value."""
    place: Place = {}
    for r in reversed(c.lanes):
        k, place[r] = divmod(k, size_of(r))
    return place


def write_products(
    c: Cell, operands: tuple[Cell, Cell], text: Callable[[Cell, int], str], writer: Language
) -> None:
    """A call for each product that an ACCUMULATE adds, in the order of its lanes.

    What a warp has loaded together are words already.
    """
    reg, product = c.inputs[0][0], c.inputs[1][0]
    of_a, of_b, own = parts_of(product.u)
    core = product.u.arg.core
    for outer in places([r for r in reversed(c.lanes) if r not in own]):
        sums = [reg.values[instance_at(reg, outer | at)] for at in places(own)]
        parts = []
        for d, lanes in zip(operands, (of_a, of_b), strict=True):
            if d.op is Ops.LDMATRIX:
                first = dict.fromkeys(lanes[: d.u.arg.word], 0)
                rest = places(lanes[d.u.arg.word :])
                parts.append([text(d, instance_at(d, outer | first | at)) for at in rest])
            else:
                elements = [text(d, instance_at(d, outer | at)) for at in places(lanes)]
                parts.append(writer.words_of(core, elements))
        writer.add_product(core, sums, *parts)


def write_shared_products(
    c: Cell,
    operands: tuple[Cell, Cell],
    place: Callable[[Cell, int], Any],
    text: Callable[[Cell, int], str],
    writer: Language,
) -> None:
    """All products at once that an ACCUMULATE adds, of which operand B lies in local memory.

    Operand A may be words that a work-item has.
    """
    reg, product = c.inputs[0][0], c.inputs[1][0]
    of_a, _, own = parts_of(product.u)
    core, majors = product.u.arg.core, product.u.arg.majors
    found = []
    for outer in places([r for r in reversed(c.lanes) if r not in own]):
        sums = [reg.values[instance_at(reg, outer | at)] for at in places(own)]
        parts: list[Any] = []
        for d, major in zip(operands, majors, strict=True):
            if major == "r":
                elements = [text(d, instance_at(d, outer | at)) for at in places(of_a)]
                parts.append(writer.words_of(core, elements))
            else:
                parts.append(place(d, instance_at(d, outer)))
        found.append((sums, *parts))
    writer.add_shared_products(core, majors, found)
