"""Computes Fourier transforms and the windows of spectra."""

from __future__ import annotations

from typing import Any

import numpy as np

from aster_ml import Tensor
from aster_ml.onnx.ops.math import wide
from aster_ml.onnx.ops.registry import Array, op
from aster_ml.onnx.ops.types import NUMPY


def waves(rows: int, columns: int, length: int, inverse: bool) -> tuple[Array, Array]:
    """The real and the imaginary part of e^(-+2 pi i j k / length)."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length / length
    angle = 2 * np.pi * turns * (1 if inverse else -1)
    return np.cos(angle), np.sin(angle)


def transformed(x: Tensor, length: int, count: int, inverse: bool) -> Tensor:
    """[*b, n, 1 or 2] -> [*b, count, 2]: `count` frequencies of a transform of `length`."""
    c, s = waves(x.shape[-2], count, length, inverse)
    scale = 1 / length if inverse else 1.0
    cosine, sine = (
        Tensor((m * scale).astype(np.float64), device=x.device).cast(x.dtype) for m in (c, s)
    )
    real = x[..., 0]
    if x.shape[-1] == 1:
        return real.matmul(cosine).stack(real.matmul(sine), dim=-1)
    imaginary = x[..., 1]
    first = real.matmul(cosine) - imaginary.matmul(sine)
    return first.stack(real.matmul(sine) + imaginary.matmul(cosine), dim=-1)


@op("DFT", host="dft_length axis")
def dft(
    x: Tensor,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """The discrete Fourier transform along an axis; real and imaginary parts on the last one."""
    at = (-2 if axis is None else int(axis.reshape(()))) % x.ndim
    y = wide(x).transpose(at, x.ndim - 2)
    given = y.shape[-2]
    if onesided and inverse:
        length = 2 * (given - 1) if dft_length is None else int(dft_length.reshape(()))
        # The other half is the mirror image, its imaginary parts turned round.
        back = y[..., 1 : length - given + 1, :].flip(y.ndim - 2)
        back = back[..., :1].cat(-back[..., 1:], dim=-1)
        y = transformed(y.cat(back, dim=-2), length, length, True)[..., :1]
    else:
        length = given if dft_length is None else int(dft_length.reshape(()))
        if length < given:
            y = y[..., :length, :]
        count = length // 2 + 1 if onesided else length
        y = transformed(y, length, count, bool(inverse))
    return y.transpose(at, x.ndim - 2).cast(x.dtype)


@op("STFT", host="frame_step frame_length")
def stft(
    signal: Tensor,
    frame_step: Array,
    window: Tensor | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """Fourier transforms of windows of a signal [n, length, 1 or 2] -> [n, frames, bins, 2]."""
    step = int(frame_step.reshape(()))
    if frame_length is not None:
        size = int(frame_length.reshape(()))
    else:
        assert window is not None
        size = window.shape[0]
    x = wide(signal if signal.ndim == 3 else signal.unsqueeze(-1))
    frames = x.unfold(1, size, step).transpose(-1, -2)
    if window is not None:
        frames = frames * wide(window).reshape((-1, 1))
    count = size // 2 + 1 if onesided else size
    return transformed(frames, size, count, False).cast(signal.dtype)


@op("MelWeightMatrix", host="num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz")
def mel_weight_matrix(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Any:
    """Triangles over the bins of a spectrum, evenly spaced by the mel scale."""
    bins, length, rate = (int(v.reshape(())) for v in (num_mel_bins, dft_length, sample_rate))
    edges = [float(v.reshape(())) for v in (lower_edge_hertz, upper_edge_hertz)]
    low, high = (2595 * np.log10(1 + edge / 700) for edge in edges)
    places = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    places = 700 * (10 ** (places / 2595) - 1)
    at = ((length + 1) * places // rate).astype(np.int64)
    result = np.zeros((length // 2 + 1, bins))
    for i in range(bins):
        start, middle, end = at[i : i + 3]
        if middle > start:
            result[start : middle + 1, i] = np.arange(middle - start + 1) / (middle - start)
        else:
            result[middle, i] = 1
        if end > middle:
            result[middle:end, i] = np.arange(end - middle, 0, -1) / (end - middle)
    return result.astype(NUMPY[output_datatype])


def window(call: Any, size: Array, periodic: int, number: int, factors: list[float]) -> Array:
    """A window that is a sum of cosines."""
    count = int(size.reshape(()))
    n = np.arange(count) / max(count if periodic else count - 1, 1)
    values = sum(f * np.cos(2 * np.pi * k * n) for k, f in enumerate(factors))
    return np.asarray(values).astype(NUMPY[number])


WINDOWS = {
    "HannWindow": [0.5, -0.5],
    "HammingWindow": [25 / 46, -21 / 46],
    "BlackmanWindow": [0.42, -0.5, 0.08],
}


@op(*WINDOWS, host="size")
def window_operator(
    size: Array, *, output_datatype: int = 1, periodic: int = 1, call: Any
) -> Array:
    """One of three windows."""
    return window(call, size, periodic, output_datatype, WINDOWS[call.node.kind])
