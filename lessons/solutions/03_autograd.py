"""Solutions of lesson 03."""

from collections.abc import Callable

import numpy as np

from aster_ml import Tensor, dtypes


def derivative(function: Callable[[Tensor], Tensor], x: float) -> float:
    """The derivative of an elementwise function at one number."""
    at = Tensor([x], dtype=dtypes.float64)
    return function(at).sum().gradient(at)[0].item()


def numeric_gradient(function: Callable[[Tensor], Tensor], point: np.ndarray) -> np.ndarray:
    """The gradient of a scalar function at `point` (float64), by central differences."""
    e = 1e-6
    result = np.zeros_like(point)
    for i in np.ndindex(point.shape):
        step = np.zeros_like(point)
        step[i] = e
        up, down = function(Tensor(point + step)), function(Tensor(point - step))
        result[i] = (up - down).item() / (2 * e)
    return result


def hessian(function: Callable[[Tensor], Tensor], point: Tensor) -> np.ndarray:
    """All second derivatives of a scalar function of a vector [n]: [n, n]."""
    (first,) = function(point).gradient(point)
    rows = [
        first[i].gradient(point, materialize_grads=True)[0].numpy() for i in range(point.shape[0])
    ]
    return np.stack(rows)


def newton(function: Callable[[Tensor], Tensor], start: float, steps: int) -> float:
    """A root of an elementwise function by Newton's method, `steps` times x - f(x) / f'(x)."""
    x = start
    for _ in range(steps):
        value = function(Tensor([x], dtype=dtypes.float64)).item()
        x -= value / derivative(function, x)
    return x


def fit_line(x: Tensor, y: Tensor, steps: int) -> tuple[float, float]:
    """(a, b) that make a * x + b close to y in the sense of least squares, by gradient descent."""
    line = Tensor([0.0, 0.0]).realize()
    for _ in range(steps):
        loss = (line[0] * x + line[1] - y).square().mean()
        (g,) = loss.gradient(line)
        line = (line - 0.2 * g).detach().realize()
    a, b = line.tolist()
    return a, b
