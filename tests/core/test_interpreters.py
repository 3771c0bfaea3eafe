"""Python started again: it finds this package, and is no less isolated than the process before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import aster_ml
from aster_ml import interpreters

ROOT = str(Path(aster_ml.__file__).parents[1])
ASK = "import aster_ml, sys; f = sys.flags; print(aster_ml.__file__, f.optimize, f.safe_path)"
# A process that starts another one, which says what it has found.
AGAIN = f"""
import subprocess, sys
sys.path.insert(0, {ROOT!r})
from aster_ml.interpreters import python_command, python_environment
command = python_command("-c", {ASK!r})
print(subprocess.check_output(command, env=python_environment(), text=True), end="")
"""


@pytest.mark.parametrize("options", [[], ["-O"], ["-OO"], ["-I"], ["-E"], ["-P"]], ids="".join)
def test_a_child_is_as_its_parent(options: list[str], tmp_path: Path) -> None:
    (tmp_path / "aster_ml.py").write_text("raise SystemExit('another package')")
    given = {**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": ""}
    if "-E" in options or "-I" in options:
        given["PYTHONPATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, *options, "-c", AGAIN],
        capture_output=True, text=True, check=False, env=given, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    file, optimize, safe_path = done.stdout.split()
    assert file == aster_ml.__file__
    assert int(optimize) == {"-O": 1, "-OO": 2}.get("".join(options), 0)
    assert safe_path == str(options in (["-I"], ["-P"]))


def test_a_module_of_the_working_folder_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('of the working folder')")
    monkeypatch.chdir(tmp_path)
    command = interpreters.python_command("-m", "aster_ml.apps.lesson", "--help")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120,
        env=interpreters.python_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_without_python_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(FileNotFoundError, match="no Python to start"):
        interpreters.python_command("-m", "aster_ml")


def test_variables_go_along() -> None:
    found = interpreters.python_environment(VIZ="page.html")
    assert found["VIZ"] == "page.html"
    assert found["PYTHONPATH"].split(os.pathsep)[0] == ROOT
