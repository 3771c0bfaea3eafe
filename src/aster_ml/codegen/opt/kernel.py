"""Passes on what `codegen.opt` has, under its older path."""

from __future__ import annotations

from aster_ml.codegen.opts import Opt, OptOps
from aster_ml.compat.kernel import Kernel
from aster_ml.errors import KernelOptError

__all__ = ["Kernel", "KernelOptError", "Opt", "OptOps"]
