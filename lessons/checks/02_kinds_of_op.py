"""Checks of lesson 02: each receives what the learner wrote; its docstring is the hint."""

import inspect
from types import ModuleType

import numpy as np

from aster_ml import GlobalCounters, Tensor

FORBIDDEN = ("@", ".matmul", ".dot(", ".conv2d", ".einsum", ".cumsum", ".one_hot", ".avg_pool2d")


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def from_pieces(function: object) -> None:
    """Refuses answers that ask for the finished thing."""
    source = inspect.getsource(function)  # type: ignore[arg-type]
    used = [word for word in FORBIDDEN if word in source]
    assert not used, f"it uses {used[0]}"


def close(got: Tensor, want: np.ndarray) -> None:
    assert got.shape == want.shape, f"its shape is {got.shape}, wanted {want.shape}"
    assert np.allclose(got.numpy(), want, rtol=1e-4, atol=1e-5), "the numbers differ from NumPy's"


def check_batched_product(learner: ModuleType) -> None:
    """As in part 5, with one more axis in front that all have."""
    from_pieces(learner.batched_product)
    a, b = values(3, 4, 5), values(3, 5, 6)
    x, y = Tensor(a).realize(), Tensor(b).realize()
    GlobalCounters.reset()
    close(learner.batched_product(x, y).realize(), a @ b)
    assert GlobalCounters.kernel_count == 1, f"it took {GlobalCounters.kernel_count} kernels"


def check_average_pool(learner: ModuleType) -> None:
    """[h, w] is [h / size, size, w / size, size]; which two axes are inside of a block?"""
    from_pieces(learner.average_pool)
    a = values(6, 8)
    close(learner.average_pool(Tensor(a), 2), a.reshape(3, 2, 4, 2).mean((1, 3)))


def check_outer_sum(learner: ModuleType) -> None:
    """Axes of size 1 broadcast."""
    a, b = values(5), values(7)
    close(learner.outer_sum(Tensor(a), Tensor(b)), np.add.outer(a, b))


def check_one_hot(learner: ModuleType) -> None:
    """Compare [n, 1] with arange(count); a bool becomes 0.0 and 1.0 by float()."""
    from_pieces(learner.one_hot)
    close(learner.one_hot(Tensor([2, 0, 3]), 4), np.eye(4, dtype=np.float32)[[2, 0, 3]])


def check_moving_sum(learner: ModuleType) -> None:
    """`width` shifted slices of equal length, stacked and summed."""
    from_pieces(learner.moving_sum)
    a = values(10)
    want = np.lib.stride_tricks.sliding_window_view(a, 4).sum(1)
    close(learner.moving_sum(Tensor(a), 4), want)
