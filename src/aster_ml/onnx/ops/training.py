"""Computes operators that train: one step of an optimiser on each of its tensors."""

from __future__ import annotations

from collections.abc import Sequence

from aster_ml import Tensor, dtypes
from aster_ml.onnx.ops.registry import TRAINING, Value, op


def groups(xs: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """For each parameter: itself, its gradient, and its states."""
    size = len(xs) // count
    return [tuple([xs[k * size + i] for k in range(count)]) for i in range(size)]


def columns(rows: Sequence[tuple[Tensor, ...]]) -> Value:
    """All new parameters, then all states of the first kind, and so on."""
    return tuple([value for column in zip(*rows) for value in column])


@op("Adagrad", domain=TRAINING)
def adagrad(
    rate: Tensor,
    step: Tensor,
    *xs: Tensor,
    decay_factor: float,
    epsilon: float,
    norm_coefficient: float,
) -> Value:
    """Steps over the root of the sum of all squared gradients."""
    pace = rate / (1 + step.cast(dtypes.float32) * decay_factor)
    rows = []
    for x, gradient, squares in groups(xs, 3):
        g = norm_coefficient * x + gradient
        squares = squares + g * g
        rows.append((x - pace * g / (squares.sqrt() + epsilon), squares))
    return columns(rows)


@op("Adam", domain=TRAINING)
def adam(
    rate: Tensor,
    step: Tensor,
    *xs: Tensor,
    alpha: float,
    beta: float,
    epsilon: float,
    norm_coefficient: float,
    norm_coefficient_post: float,
) -> Value:
    """Steps by the running means of gradients and of their squares."""
    t = step.cast(dtypes.float32)
    corrected = rate * (1 - (beta**t)).sqrt() / (1 - alpha**t)
    pace = (step > 0).where(corrected, rate)
    rows = []
    for x, gradient, mean, squares in groups(xs, 4):
        g = norm_coefficient * x + gradient
        mean = alpha * mean + (1 - alpha) * g
        squares = beta * squares + (1 - beta) * g * g
        new = x - pace * mean / (squares.sqrt() + epsilon)
        rows.append(((1 - norm_coefficient_post) * new, mean, squares))
    return columns(rows)


@op("Momentum", domain=TRAINING)
def momentum(
    rate: Tensor,
    step: Tensor,
    *xs: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> Value:
    """Steps by a running sum of gradients, plain or of Nesterov's kind."""
    factor = (step > 0).where(beta, 1.0)
    rows = []
    for x, gradient, speed in groups(xs, 3):
        g = norm_coefficient * x + gradient
        speed = alpha * speed + factor * g
        rows.append((x - rate * (g + alpha * speed if mode == "nesterov" else speed), speed))
    return columns(rows)
