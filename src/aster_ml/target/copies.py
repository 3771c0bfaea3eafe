"""Copies from memory to local memory that go on beside other work: which there are, how they end.

A row is data. The pipelining pass asks it how to wait and how many steps may be under way, the
renderer how many bytes one copy moves. Without such copies, loads wait in registers and are stored
when the work on what came before is done.

Source of the rows: PTX ISA 8.7, "cp.async" and "cp.async.wait_group".
"""

from __future__ import annotations

from typing import NamedTuple

# How work waits for copies: for all groups but the last ones, or at a barrier in local memory, one
# for each stage, that counts bytes.
NOTHING, GROUPS, BARRIERS = "nothing", "groups", "barriers"
# What barriers take of local memory: operands lie behind them and begin at multiples of so many
# bytes, and a driver counts what lies between (`CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`).
BARRIERS_NBYTES = 1024


class Copies(NamedTuple):
    """One way to copy, by the name of the feature that a target has of it.

    `nbytes` are those of one copy of a work-item, `ends` is one of NOTHING, GROUPS and BARRIERS.
    """

    feature: str
    nbytes: tuple[int, ...]
    ends: str

    @property
    def go_on(self) -> bool:
        """Whether copies go on by themselves."""
        return self.ends != NOTHING


AT_ONCE = Copies("", (), NOTHING)
# Of boxes of tensors, of which a block begins one for all its work-items.
BOXES = Copies("tma", (), BARRIERS)
# The first that a target has is taken.
COPIES = (Copies("cp_async", (4, 8, 16), GROUPS),)


def copies_of(features: frozenset[str]) -> Copies:
    """The copies of a target with these features."""
    return next((row for row in COPIES if row.feature in features), AT_ONCE)
