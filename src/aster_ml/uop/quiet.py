"""Python's search for circles of objects rests while graphs are worked on.

why: graphs have no circles, but nodes by the ten thousand, and the search goes through all of them
again and again; what is dropped goes at once, by its count of references, as ever. What is left
then counts as old at once: the next search for young circles would go through all of it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """A `with` block without the search, unless it rests already."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            # What others have put aside stays there.
            if not gc.get_freeze_count():
                # Out of all generations, and back into the oldest.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
