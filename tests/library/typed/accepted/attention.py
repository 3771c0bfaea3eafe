"""Computes attention of one head."""

from typing import assert_type

from aster_ml import Tensor

query = Tensor.ones(1, 1, 3, 4)
out = query.scaled_dot_product_attention(query, query, is_causal=True)
assert_type(out, Tensor)
assert out.shape == (1, 1, 3, 4)
