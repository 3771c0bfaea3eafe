"""Runs the conformance suite of OPENCL on Oclgrind, which looks for races between work-items.

`make oclgrind`, or `python -m tests.conformance.oclgrind -k softmax` for some of the cases. Prints
how many kernels ran, and how many data races, divergent barriers and other errors were seen; the
exit status is 1 where there is one, or a test failed. Oclgrind is a device of its own, which
interprets kernels: `apt-get install oclgrind`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# What Oclgrind writes of each kind of error.
ERRORS = {
    "data races": re.compile(r"data race at"),
    "divergent barriers": re.compile(r"[Ww]ork-group divergence|barrier divergence"),
    "invalid accesses": re.compile(r"[Ii]nvalid (read|write)"),
}
WRAPPER = ("oclgrind", "--data-races", "--uniform-writes", "--max-errors", "100000")


class Found(NamedTuple):
    """How a command ended, what it printed, and how many errors of each kind there were."""

    status: int
    output: str
    errors: dict[str, int]

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return self.status == 0 and not any(self.errors.values())


def watched(command: Sequence[str], timeout: float) -> Found:
    """A command whose OpenCL device is Oclgrind."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
        env = {**os.environ, "PYTHONPATH": path, "CACHE": "0", "DEV": "OPENCL"}
        run = subprocess.run(
            [*WRAPPER, "--log", str(log), *command],
            cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        said = log.read_text(errors="replace") if log.exists() else ""
    said += run.stdout + run.stderr
    return Found(
        run.returncode, said, {name: len(words.findall(said)) for name, words in ERRORS.items()}
    )


def main(arguments: Sequence[str]) -> int:
    """Runs the suite, prints the counts."""
    chosen = " and ".join(["OPENCL", *[f"({x})" for x in arguments if x != "-k"]])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "0"]
    found = watched([*command, "tests/conformance", "-k", chosen], timeout=3600)
    tests = re.search(r"\d+ passed[^\n]*", found.output)
    print(tests[0] if tests else found.output[-2000:])
    print(", ".join(f"{n} {name}" for name, n in found.errors.items()))
    return 0 if found.is_clean else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
