"""Provides the names that users import: a deep-learning compiler with lazy tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aster_ml.uop.gc_pause import uncollected

with uncollected():
    from aster_ml import plugged  # noqa: F401 (plugs in)
    from aster_ml.config import TRACEMETA, VIZ, Context, getenv
    from aster_ml.device import Device
    from aster_ml.dtype import dtypes
    from aster_ml.engine.counters import GlobalCounters
    from aster_ml.late import late
    from aster_ml.tensor import Tensor
    from aster_ml.uop.node import UOp, Variable

if TYPE_CHECKING:
    from aster_ml.downloads import fetch
    from aster_ml.jit.tiny_jit import TinyJit
    from aster_ml.trace import Metadata

__all__ = [
    "Context", "Device", "GlobalCounters", "Metadata", "Tensor", "TinyJit", "UOp", "Variable",
    "dtypes", "fetch", "getenv",
]  # fmt: skip
__version__ = "0.1.0"
# Name -> the module that it is imported from at its first use.
LATER = {"Metadata": "trace", "TinyJit": "jit.tiny_jit", "fetch": "downloads"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(late(LATER[name]), name)
        return globals().setdefault(name, found)


def follow_calls() -> None:
    """Switches the tracing of Tensor methods on or off, as TRACEMETA says now."""
    late("trace").follow()


TRACEMETA.changed = follow_calls
if TRACEMETA:
    follow_calls()
if VIZ.value not in ("", "0"):
    late("viz.session").record_process(VIZ.value)
