"""Answers questions about text of strangers in a process of its own, with limits.

Run as `python confined.py JOB`, where JOB is the name of a file beside this one with a function
`answer`. Receives one question a line as JSON, and writes one answer a line. The process has so
much memory, and so much processor time for each question; a question that takes more ends it, and
whoever asked starts another (`limits`). Nothing of Aster is imported here, so a start is quick.
"""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import signal
import sys
from typing import Any

MEMORY_BYTES, CPU_SECONDS = 256 << 20, 2.0
# Those who write tokens come first.
NICE = 5


def confine() -> None:
    """Limits the memory of this process, where the system can; it writes no files."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limits
        return
    for what, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, MEMORY_BYTES),
    ):
        hard = resource.getrlimit(what)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(what, (least, hard))
        except (ValueError, OSError) as error:  # macOS refuses limits of address space
            print(f"confined: no limit {what}: {error}", file=sys.stderr)
    os.nice(NICE)


def begin_time() -> None:
    """From here on so much processor time; the system ends the process after it."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)


def main() -> None:
    """Answers until there are no more questions, or memory is short."""
    # Ctrl-C in a terminal is for who asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = pathlib.Path(__file__).with_name(f"{sys.argv[1]}.py")
    answer = runpy.run_path(str(job))["answer"]
    confine()
    lines, out = sys.stdin.buffer, sys.stdout.buffer
    while line := lines.readline():
        begin_time()
        is_over = False
        found: dict[str, Any]
        try:
            found = answer(json.loads(line))
            text = json.dumps(found)
        except MemoryError:
            # What was taken may not come back whole: who asks starts another process.
            said = f"it takes more than {MEMORY_BYTES >> 20} MiB of memory"
            text, is_over = json.dumps({"refused": said, "is_over": True}), True
        except RecursionError:
            text = json.dumps({"refused": "it is nested too deep"})
        out.write(text.encode() + b"\n")
        out.flush()
        if is_over:
            return


if __name__ == "__main__":
    main()
