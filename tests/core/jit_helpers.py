"""What the tests of TinyJit share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aster_ml import Tensor, TinyJit


def vector(*values: float) -> Tensor:
    """A realized tensor of these values."""
    return Tensor([float(v) for v in values]).realize()


def ramp(n: int, start: float = 0.0) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.float32)


def check_jit(
    function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], runs: int | None = 2
) -> TinyJit:
    """Calls a jitted function with each of the arguments: the results are those of the plain one.

    `runs` is how often the function itself may have run in the end.
    """
    count = [0]

    def counted(*args: Any) -> Any:
        count[0] += 1
        return function(*args)

    jitted = TinyJit(counted)
    for args in calls:
        want = values(function(*args))
        np.testing.assert_allclose(values(jitted(*args)), want, rtol=1e-6)
    if runs is not None:
        assert count[0] == runs
    return jitted


def values(result: Any) -> Any:
    """Copies of the values of nested tensors, as one flat list."""
    if isinstance(result, Tensor):
        return result.numpy().copy().reshape(-1).tolist()
    if isinstance(result, dict):
        return [v for part in result.values() for v in values(part)]
    if isinstance(result, (list, tuple)):
        return [v for part in result for v in values(part)]
    return []
