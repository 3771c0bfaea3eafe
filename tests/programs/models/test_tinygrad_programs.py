"""Programs in the style of tinygrad's documentation, run unchanged; tinygrad prints the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "tinygrad"
PRINTED = {
    "levels": """\
True True True
33.0
CPU [0, 1, 2] [0] True True
True True
[5.0, 7.0, 9.0]
[-3.0, -3.0, -3.0] 0 none
""",
    "nodes": """\
Ops.ADD 7
(i+2) 2 12
7
Ops.MUL
3
True 4
""",
    "kernels": """\
[1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
[[28.0, 34.0], [76.0, 98.0], [124.0, 162.0]] [[28.0, 34.0], [76.0, 98.0], [124.0, 162.0]]
""",
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_prints_what_it_prints_there(name: str) -> None:
    command = [sys.executable, "-m", "aster_ml.compat", str(PROGRAMS / f"{name}.txt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == PRINTED[name]
