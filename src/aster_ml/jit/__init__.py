"""Record what a function runs, and replay it; `TinyJit` is at home in `jit.tiny_jit`."""

from __future__ import annotations

from aster_ml.jit.tiny_jit import TinyJit

__all__ = ["TinyJit"]
