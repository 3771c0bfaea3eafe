"""Passes on the schedule language under the path that programs of tinygrad import it from."""

from __future__ import annotations

from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.compat.kernel import Kernel
from aster_ml.errors import KernelOptError

__all__ = ["Kernel", "KernelOptError", "Opt", "OptOps"]
