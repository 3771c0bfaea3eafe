"""Disables Python's cyclic garbage collector while graphs are built and modules are imported.

why: graphs have no circles, but nodes by the ten thousand, and the search goes through all of them
again and again; what modules define stays. What is dropped goes at once, by its count of
references, as ever. Where a block leaves many objects they count as old at once: the next search
for young circles would go through all of them.

Cycles of the program are collected as early as without such blocks. A small block leaves the
collector's counters unchanged, so a collection that is due runs after the block. A large one resets
the counters and moves young cycles of others to the oldest generation; so moved objects are
counted, and a full collection runs at the count at which Python would have run one.
"""

from __future__ import annotations

import gc

# A block with more new objects is large.
LARGE = 10_000
# Largest number of objects that an interpreter itself freezes at its start (375 in Python 3.12).
OF_PYTHON = 1000
# Python runs a full collection when old objects have grown by 1 / NEW_PART since the last one.
NEW_PART = 4


class Moved:
    """Counts objects moved to the oldest generation, and decides when a full collection runs."""

    def __init__(self) -> None:
        self.count = 0
        self.most = 0

    def note(self, count: int) -> None:
        """Adds to the count; collects when that is due."""
        self.count += count
        if self.count > max(self.most, least_moved()):
            self.count = 0
            gc.collect()
            self.most = len(gc.get_objects()) // NEW_PART


MOVED = Moved()


def least_moved() -> int:
    """The least number of new objects after which Python runs a full collection."""
    young, middle, old = gc.get_threshold()
    return young * max(middle, 1) * max(old, 1)


class uncollected:
    """A `with` block without garbage collection, unless it is disabled already."""

    # A class: a generator-based context manager costs three more calls for each small schedule.
    def __enter__(self) -> None:
        self.was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if not self.was_on:
            return
        young, middle, _ = gc.get_count()
        moved = 0
        # Objects that others have frozen stay frozen.
        if young > LARGE and gc.get_freeze_count() <= OF_PYTHON:
            # Moves all objects to the oldest generation.
            gc.freeze()
            gc.unfreeze()
            moved = young + middle * gc.get_threshold()[0]
        gc.enable()
        if moved:
            MOVED.note(moved)
