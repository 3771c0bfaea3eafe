"""Solutions of lesson 02."""

from aster_ml import Tensor


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """[n, i, k] times [n, k, j]: [n, i, j], from reshape, expand, permute, *, sum."""
    (n, i, k), j = a.shape, b.shape[2]
    left = a.reshape(n, i, 1, k).expand(n, i, j, k)
    right = b.permute(0, 2, 1).reshape(n, 1, j, k).expand(n, i, j, k)
    return (left * right).sum(axis=3)


def average_pool(image: Tensor, size: int) -> Tensor:
    """The mean of each size x size block of [h, w], both multiples of size, by one reshape."""
    h, w = image.shape
    return image.reshape(h // size, size, w // size, size).mean(axis=(1, 3))


def outer_sum(x: Tensor, y: Tensor) -> Tensor:
    """[n, m] of x[i] + y[j]."""
    return x.reshape(-1, 1) + y.reshape(1, -1)


def one_hot(classes: Tensor, count: int) -> Tensor:
    """[n, count], float32: 1 where the column is the class of the row, from a comparison."""
    return (classes.reshape(-1, 1) == Tensor.arange(count)).float()


def moving_sum(x: Tensor, width: int) -> Tensor:
    """Sums of `width` neighbours of x [n]: [n - width + 1]."""
    n = x.shape[0] - width + 1
    return Tensor.stack(*[x[i : i + n] for i in range(width)]).sum(axis=0)
