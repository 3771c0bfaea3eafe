"""Runs the command `aster`: `python -m aster_ml` where no script of that name is installed."""

from __future__ import annotations

import sys

from aster_ml.cli import main

if __name__ == "__main__":
    sys.exit(main())
