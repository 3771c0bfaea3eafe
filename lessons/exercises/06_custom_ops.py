"""Exercises of lesson 06. Replace each `raise` and run `aster lesson check 06`."""

from aster_ml import Tensor


def safe_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """rms_norm of lesson part 1 that is right for float16 too; the result has the dtype of x."""
    raise NotImplementedError


def log_sum_exp(x: Tensor) -> Tensor:
    """log(sum(exp(x))) of each row of [n, m]: [n]; no overflow for any finite x."""
    raise NotImplementedError


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """The mean of -(1 - p) ** gamma * log(p), p the probability of the label; [n, c], [n] -> []."""
    raise NotImplementedError


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding: pairs (x[:, i], x[:, i + d / 2]) turned by angles [n, d / 2]; x [n, d]."""
    raise NotImplementedError


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values [n, m] and one scale a row [n, 1], so that values times scale are near weight."""
    raise NotImplementedError


def quantised_linear(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """x [k, m] times the transposed quantised weight: [k, n], in one kernel that reads bytes."""
    raise NotImplementedError
