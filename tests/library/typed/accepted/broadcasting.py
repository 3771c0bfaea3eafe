"""Adds a row to a column."""

from typing import assert_type

from aster_ml import Tensor

table = Tensor.arange(2).reshape(2, 1) + Tensor.arange(3)
assert_type(table, Tensor)
assert_type(table.expand(2, 3), Tensor)
assert table.tolist() == [[0, 1, 2], [1, 2, 3]]
