"""Picks the class of each row."""

from typing import assert_type

from aster_ml import Tensor

scores = Tensor([[0.1, 0.9], [0.8, 0.2]])
found = scores.argmax(axis=1)
assert_type(found, Tensor)
assert found.tolist() == [1, 0]
