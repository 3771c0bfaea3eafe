"""Exercises of lesson 03. Replace each `raise` and run `aster lesson check 03`."""

from collections.abc import Callable

import numpy as np

from aster_ml import Tensor


def derivative(function: Callable[[Tensor], Tensor], x: float) -> float:
    """The derivative of an elementwise function at one number."""
    raise NotImplementedError


def numeric_gradient(function: Callable[[Tensor], Tensor], point: np.ndarray) -> np.ndarray:
    """The gradient of a scalar function at `point` (float64), by central differences."""
    raise NotImplementedError


def hessian(function: Callable[[Tensor], Tensor], point: Tensor) -> np.ndarray:
    """All second derivatives of a scalar function of a vector [n]: [n, n]."""
    raise NotImplementedError


def newton(function: Callable[[Tensor], Tensor], start: float, steps: int) -> float:
    """A root of an elementwise function by Newton's method, `steps` times x - f(x) / f'(x)."""
    raise NotImplementedError


def fit_line(x: Tensor, y: Tensor, steps: int) -> tuple[float, float]:
    """(a, b) that make a * x + b close to y in the sense of least squares, by gradient descent."""
    raise NotImplementedError
