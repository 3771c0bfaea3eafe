"""A fresh process: import the library, compute `[1, 2, 3] + 1`, print it, end.

Measured from outside, as a user at a prompt waits for it. Cold means an empty disk cache; a library
without one counts the same in both.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.row import Row, Wanted

SUBJECT = "a fresh process"
LAZY = "from {} import Tensor; print((Tensor([1., 2., 3.]) + 1).tolist())"
PROGRAMS = {
    "aster": LAZY.format("aster_ml"),
    "before": LAZY.format("aster_ml"),
    "tinygrad": LAZY.format("tinygrad"),
    "torch": "import torch; print((torch.tensor([1., 2., 3.]) + 1).tolist())",
    "jax": "import jax; print((jax.numpy.array([1., 2., 3.]) + 1).tolist())",
    "numpy": "import numpy; print((numpy.array([1., 2., 3.]) + 1).tolist())",
}
EXPECTED = "[2.0, 3.0, 4.0]"


def run_program(
    library: str, python: str, environment: Mapping[str, str], folder: Path, timeout_s: float
) -> float:
    """Seconds of one process.

    Raises: RuntimeError with the last line it wrote when it fails or prints something else.
    """
    start = time.perf_counter()
    done = subprocess.run(
        [python, "-c", PROGRAMS[library]],
        env=dict(environment),
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode or done.stdout.strip() != EXPECTED:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")
    return seconds


def rows() -> list[Row]:
    """Cold and warm."""
    return [
        Row(
            f"import, (Tensor([1.,2.,3.]) + 1).tolist(), disk cache {key}",
            SUBJECT,
            "start",
            "s",
            Wanted(limit),
            how="process",
            key=key,
            libraries=("torch", "jax", "numpy", "tinygrad"),
            aside=("numpy",),
        )
        for key, limit in (("cold", 0.8), ("warm", 0.6))
    ]
