"""Exercises of lesson 02, without @, matmul, conv2d, einsum, cumsum: `aster lesson check 02`."""

from aster_ml import Tensor


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """[n, i, k] times [n, k, j]: [n, i, j], from reshape, expand, permute, *, sum."""
    raise NotImplementedError


def average_pool(image: Tensor, size: int) -> Tensor:
    """The mean of each size x size block of [h, w], both multiples of size, by one reshape."""
    raise NotImplementedError


def outer_sum(x: Tensor, y: Tensor) -> Tensor:
    """[n, m] of x[i] + y[j]."""
    raise NotImplementedError


def one_hot(classes: Tensor, count: int) -> Tensor:
    """[n, count], float32: 1 where the column is the class of the row, from a comparison."""
    raise NotImplementedError


def moving_sum(x: Tensor, width: int) -> Tensor:
    """Sums of `width` neighbours of x [n]: [n - width + 1]."""
    raise NotImplementedError
