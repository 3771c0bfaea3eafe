"""Records a run until the end of a block, or of the process.

Receives where the file goes; returns a Recorder, and writes the file. Which runs are recorded says
the setting VIZ, `aster viz`, or a program that uses `recorded`.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from aster_ml.config import TRACEMETA
from aster_ml.errors import ArgumentError
from aster_ml.private_files import check_way
from aster_ml.trace import STACK
from aster_ml.viz.callers import call_stack
from aster_ml.viz.model import make_data
from aster_ml.viz.page import page_of
from aster_ml.viz.recorder import Recorder


def begin() -> Recorder:
    """Records from now on; nodes know which calls they come from."""
    recorder = Recorder()
    STACK.append(call_stack)
    TRACEMETA.set_for_all(1)
    if TRACEMETA.changed is not None:
        TRACEMETA.changed()
    recorder.start()
    return recorder


def end(recorder: Recorder) -> None:
    """Records no more."""
    recorder.stop()
    STACK.clear()
    TRACEMETA.set_for_all(0)


def write(recorder: Recorder, path: str | os.PathLike[str]) -> Path:
    """Writes what was recorded: data alone to a name that ends in .json, else the page.

    Raises: ArgumentError where nothing can be written there.
    """
    target = Path(path)
    data = make_data(recorder)
    text = json.dumps(data) if target.suffix == ".json" else page_of(data)
    try:
        with suppress(FileNotFoundError):
            check_way(target)
        target.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ArgumentError(
            f"the recorded run cannot be written to {target}: {error.strerror or error}; "
            "VIZ=PATH names another file"
        ) from None
    return target


@contextmanager
def recorded(path: str | os.PathLike[str] | None = None) -> Iterator[Recorder]:
    """Records what runs within the block, and writes it to a file at its end, if one is named.

    The file is written also where the block raises.

    Raises: ArgumentError where the file cannot be written.
    """
    recorder = begin()
    try:
        yield recorder
    except BaseException as error:
        recorder.error = "".join(traceback.format_exception_only(error)).strip()
        raise
    finally:
        end(recorder)
        if path is not None:
            write(recorder, path)


def default_path() -> str:
    """`viz-NAME.html` in the current folder, of the script that runs."""
    name = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-", "-c") else "run"
    return f"viz-{name}.html"


def record_process(value: str) -> None:
    """Records until the process ends, and writes the file then, whatever has happened.

    Processes that this one starts are not recorded.
    """
    os.environ["VIZ"] = "0"
    recorder, process = begin(), os.getpid()
    path = default_path() if value == "1" else value
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        recorder.error = "".join(traceback.format_exception_only(error)).strip()
        return before(kind, error, trace)

    def finish() -> None:
        if os.getpid() != process:
            return
        end(recorder)
        try:
            target = write(recorder, path)
        except ArgumentError as error:
            sys.stderr.write(f"VIZ: {error}\n")
            return
        count = sum([e.kind == "kernel" for e in recorder.events])
        nothing = "" if count else " (no kernel has run)"
        sys.stderr.write(f"VIZ: the run is in {target.resolve()}{nothing}\n")

    sys.excepthook = note
    atexit.register(finish)
