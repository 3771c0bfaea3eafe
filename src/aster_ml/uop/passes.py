"""Runs passes: named steps from graph to graph, as rows of tables, timed and recorded.

Receives rows and what they make; keeps how long each pass has taken, holds graphs to their stage
(SPEC=2), and hands every step to who listens. Which passes there are, and in which order they run,
say the tables in `schedule/plan` and `codegen/passes`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from aster_ml.config import DEBUG, SPEC
from aster_ml.errors import InternalError
from aster_ml.late import late
from aster_ml.uop.pattern import compile_anew

if TYPE_CHECKING:
    from aster_ml.uop.spec import verify as spec
else:
    spec = late("uop.spec.verify")


class Pass(NamedTuple):
    """One step from graph to graph.

    `run` does it; its docstring says what becomes of what. It `carries_out` plans of these kinds,
    and runs where there is one; without them `applies` says whether it is done to a graph (None:
    always), its docstring to which. `why` says why it stands where it does. A pass that is `needed`
    runs on plain kernels too; all others only make programs faster. `stage` names the specification
    that its result is held to.
    """

    name: str
    run: Callable[..., Any]
    why: str
    applies: Callable[..., bool] | None = None
    carries_out: tuple[type[Any], ...] = ()
    needed: bool = False
    stage: str | None = None

    @property
    def does(self) -> str:
        """Sentence that says what the pass does."""
        return (self.run.__doc__ or "").partition("\n")[0]


@dataclass
class PassTotal:
    """Total cost of a pass in this process."""

    calls: int = 0
    time_s: float = 0.0


class PassRun(NamedTuple):
    """A pass that has run: its name, what it has made, and the seconds that it took."""

    name: str
    made: Any
    time_s: float


# By name of the pass.
PASS_TOTALS: dict[str, PassTotal] = {}


class Listeners(threading.local):
    """Lists of steps that this thread records, innermost last."""

    def __init__(self) -> None:
        self.lists: list[list[PassRun]] = [*ALWAYS]


# Lists in which every thread records from its first pass on.
ALWAYS: list[list[PassRun]] = []
LISTENERS = Listeners()


@contextmanager
def recorded() -> Iterator[list[PassRun]]:
    """Within the block, each pass that this thread runs is added to the list, with what it made."""
    steps: list[PassRun] = []
    LISTENERS.lists.append(steps)
    try:
        yield steps
    finally:
        # By identity: two lists may be equal.
        LISTENERS.lists = [s for s in LISTENERS.lists if s is not steps]


def record_always(steps: list[PassRun]) -> None:
    """Adds to the list each pass that any thread runs from now on.

    Watchers (`watch.WATCHERS`) are told of each rewrite from then on; so put them there before.
    A thread that has run a pass before records in the list only if it is the caller.
    """
    ALWAYS.append(steps)
    LISTENERS.lists.append(steps)
    compile_anew()


def record_no_more(steps: list[PassRun]) -> None:
    """Ends what `record_always` began for this list, in the same thread."""
    ALWAYS[:] = [s for s in ALWAYS if s is not steps]
    LISTENERS.lists = [s for s in LISTENERS.lists if s is not steps]
    compile_anew()


def verify_after(made: Any, step: Pass) -> None:
    """Holds what a pass has made to the pass's stage; the error says after which pass.

    Raises: InternalError.
    """
    assert step.stage is not None
    try:
        spec.verify(made, step.stage)
    except InternalError as error:
        raise InternalError(f"after pass {step.name!r}: {error}") from error


class PassClock:
    """Ends each pass of a run: notes its time, verifies its result, tells listeners."""

    def __init__(self) -> None:
        self.verifies = SPEC >= 2
        self.shows = DEBUG >= 7
        self.lists = LISTENERS.lists
        self.last = time.perf_counter()

    def __call__(self, step: Pass, made: Any) -> None:
        """A pass has made this since the one before ended.

        Raises: InternalError where it breaks a rule of the pass's stage, with SPEC=2.
        """
        time_s = time.perf_counter() - self.last
        total = PASS_TOTALS.get(step.name)
        if total is None:
            total = PASS_TOTALS[step.name] = PassTotal()
        total.calls += 1
        total.time_s += time_s
        if self.lists:
            for steps in self.lists:
                steps.append(PassRun(step.name, made, time_s))
        if self.shows:
            sys.stderr.write(f"pass {step.name:32} {time_s * 1e6:9.1f} us\n")
        if self.verifies and step.stage is not None:
            verify_after(made, step)
        self.last = time.perf_counter()
