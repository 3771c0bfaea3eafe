"""Ctrl-C at a bad moment: in a finaliser, and in code that must not end halfway.

What falls into a finaliser is raised again as soon as that has ended. Python drops what is raised
in `__del__` and in the callbacks of weak references, of which a program over graphs runs millions:
a KeyboardInterrupt there would never reach the program. What was reported of other exceptions is
reported as before. Code that must not end halfway says so (`Held`).
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# How long to wait between looks at whether the main thread has left the report.
LOOK_AGAIN_S = 1e-3
BEFORE: Callable[[Any], object] = sys.unraisablehook


def report(lost: Any) -> None:
    """In place of `sys.unraisablehook`."""
    if not issubclass(lost.exc_type, KeyboardInterrupt) or not in_main_thread():
        BEFORE(lost)
        return
    # Raised from here it would be lost again.
    _thread.start_new_thread(interrupt_again, ())


def in_main_thread() -> bool:
    """Whether the caller's thread is the one that Ctrl-C interrupts."""
    return threading.current_thread() is threading.main_thread()


def interrupt_again() -> None:
    """Interrupts the main thread, once it is not in `report` any more."""
    main = threading.main_thread().ident or 0
    while is_reporting(sys._current_frames().get(main)):
        time.sleep(LOOK_AGAIN_S)
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
    """While the `with` block lasts, Ctrl-C is noted; it is raised at the end of the block.

    For code of others that owns memory which Python does not: left between freeing it and noting
    that, it would free it twice.
    """

    __slots__ = ("before", "noted")

    def __enter__(self) -> None:
        self.noted: list[tuple[Any, ...]] = []
        before = signal.getsignal(signal.SIGINT) if in_main_thread() else None
        self.before = before if callable(before) else None
        if self.before is not None:
            signal.signal(signal.SIGINT, self.note)

    def note(self, *signal_and_frame: Any) -> None:
        """In place of the program's handler."""
        self.noted.append(signal_and_frame)

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
            if self.noted:
                self.before(*self.noted[-1])


def listen() -> None:
    """From now on Python reports to `report`."""
    sys.unraisablehook = report
