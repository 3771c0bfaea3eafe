"""The golden cases by group; each group is one file below `vectors/`."""

from __future__ import annotations

from collections.abc import Sequence

from tests.core.golden.cases import contractions, elementwise, movement, neural, reductions
from tests.core.golden.vectors import Case, unique

GROUPS: dict[str, list[Case]] = {
    "smooth": unique(elementwise.smooth()),
    "stepped": unique([*elementwise.stepped(), *elementwise.edges()]),
    "pairs": unique(elementwise.pairs()),
    "whole": unique(elementwise.whole()),
    "reductions": unique(reductions.reduced()),
    "scans": unique([*reductions.scans(), *reductions.orders()]),
    "moved": unique([*movement.moved(), *movement.joined()]),
    "indexed": unique([*movement.indexed(), *movement.written()]),
    "products": unique(contractions.products()),
    "convolutions": unique([*contractions.convolutions(), *contractions.pools()]),
    "casts": unique([*neural.casts(), *neural.made()]),
    "neural": unique(
        [*neural.normalised(), *neural.losses(), *neural.algebra(), *neural.composed()]
    ),
}


def find(name: str) -> Sequence[Case]:
    """The cases of a group."""
    return GROUPS[name]
