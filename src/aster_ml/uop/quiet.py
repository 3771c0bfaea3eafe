"""Python's search for circles of objects rests while graphs are worked on.

why: graphs have no circles, but nodes by the ten thousand, and the search goes through all of them
again and again; what is dropped goes at once, by its count of references, as ever
"""

from __future__ import annotations

import gc
from types import TracebackType


class Uncollected:
    """A `with` block without the search, unless it rests already."""

    __slots__ = ("was_on",)

    def __enter__(self) -> None:
        self.was_on = gc.isenabled()
        gc.disable()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.was_on:
            gc.enable()
