"""Looks rows up."""

from typing import assert_type

from aster_ml import Tensor, nn

layer = nn.Embedding(5, 3)
found = layer(Tensor([[0, 4]]))
assert_type(found, Tensor)
assert found.shape == (1, 2, 3)
