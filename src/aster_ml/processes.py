"""Runs Python programs for a command so that signals end both, or neither.

Receives the words of a program; returns its exit code. Where the command has nothing left to do,
the program takes the place of its process: a signal, from a terminal or another process, is the
program's own. Otherwise signals are passed on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from aster_ml.interpreters import python_command, python_environment

NOTHING: Mapping[str, str] = MappingProxyType({})
# How long a program may take to end once a signal was passed on to it.
END_SECONDS = 4.0


def run_python(
    words: Sequence[str], more: Mapping[str, str] = NOTHING, in_place: bool = False
) -> int:
    """The exit code of a program of this Python, with `more` in its environment.

    With `in_place` it takes the place of this process, where the system can do that, and this does
    not return.
    """
    command, own = python_command(*words), python_environment(**more)
    if in_place and os.name == "posix":
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(command[0], command, own)
    with subprocess.Popen(command, env=own) as process, passing_signals(process, waits=True):
        return process.wait()


def run_quietly(
    words: Sequence[str], more: Mapping[str, str] = NOTHING
) -> subprocess.CompletedProcess[str]:
    """Runs this Python; returns its exit code and what it prints to both outputs."""
    command = python_command(*words)
    with (
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=python_environment(**more),
        ) as process,
        passing_signals(process),
    ):
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextlib.contextmanager
def passing_signals(process: subprocess.Popen[Any], waits: bool = False) -> Iterator[None]:
    """While the block lasts, what ends this process ends another one first.

    With `waits`, Ctrl-C is that one's to understand: a terminal sends it to both.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    passed: list[int] = []

    def pass_on(number: int, _: Any) -> None:
        passed.append(number)
        process.send_signal(number)
        timer = threading.Timer(END_SECONDS, process.kill)
        timer.daemon = True
        timer.start()

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers: dict[int, Any] = {getattr(signal, name): pass_on for name in names}
    if waits:
        handlers[signal.SIGINT] = lambda *_: None
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if passed:
        signal.raise_signal(passed[0])
