"""Imports every family of operators, so that the table has them."""

from aster_ml.torch_backend.aten import index, math, network, random, reduce, shape

FAMILIES = (math, reduce, shape, index, network, random)
