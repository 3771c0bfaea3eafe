"""Coalesces loads: loads of one loop whose indices differ by constants are loaded together.

Receives the cells of loads; says which belong together and which elements of theirs lie side by
side. How such runs are loaded is the business of `access`.
"""

from __future__ import annotations

from aster_ml.renderer.cell import Cell, Instance
from aster_ml.uop.node import UOp


def families_of(loads: dict[Cell, UOp | None]) -> dict[Cell, list[Cell]]:
    """For each load its family; receives loads from memory that stays, each with its loop."""
    found: dict[tuple[object, ...], list[Cell]] = {}
    for c, loop in loads.items():
        simple = c.base is None or (c.base[0].count == 1 and c.base[0].width == 1)
        if simple and c.gate is None and c.step not in (None, 0, 1):
            base = None if c.base is None else c.base[0]
            key = (c.place, base, loop, c.step, c.width, c.dtype, c.unit)
            found.setdefault(key, []).append(c)
    return {c: family for family in found.values() for c in family}


def runs_of_family(family: list[Cell]) -> list[list[Instance]]:
    """All instances of some loads from one base, in runs whose offsets follow one another."""
    found: list[list[Instance]] = []
    last: int | None = None
    for offset, number, k in sorted(
        [(offset, i, k) for i, d in enumerate(family) for k, offset in enumerate(d.offsets)]
    ):
        if offset == last:
            continue
        member = (family[number], k)
        if last is not None and offset == last + 1:
            found[-1].append(member)
        else:
            found.append([member])
        last = offset
    return found
