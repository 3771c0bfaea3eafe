"""Runs the command `aster`: doctor, demo, apps, reproduction of failures, version.

Exit codes: 0 for success, 1 if the default device does not work (or the demo failed), 2 for a
command line that does not parse. Text is written here; facts come from the devices.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from aster_ml import Device, Tensor, __version__
from aster_ml.allocator import format_bytes
from aster_ml.apps.packages import REQUIRED, extra_lines, version_of
from aster_ml.apps.self_test import run_self_test
from aster_ml.config import SETTINGS
from aster_ml.device import STORAGE_KINDS, DeviceRow
from aster_ml.errors import AsterError, FormatError
from aster_ml.extend import cache_folder, passed_parts, reproduce
from aster_ml.processes import run_python
from aster_ml.viz.command import run_viz


class App(NamedTuple):
    """A program behind a subcommand."""

    module: str
    about: str


# Programs with a command line of their own: the module of each below the package, and what it does.
APPS = {
    "run": App("apps.run", "run an ONNX model: inputs, outputs, operators, time, kernels"),
    "demo": App("apps.demo", "train a small network on real digits"),
    "export": App(
        "export", "write a function or a model as a program of its own: C, WebAssembly, a page"
    ),
    "embed": App("apps.embed", "how near sentences are to one another, by a model from a folder"),
    "finetune": App(
        "apps.finetune", "teach a language model from lines of chats or texts, on a CPU"
    ),
    "llm": App("apps.llm", "chat with a language model from a GGUF file, measure it, serve it"),
    "lesson": App("apps.lesson", "list, run and check the lessons of a clone"),
}
# Error handler for characters that the encoding of the output lacks.
UNSHOWN = "backslashreplace"
# These run nothing: DISK and NPY hold data, NULL compiles only.
COMPUTE_NOTHING = STORAGE_KINDS | {"NULL"}


def try_device(row: DeviceRow) -> DeviceRow:
    """The row of a device, corrected by computing a small sum on it."""
    if not row.works or row.name in COMPUTE_NOTHING:
        return row
    try:
        result = (Tensor([1.0, 2.0, 3.0], device=row.name) + 1).tolist()
    except (AsterError, OSError, RuntimeError) as error:
        return DeviceRow(row.name, False, f"computing failed: {error}")
    if result != [2.0, 3.0, 4.0]:
        return DeviceRow(row.name, False, f"[1, 2, 3] + 1 came out as {result}")
    known = passed_parts(Device[row.name].tested_as)
    note = f"{row.note}; passed in a self-test: {' '.join(sorted(known))}" if known else row.note
    return row._replace(note=note)


def folder_size(folder: Path) -> tuple[int, int]:
    """Counts the files below a folder, and their bytes."""
    count = nbytes = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                nbytes += os.stat(os.path.join(path, name)).st_size
            except FileNotFoundError:
                continue  # another process replaced it between listing and looking
            count += 1
    return count, nbytes


def cache_line() -> str:
    """The folder of compiled kernels, and its size."""
    folder = cache_folder()
    if folder is None:
        return "none: there is no home folder; CACHEDIR names one"
    if not folder.exists():
        return f"{folder} (not there yet)"
    count, nbytes = folder_size(folder)
    return f"{folder}, {count} files, {format_bytes(nbytes)}"


def changed_settings() -> str:
    """The settings that the environment changes."""
    changed = [repr(s) for s in SETTINGS.values() if s.value != s.default]
    return ", ".join(changed) or "all at their defaults"


def report_lines(rows: Sequence[DeviceRow], default: str) -> Iterator[str]:
    """The whole report of `aster doctor`."""
    yield f"Aster ML {__version__}"
    yield ""
    yield "devices"
    for row in rows:
        state = "works" if row.works else "absent"
        mark = " (the default)" if row.name == default.partition(":")[0] else ""
        yield f"  {row.name:7} {state:6}  {row.note}{mark}"
    yield ""
    cpu = [row for row in rows if row.name == "CPU" and row.works]
    if cpu:
        target = Device["CPU"].target
        yield f"processor  {target.arch}"
        yield f"vectors    {target.vector_bits} bits, {target.lanes(4)} of float32"
        yield f"threads    {target.threads} of {os.cpu_count()} (the setting THREADS)"
    yield f"system     {platform.system()} {platform.release()} {platform.machine()}"
    yield f"Python     {platform.python_version()}"
    yield f"packages   {', '.join([f'{name} {version_of(name)}' for name in REQUIRED])}"
    yield f"cache      {cache_line()}"
    yield f"settings   {changed_settings()}"
    yield ""
    yield "extras"
    yield from extra_lines()


def run_doctor() -> int:
    """Prints the report; 1 when the default device does not work."""
    try:
        default = Device.DEFAULT
    except AsterError as error:
        print(f"DEV: {error}", file=sys.stderr)
        return 1
    rows = [try_device(row) for row in Device.describe()]
    for line in report_lines(rows, default):
        print(line)
    broken = [row for row in rows if row.name == default.partition(":")[0] and not row.works]
    for row in broken:
        print(f"\nthe default device {row.name} does not work: {row.note}", file=sys.stderr)
    return 1 if broken else 0


def test_device(name: str) -> int:
    """Runs the self-test of a device; 1 where it fails, or there is no such device."""
    try:
        return run_self_test(Device.canonicalize(name))
    except AsterError as error:
        print(f"aster doctor: {error}", file=sys.stderr)
        return 1


def run_app(name: str, arguments: Sequence[str], in_place: bool = False) -> int:
    """Runs an app in a new process, which keeps its extra packages out of this one.

    Returns its exit code. With `in_place` the app replaces this process.
    """
    form = os.environ.get("PYTHONIOENCODING", f":{UNSHOWN}")
    return run_python(
        ["-m", f"aster_ml.{APPS[name].module}", *arguments], {"PYTHONIOENCODING": form}, in_place
    )


def run_reproduce(path: str) -> int:
    """Reproduces a failure: prints its traceback and returns 1; 0 if nothing fails any more.

    Prints one line and returns 2 for a file that is not the record of a failure.
    """
    try:
        print(reproduce(path))
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError) as error:
        said = "no text" if isinstance(error, ValueError) else error.strerror
        print(f"aster reproduce: {path}: {said}; the text that a warning names is wanted")
        return 2
    except FormatError as error:
        print(f"aster {error}")
        return 2
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line of `aster`."""
    parser = argparse.ArgumentParser(
        prog="aster", description="Aster ML, a deep-learning compiler in readable Python."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser(
        "doctor", help="which devices work here, versions, cache, threads, extras"
    ).add_argument(
        "--self-test", metavar="DEVICE",
        help="hold a device to what the ops mean, for two minutes at most, and keep the outcome",
    )  # fmt: skip
    for name, app in APPS.items():
        commands.add_parser(name, help=app.about, add_help=False, prefix_chars="\0").add_argument(
            "arguments", nargs="*", help="passed on"
        )
    commands.add_parser(
        "reproduce", help="do again what failed inside, from the app.about that a warning names"
    ).add_argument("path", help="the text")
    commands.add_parser(
        "viz", help="look into a run: aster viz SCRIPT, ls, show, diff",
        add_help=False, prefix_chars="\0",
    ).add_argument("arguments", nargs="*", help="see aster viz --help")  # fmt: skip
    commands.add_parser("version", help="the version of Aster ML")
    return parser


def show_all_characters() -> None:
    """Prints characters that the terminal's encoding lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and "PYTHONIOENCODING" not in os.environ:
            stream.reconfigure(errors=UNSHOWN)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    show_all_characters()
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help(sys.stderr)
        parser.exit(2)
    # A caller that passes `argv` continues after the command.
    options.in_place = argv is None
    try:
        code = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe (`aster doctor | head`); the rest is discarded.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return 0
    return code


def run(options: argparse.Namespace) -> int:
    """Runs the command that was given; returns its exit code."""
    if options.command == "doctor":
        return run_doctor() if options.self_test is None else test_device(options.self_test)
    if options.command == "reproduce":
        return run_reproduce(options.path)
    if options.command == "viz":
        code, lines = run_viz(options.arguments, options.in_place)
        for line in lines:
            print(line, file=sys.stderr if code else sys.stdout)
        return code
    if options.command in APPS:
        return run_app(options.command, options.arguments, options.in_place)
    print(f"aster-ml {__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
