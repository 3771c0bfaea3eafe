"""Golden cases that the reference gets wrong, each with the reason and the right values.

A function receives the inputs as NumPy arrays, as an expression sees them, then the weights of the
first output's gradient, and returns the outputs and the gradients in their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.core.golden.vectors import Case

Right = Callable[..., list[Any]]
WIDE = "float64 3x5"


def erf(x: Any) -> Any:
    """The error function of an array, as the C library has it."""
    return np.vectorize(math.erf, otypes=["f8"])(x)


def half_product(a: Any) -> Any:
    """a * 1.5, rounded to float16 where a is."""
    return (a * np.asarray(1.5, a.dtype)).astype(a.dtype)


def half_gradient(w: Any) -> Any:
    """The weights times 3 in float16, as they arrive at a float16 product."""
    return w.astype("f2") * np.float16(3)


def nearest_places(size: int, wanted: int) -> Any:
    """Where "nearest-exact" reads an axis: at the middle of each new element."""
    return np.floor((np.arange(wanted) + 0.5) * size / wanted).astype(int)


def nearest_exact(a: Any, w: Any) -> list[Any]:
    """Resizing to the shape of the weights, and its gradient."""
    rows, columns = (nearest_places(s, t) for s, t in zip(a.shape[2:], w.shape[2:]))
    taken = a[:, :, rows][:, :, :, columns]
    back = np.zeros_like(a)
    np.add.at(back, (slice(None), slice(None), rows[:, None], columns[None]), w)
    return [taken, back]


def log_sums(a: Any, w: Any) -> list[Any]:
    """logsumexp of each row, kept as a column, and its gradient."""
    parts = np.exp(a.astype("f8"))
    total = parts.sum(1, keepdims=True)
    return [np.log(total), parts / total * w]


# Expression and inputs as in the case's name -> reason, right values.
ROWS: dict[str, tuple[str, Right]] = {
    f"a.asin() | a {WIDE} -0.75..0.75 | a": (
        "a polynomial of float32's accuracy on float64",
        lambda a, w: [np.arcsin(a), w / np.sqrt(1 - a * a)],
    ),
    f"a.acos() | a {WIDE} -0.75..0.75 | a": (
        "a polynomial of float32's accuracy on float64",
        lambda a, w: [np.arccos(a), -w / np.sqrt(1 - a * a)],
    ),
    f"a.atan() | a {WIDE} -3..3 | a": (
        "a polynomial of float32's accuracy on float64",
        lambda a, w: [np.arctan(a), w / (1 + a * a)],
    ),
    f"a.erf() | a {WIDE} -2..2 | a": (
        "a polynomial of float32's accuracy on float64",
        lambda a, w: [erf(a), w * 2 / np.sqrt(np.pi) * np.exp(-a * a)],
    ),
    "(a * 1.5).cast('float64') * 3 | a float16 7 -2..2 | a": (
        "the product is not rounded to float16 before the cast",
        lambda a, w: [half_product(a).astype("f8") * 3, (w * 3).astype("f2") * np.float16(1.5)],
    ),
    "(a * 1.5).cast('float32') * 3 | a float16 7 -2..2 | a": (
        "the product is not rounded to float16 before the cast",
        lambda a, w: [half_product(a).astype("f4") * 3, (w * 3).astype("f2") * np.float16(1.5)],
    ),
    "(a * 1.5).cast('float16') * 3 | a float64 7 -2..2 | a": (
        "the gradient is not rounded to float16 on its way through a float16 value",
        lambda a, w: [(a * 1.5).astype("f2") * np.float16(3), half_gradient(w).astype("f8") * 1.5],
    ),
    "(a * 1.5).cast('float16') * 3 | a float32 7 -2..2 | a": (
        "the gradient is not rounded to float16 on its way through a float16 value",
        lambda a, w: [(a * 1.5).astype("f2") * np.float16(3), half_gradient(w).astype("f4") * 1.5],
    ),
    "a.logsumexp(1, keepdim=True) | a float32 3x4 -2..2 | a": (
        "keepdim=True gives shape [3,3]",
        log_sums,
    ),
    "a.interpolate(size=(2, 3), mode='nearest-exact') | a float32 1x2x4x3 -2..2 | a": (
        "the gradient is zero",
        nearest_exact,
    ),
    "a.interpolate(size=(4, 4), mode='nearest-exact') | a float32 1x2x4x3 -2..2 | a": (
        "the gradient is zero",
        nearest_exact,
    ),
}


EDGES = np.array(
    [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.5, 1e-40, 3e38], dtype="f4"
)
# On the edges of float32: what stands behind them in the expression -> reason, right value.
ON_EDGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    ".relu()": ("NaN gives 0", lambda x: np.maximum(x, np.float32(0))),
    ".sign()": ("sign of NaN is 1", np.sign),
    ".softplus()": ("softplus of inf is NaN", lambda x: np.logaddexp(x, np.float32(0))),
    ".maximum(": ("NaN loses against a number", lambda x: np.maximum(x[:, None], x)),
    ".minimum(": ("NaN loses against a number", lambda x: np.minimum(x[:, None], x)),
    ".copysign(": ("the sign of -0.0 is lost", lambda x: np.copysign(x[:, None], x)),
}
FLIPPED = "slice(None, None, -1)"


def right_values(case: Case) -> tuple[str, Right] | None:
    """The reason and the right values of a case that the reference gets wrong; None for others."""
    if case.name in ROWS:
        return ROWS[case.name]
    if FLIPPED in case.expression:
        return "a write to a flipped view is lost", lambda a, b: [np.broadcast_to(b, a.shape)]
    if case.expression.startswith("Tensor([float('nan')"):
        for part, (reason, value) in ON_EDGES.items():
            if part in case.expression:
                return reason, lambda value=value: [value(EDGES)]
    return None
