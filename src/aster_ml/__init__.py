"""Aster ML: a deep-learning compiler with lazy tensors. The names that users import."""

from __future__ import annotations

from aster_ml.compat import names
from aster_ml.config import VIZ, Context, getenv
from aster_ml.device import Device
from aster_ml.downloads import fetch
from aster_ml.dtype import dtypes
from aster_ml.engine.counters import GlobalCounters
from aster_ml.jit.tiny_jit import TinyJit
from aster_ml.tensor import Tensor
from aster_ml.trace import Metadata
from aster_ml.uop.node import UOp, Variable

__all__ = [
    "Context", "Device", "GlobalCounters", "Metadata", "Tensor", "TinyJit", "UOp", "Variable",
    "dtypes", "fetch", "getenv",
]  # fmt: skip
__version__ = "0.1.0"
# What lower modules are asked for by programs of other frameworks.
names.install()
if VIZ.value not in ("", "0"):
    from aster_ml.viz.session import record_process

    record_process(VIZ.value)
