"""The cases of `gc_pause_cases.py`, in a process where little else is alive."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("gc_pause_cases.py")


def test_pauses_in_a_process_of_their_own() -> None:
    names = [f.name for f in ast.parse(CASES.read_text()).body if isinstance(f, ast.FunctionDef)]
    wanted = [name for name in names if name.startswith("test_")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    passed = re.search(r"^(\d+) passed", run.stdout, re.MULTILINE)
    assert passed is not None, run.stdout
    assert int(passed[1]) == len(wanted) == 6
