"""Calls that run beside the caller, who takes part when it has nothing else to do.

Receives functions that spend their time outside of Python's lock (compilers do); gives their
results. With no thread to spare a call runs when its result is wanted. What the calls do is the
business of others.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
# How long a thread that comes back from a call waits for Python's lock at most. The usual 5 ms are
# as long as many a call.
SWITCH_S = 1e-4


class QuickSwitching:
    """Python's lock is passed on quickly as long as somebody wants it so."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before = 0.0

    def begin(self) -> None:
        """One more who wants it."""
        with self.lock:
            if not self.users:
                self.before = sys.getswitchinterval()
                sys.setswitchinterval(min(self.before, SWITCH_S))
            self.users += 1

    def end(self) -> None:
        """One less; the last leaves the interval as the first has found it."""
        with self.lock:
            self.users -= 1
            if not self.users:
                sys.setswitchinterval(self.before)


QUICK_SWITCHING = QuickSwitching()


class Job(Generic[T]):
    """A call whose result will be wanted."""

    __slots__ = ("future", "work")

    def __init__(self, work: Callable[[], T], future: Future[T] | None) -> None:
        self.work = work
        self.future = future

    def run_now(self) -> None:
        """Runs the call in the calling thread, unless it has run or another has begun with it."""
        if self.future is None or self.future.cancel():
            result = self.work()
            self.work, self.future = lambda: result, None

    def result(self) -> T:
        """What the call returns; an error of the call is raised here."""
        if self.future is not None:
            return self.future.result()
        self.run_now()
        return self.work()


class Beside:
    """So many threads beside the caller's, as long as the `with` block lasts."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self.threads > 0:
            # Takes longer to import than most programs need it for.
            from concurrent.futures import ThreadPoolExecutor

            self.pool = ThreadPoolExecutor(self.threads)
            QUICK_SWITCHING.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pool is not None:
            QUICK_SWITCHING.end()
            self.pool.shutdown(cancel_futures=True)

    def begin(self, work: Callable[[], T]) -> Job[T]:
        """Starts a call as soon as a thread is free."""
        return Job(work, None if self.pool is None else self.pool.submit(work))
