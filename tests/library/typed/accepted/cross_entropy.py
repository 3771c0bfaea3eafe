"""Computes a loss of two samples."""

from typing import assert_type

from aster_ml import Tensor

logits = Tensor([[2.0, 0.0], [0.0, 2.0]])
loss = logits.cross_entropy(Tensor([0, 1]), reduction="mean")
assert_type(loss, Tensor)
assert_type(logits.sparse_categorical_crossentropy(Tensor([0, 1])), Tensor)
assert abs(float(loss) - 0.1269) < 1e-3
