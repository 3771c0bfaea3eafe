"""Runs the command `aster viz`: records a script, shows what was recorded, compares two runs.

Receives words of a command line; returns lines and an exit code. The page is made in `viz/page`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from aster_ml.errors import ArgumentError, AsterError
from aster_ml.processes import run_python
from aster_ml.viz.compare import compared
from aster_ml.viz.page import data_of, page_of
from aster_ml.viz.serve import serve_file, serve_script
from aster_ml.viz.terminal import VIEWS, difference_lines, kernel_lines, kernel_of, listed

USAGE = """\
aster viz [-o FILE] [--json] [--serve] SCRIPT [ARGUMENTS]   record a script
aster viz --serve [--port N] SCRIPT|FILE [ARGUMENTS]        look at it while it runs
aster viz ls [--json] FILE                                  what was recorded
aster viz show [--json] FILE KERNEL [VIEW ...]              one kernel: passes, why, graph, linear,
                                                            source, asm, accesses
aster viz diff [--json] [-o FILE] BEFORE AFTER              two runs, changed kernels first"""


def read(path: str) -> dict[str, Any]:
    """The data of a file. Raises: ArgumentError, FormatError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from None
    return data_of(text)


def parser() -> argparse.ArgumentParser:
    """The words behind `aster viz`."""
    found = argparse.ArgumentParser(prog="aster viz", usage=USAGE)
    found.add_argument("-o", "--output", default="")
    found.add_argument("--json", action="store_true")
    found.add_argument("--serve", action="store_true")
    found.add_argument("--port", type=int, default=8000)
    found.add_argument("words", nargs=argparse.REMAINDER)
    return found


def record(words: Sequence[str], output: str, as_json: bool, in_place: bool) -> int:
    """Runs a script in a process of its own, which writes its file; its exit code."""
    script = Path(words[0])
    if not script.is_file():
        raise ArgumentError(f"{script} is no file; aster viz wants a script, or ls, show or diff")
    path = output or f"viz-{script.stem}.{'json' if as_json else 'html'}"
    return run_python([str(script), *words[1:]], {"VIZ": path}, in_place)


def answer(words: Sequence[str], output: str, as_json: bool) -> Iterable[str]:
    """The lines of ls, show and diff. Raises: ArgumentError, FormatError."""
    command, rest = words[0], [w for w in words[1:] if w != "--json"]
    as_json = as_json or "--json" in words
    if "-o" in rest[:-1]:
        at = rest.index("-o")
        output, rest = rest[at + 1], rest[:at] + rest[at + 2 :]
    wanted = {"ls": (1, 1), "show": (2, 2 + len(VIEWS)), "diff": (2, 2)}[command]
    if not wanted[0] <= len(rest) <= wanted[1]:
        raise ArgumentError(f"aster viz {command}: {len(rest)} words are given\n{USAGE}")
    data = read(rest[0])
    if command == "ls":
        return [json.dumps(data)] if as_json else listed(data)
    if command == "diff":
        other = read(rest[1])
        if output:
            Path(output).write_text(page_of(other, data), encoding="utf-8", newline="\n")
        rows = compared(data, other)
        return [json.dumps(rows)] if as_json else difference_lines(data, other)
    unknown = [w for w in rest[2:] if w not in VIEWS]
    if unknown:
        raise ArgumentError(f"no view is called {unknown[0]!r}; there are {', '.join(VIEWS)}")
    kernel = kernel_of(data, rest[1])
    return [json.dumps(kernel)] if as_json else kernel_lines(data, kernel, rest[2:] or [*VIEWS])


def run_viz(words: Sequence[str], in_place: bool = False) -> tuple[int, Iterable[str]]:
    """The exit code of a command, and the lines to print.

    With `in_place` a script may take the place of this process (`run_python`).
    """
    options = parser().parse_args(words)
    if not options.words:
        return 2, [USAGE]
    try:
        if options.words[0] in ("ls", "show", "diff"):
            return 0, list(answer(options.words, options.output, options.json))
        if options.serve and options.words[0].endswith((".html", ".json")):
            return serve_file(read(options.words[0]), options.port), []
        if options.serve:
            return serve_script(options.words, options.port), []
        return record(options.words, options.output, options.json, in_place), []
    except AsterError as error:
        return 2, [f"aster viz: {error}"]
