"""Dispatches compiler events to watchers; there are none unless a run is recorded (VIZ).

The compiler tests `if WATCHERS:` before it reports an event to each of them, so without watchers an
event costs one test of an empty list. `viz/recorder` is the watcher that records a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any


class Watcher:
    """Receives events; the methods of this base class ignore them."""

    def rewritten(self, rule: Any, before: Any, after: Any) -> None:
        """A rule has rewritten `before` to `after`."""

    def applied(self, kernel: Any, opt: Any) -> None:
        """An Opt has been applied to a Kernel."""

    def arranged(self, kernel: Any, target: Any) -> None:
        """The axes of a Kernel are final."""

    def rendered(self, writer: Any, marks: list[int], text: str) -> None:
        """A Linear was rendered; the text of node i starts at line `marks[i]` of the writer."""

    def closed(self, planner: Any, made: Sequence[Any], drafts: Sequence[Any], plan: Any) -> None:
        """A body was planned; `made` are the first drafts, `drafts` those after the last pass."""

    def planned(self, captured: Any, schedule: Any, hit: bool, seconds: float) -> None:
        """A body has its Schedule, which may come from the cache."""

    @contextmanager
    def writing(self, ast: Any, target: Any) -> Iterator[None]:
        """Encloses the lowering and rendering of a kernel (or a run)."""
        yield

    def written(self, ast: Any, linear: Any, source: str) -> None:
        """A kernel was lowered; a run of kernels has one source and no Linear of its own."""

    def compiled(self, names: Sequence[str], start: float) -> None:
        """The backend's compiler has compiled these functions from `start` on, in this thread."""

    def waited(self, start: float) -> None:
        """This thread has waited for the backend's compiler from `start` on."""

    def launched(
        self, step: Any, compiled: Any, buffers: Sequence[Any], start: float, seconds: float
    ) -> None:
        """A step has run on these buffers from `start` on; `compiled` is None for a copy."""


WATCHERS: list[Watcher] = []


@contextmanager
def all_writing(ast: Any, target: Any) -> Iterator[None]:
    """`writing` of every watcher."""
    with ExitStack() as stack:
        for w in WATCHERS:
            stack.enter_context(w.writing(ast, target))
        yield
