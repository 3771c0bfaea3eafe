"""Stand-in for `extra.gradcheck`: derivatives of a function by chain rule and by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aster_ml import Tensor

Function = Callable[[Tensor], Tensor]


def jacobian(function: Function, x: Tensor) -> np.ndarray[Any, Any]:
    """The matrix of derivatives d out[i] / d x[j], both flattened, by gradients."""
    out = function(x).reshape(-1)
    return np.stack([out[i].gradient(x)[0].numpy().reshape(-1) for i in range(out.shape[0])])


def numerical_jacobian(function: Function, x: Tensor, eps: float = 1e-3) -> np.ndarray[Any, Any]:
    """The same matrix by central differences with steps of `eps`."""
    start = x.numpy()
    columns = []
    for j in range(start.size):
        ends = []
        for step in (eps, -eps):
            moved = start.copy().reshape(-1)
            moved[j] += step
            ends.append(function(Tensor(moved.reshape(start.shape))).numpy().reshape(-1))
        columns.append((ends[0] - ends[1]) / (2 * eps))
    return np.stack(columns, axis=1)


def gradcheck(
    function: Function, x: Tensor, eps: float = 1e-3, atol: float = 1e-3, rtol: float = 1e-3
) -> bool:
    """Whether gradients and differences agree."""
    wanted = numerical_jacobian(function, x, eps)
    return bool(np.allclose(jacobian(function, x), wanted, atol=atol, rtol=rtol))
