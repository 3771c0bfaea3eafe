"""Losses against PyTorch; labels that are none, infinities, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from aster_ml.gradient import compute_gradient
from aster_ml.uop.node import UOp
from tests.core.numerics import check_torch, tensor, value

RNG = np.random.RandomState(2)
X = RNG.randn(4, 6) * 3
DEEP = RNG.randn(3, 4, 5)
LABELS = np.array([0, 5, 2, 3])
DEEP_LABELS = RNG.randint(0, 4, (3, 5))
WEIGHT = np.abs(RNG.randn(4)) + 0.1
SHARES = RNG.rand(4, 6)
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])


@pytest.mark.torch
@REDUCTIONS
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_cross_entropy(reduction: Any, smoothing: float) -> None:
    torch = pytest.importorskip("torch")
    config = {"reduction": reduction, "label_smoothing": smoothing}
    theirs = torch.nn.functional.cross_entropy
    check_torch(
        lambda x: x.cross_entropy(tensor(LABELS), **config),
        lambda x: theirs(x, torch.tensor(LABELS), **config),
        X,
    )
    check_torch(
        lambda x: x.cross_entropy(tensor(SHARES), **config),
        lambda x: theirs(x, torch.tensor(SHARES), **config),
        X,
    )
    check_torch(
        lambda x: x.cross_entropy(tensor(DEEP_LABELS), **config),
        lambda x: theirs(x, torch.tensor(DEEP_LABELS), **config),
        DEEP,
    )
    check_torch(
        lambda x: x.cross_entropy(tensor(np.array(2)), **config),
        lambda x: theirs(x, torch.tensor(2), **config),
        X[0],
    )


@pytest.mark.torch
@REDUCTIONS
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sparse_categorical_crossentropy(reduction: Any, smoothing: float) -> None:
    torch = pytest.importorskip("torch")
    config = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": 5}
    check_torch(
        lambda x: x.sparse_categorical_crossentropy(tensor(LABELS), **config),
        lambda x: torch.nn.functional.cross_entropy(x, torch.tensor(LABELS), **config),
        X,
    )
    # Classes stand on the last axis.
    labels = DEEP_LABELS[:, :4]
    check_torch(
        lambda x: x.sparse_categorical_crossentropy(tensor(labels), reduction=reduction),
        lambda x: torch.nn.functional.cross_entropy(
            x.transpose(1, 2), torch.tensor(labels), reduction=reduction
        ),
        DEEP,
    )


@pytest.mark.torch
@REDUCTIONS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2])
def test_nll_loss(reduction: Any, weighted: bool, ignored: int | None) -> None:
    torch = pytest.importorskip("torch")
    more = {} if ignored is None else {"ignore_index": ignored}
    check_torch(
        lambda x: x.nll_loss(
            tensor(DEEP_LABELS), tensor(WEIGHT) if weighted else None, reduction=reduction, **more
        ),
        lambda x: torch.nn.functional.nll_loss(
            x,
            torch.tensor(DEEP_LABELS),
            torch.tensor(WEIGHT) if weighted else None,
            reduction=reduction,
            **more,
        ),
        DEEP,
    )


@pytest.mark.torch
@REDUCTIONS
def test_binary_crossentropy(reduction: Any) -> None:
    torch = pytest.importorskip("torch")
    functional, wanted, weight = torch.nn.functional, torch.tensor(SHARES), torch.tensor(3.0)
    check_torch(
        lambda x: x.sigmoid().binary_crossentropy(tensor(SHARES), reduction),
        lambda x: functional.binary_cross_entropy(x.sigmoid(), wanted, reduction=reduction),
        X,
    )
    check_torch(
        lambda x: x.binary_crossentropy_logits(tensor(SHARES), reduction),
        lambda x: functional.binary_cross_entropy_with_logits(x, wanted, reduction=reduction),
        X,
    )
    check_torch(
        lambda x: x.binary_crossentropy_logits(tensor(SHARES), reduction, tensor(np.array(3.0))),
        lambda x: functional.binary_cross_entropy_with_logits(
            x, wanted, reduction=reduction, pos_weight=weight
        ),
        X,
    )


def gradient(loss: Any, x: Any) -> Any:
    """The gradient of a loss for one tensor."""
    return value(compute_gradient(loss.uop, UOp.const(loss.dtype, 1), {x.uop})[x.uop])


def test_certain_probabilities() -> None:
    x = tensor(np.array([0.0, 1, 0, 1]))
    loss = x.binary_crossentropy(tensor(np.array([0.0, 1, 1, 0])), "none")
    assert value(loss).tolist() == [0, 0, 100, 100]
    assert np.isfinite(gradient(loss, x)).all()


def test_logits_far_out_keep_their_digits() -> None:
    points = np.array([-100.0, -20, 20, 100], np.float32)
    x, y = tensor(points), tensor(np.array([0.0, 0, 1, 1], np.float32))
    loss = x.binary_crossentropy_logits(y, "none")
    want = np.log1p(np.exp(-np.abs(points.astype(np.float64))))
    np.testing.assert_allclose(value(loss), want, rtol=1e-5, atol=1e-40)
    np.testing.assert_allclose(
        gradient(loss, x), np.exp(-np.abs(points)) * [1, 1, -1, -1], rtol=1e-5, atol=1e-12
    )


def test_cross_entropy_of_a_masked_class() -> None:
    x = tensor(np.array([[1.0, -math.inf, 2]]))
    loss = x.cross_entropy(tensor(np.array([0])))
    assert value(loss) == pytest.approx(math.log(1 + math.e))
    assert gradient(loss, x)[0, 1] == 0


@pytest.mark.parametrize("label", [-100, -1, 6])
def test_labels_that_are_no_class_count_as_no_loss(label: int) -> None:
    x, labels = tensor(X), LABELS.copy()
    labels[1] = label
    losses = value(x.cross_entropy(tensor(labels), "none"))
    assert losses[1] == 0
    assert value(x.cross_entropy(tensor(labels))) == pytest.approx(losses.sum() / 4)
    sparse = x.sparse_categorical_crossentropy(tensor(labels), reduction="none")
    np.testing.assert_allclose(value(sparse), losses)
    assert not gradient(x.cross_entropy(tensor(labels), "sum"), x)[1].any()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int64, np.uint16])
def test_labels_of_any_int_type(dtype: type) -> None:
    # More classes than an int8 can count.
    x = np.random.RandomState(0).randn(3, 300)
    labels = np.array([0, 100, 127])
    want = value(tensor(x).cross_entropy(tensor(labels.astype(np.int32))))
    assert value(tensor(x).cross_entropy(tensor(labels.astype(dtype)))) == want


def test_dtypes_of_losses() -> None:
    half = tensor(X.astype(np.float16))
    labels = tensor(LABELS)
    assert half.cross_entropy(labels).dtype is dtypes.float16
    assert half.sparse_categorical_crossentropy(labels, reduction="none").dtype is dtypes.float16
    assert tensor(X).cross_entropy(labels).dtype is dtypes.float64


@pytest.mark.parametrize(
    "call, error, message",
    [
        (
            lambda x: x.cross_entropy(tensor(LABELS[:3])),
            ShapeError,
            r"cross_entropy: predictions \[4,6\] and labels \[3\]; labels \[4\] are wanted",
        ),
        (lambda x: x.cross_entropy(tensor(LABELS == 1)), DTypeError, "labels are bool"),
        (
            lambda x: x.cross_entropy(tensor(LABELS), "avg"),
            ArgumentError,
            "reduction 'avg'; mean, sum or none",
        ),
        (
            lambda x: x.cross_entropy(tensor(LABELS), label_smoothing=2),
            ArgumentError,
            "label_smoothing is 2",
        ),
        (
            lambda x: x.sparse_categorical_crossentropy(tensor(X)),
            ShapeError,
            "classes are on axis 1",
        ),
        (
            lambda x: x.nll_loss(tensor(LABELS), tensor(WEIGHT)),
            ShapeError,
            r"nll_loss: weight \[4\]; one number for each of the 6 classes",
        ),
        (lambda x: x.binary_crossentropy(tensor(SHARES), "avg"), ArgumentError, "reduction 'avg'"),
    ],
)
def test_losses_refuse(call: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        call(tensor(X))
