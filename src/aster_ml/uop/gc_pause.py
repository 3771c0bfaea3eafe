"""Disables Python's cyclic garbage collector while graphs are built and modules are imported.

why: graphs have no circles, but nodes by the ten thousand, and the search goes through all of them
again and again; what modules define stays. What is dropped goes at once, by its count of
references, as ever. Where a block leaves many objects they count as old at once: the next search
for young circles would go through all of them.

A program's own circles are found as soon as without such blocks. A small block leaves the counts of
the search as they are, so it comes when it is due, after the block. A large one starts them anew
and hides the young circles of others among the old, so the objects that it moved are counted, and
all are searched when there are as many as would have brought such a search about.
"""

from __future__ import annotations

import gc

# New objects past which a block is large.
LARGE = 10_000
# Objects that an interpreter itself puts aside as it starts, at most (375 in Python 3.12).
OF_PYTHON = 1000
# Python looks at all objects when a part of this size has come to the old ones since the last time.
NEW_PART = 4


class Moved:
    """Count of objects that have become old unseen, and the count that starts a full collection."""

    def __init__(self) -> None:
        self.count = 0
        self.most = 0

    def note(self, count: int) -> None:
        """So many more; searches when that is due."""
        self.count += count
        if self.count > max(self.most, least_moved()):
            self.count = 0
            gc.collect()
            self.most = len(gc.get_objects()) // NEW_PART


MOVED = Moved()


def least_moved() -> int:
    """After how many new objects Python looks at all of them at the earliest."""
    young, middle, old = gc.get_threshold()
    return young * max(middle, 1) * max(old, 1)


class uncollected:
    """A `with` block without the search, unless it rests already."""

    # A class: the generator of a context manager costs three calls more, at each small schedule.
    def __enter__(self) -> None:
        self.was_on = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if not self.was_on:
            return
        young, middle, _ = gc.get_count()
        moved = 0
        # What others have put aside stays there.
        if young > LARGE and gc.get_freeze_count() <= OF_PYTHON:
            # Out of all generations, and back into the oldest.
            gc.freeze()
            gc.unfreeze()
            moved = young + middle * gc.get_threshold()[0]
        gc.enable()
        if moved:
            MOVED.note(moved)
