"""Passes on the items of a schedule under the path that programs of tinygrad import them from."""

from __future__ import annotations

from aster_ml.engine.items import ExecItem, run_schedule

__all__ = ["ExecItem", "run_schedule"]
