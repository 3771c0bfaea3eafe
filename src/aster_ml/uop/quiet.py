"""Python's search for circles of objects rests while graphs are worked on.

why: graphs have no circles, but nodes by the ten thousand, and the search goes through all of them
again and again; what is dropped goes at once, by its count of references, as ever
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
            gc.enable()
