"""The path that programs of tinygrad import the algebra of index expressions from."""

from __future__ import annotations

from aster_ml.uop.rules.symbolic import simplify, symbolic

__all__ = ["simplify", "symbolic"]
