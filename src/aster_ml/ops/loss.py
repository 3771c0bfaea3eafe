"""Defines losses, as one number or one number a sample.

Receives Tensors; returns Tensors. A class label is compared with the numbers of all classes instead
of being looked up: that fuses with the sums beside it, and its gradient is a comparison as well.
"""

from __future__ import annotations

from typing import Literal

from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, DTypeError, ShapeError
from aster_ml.ops import Self
from aster_ml.ops.activations import (
    decaying_exp,
    log_one_plus,
    shifted_exp,
    widened,
)
from aster_ml.ops.handle import check_tensor
from aster_ml.ops.index import check_inside
from aster_ml.uop.infer import show_shape

Reduction = Literal["mean", "sum", "none"]


def cross_entropy(
    self: Self, Y: Self, reduction: Reduction = "mean", label_smoothing: float = 0.0
) -> Self:
    """`-log(softmax(x))` of the class that Y names; classes are on axis 1 (of one axis, 0).

    Y holds class numbers, or as many probabilities as self. A number that is no class counts
    as a loss of 0. `label_smoothing` is the part of the weight that all classes share.

    Shapes: self [n, c], Y int [n] -> []; self [n, c, *s], Y [n, c, *s] -> [];
        self [n, c, *s], Y int [n, *s], reduction="none" -> [n, *s].
    Raises: ShapeError when Y fits neither way; ArgumentError for another reduction.
    Source: torch.nn.functional.cross_entropy.
    """
    check_smoothing(label_smoothing)
    axis = min(len(self.shape) - 1, 1)
    x, result = widened(self, None)
    if Y.shape == self.shape:
        wanted = Y.cast(x.dtype)
        if label_smoothing:
            wanted = wanted * (1 - label_smoothing) + label_smoothing / self.shape[axis]
        losses = -(x.log_softmax(axis) * wanted).sum(axis)
    else:
        hit, known = match_labels(self, Y, axis, "cross_entropy")
        losses = known.where(label_losses(x, hit, axis, label_smoothing), 0)
    return reduce_losses(losses, reduction).cast(result)


def sparse_categorical_crossentropy(
    self: Self,
    Y: Self,
    ignore_index: int = -1,
    label_smoothing: float = 0.0,
    reduction: Reduction = "mean",
) -> Self:
    """`-log(softmax(x))` of the class that Y names; classes are on the last axis.

    Where Y is `ignore_index` there is no loss, and the mean does not count it (unless that is
    -1: then every label counts). A number that is no class counts as a loss of 0.

    Shapes: self [*b, c], Y int [*b] -> [];
        self [*b, c], Y int [*b], reduction="none" -> [*b].
    Raises: ShapeError when Y does not fit; ArgumentError for another reduction.
    """
    check_smoothing(label_smoothing)
    axis = len(self.shape) - 1
    x, result = widened(self, None)
    hit, counted = match_labels(self, Y, axis, "sparse_categorical_crossentropy", ignore_index)
    if ignore_index == -1:
        weight = None
    else:
        weight = Y.ne(ignore_index)
        counted = counted & weight
    losses = counted.where(label_losses(x, hit, axis, label_smoothing), 0)
    return reduce_losses(losses, reduction, weight).cast(result)


def nll_loss(
    self: Self,
    Y: Self,
    weight: Self | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
) -> Self:
    """Minus the element of the class that Y names; classes are on axis 1 (of one axis, 0).

    `weight` is one number a class; the mean is weighted by it. Where Y is `ignore_index` the
    weight is 0.

    Shapes: self [n, c, *s], Y int [n, *s], weight [c] -> [];
        self [n, c, *s], Y int [n, *s], reduction="none" -> [n, *s].
    Raises: ShapeError when Y or weight do not fit; ArgumentError for another reduction.
    Source: torch.nn.functional.nll_loss.
    """
    axis = min(len(self.shape) - 1, 1)
    hit, _ = match_labels(self, Y, axis, "nll_loss", ignore_index)
    losses = -hit.where(self, 0).sum(axis)
    if weight is None:
        part = None if ignore_index is None else Y.ne(ignore_index)
        if part is not None:
            losses = part.where(losses, 0)
        return reduce_losses(losses, reduction, part)
    if weight.shape != (self.shape[axis],):
        raise ShapeError(
            f"nll_loss: weight {show_shape(weight.shape)}; one number for each of "
            f"the {self.shape[axis]} classes is wanted"
        )
    each = hit.where(weight.reshape((-1, *(1,) * (len(self.shape) - axis - 1))), 0).sum(axis)
    if ignore_index is not None:
        each = Y.ne(ignore_index).where(each, 0)
    return reduce_losses(losses * each, reduction, each)


