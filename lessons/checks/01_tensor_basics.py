"""Checks of lesson 01: each receives what the learner wrote; its docstring is the hint."""

import time
from types import ModuleType

import numpy as np

from aster_ml import GlobalCounters, Tensor, dtypes


def check_checkerboard(learner: ModuleType) -> None:
    """The remainder of row + column by 2; one of the two aranges needs the shape [n, 1]."""
    for n in (1, 4, 7):
        got = learner.checkerboard(n)
        assert got.dtype == dtypes.int32, f"its dtype is {got.dtype}"
        want = np.indices((n, n)).sum(axis=0) % 2
        assert got.tolist() == want.tolist(), f"for n = {n} it gave {got.tolist()}"


def check_distances(learner: ModuleType) -> None:
    """[n, 1, d] minus [1, n, d] is [n, n, d] without being stored; sum the squares over d."""
    values = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    points = Tensor(values).realize()
    GlobalCounters.reset()
    got = learner.distances(points).realize()
    assert GlobalCounters.kernel_count == 1, f"it took {GlobalCounters.kernel_count} kernels"
    want = np.sqrt(((values[:, None] - values[None]) ** 2).sum(axis=2))
    assert np.allclose(got.numpy(), want, rtol=1e-5, atol=1e-5), "the numbers differ from NumPy's"


def check_standardise(learner: ModuleType) -> None:
    """Subtract the mean with keepdim=True, so that it broadcasts; then divide by the deviation."""
    values = np.random.default_rng(2).normal(3, 5, size=(6, 40)).astype(np.float32)
    got = learner.standardise(Tensor(values)).numpy()
    want = (values - values.mean(1, keepdims=True)) / values.std(1, keepdims=True)
    assert np.allclose(got, want, rtol=1e-5, atol=1e-5), "the numbers differ from NumPy's"


def check_median_time(learner: ModuleType) -> None:
    """Call it once before timing; realize inside of what is timed; statistics.median."""
    calls = []

    def slow_once() -> Tensor:
        calls.append(len(calls))
        time.sleep(0.3 if len(calls) == 1 else 0.001)
        return Tensor([1.0]) + len(calls)

    seconds = learner.median_time(slow_once, 5)
    assert len(calls) == 6, f"run was called {len(calls)} times; once to warm up, then 5 times"
    assert 0.001 <= seconds < 0.2, f"it says {seconds} s of something that takes a millisecond"
