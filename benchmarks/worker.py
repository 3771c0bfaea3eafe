"""The process in which one library runs: requests and answers, a line of JSON each.

`python -m benchmarks.worker LIBRARY THREADS`. Requests, by their "do":

- `open` (case, params): prepares a case; nothing of it runs yet.
- `first`: runs it once -> seconds.
- `check`: runs it and gives numbers that all libraries agree on -> check, facts.
- `time` (budget_s, smallest_s): runs it again and again -> samples, in seconds a call.
- `turn`: asks a case that was opened for its named figures, again and again -> values.
- `values` (case, params): asks a case for named figures at once -> values.
- `close`: forgets the case.

An answer with "error" says what went wrong; the worker lives on. The first line of all tells the
version of the library, or why it is not to be had.
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.libraries import LIBRARIES, Library
from benchmarks.row import Case

Answer = dict[str, Any]
# In one sample.
MOST_CALLS = 1 << 20


def time_calls(run: Callable[[], Any], budget_s: float, smallest_s: float) -> list[float]:
    """Samples of the time of a call until the budget is spent, at least one.

    A sample is the mean of as many calls as take `smallest_s`, so that the clock's grain does not
    matter. The calls that find out how many warm the caches, and count for nothing. A first call
    that took long because it recorded or compiled something says little of those behind it, so a
    sample that takes less than half of `smallest_s` counts for nothing either.
    """

    def take() -> float:
        start = time.perf_counter()
        for _ in range(inner):
            run()
        return time.perf_counter() - start

    def more(seconds: float) -> int:
        """How many calls to take where `inner` of them took these seconds."""
        return max(inner + 1, min(10 * inner, math.ceil(inner * smallest_s / max(seconds, 1e-9))))

    inner = 1
    while (seconds := take()) < smallest_s and inner < MOST_CALLS:
        inner = more(seconds)
    samples: list[float] = []
    stop = time.perf_counter() + budget_s
    while not samples or time.perf_counter() < stop:
        seconds = take()
        if seconds < smallest_s / 2 and inner < MOST_CALLS:
            inner = more(seconds)
            samples.clear()
        else:
            samples.append(seconds / inner)
    return samples


class Server:
    """Answers the requests for one library."""

    def __init__(
        self, library: Library, runs: dict[str, Any], turns: dict[str, Any], values: dict[str, Any]
    ) -> None:
        self.library = library
        self.builders = runs
        self.turn_cases = turns
        self.value_cases = values
        self.case: Case | None = None
        self.take: Callable[[], dict[str, float]] | None = None

    def opened(self) -> Case:
        """The case of the last `open`."""
        if self.case is None:
            raise RuntimeError("no case is open")
        return self.case

    def open(self, case: str, params: dict[str, Any]) -> Answer:
        """Prepares a case."""
        if case in self.turn_cases:
            self.take = self.turn_cases[case](self.library, **params)
        else:
            self.case = self.builders[case](self.library, **params)
        return {}

    def first(self) -> Answer:
        """The first run, timed."""
        run = self.opened().run
        start = time.perf_counter()
        run()
        return {"seconds": time.perf_counter() - start}

    def check(self) -> Answer:
        """Numbers to agree on."""
        case = self.opened()
        return {"check": case.check(), "facts": case.facts()}

    def time(self, budget_s: float, smallest_s: float) -> Answer:
        """Many runs, timed."""
        return {"samples": time_calls(self.opened().run, budget_s, smallest_s)}

    def turn(self) -> Answer:
        """Named figures of the case that is open."""
        if self.take is None:
            raise RuntimeError("no case is open")
        return {"values": self.take()}

    def values(self, case: str, params: dict[str, Any]) -> Answer:
        """Named figures."""
        return {"values": self.value_cases[case](self.library, **params)}

    def close(self) -> Answer:
        """Forgets the case."""
        self.case = self.take = None
        gc.collect()
        return {}


def explain(error: BaseException) -> str:
    """What went wrong in one line: the kind, and the first line of the message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def pin(threads: int) -> None:
    """Keeps the process on as many cores as it may use, where the system lets us."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:threads])


def main() -> None:
    """Serves until the input ends."""
    # What libraries print goes to the log; the channel stays clean.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(message: Answer) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    name, threads = sys.argv[1], int(sys.argv[2])
    pin(threads)
    try:
        library = LIBRARIES[name](threads)
        # Builders are imported after the library, which may set up the process as it likes.
        from benchmarks.rows import RUNS, TURNS, VALUES

        answer({"version": library.version(), "python": sys.version.split()[0]})
    except Exception as error:
        answer({"error": explain(error)})
        return
    server = Server(library, RUNS, TURNS, VALUES)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(getattr(server, request.pop("do"))(**request))
        except Exception as error:
            answer({"error": explain(error)})


if __name__ == "__main__":
    main()
