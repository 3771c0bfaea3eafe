"""A pool of workers for compilers, in which the caller takes part when it has nothing else to do.

Receives functions that spend their time outside of Python's lock (compilers do); gives their
results. With no thread to spare a call runs when its result is wanted. What the calls do is the
business of others.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from aster_ml.config import adopt, values_here
from aster_ml.interrupts import Held
from aster_ml.thread_state import OWN_NAME

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

    __slots__ = ("begun", "error", "found", "running", "work")
    found: T

    def __init__(self, work: Callable[[], T]) -> None:
        self.work: Callable[[], T] | None = work
        self.error: BaseException | None = None
        # Taken by who runs the call, for good; and held until it has been run.
        self.begun = threading.Lock()
        self.running = threading.Lock()
        self.running.acquire()

    @property
    def has_run(self) -> bool:
        """Whether its result is there, or its error."""
        return not self.running.locked()

    def run_now(self) -> None:
        """Runs the call in the calling thread, unless it has run or another has begun with it."""
        if self.work is None or not self.begun.acquire(blocking=False):
            return
        try:
            self.found = self.work()
        except Exception as error:
            self.error = error
        except BaseException as error:
            # Ctrl-C ends more than this call.
            self.error = error
            raise
        finally:
            self.work = None
            self.running.release()

    def result(self) -> T:
        """Waits for the call and returns its result; an error of the call is raised here."""
        self.run_now()
        with self.running:
            if self.error is not None:
                raise self.error
            return self.found


class WorkerPool:
    """So many threads beside the caller's, as long as the `with` block lasts.

    why: a pool of `concurrent.futures` takes longer to import than its threads to be written down
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # The threads work under the settings of whoever wants their results.
        self.settings = values_here() if threads > 0 else {}
        self.running: list[threading.Thread] = []
        self.waiting: deque[Job[Any]] = deque()
        # How many jobs there are to look for; a thread that finds none ends.
        self.count = threading.Semaphore(0)

    def __enter__(self) -> Self:
        if self.threads > 0:
            QUICK_SWITCHING.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.threads > 0:
            QUICK_SWITCHING.end()
            self.waiting.clear()
            for _ in self.running:
                self.count.release()
            for thread in self.running:
                thread.join()

    def begin(self, work: Callable[[], T]) -> Job[T]:
        """Starts a call as soon as a thread is free."""
        job = Job(work)
        if self.threads > 0:
            self.waiting.append(job)
            self.count.release()
            if len(self.running) < self.threads:
                name = f"{OWN_NAME}compiler-{len(self.running)}"
                thread = threading.Thread(target=self.work, name=name)
                # Between the two, Ctrl-C would leave a thread that cannot be waited for, or is not.
                with Held():
                    thread.start()
                    self.running.append(thread)
        return job

    def work(self) -> None:
        """Runs jobs in their order, as long as the block lasts."""
        adopt(self.settings)
        while True:
            self.count.acquire()
            try:
                job = self.waiting.popleft()
            except IndexError:
                return
            # An error is raised where the result is wanted; a thread has nobody to tell.
            with suppress(BaseException):
                job.run_now()
            del job
