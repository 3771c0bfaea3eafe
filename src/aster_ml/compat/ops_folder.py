"""Passes on the names of `uop` itself: the ops and their groups, which are at home in `uop.ops`."""

from __future__ import annotations

from aster_ml.compat.uops import GroupOp
from aster_ml.uop.ops import Ops

__all__ = ["GroupOp", "Ops"]
