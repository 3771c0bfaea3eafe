"""Runs passes: named steps from graph to graph, as rows of tables, timed and recorded.

Receives rows and the results of their passes; times each pass, verifies its result against its
stage (SPEC=2), and reports it to listeners. The tables in `schedule/plan` and `codegen/passes` list
the passes in execution order.
"""

from __future__ import annotations

import inspect
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

    The docstring of `run` says what the pass rewrites. A pass that `carries_out` plans runs if one
    of these kinds exists; otherwise `applies` decides (None: always), and its docstring says when.
    `why` explains the position of the pass. A `needed` pass runs on plain kernels too; all others
    only make programs faster. `stage` names the specification of its result.
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
        return (inspect.unwrap(self.run).__doc__ or "").partition("\n")[0]


@dataclass
class PassTotal:
    """Total cost of a pass in this process."""

    calls: int = 0
    time_s: float = 0.0


class PassRun(NamedTuple):
    """An executed pass: its name, its result, and its seconds."""

    name: str
    made: Any
    time_s: float


# Name of a pass -> its total.
PASS_TOTALS: dict[str, PassTotal] = {}


class Listeners(threading.local):
    """Lists that this thread records passes in, innermost last."""

    def __init__(self) -> None:
        self.lists: list[list[PassRun]] = [*ALWAYS]


# Lists in which every thread records, from its first pass on.
ALWAYS: list[list[PassRun]] = []
LISTENERS = Listeners()


@contextmanager
def recorded() -> Iterator[list[PassRun]]:
    """A list of the passes that this thread runs within the block, with their results."""
    steps: list[PassRun] = []
    LISTENERS.lists.append(steps)
    try:
        yield steps
    finally:
        # By identity: two lists may be equal.
        LISTENERS.lists = [s for s in LISTENERS.lists if s is not steps]


def record_always(steps: list[PassRun]) -> None:
    """Adds to the list each pass that any thread runs from now on.

    Watchers (`watch.WATCHERS`) receive rewrites from now on, so register them first. A thread that
    has run a pass before records in the list only if it is the caller.
    """
    ALWAYS.append(steps)
    LISTENERS.lists.append(steps)
    compile_anew()


def record_no_more(steps: list[PassRun]) -> None:
    """Ends `record_always` for this list, in the same thread."""
    ALWAYS[:] = [s for s in ALWAYS if s is not steps]
    LISTENERS.lists = [s for s in LISTENERS.lists if s is not steps]
    compile_anew()


def verify_after(made: Any, step: Pass) -> None:
    """Verifies the result of a pass against its stage; the error names the pass.

    Raises: InternalError.
    """
    assert step.stage is not None
    try:
        spec.verify(made, step.stage)
    except InternalError as error:
        raise InternalError(f"after pass {step.name!r}: {error}") from error


class PassClock:
    """Ends each pass of a run: records its time, verifies its result, reports it to listeners."""

    def __init__(self) -> None:
        self.verifies = SPEC >= 2
        self.shows = DEBUG >= 7
        self.lists = LISTENERS.lists
        self.last = time.perf_counter()

    def __call__(self, step: Pass, made: Any) -> None:
        """Ends a pass with its result.

        Raises: InternalError where the result breaks a rule of its stage, with SPEC=2.
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
