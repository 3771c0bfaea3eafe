"""Dispatches compiler events to watchers; there are none unless a run is recorded (VIZ).

Whoever does something worth seeing asks `if WATCHERS:` and tells each of them. So all that it costs
to be watched by nobody is one look at an empty list, and no call. What is done with what is told
does not belong here (`viz/recorder`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any


class Watcher:
    """Receiver of events; in this class each method lets its event pass."""

    def rewritten(self, rule: Any, before: Any, after: Any) -> None:
        """A rule has made one node of another."""

    def applied(self, kernel: Any, opt: Any) -> None:
        """An Opt has been applied to a Kernel."""

    def arranged(self, kernel: Any, target: Any) -> None:
        """The axes of a Kernel are as they stay."""

    def rendered(self, writer: Any, marks: list[int], text: str) -> None:
        """A Linear has become text; before node i there were `marks[i]` of the writer's lines."""

    def closed(self, planner: Any, made: Sequence[Any], drafts: Sequence[Any], plan: Any) -> None:
        """A body has become a Schedule; drafts as they were made, and as the last pass has left."""

    def planned(self, captured: Any, schedule: Any, hit: bool, seconds: float) -> None:
        """A body has its Schedule, which may come from the cache."""

    @contextmanager
    def writing(self, ast: Any, target: Any) -> Iterator[None]:
        """Within the block a kernel (or a run) is lowered and its source is written."""
        yield

    def written(self, ast: Any, linear: Any, source: str) -> None:
        """A kernel, or one of a run, has its Linear; a run has none, but the source of all."""

    def compiled(self, names: Sequence[str], start: float) -> None:
        """The backend's compiler has been at these functions since then, in this thread."""

    def waited(self, start: float) -> None:
        """This thread has waited for the backend's compiler since then."""

    def launched(
        self, step: Any, compiled: Any, buffers: Sequence[Any], start: float, seconds: float
    ) -> None:
        """A step has run on these buffers, from then on; a copy has nothing compiled."""


WATCHERS: list[Watcher] = []


@contextmanager
def all_writing(ast: Any, target: Any) -> Iterator[None]:
    """`writing` of every watcher."""
    with ExitStack() as stack:
        for w in WATCHERS:
            stack.enter_context(w.writing(ast, target))
        yield
