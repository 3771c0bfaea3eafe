"""Aster under tinygrad's name, in a process that a program of tinygrad's has started."""

from __future__ import annotations

import importlib
import sys

from aster_ml.compat import program

program.install()
# Found by its place and not by the finder, this module puts Aster there itself.
sys.modules["tinygrad"] = importlib.import_module("aster_ml")
