"""`python -m aster_ml.compat`: programs that say `import tinygrad`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAME = """
import sys
import tinygrad, tinygrad.helpers
import tinygrad.nn.optim as optim
from tinygrad import Tensor, nn
from tinygrad.helpers import getenv
from tinygrad.engine.jit import TinyJit
import aster_ml, aster_ml.nn.optim
assert tinygrad is aster_ml and tinygrad.helpers is aster_ml.helpers
assert optim is aster_ml.nn.optim and Tensor is aster_ml.Tensor
assert __name__ == "__main__"
class Kept: pass
import pickle
assert isinstance(pickle.loads(pickle.dumps(Kept())), Kept)
print(sys.argv[1:], getenv("LIMIT", 1), (Tensor([1.0, 2.0]) + 1).tolist())
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, run in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "aster_ml.compat", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 3\n", encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(SAME + "import beside\nassert beside.VALUE == 3", encoding="utf-8")
    done = run(tmp_path.parent, str(program), "-m", "x", LIMIT="7")
    assert (done.stdout, done.stderr) == ("['-m', 'x'] 7 [2.0, 3.0]\n", "")
    assert done.returncode == 0


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(SAME, encoding="utf-8")
    done = run(tmp_path, "-m", "package", "one")
    assert (done.stdout, done.stderr) == ("['one'] 1 [2.0, 3.0]\n", "")


def test_a_text(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", SAME, "one", "two")
    assert (done.stdout, done.stderr) == ("['one', 'two'] 1 [2.0, 3.0]\n", "")
    assert run(tmp_path, "-c", "import sys; sys.exit(5)").returncode == 5


def test_processes_that_a_program_starts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, subprocess, sys
from tinygrad import Tensor
def total(n): return Tensor.arange(n).sum().item()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(total, [3, 4]))
    code = "import tinygrad.dtype, aster_ml; print(tinygrad.dtype is aster_ml.dtype)"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
""",
        encoding="utf-8",
    )
    done = run(tmp_path, str(program))
    assert done.stdout.split("\n")[:2] == ["[3, 6]", "True"], done.stderr


@pytest.mark.parametrize(
    "line, reason",
    [
        ("import tinygrad.nn.torch", "Aster is no device of PyTorch"),
        ("import tinygrad.runtime.ops_cuda", "Device['CUDA'] is there, made of other classes"),
        ("import tinygrad.no_such_module", "Aster has no such module"),
        ("from tinygrad.helpers import no_such_name", "cannot import name 'no_such_name'"),
    ],
)
def test_what_is_not_there(tmp_path: Path, line: str, reason: str) -> None:
    done = run(tmp_path, "-c", line)
    assert done.returncode == 1
    assert reason in done.stderr


def test_the_command_line(tmp_path: Path) -> None:
    assert run(tmp_path, "--help").stdout.startswith("usage: python -m aster_ml.compat PROGRAM.py")
    for arguments in ((), ("-m",), ("-c",)):
        done = run(tmp_path, *arguments)
        assert done.returncode == 2
        assert "usage: python -m aster_ml.compat" in done.stderr
    assert "FileNotFoundError" in run(tmp_path, "absent.py").stderr
