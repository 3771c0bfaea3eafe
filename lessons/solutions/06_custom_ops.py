"""Solutions of lesson 06."""

from aster_ml import Tensor


def safe_rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """rms_norm of lesson part 1 that is right for float16 too; the result has the dtype of x."""
    wide = x.float()
    normed = wide * (wide.square().mean(axis=-1, keepdim=True) + eps).rsqrt() * weight
    return normed.cast(x.dtype)


def log_sum_exp(x: Tensor) -> Tensor:
    """log(sum(exp(x))) of each row of [n, m]: [n]; no overflow for any finite x."""
    greatest = x.max(axis=1, keepdim=True)
    return (x - greatest).exp().sum(axis=1).log() + greatest.squeeze(1)


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """The mean of -(1 - p) ** gamma * log(p), p the probability of the label; [n, c], [n] -> []."""
    chosen = labels.unsqueeze(1) == Tensor.arange(logits.shape[1])
    log_p = chosen.where(logits.log_softmax(axis=1), 0).sum(axis=1)
    return -((1 - log_p.exp()) ** gamma * log_p).mean()


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding: pairs (x[:, i], x[:, i + d / 2]) turned by angles [n, d / 2]; x [n, d]."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return Tensor.cat(a * cos - b * sin, a * sin + b * cos, dim=-1)


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """int8 values [n, m] and one scale a row [n, 1], so that values times scale are near weight."""
    scale = weight.abs().max(axis=1, keepdim=True) / 127
    return (weight / scale).round().cast("int8").realize(), scale.realize()


def quantised_linear(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """x [k, m] times the transposed quantised weight: [k, n], in one kernel that reads bytes."""
    return (x @ values.float().T) * scale.T
