"""Normalises by the statistics of a batch."""

from typing import assert_type

from aster_ml import Tensor, nn

layer = nn.BatchNorm(2)
with Tensor.train():
    out = layer(Tensor.arange(8).float().reshape(4, 2))
assert_type(out, Tensor)
assert abs(float(out.mean())) < 1e-4
