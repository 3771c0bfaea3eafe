"""Computes support vector machines of ai.onnx.ml: kernels as tensor programs, votes of pairs of
classes.

Probabilities of more than two classes come of those of pairs by the iteration of libsvm (Wu, Lin,
Weng 2004, their second method), which stops when it is near enough: it runs on the host, for all
rows together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml import Tensor, dtypes
from aster_ml.errors import FormatError, ShapeError, UnsupportedError
from aster_ml.onnx.ops.ml import labels_of, picked, post, two_columns
from aster_ml.onnx.ops.registry import ML, Array, Value, op

Floats = list[float]
Ints = list[int]
# Of the iteration: the most steps, the tolerance over the number of classes, the least probability.
MOST_STEPS, TOLERANCE, LEAST = 100, 0.005, 1e-7


def table(values: Floats | None, rows: int, name: str) -> Array:
    """An attribute as [rows, columns]. Raises: FormatError."""
    flat = np.asarray(values or [], np.float32)
    if rows < 1 or not flat.size or flat.size % rows:
        raise FormatError(f"{flat.size} numbers of {name} for {rows} rows")
    return flat.reshape(rows, -1)


def kernel(x: Tensor, other: Array, kind: str, params: Floats | None) -> Tensor:
    """Computes the kernel of each row of x [rows, features] and each of `other`: [rows, others]."""
    gamma, coef0, degree = [*(params or []), 0.0, 0.0, 0.0][:3]
    if other.shape[1] != x.shape[1]:
        raise ShapeError(f"rows of {other.shape[1]} features are wanted, given {list(x.shape)}")
    rows = Tensor(np.ascontiguousarray(other), device=x.device)
    if kind == "RBF":
        return (-gamma * (x.unsqueeze(1) - rows).square().sum(-1)).exp()
    product = x.matmul(rows.transpose(0, 1))
    if kind == "LINEAR":
        return product
    if kind == "POLY":
        return (product * gamma + coef0).pow(degree)
    if kind == "SIGMOID":
        return (product * gamma + coef0).tanh()
    raise UnsupportedError(f"kernel_type {kind!r}; there are LINEAR, POLY, RBF, SIGMOID")


def features(x: Tensor) -> Tensor:
    """Rows of features as float32."""
    rows = x.reshape((1, -1)) if x.ndim == 1 else x
    if rows.ndim != 2:
        raise ShapeError(f"rows of features are wanted, given {list(x.shape)}")
    return rows.cast(dtypes.float32)


@op("SVMRegressor", domain=ML)
def svm_regressor(
    x: Tensor,
    *,
    coefficients: Floats | None = None,
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats | None = None,
    support_vectors: Floats | None = None,
) -> Tensor:
    """Kernels with the support vectors, weighted and summed; 1 or -1 for one class: [rows, 1]."""
    rows, weights = features(x), table(coefficients, 1, "coefficients")
    if n_supports > 0:
        vectors = table(support_vectors, n_supports, "support_vectors")
        if weights.shape[1] != n_supports:
            raise FormatError(f"{weights.shape[1]} coefficients for {n_supports} support vectors")
        near = kernel(rows, vectors, kernel_type, kernel_params)
        values = near.matmul(Tensor(weights.T.copy(), device=x.device))
    else:
        values = kernel(rows, weights, "LINEAR", None)
    values = values + (rho or [0.0])[0]
    if one_class:
        return (values > 0).where(1.0, -1.0)
    return post(values, post_transform)


def pair_scores(near: Tensor, coefficients: Array, counts: Ints, rho: Floats) -> Tensor:
    """For each pair of classes how far a row is on the side of the first: [rows, pairs].

    `near` are kernels with all support vectors, class by class; a class has one row of
    coefficients for each other one.
    """
    ends = np.cumsum([0, *counts])
    classes = len(counts)
    weights = []
    for i, j in pairs_of(classes):
        column = np.zeros(ends[-1], np.float32)
        first, second = slice(ends[i], ends[i + 1]), slice(ends[j], ends[j + 1])
        column[first] = coefficients[j - 1, first]
        column[second] = coefficients[i, second]
        weights.append(column)
    matrix = Tensor(np.ascontiguousarray(np.stack(weights, 1)), device=near.device)
    return near.matmul(matrix) + Tensor(rho[: len(weights)], device=near.device)


def pairs_of(classes: int) -> list[tuple[int, int]]:
    """All pairs of classes in their order."""
    return [(i, j) for i in range(classes) for j in range(i + 1, classes)]


def votes_of(scores: Tensor, classes: int) -> Tensor:
    """Counts the classes that each class wins against: [rows, classes]."""
    first = np.zeros((len(pairs_of(classes)), classes), np.int32)
    second = first.copy()
    for at, (i, j) in enumerate(pairs_of(classes)):
        first[at, i] = second[at, j] = 1
    wins = (scores > 0).unsqueeze(-1)
    ones, others = Tensor(first, device=scores.device), Tensor(second, device=scores.device)
    return wins.where(ones, others).sum(1)


def shares(scores: Tensor, prob_a: Floats, prob_b: Floats, classes: int, call: Any) -> Tensor:
    """The probability of each class, of those that it wins against each other: [rows, classes]."""
    a, b = (Tensor(part, device=scores.device) for part in (prob_a, prob_b))
    wins = (-(scores * a + b)).sigmoid().clip(LEAST, 1 - LEAST)
    return call.tensor(coupled(call.read(wins).astype(np.float64), classes).astype(np.float32))


def coupled(wins: Array, classes: int) -> Array:
    """Probabilities that fit those of pairs [rows, pairs] best: [rows, classes]."""
    rows = len(wins)
    r = np.zeros((rows, classes, classes))
    for at, (i, j) in enumerate(pairs_of(classes)):
        r[:, i, j], r[:, j, i] = wins[:, at], 1 - wins[:, at]
    q = -r.transpose(0, 2, 1) * r
    index = np.arange(classes)
    q[:, index, index] = (r**2).sum(1)
    p = np.full((rows, classes), 1 / classes)
    going = np.ones(rows, np.bool_)
    for _ in range(MOST_STEPS):
        qp = np.einsum("rij,rj->ri", q, p)
        pqp = (p * qp).sum(1)
        going &= np.abs(qp - pqp[:, None]).max(1, initial=0) >= TOLERANCE / classes
        if not going.any():
            break
        for t in range(classes):
            step = np.where(going, (pqp - qp[:, t]) / q[:, t, t], 0)
            scale = 1 / (1 + step)
            pqp = (pqp + step * (step * q[:, t, t] + 2 * qp[:, t])) * scale**2
            qp = (qp + step[:, None] * q[:, t]) * scale[:, None]
            p[:, t] += step
            p *= scale[:, None]
    return p


@op("SVMClassifier", domain=ML)
def svm_classifier(
    x: Tensor,
    *,
    classlabels_ints: Ints | None = None,
    classlabels_strings: list[str] | None = None,
    coefficients: Floats | None = None,
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats | None = None,
    prob_b: Floats | None = None,
    rho: Floats | None = None,
    support_vectors: Floats | None = None,
    vectors_per_class: Ints | None = None,
    call: Any,
) -> Value:
    """The class of each row, and scores: probabilities, or those of pairs of classes."""
    labels = labels_of(classlabels_ints, classlabels_strings)
    rows, classes, rho = features(x), len(labels), rho or [0.0]
    if not vectors_per_class:
        scores = kernel(rows, table(coefficients, classes, "coefficients"), "LINEAR", None)
        scores = scores + rho[0]
        return picked(scores.argmax(-1), labels, call), post(scores, post_transform)
    total, pairs = sum(vectors_per_class), classes * (classes - 1) // 2
    if len(vectors_per_class) != classes or min(vectors_per_class) < 0 or len(rho) < pairs:
        raise FormatError(
            f"vectors_per_class {vectors_per_class} and {len(rho)} numbers of rho for "
            f"{classes} classes"
        )
    near = kernel(
        rows, table(support_vectors, total, "support_vectors"), kernel_type, kernel_params
    )
    weights = table(coefficients, classes - 1, "coefficients")
    if weights.shape[1] != total:
        raise FormatError(f"{weights.shape[1]} coefficients for {total} support vectors")
    scores = pair_scores(near, weights, vectors_per_class, rho)
    best = votes_of(scores, classes).argmax(-1)
    if prob_a:
        if len(prob_a) != pairs or len(prob_b or []) != pairs:
            raise FormatError(f"{len(prob_a)} of prob_a, {len(prob_b or [])} of prob_b")
        scores = shares(scores, prob_a, prob_b or [], classes, call)
        return picked(best, labels, call), post(scores, post_transform)
    if classes == 2:
        # So onnxruntime has it: SOFTMAX leaves the one score as it is and makes a share of it.
        is_share = post_transform.startswith("SOFTMAX")
        return picked(best, labels, call), two_columns(scores, post_transform, is_share)
    return picked(best, labels, call), post(scores, post_transform)
