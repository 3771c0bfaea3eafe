"""Checks of lesson 06: each receives what the learner wrote; its docstring is the hint."""

from types import ModuleType

import numpy as np

from aster_ml import GlobalCounters, Tensor, dtypes


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(got: Tensor, want: np.ndarray, tolerance: float = 1e-4) -> None:
    assert got.shape == want.shape, f"its shape is {got.shape}, wanted {want.shape}"
    gap = np.abs(got.numpy() - want).max()
    assert gap <= tolerance, f"it is off by {gap:.2g}"


def check_safe_rms_norm(learner: ModuleType) -> None:
    """Compute in float32 and cast the result back: x.float() ... .cast(x.dtype)."""
    x = Tensor(values(3, 16) * 300).cast(dtypes.float16)
    got = learner.safe_rms_norm(x, Tensor.ones(16, dtype=dtypes.float16))
    assert got.dtype == dtypes.float16, f"its dtype is {got.dtype}"
    wide = x.numpy().astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(1, keepdims=True))
    close(got.float(), want.astype(np.float32), 4e-3)


def check_log_sum_exp(learner: ModuleType) -> None:
    """Take the maximum out first: log(sum(exp(x - m))) + m."""
    x = values(4, 9) * 500
    want = np.logaddexp.reduce(x.astype(np.float64), axis=1)
    close(learner.log_sum_exp(Tensor(x)), want.astype(np.float32), 1e-3)


def check_focal_loss(learner: ModuleType) -> None:
    """log_softmax, pick the label's by a comparison with arange, exp of it is p."""
    x, labels = values(6, 5), np.array([0, 4, 2, 2, 1, 3])
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    p = p[np.arange(6), labels]
    want = np.float32(-((1 - p) ** 2 * np.log(p)).mean())
    close(learner.focal_loss(Tensor(x), Tensor(labels.astype(np.int32)), 2.0), want)
    logits = Tensor(x)
    loss = learner.focal_loss(logits, Tensor(labels.astype(np.int32)), 2.0)
    assert loss.gradient(logits)[0].isfinite().all().item(), "its gradient is not finite"


def check_rotate(learner: ModuleType) -> None:
    """chunk(2) gives both halves; (a cos - b sin, a sin + b cos), joined by Tensor.cat."""
    x, angles = values(5, 8), values(5, 4, seed=1)
    turned = (x[:, :4] + 1j * x[:, 4:]) * np.exp(1j * angles)
    want = np.concatenate([turned.real, turned.imag], axis=1).astype(np.float32)
    close(learner.rotate(Tensor(x), Tensor(angles)), want)


def check_quantise(learner: ModuleType) -> None:
    """The greatest |weight| of a row becomes 127; round, and cast to int8."""
    w = values(10, 32)
    q, scale = learner.quantise(Tensor(w))
    assert q.dtype == dtypes.int8, f"values are {q.dtype}"
    assert scale.shape == (10, 1), f"the scale is {scale.shape}"
    close(q.float() * scale, w, float(np.abs(w).max() / 127))


def check_quantised_linear(learner: ModuleType) -> None:
    """values.float() inside of the product is never stored; multiply by the scale afterwards."""
    q = Tensor(np.random.default_rng(0).integers(-127, 128, size=(64, 256)).astype(np.int8))
    x, scale = Tensor(values(4, 256)), Tensor(values(64, 1, seed=1))
    Tensor.realize(q, x, scale)
    GlobalCounters.reset()
    got = learner.quantised_linear(x, q, scale).realize()
    assert GlobalCounters.kernel_count == 1, f"it took {GlobalCounters.kernel_count} kernels"
    moved = q.nbytes() + x.nbytes() + scale.nbytes() + got.nbytes()
    assert GlobalCounters.global_mem <= moved, f"it moved {GlobalCounters.global_mem} bytes"
    close(got, x.numpy() @ (q.numpy() * scale.numpy()).T, 2e-2)
