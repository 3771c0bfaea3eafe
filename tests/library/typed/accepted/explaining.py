"""Asks what would run, and lists it."""

from typing import assert_type

from aster_ml import Tensor
from aster_ml.engine.items import ExecItem

x = (Tensor([1.0, 2.0]) + 1).exp()
assert_type(x.explain(), str)
assert_type(x.schedule(), list[ExecItem])
