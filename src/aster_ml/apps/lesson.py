"""Runs the command `aster lesson`: the lessons of a clone, and checks of a learner's exercises.

Receives the folder `lessons` of a clone. A lesson is a script whose comments `# > text` say what
the prints above them give; running it compares every line. Exercises are functions that a learner
fills in; a file of checks calls them. What the lessons teach does not belong here.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from aster_ml.errors import ArgumentError, AsterError
from aster_ml.processes import run_quietly

MARK = "# >"


class Said(NamedTuple):
    """A line that a lesson promises to print, and where it says so."""

    text: str
    line: int


class Outcome(NamedTuple):
    """Of one exercise: its name, whether it is solved, and what to say."""

    name: str
    solved: bool
    note: str


def find_folder(start: Path | None = None) -> Path:
    """The folder `lessons` at or above `start`, the working folder at first.

    Raises: ArgumentError where there is none.
    """
    start = start or Path.cwd()
    for folder in (start, *start.parents):
        if (folder / "lessons" / "00_intro.py").exists():
            return folder / "lessons"
    raise ArgumentError(
        f"lesson: there is no folder lessons in {start} or above; run this in a clone"
    )


def lessons(folder: Path) -> dict[str, Path]:
    """The scripts by their two digits, in order."""
    return {path.name[:2]: path for path in sorted(folder.glob("[0-9][0-9]_*.py"))}


def find(folder: Path, number: str) -> Path:
    """The script of a number. Raises: ArgumentError where there is none, naming those there are."""
    found = lessons(folder)
    path = found.get(number.zfill(2))
    if path is None:
        raise ArgumentError(f"lesson: there is no {number!r}; there are {', '.join(found)}")
    return path


def title(path: Path) -> str:
    """The first line of a lesson's docstring."""
    return path.read_text(encoding="utf-8").partition('"""')[2].partition("\n")[0].strip()


def promised(source: str) -> list[Said]:
    """Lists the output that a lesson promises, in order."""
    lines = ((text.strip(), i) for i, text in enumerate(source.splitlines(), 1))
    return [Said(text[len(MARK) :].strip(), i) for text, i in lines if text.startswith(MARK)]


def is_as_said(said: str, printed: str) -> bool:
    """Whether a printed line is the promised one, in which `...` stands for anything."""
    pattern = ".*".join(re.escape(part.strip()) for part in said.split("..."))
    return re.fullmatch(pattern, printed.strip()) is not None or said == printed.strip()


def differences(source: str, printed: list[str]) -> Iterator[str]:
    """Where what was printed is not what the lesson says."""
    said = promised(source)
    for want, got in zip(said, printed):
        if not is_as_said(want.text, got):
            yield f"line {want.line}: wanted {want.text!r}, printed {got!r}"
    if len(said) > len(printed):
        yield f"line {said[len(printed)].line}: {said[len(printed)].text!r} was not printed"
    if len(printed) > len(said):
        yield f"printed and not promised: {printed[len(said)]!r}"


def run(path: Path, echo: bool = True) -> list[str]:
    """Runs a lesson in a process of its own; returns what is not as it says."""
    done = run_quietly(["-Xutf8", str(path)], {"TQDM": "0"})
    printed = [line for line in done.stdout.splitlines() if line.strip()]
    if echo:
        print(done.stdout, end="")
    if done.returncode:
        return [f"the script ended with {done.returncode}:\n{done.stderr.strip()}"]
    return list(differences(path.read_text(encoding="utf-8"), printed))


def load(path: Path) -> ModuleType:
    """A Python file as a module. Raises: ArgumentError where it is not there."""
    if not path.exists():
        raise ArgumentError(f"lesson: {path} is not there")
    name = f"{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"lesson: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    spec.loader.exec_module(module)
    return module


def check(path: Path, answers: Path) -> list[Outcome]:
    """Calls the checks of a lesson on a file of answers, in the order in which they stand."""
    checks = load(path.parent / "checks" / path.name)
    learner = load(answers)
    outcomes = []
    for name, function in vars(checks).items():
        if not name.startswith("check_"):
            continue
        hint = " ".join((function.__doc__ or "").split())
        try:
            function(learner)
        except NotImplementedError:
            outcomes.append(Outcome(name[6:], False, f"not begun. {hint}"))
        except Exception as error:  # a learner's mistake is shown, whatever it is
            own = isinstance(error, AssertionError) and not isinstance(error, AsterError)
            said = f"not yet: {error}" if own else f"raised {type(error).__name__}: {error}"
            outcomes.append(Outcome(name[6:], False, f"{said}. {hint}"))
        else:
            outcomes.append(Outcome(name[6:], True, "solved"))
    return outcomes


def run_lesson(path: Path) -> int:
    """Runs a lesson and tells whether it printed what it says."""
    wrong = run(path)
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{path.name}: {'not as it says' if wrong else 'all as it says'}")
    return 1 if wrong else 0


def check_lesson(path: Path, folder: str) -> int:
    """Checks the answers of a folder, and tells of each exercise."""
    outcomes = check(path, path.parent / folder / path.name)
    for outcome in outcomes:
        print(f"  {'x' if outcome.solved else ' '} {outcome.name}: {outcome.note}")
    solved = sum(outcome.solved for outcome in outcomes)
    print(f"{path.name}: {solved} of {len(outcomes)} exercises solved")
    return 0 if solved == len(outcomes) else 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 0 where all is as it should be."""
    parser = argparse.ArgumentParser(
        prog="aster lesson", description="Lists the lessons, runs them, checks what you wrote."
    )
    parser.add_argument("action", nargs="?", choices=("list", "run", "check"), default="list")
    parser.add_argument("number", nargs="?", default="", help="00 to 07; none for all")
    parser.add_argument(
        "--solution", action="store_true", help="check the solutions that come with the lessons"
    )
    args = parser.parse_args(argv)
    try:
        folder = find_folder()
        paths = [find(folder, args.number)] if args.number else [*lessons(folder).values()]
        if args.action == "run":
            return max(run_lesson(path) for path in paths)
        if args.action == "check":
            answers = "solutions" if args.solution else "exercises"
            return max(check_lesson(path, answers) for path in paths)
    except ArgumentError as error:
        print(error, file=sys.stderr)
        return 2
    for path in paths:
        print(f"{path.name[:2]}  {title(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
