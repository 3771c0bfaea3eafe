"""Tests that type checkers see of tensors what runs: the programs of `accepted` and `refused`.

Each line of a refused program that a checker must not accept ends with what each checker calls the
error: `# mypy: CODE  # pyright: RULE`.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from aster_ml import Tensor
from aster_ml.ops.handle import Handle

HERE = pathlib.Path(__file__).parent
SRC = HERE.parents[2] / "src"
ACCEPTED = sorted((HERE / "accepted").glob("*.py"))
REFUSED = sorted((HERE / "refused").glob("*.py"))
# File, line, and what the checker calls the error.
Found = set[tuple[str, int, str]]


def need(package: str) -> None:
    """Skips a test where a checker is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed; pip install {package}")


def expected(checker: str) -> Found:
    """The errors that lines of refused programs say `checker` finds there."""
    return {
        (path.name, number, code)
        for path in REFUSED
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for code in re.findall(rf"# {checker}: ([\w-]+)", line)
    }


def checked_by_mypy(paths: list[pathlib.Path], cache: pathlib.Path) -> Found:
    """The errors of strict mypy, by nobody's configuration."""
    run = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}",
            "--follow-imports=silent", "--explicit-package-bases", "--output=json",
            *map(str, paths),
        ],
        capture_output=True, text=True, cwd=HERE, env={**os.environ, "MYPYPATH": str(SRC)},
    )  # fmt: skip
    assert run.returncode < 2, run.stdout + run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    errors = [e for e in found if e["severity"] == "error"]
    assert bool(errors) == bool(run.returncode), run.stdout + run.stderr
    return {(pathlib.Path(e["file"]).name, e["line"], e["code"]) for e in errors}


def checked_by_pyright(folder: pathlib.Path) -> Found:
    """The errors of pyright, which reads a copy of the programs: it looks below its settings."""
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({"extraPaths": [str(SRC)]}))
    for path in [*ACCEPTED, *REFUSED]:
        shutil.copy(path, folder)
    run = subprocess.run(
        [
            sys.executable, "-m", "pyright", "--outputjson", "--project", str(config),
            "--pythonpath", sys.executable,
        ],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode < 2, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert found["summary"]["filesAnalyzed"] == len(ACCEPTED) + len(REFUSED)
    return {
        (pathlib.Path(e["file"]).name, e["range"]["start"]["line"] + 1, e["rule"])
        for e in found["generalDiagnostics"]
        if e["severity"] == "error"
    }


def test_there_are_forty_programs() -> None:
    assert len(ACCEPTED) >= 40
    without = [path.name for path in ACCEPTED if "assert_type(" not in path.read_text()]
    assert without == []


def test_programs_do_what_they_say() -> None:
    for path in ACCEPTED:
        assert runpy.run_path(str(path))["__doc__"], path.name


@pytest.mark.slow
def test_mypy_finds_the_wrong_lines_alone(tmp_path: pathlib.Path) -> None:
    need("mypy")
    assert checked_by_mypy([*ACCEPTED, *REFUSED], tmp_path) == expected("mypy")


@pytest.mark.slow
def test_pyright_finds_the_wrong_lines_alone(tmp_path: pathlib.Path) -> None:
    need("pyright")
    assert checked_by_pyright(tmp_path) == expected("pyright")


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Names and defaults of its parameters."""
    return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]


def test_attached_functions_have_the_parameters_of_what_they_replace() -> None:
    """Where they differ pyright takes those that the base declares."""
    wrong = []
    for cls in Tensor.__mro__[1:]:
        for name, function in vars(cls).items():
            if inspect.isfunction(function) and "." not in function.__qualname__:
                replaced = getattr(Handle, name, None)
                if inspect.isfunction(replaced) and parameters(replaced) != parameters(function):
                    wrong.append(name)
    # Declared apart.
    assert wrong == ["div"]
