"""Delivers Ctrl-C that Python would lose in finalisers, and delays Ctrl-C in critical sections.

Python drops exceptions that are raised in `__del__` and in callbacks of weak references, of which a
program over graphs runs millions. A KeyboardInterrupt that is lost there is raised again once the
finaliser has ended; other exceptions are reported as before. `Held` delays Ctrl-C while a critical
section runs.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# Interval at which a thread checks whether the main thread has left `report`.
POLL_S = 1e-3
BEFORE: Callable[[Any], object] = sys.unraisablehook


def report(lost: Any) -> None:
    """Replaces `sys.unraisablehook`."""
    if not issubclass(lost.exc_type, KeyboardInterrupt) or not in_main_thread():
        BEFORE(lost)
        return
    # An exception raised here would be lost again.
    _thread.start_new_thread(interrupt_again, ())


def in_main_thread() -> bool:
    """Whether the calling thread is the main thread, which Ctrl-C interrupts."""
    return threading.current_thread() is threading.main_thread()


def interrupt_again() -> None:
    """Interrupts the main thread once it has left `report`."""
    main = threading.main_thread().ident or 0
    while is_reporting(sys._current_frames().get(main)):
        time.sleep(POLL_S)
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)
    else:
        _thread.interrupt_main()


def is_reporting(frame: Any) -> bool:
    """Whether a thread is inside of `report`."""
    while frame is not None:
        if frame.f_code is report.__code__:
            return True
        frame = frame.f_back
    return False


class Held:
    """Delays Ctrl-C until the end of the `with` block.

    For foreign code that owns memory outside of Python: interrupted between freeing memory and
    noting that, it would free the memory twice.
    """

    __slots__ = ("before", "noted")

    def __enter__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []
        before = signal.getsignal(signal.SIGINT) if in_main_thread() else None
        self.before = before if callable(before) else None
        if self.before is not None:
            signal.signal(signal.SIGINT, self.note)

    def note(self, *signal_and_frame: Any) -> None:
        """Replaces the program's handler."""
        self.noted.append(signal_and_frame)

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
            if self.noted:
                self.before(*self.noted[-1])


def listen() -> None:
    """Installs `report`."""
    sys.unraisablehook = report
