"""`python -m aster_ml.compat PROGRAM.py`: runs a program that says `import tinygrad` on Aster."""

from __future__ import annotations

import sys

from aster_ml.compat.program import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
