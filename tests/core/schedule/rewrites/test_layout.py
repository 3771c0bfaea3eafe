"""Stored values whose axes lie in memory in another order than their own."""

from __future__ import annotations

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.schedule.rewrites.layout import role_of
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType

RNG = np.random.RandomState(5)


def drawn(*shape: int) -> np.ndarray:
    return RNG.rand(*shape).astype(np.float32) - 0.5


def convolved(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """A convolution by windows of NumPy, in float64."""
    dims = w.ndim - 2
    pads = [(0, 0), (0, 0), *[(padding, padding)] * dims]
    axes = tuple(range(2, 2 + dims))
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x.astype(np.float64), pads), w.shape[2:], axis=axes
    )
    windows = windows[(slice(None), slice(None), *[slice(None, None, stride)] * dims)]
    inner = tuple(range(2 + dims, 2 + 2 * dims))
    out = np.tensordot(windows, w.astype(np.float64), ((1, *inner), (1, *axes)))
    return np.moveaxis(out, -1, 1)


@pytest.mark.parametrize(
    "x_shape,w_shape,stride,order",
    [
        ((1, 16, 50, 46), (64, 16, 3, 3), 2, "(0, 2, 1, 3)"),
        ((2, 3, 45, 47), (16, 3, 5, 5), 1, "(0, 2, 1, 3)"),
        ((1, 8, 12, 14, 15), (64, 8, 3, 3, 3), 1, "(0, 2, 3, 1, 4)"),
        # Rows of one channel have fewer bytes than two pages.
        ((1, 16, 30, 30), (64, 16, 3, 3), 2, None),
        # Along the only axis of windows the elements of a channel lie side by side anyway.
        ((1, 16, 3000), (64, 16, 3), 2, None),
    ],
)
def test_channels_lie_inside_of_rows(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], stride: int, order: str | None
) -> None:
    x, w = drawn(*x_shape), drawn(*w_shape)
    padding = w_shape[-1] // 2
    with Context(WINO=0, FUSE=1):
        y = Tensor(x).conv2d(Tensor(w), stride=stride, padding=padding)
        told = y.explain()
        found = y.numpy()
    assert ("its axes lie in the order" in told) == (order is not None)
    assert order is None or f"its axes lie in the order {order}" in told
    np.testing.assert_allclose(found, convolved(x, w, stride, padding), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [2, 6])
def test_groups(groups: int) -> None:
    x, w = drawn(1, 12, 50, 50), drawn(12, 12 // groups, 3, 3)
    found = Tensor(x).conv2d(Tensor(w), groups=groups, stride=2, padding=1).numpy()
    each = 12 // groups
    parts = [convolved(x[:, i : i + each], w[i : i + each], 2, 1) for i in range(0, 12, each)]
    np.testing.assert_allclose(found, np.concatenate(parts, 1), rtol=1e-4, atol=1e-4)


def test_values_read_in_two_ways_keep_their_order_beside_one_that_does_not() -> None:
    # Both padded values have the same shape: what is known of one must not be taken for the other.
    x, y, w = drawn(1, 16, 50, 50), drawn(1, 16, 50, 50), drawn(64, 16, 3, 3)
    a, b, k = Tensor(x).realize(), Tensor(y).realize(), Tensor(w).realize()
    first = a.conv2d(k, stride=2, padding=1)
    padded = b.pad(((0, 0), (0, 0), (1, 1), (1, 1)))
    # The gradient by the weights sums along rows.
    second = padded.conv2d(k, stride=2)
    by_weights = second.square().sum().gradient(k)[0]
    Tensor.realize(first, second, by_weights)
    want = convolved(y, w, 2, 1)
    np.testing.assert_allclose(first.numpy(), convolved(x, w, 2, 1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(second.numpy(), want, rtol=1e-4, atol=1e-4)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(y.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3)
    )[:, :, ::2, ::2]
    gradient = np.einsum("nohw,nchwij->ocij", 2 * want, windows)
    np.testing.assert_allclose(by_weights.numpy(), gradient, rtol=1e-3, atol=1e-2)


def test_roles_of_axes() -> None:
    loop, short, long = (
        UOp.range(8, 0, AxisType.LOOP),
        UOp.range(3, 1, AxisType.REDUCE),
        UOp.range(20, 2, AxisType.REDUCE),
    )
    assert role_of(loop) == "along"
    assert role_of(short) == "sum"
    assert role_of(loop * 2 + short) == "window"
    # A sum along rows for each step of a window: the gradient of weights.
    assert role_of(loop + long) == "along"
    assert role_of(UOp.index_const(0)) == "along"
