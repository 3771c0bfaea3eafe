"""Runs a program that imports tinygrad on Aster: `python -m aster_ml.compat PROGRAM.py`."""

from __future__ import annotations

import sys

from aster_ml.compat.program import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
