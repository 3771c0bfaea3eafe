"""Passes on TinyJit, which stands above the engine here, and the graphs that recordings run as."""

from __future__ import annotations

from aster_ml.errors import JitError
from aster_ml.jit.graph_runner import GraphRunner
from aster_ml.jit.tiny_jit import TinyJit

__all__ = ["GraphRunner", "JitError", "TinyJit"]
