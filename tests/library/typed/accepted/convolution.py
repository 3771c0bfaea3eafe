"""Convolves with a layer and by hand."""

from typing import assert_type

from aster_ml import Tensor, nn

image = Tensor.ones(1, 1, 4, 4)
assert_type(nn.Conv2d(1, 2, 3)(image), Tensor)
out = image.conv2d(Tensor.ones(1, 1, 3, 3), padding=1)
assert_type(out, Tensor)
assert out[0, 0, 0].tolist() == [4.0, 6.0, 6.0, 4.0]
assert_type(out.max_pool2d(2, return_indices=False), Tensor)
best, places = out.max_pool2d((2, 2), return_indices=True)
assert_type(places, Tensor)
assert best.sum().item() == 36.0
matrix = out.reshape(4, 4)
assert_type(Tensor.einsum("ij,jk->ik", matrix, matrix), Tensor)
assert_type(Tensor.einsum("ij,jk->ik", [matrix, matrix]), Tensor)
