"""Asks a process with limits about text of strangers (`confined`), and ends it where it takes long.

Receives questions as JSON; returns answers, or raises `LimitError`. One process of a job answers
one question after the other, and stays for the next: a chat turn costs no start. On systems without
limits of processor time and memory (Windows) a question ends after `WALL_SECONDS` all the same.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from aster_ml.apps.llm.confined import CPU_SECONDS, MEMORY_BYTES
from aster_ml.errors import ArgumentError

PROGRAM = pathlib.Path(__file__).with_name("confined.py")
# For machines that are busy: processor time is what is limited.
WALL_SECONDS = 20.0


class LimitError(ArgumentError):
    """A question took too much time or memory."""


class Confined:
    """A process that answers questions of one job, started with the first of them."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question; from any thread.

        Raises: LimitError where it takes too long or too much memory, or is nested too deep.
        """
        try:
            line = json.dumps(question).encode() + b"\n"
        except RecursionError as error:
            raise LimitError("it is nested too deep") from error
        with self.lock:
            found = self.reply_to(line)
        if "refused" in found:
            raise LimitError(found["refused"])
        return found

    def reply_to(self, line: bytes) -> dict[str, Any]:
        """Sends a line and reads the reply. Raises: LimitError where the process ends instead."""
        process = self.running()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(WALL_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = b""
        except BaseException:
            # Half an exchange would be read as the next answer.
            process.kill()
            raise
        finally:
            timer.cancel()
        if reply.endswith(b"\n"):
            found: dict[str, Any] = json.loads(reply)
            if "is_over" in found:
                process.wait()
            return found
        code = process.wait()
        if code == -getattr(signal, "SIGPROF", 0):
            raise LimitError(f"it takes more than {CPU_SECONDS:g} s of processor time")
        if late.is_set():
            raise LimitError(f"it takes longer than {WALL_SECONDS:g} s")
        raise LimitError(
            f"it ends the process that has {MEMORY_BYTES >> 20} MiB of memory for it (code {code})"
        )

    def running(self) -> subprocess.Popen[bytes]:
        """The process; another one where it has ended, or is that of who made a copy of itself."""
        process = self.process
        if process is None or process.poll() is not None or self.owner != os.getpid():
            process = self.process = self.start()
            self.owner = os.getpid()
            weakref.finalize(self, end_process, process)
        return process

    def start(self) -> subprocess.Popen[bytes]:
        """Starts it, with the packages that are seen here."""
        paths = [path for path in sys.path if path]
        # One arena and one thread: what a process reserves for others counts as its memory.
        own = {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1"}
        return subprocess.Popen(
            [sys.executable, "-P", "-S", str(PROGRAM), self.job],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **own, "RAYON_NUM_THREADS": "1"},
        )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ends it, and frees what it had."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was to be written has no reader
