"""Exercises of lesson 01. Replace each `raise` and run `aster lesson check 01`."""

from collections.abc import Callable

from aster_ml import Tensor


def checkerboard(n: int) -> Tensor:
    """[n, n] of 0 and 1, int32, 0 at [0, 0], from arange and broadcasting: no memory is read."""
    raise NotImplementedError


def distances(points: Tensor) -> Tensor:
    """The distance of each of the points [n, d] to each other: [n, n], in one kernel."""
    raise NotImplementedError


def standardise(x: Tensor) -> Tensor:
    """Each row of x [n, m] with mean 0 and variance 1 (divided by m), as NumPy would to 1e-5."""
    raise NotImplementedError


def median_time(run: Callable[[], Tensor], repeats: int) -> float:
    """The median of the seconds that `run().realize()` takes when everything is compiled."""
    raise NotImplementedError
