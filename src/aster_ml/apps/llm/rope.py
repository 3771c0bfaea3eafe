"""Computes rotary embeddings: tables of cosines and sines, and the rotation of heads by them.

Receives a `Rope` and, where the file has them, factors by frequency; returns NumPy tables of
float32, computed in float64. Which rows of the tables a step needs is the model's business.

Source: Su et al., RoFormer (2021); Peng et al., YaRN (2023) for "yarn"; Meta's published Llama 3.1
configuration for factors by frequency.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.apps.llm.architectures import Rope

Array = np.ndarray[Any, np.dtype[Any]]


def frequencies(rope: Rope, factors: Array | None = None) -> tuple[Array, float]:
    """Angles a position, and what cosines and sines are multiplied with.

    `factors` are [k], where rope.size is 2 * k.
    """
    plain = rope.base ** (-np.arange(0, rope.size, 2, dtype=np.float64) / rope.size)
    if factors is not None:
        plain = plain / factors.astype(np.float64)
    if rope.kind == "linear":
        return plain / rope.factor, rope.attention
    if rope.kind != "yarn":
        return plain, rope.attention
    # Fast frequencies stay, slow ones are interpolated, and between them is a ramp.
    low = max(0, math.floor(turning(rope, rope.beta_fast)))
    high = min(rope.size - 1, math.ceil(turning(rope, rope.beta_slow)))
    ramp = np.clip((np.arange(rope.size // 2) - low) / max(high - low, 0.001), 0, 1)
    stays = 1 - ramp
    mixed = plain / rope.factor * (1 - stays) + plain * stays
    return mixed, rope.attention * (1 + 0.1 * math.log(rope.factor))


def turning(rope: Rope, turns: float) -> float:
    """The number of the frequency that makes so many turns within the original context."""
    inside = rope.original / (turns * 2 * math.pi)
    return rope.size * math.log(inside) / (2 * math.log(rope.base))


def tables(rope: Rope, length: int, factors: Array | None = None) -> Array:
    """Cosines and sines of all positions.

    `factors` are [k], where rope.size is 2 * k; the result is [2, length, k].
    """
    step, scale = frequencies(rope, factors)
    angles = np.arange(length, dtype=np.float64)[:, None] * step[None]
    return np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32) * np.float32(scale)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, halves: bool) -> Tensor:
    """Turns the first numbers of each head; what is beyond the tables' size stays.

    Shapes: x [*b, n, d], cos [*c, n, k], sin [*c, n, k] -> [*b, n, d]; 2 * k <= d.
    """
    size = 2 * cos.shape[-1]
    rest = x[..., size:] if size < x.shape[-1] else None
    turned = x[..., :size]
    if halves:
        a, b = turned[..., : size // 2], turned[..., size // 2 :]
        result = (a * cos - b * sin).cat(a * sin + b * cos, dim=-1)
    else:
        pairs = turned.reshape(*turned.shape[:-1], size // 2, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        result = (a * cos - b * sin).stack(a * sin + b * cos, dim=-1).reshape(turned.shape)
    return result if rest is None else result.cat(rest, dim=-1)
