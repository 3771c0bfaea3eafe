"""expm1, log1p, hypot, atan2, nextafter beside NumPy at all edges; their gradients; diff."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor

EDGES = [
    *(0.0, 1.0, math.inf, 0.5, 1e-3, 1e-20, 20.0, 3e38, 1e-40, 0.70710678, 2.0, 1e19),
]
ALL = [*EDGES, *[-x for x in EDGES], math.nan]


def agree(got: Any, want: Any, ulp: float) -> bool:
    """Whether values and signs of zeros are NumPy's, to so many units in the last place."""
    eps = np.finfo(want.dtype).eps
    close = np.isclose(got, want, rtol=ulp * eps, atol=0) & (np.signbit(got) == np.signbit(want))
    return bool((close | (np.isnan(want) & np.isnan(got))).all())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_edges_are_numpys(dtype: Any) -> None:
    values = np.array(ALL, dtype)
    with np.errstate(all="ignore"):
        for name in ("expm1", "log1p"):
            want = getattr(np, name)(values.astype(np.float64)).astype(dtype)
            assert agree(getattr(Tensor(values, device="PYTHON"), name)().numpy(), want, 16), name
        a, b = np.meshgrid(values, values)
        for name, ours, ulp in (
            ("arctan2", "atan2", 6), ("hypot", "hypot", 4), ("nextafter", "nextafter", 0),
            ("copysign", "copysign", 0),
        ):  # fmt: skip
            x, y = Tensor(a, device="PYTHON"), Tensor(b, device="PYTHON")
            assert agree(getattr(x, ours)(y).numpy(), getattr(np, name)(a, b), ulp), name


def test_the_native_device_has_the_same_edges() -> None:
    values = np.array(ALL, np.float32)
    a, b = np.meshgrid(values[abs(values) != 1e-40], values)
    with np.errstate(all="ignore"):
        assert agree(Tensor(a).atan2(Tensor(b)).numpy(), np.arctan2(a, b), 8)
        assert agree(Tensor(a).nextafter(Tensor(b)).numpy(), np.nextafter(a, b), 0)


def test_numbers_and_ints_stand_beside() -> None:
    assert Tensor([3, 0]).hypot(4).tolist() == [5, 4]
    assert Tensor([0.0]).atan2(-1.0).item() == pytest.approx(math.pi)
    assert Tensor([1], dtype="float16").log1p().dtype.name == "float16"


@pytest.mark.torch
@pytest.mark.parametrize("name", ["expm1", "log1p", "atan2", "hypot"])
def test_gradients_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = np.array([0.5, 1e-5, 2.0, 0.0, 3.0])
    y = np.array([0.25, -3.0, -1.0, 2.0, 1e-8])
    arrays = [x] if name in ("expm1", "log1p") else [x, y]
    ours = [Tensor(v, requires_grad=True, device="PYTHON") for v in arrays]
    theirs = [torch.tensor(v, requires_grad=True) for v in arrays]
    getattr(ours[0], name)(*ours[1:]).sum().backward()
    getattr(torch, name)(*theirs).sum().backward()
    for t, u in zip(ours, theirs, strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-12)


def test_differences() -> None:
    x = np.array([[1.0, 4.0, 9.0], [2.0, 2.0, 0.0]])
    t = Tensor(x, device="PYTHON")
    for n in (0, 1, 2, 3):
        for axis in (0, 1, -1):
            np.testing.assert_array_equal(t.diff(n, axis).numpy(), np.diff(x, n, axis))
    ends = Tensor([[7.0], [8.0]], device="PYTHON").cast("float64")
    want = np.diff(x, prepend=ends.numpy(), append=ends.numpy())
    np.testing.assert_array_equal(t.diff(1, -1, ends, ends).numpy(), want)
    assert Tensor([True, False, False]).diff().tolist() == [True, False]
