"""Exercises of lesson 00. Replace each `raise` and run `aster lesson check 00`."""

from collections.abc import Callable

from aster_ml import Tensor


def kernels_of(compute: Callable[[], Tensor]) -> int:
    """How many kernels `compute().realize()` launches."""
    raise NotImplementedError


def one_pass(x: Tensor) -> Tensor:
    """The mean of |x - 3| over all elements, in one kernel; x has memory."""
    raise NotImplementedError


def border(image: Tensor) -> Tensor:
    """The last column of `image` [h, w], from bottom to top: shape [h], and no kernel."""
    raise NotImplementedError


def same_node(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors stand for the very same computation, without computing anything."""
    raise NotImplementedError