def binary_crossentropy(self: Self, Y: Self, reduction: Reduction = "mean") -> Self:
    """`-(Y * log(x) + (1 - Y) * log(1 - x))`; the logarithm of 0 counts as -100.

    Shapes: self [*s], Y [*s] -> []; self [*s], Y [*s], reduction="none" -> [*s].
    Source: torch.nn.functional.binary_cross_entropy.
    """
    losses = -(Y * finite_log(self) + Y.sub(1, True) * finite_log(self.sub(1, True)))
    return reduce_losses(losses, reduction)


def binary_crossentropy_logits(
    self: Self, Y: Self, reduction: Reduction = "mean", pos_weight: Self | None = None
) -> Self:
    """`binary_crossentropy` of `sigmoid(x)`; `pos_weight` multiplies the part of Y.

    Shapes: self [*s], Y [*s] -> []; self [*s], Y [*s], reduction="none" -> [*s].
    Source: torch.nn.functional.binary_cross_entropy_with_logits.
    """
    x = self._floating()
    negative, small = decaying_exp(x)
    rest = log_one_plus(small)
    if pos_weight is None:
        # The slope is (step - Y) and that of the rest, which keeps the digits of both.
        losses = x * (negative.where(x.ufix(0), 1) - Y) + rest
    else:
        wrong, right = negative.where(-x, 0) + rest, negative.where(0, x) + rest
        losses = pos_weight * Y * wrong + Y.sub(1, True) * right
    return reduce_losses(losses, reduction)


def check_smoothing(smoothing: float) -> None:
    """Raises ArgumentError unless it is a part of 1."""
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"label_smoothing is {smoothing}; a number from 0 to 1 is wanted")


def match_labels(
    x: Self, labels: Self, axis: int, what: str, ignored: int | None = None
) -> tuple[Self, Self]:
    """Where along `axis` of x the class is the one that is named, and whether it is one at all.

    With CHECK_INDEX=1 those that are none, and not `ignored`, are refused.
    """
    check_tensor(labels, what)
    shape = x.shape
    wanted = shape[:axis] + shape[axis + 1 :]
    if not shape or labels.shape != wanted:
        raise ShapeError(
            f"{what}: predictions {show_shape(shape)} and labels "
            f"{show_shape(labels.shape)}; labels {show_shape(wanted)} are wanted, as "
            f"classes are on axis {axis}"
        )
    if not dtypes.is_int(labels.dtype):
        raise DTypeError(
            f"{what}: labels are {labels.dtype.name}; class numbers, which are ints, are wanted"
        )
    check_inside(what, labels, axis, shape[axis], shape, True, ignored)
    if labels.dtype.itemsize < 4:
        labels = labels.cast(dtypes.int32)  # which every number of classes fits
    classes = x.arange(shape[axis], dtype=labels.dtype, device=x.device)
    classes = classes.reshape((-1, *(1,) * (len(shape) - axis - 1)))
    known = (labels >= 0) & (labels < shape[axis])
    return labels.unsqueeze(axis).eq(classes), known


def label_losses(x: Self, hit: Self, axis: int, smoothing: float) -> Self:
    """`-log(softmax(x))` where `hit` is, over `axis`: log(sum(exp(x))) less x itself.

    Taking x before the logarithm of the sum leaves the gradient with one sum less.
    """
    shifted, _, total = shifted_exp(x, axis)
    if smoothing:
        shared = smoothing / x.shape[axis]
        picked = shifted * hit.where(x.ufix(1 - smoothing + shared), shared)
    else:
        picked = hit.where(shifted, 0)
    return total.squeeze(axis).log() - picked.sum(axis)


def finite_log(x: Self) -> Self:
    """The logarithm, -100 where x is 0; the slope there is 0."""
    positive = x > 0
    return positive.where(positive.where(x, 1).log(), -100)


def reduce_losses(losses: Self, reduction: str, weight: Self | None = None) -> Self:
    """The mean (weighted), the sum, or the losses themselves."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction != "mean":
        raise ArgumentError(f"reduction {reduction!r}; mean, sum or none would do")
    if weight is None:
        return losses.mean()
    return losses.sum() / weight.cast(losses.dtype).sum()
