"""From one kernel to a list of nodes in running order; knows no devices and renders nothing."""

from __future__ import annotations

from aster_ml.plugins import open_module

open_module(__name__)
