"""Checks of lesson 03: each receives what the learner wrote; its docstring is the hint."""

import math
from types import ModuleType

import numpy as np

from aster_ml import Tensor


def check_derivative(learner: ModuleType) -> None:
    """A tensor of one element, .sum() to make a scalar, .gradient(it)[0].item()."""
    got = learner.derivative(lambda t: t.sin() * t, 1.3)
    want = math.cos(1.3) * 1.3 + math.sin(1.3)
    assert math.isclose(got, want, rel_tol=1e-5), f"of x sin x at 1.3 it gave {got}, wanted {want}"


def check_numeric_gradient(learner: ModuleType) -> None:
    """Move one element by 1e-6 both ways; stay in float64 all the way."""
    point = np.random.default_rng(0).normal(size=(2, 3))
    got = learner.numeric_gradient(lambda t: (t.exp() * t).sum(), point)
    want = np.exp(point) * (1 + point)
    assert got.shape == point.shape, f"its shape is {got.shape}"
    assert np.allclose(got, want, rtol=1e-6), f"off by {np.abs(got - want).max():.2g}"


def check_hessian(learner: ModuleType) -> None:
    """Differentiate each element of the gradient; materialize_grads=True gives zeros where a
    derivative does not depend on the point any more.
    """
    got = learner.hessian(lambda p: p[0] * p[0] * p[1] + p[2] * 3, Tensor([1.0, 2.0, 5.0]))
    want = [[4, 2, 0], [2, 0, 0], [0, 0, 0]]
    assert np.allclose(got, want, rtol=1e-5), f"it gave {np.asarray(got).tolist()}"


def check_newton(learner: ModuleType) -> None:
    """`derivative` is already yours; use it."""
    got = learner.newton(lambda t: t * t - 2, 1.0, 6)
    assert math.isclose(got, math.sqrt(2), rel_tol=1e-9), f"for x * x - 2 it gave {got}"


def check_fit_line(learner: ModuleType) -> None:
    """The loss is the mean of squares; subtract 0.2 times its gradient; realize each step."""
    x = np.linspace(-1, 1, 50, dtype=np.float32)
    a, b = learner.fit_line(Tensor(x), Tensor(3 * x - 0.5), 100)
    assert math.isclose(a, 3, rel_tol=1e-2), f"a is {a}, wanted 3"
    assert math.isclose(b, -0.5, rel_tol=1e-2), f"b is {b}, wanted -0.5"
