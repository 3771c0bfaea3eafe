"""Without the folder of a row and its name, every program computes the same, in more kernels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint.sources import ROOT
from tests.shim import on_cpu

# 10% of the root of mean squares is what results in float16 with the row are held to, too.
PROGRAM = """
import sys
import numpy as np
import aster_ml
from aster_ml import dtypes
from aster_ml.kernel_library import rows
from tests.core.kernel_library.attention.test_gradient import (
    CUDA, drawn, gradients, gradients_of, kernels, mask_of,
)
assert aster_ml.__file__.startswith(sys.argv[1]), aster_ml.__file__
assert rows.ROWS == ()
for kind in ("", "causal", "bool", "float"):
    m, causal = (33 if kind == "causal" else 47), kind == "causal"
    shapes = (1, 2, 33, 16), (1, 2, m, 16), (1, 2, m, 16), (1, 2, 33, 16)
    arrays, mask = drawn(3, dtypes.float16, *shapes), mask_of(kind, 33, m)
    right = gradients_of(arrays, mask, causal)
    for device, dtype, bound in (("CPU", dtypes.float32, 1e-4), (CUDA, dtypes.float16, 0.1)):
        found = gradients(arrays, mask, causal, device, dtype)
        for name, a, b in zip(("o", "dq", "dk", "dv"), found, right, strict=True):
            off = np.abs(a - b).max() / np.sqrt((b**2).mean())
            assert off <= bound, (kind, device, name, off)
            print("right")
made = kernels(192, 160, 64, 64, is_causal=True)
assert made and not [o for _, opts in made for o in opts if o.kind == "TC chain"]
assert max([u.arg.size for linear, _ in made for u in linear.params]) >= 2 * 192 * 160
"""


@pytest.mark.cc
@pytest.mark.skipif(on_cpu.find_compiler() is None, reason="no C++ compiler on PATH: g++")
def test_the_compiler_computes_the_same_without_them(tmp_path: Path) -> None:
    package = tmp_path / "aster_ml"
    shutil.copytree(
        ROOT / "src" / "aster_ml", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    library = package / "kernel_library"
    table = library / "rows.py"
    text = table.read_text(encoding="utf-8")
    assert text.count('ROWS: tuple[str, ...] = ("attention",)\n') == 1
    table.write_text(text.replace('("attention",)\n', "()\n"), encoding="utf-8")
    shutil.rmtree(library / "attention")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    # Masks, devices, and the result with its gradients.
    assert run.stdout.count("right") == 4 * 2 * 4
