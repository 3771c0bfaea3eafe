"""Runs Python programs as subprocesses of a command, and forwards signals to them.

Receives the arguments of a program; returns its exit code. With `in_place` the program replaces the
process of the command and receives signals itself. Otherwise signals are forwarded.
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
# Seconds that a program may take to end after a forwarded signal.
END_SECONDS = 4.0


def run_python(
    words: Sequence[str], more: Mapping[str, str] = NOTHING, in_place: bool = False
) -> int:
    """Runs a program by this Python, with `more` in its environment; returns its exit code.

    With `in_place` the program replaces this process, where the system supports exec; then this
    function does not return.
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
    """Forwards signals that end this process to another one during the `with` block.

    With `waits` Ctrl-C is not forwarded, since a terminal sends it to both.
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
