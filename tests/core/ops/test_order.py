"""Reductions, order and cumulative functions against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.ops import order
from tests.core.tensor_checks import check_tensor

A = np.random.default_rng(8).normal(size=(3, 4, 5)).astype(np.float32)
AXES = [None, 0, -1, (0, 2), (0, 1, 2), ()]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all"])
def test_reduction(name: str, axis: Any, keepdim: bool) -> None:
    want = getattr(np, name)(A.astype(np.float64), axis=axis, keepdims=keepdim)
    check_tensor(getattr(Tensor(A), name)(axis, keepdim), want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("correction", [0, 1, 2.5])
@pytest.mark.parametrize("axis", [None, 1, (0, 2)], ids=str)
def test_variance(axis: Any, correction: float) -> None:
    wide = A.astype(np.float64)
    want = np.var(wide, axis=axis, ddof=correction)
    check_tensor(Tensor(A).var(axis, correction=correction), want, rtol=1e-5)
    check_tensor(Tensor(A).std(axis, correction=correction), np.sqrt(want), rtol=1e-5)
    std, mean = Tensor(A).std_mean(axis, True, correction)
    check_tensor(std, np.std(wide, axis=axis, ddof=correction, keepdims=True), rtol=1e-5)
    check_tensor(mean, np.mean(wide, axis=axis, keepdims=True), rtol=1e-5, atol=1e-6)


def test_variance_of_one_element_is_undefined() -> None:
    check_tensor(Tensor([3.0]).var(), math.nan)


DTYPES = [
    (Tensor([1, 2], dtype="int8").sum(), 3, "int32"), (Tensor([1, 2], dtype="uint8").sum(), 3,
                                                      "uint32"),
    (Tensor([True, True]).sum(), 2, "int32"), (Tensor([1.0, 2.0]).half().sum(), 3, "float16"),
    (Tensor([1.0, 2.0]).sum(dtype="float64"), 3, "float64"), (Tensor([1, 2]).mean(), 1.5,
                                                              "float32"),
    (Tensor([1, 2], dtype="int64").max(), 2, "int64"), (Tensor([True, False]).max(), True, "bool"),
    (Tensor([True, False]).min(), False, "bool"), (Tensor([-128, 3], dtype="int8").min(), -128,
                                                   "int8"),
    (Tensor([2, 3], dtype="int16").prod(), 6, "int16"), (Tensor([0, 2]).any(), True, "bool"),
    (Tensor([1, 2]).var(), 0.5, "float32"),
    (Tensor([2000.0] * 64).half().mean(), 2000, "float16"),
]  # fmt: skip


@pytest.mark.parametrize("got, want, dtype", DTYPES)
def test_dtype_of_reduction(got: Tensor, want: Any, dtype: str) -> None:
    check_tensor(got, want, dtype=dtype)


def test_reduction_of_nothing() -> None:
    empty = Tensor.zeros(2, 0)
    check_tensor(empty.sum(1), [0, 0])
    check_tensor(empty.prod(1), [1, 1])
    check_tensor(empty.max(1), [-math.inf, -math.inf])
    check_tensor(empty.sum(), 0)
    check_tensor(empty.all(1), [True, True])
    assert empty.sum(0).shape == (0,)


def test_nan_passes_through() -> None:
    x = Tensor([1.0, math.nan, 3.0])
    for name in ("max", "min", "sum", "mean"):
        assert math.isnan(getattr(x, name)().item())


# places


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_argmax(axis: Any, keepdim: bool) -> None:
    x = np.round(A * 2)
    for name in ("argmax", "argmin"):
        want = getattr(np, name)(x, axis=axis, keepdims=keepdim)
        check_tensor(getattr(Tensor(x), name)(axis, keepdim), want, dtype="int32")


def test_argmax_edges() -> None:
    check_tensor(Tensor([1.0, math.nan, 3.0, math.nan]).argmax(), 1)
    check_tensor(Tensor([1.0, math.nan, -3.0]).argmin(), 1)
    check_tensor(Tensor([False, True, True]).argmax(), 1)
    check_tensor(Tensor([-128, 127], dtype="int8").argmin(), 0)
    check_tensor(Tensor(4.0).argmax(), 0)


def test_the_greatest_of_small_products_is_one_of_them() -> None:
    # A product that is added up in two loops has two results, and neither is the maximum of both.
    draw = np.random.default_rng(66)
    sizes = [int(draw.integers(low, high)) for low, high in ((1, 9), (2, 9), (1, 20))]
    x = (np.round(draw.normal(size=(sizes[2], sizes[0])) * 4) / 4).astype(np.float32)
    w, b = draw.normal(size=sizes[1::-1]), draw.normal(size=sizes[1])
    scores = Tensor(x) @ Tensor(w.astype(np.float32)).transpose(0, 1) + b.astype(np.float32)
    place = scores.argmax(-1)
    check_tensor(place, scores.numpy().argmax(-1), dtype="int32")


def sorted_as_numpy(x: Any, descending: bool) -> tuple[Any, Any]:
    """A stable sort of rows, NaN counting as greatest."""
    key = np.where(np.isnan(x), np.inf, x)
    rank = np.isnan(x).astype(int)
    if descending:
        key, rank = -key, -rank
    places = np.lexsort((np.broadcast_to(np.arange(x.shape[-1]), x.shape), key, rank), axis=-1)
    return np.take_along_axis(x, places, -1), places


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("limit", [order.MOST_COUNTED, 1], ids=["counted", "network"])
def test_sort(limit: int, descending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MOST_COUNTED", limit)
    x = np.random.default_rng(1).integers(0, 6, size=(3, 11)).astype(np.float32)
    x[0, 3] = x[0, 7] = x[2, 0] = np.nan
    x[1, 5], x[1, 6] = np.inf, -np.inf
    values, places = Tensor(x).sort(-1, descending)
    want, at = sorted_as_numpy(x, descending)
    check_tensor(places, at, dtype="int32")
    check_tensor(values, want, rtol=0, atol=0)


WIDTHS = ["float64", "float16", "int8", "int32", "int64", "uint8", "uint64"]


@pytest.mark.parametrize("dtype", WIDTHS)
@pytest.mark.parametrize("descending", [False, True])
def test_network_orders_every_dtype(
    dtype: str, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "MOST_COUNTED", 1)
    x = np.trunc(np.random.default_rng(2).normal(size=(2, 7)) * 60)
    x = (np.abs(x) if dtype.startswith("u") else x).astype(dtype)
    if dtype.startswith("float"):
        x[0, :4] = [0.0, -0.0, -np.inf, np.nan]
    values, places = Tensor(x).sort(-1, descending)
    want, at = sorted_as_numpy(x.astype(np.float64), descending)
    check_tensor(places, at)
    check_tensor(values, want, rtol=0, atol=0)


def test_sort_along_axes_and_dtypes() -> None:
    check_tensor(Tensor(A).sort(0)[0], np.sort(A, 0))
    check_tensor(Tensor(A).argsort(1), np.argsort(A, 1))
    check_tensor(Tensor([3, 1, 2]).sort()[0], [1, 2, 3], dtype="int32")
    check_tensor(Tensor([True, False, True]).sort()[1], [1, 0, 2])
    check_tensor(Tensor([200, 7, 255], dtype="uint8").sort(descending=True)[0], [255, 200, 7])
    check_tensor(Tensor([4.0]).sort()[1], [0])
    check_tensor(Tensor(4.0).sort()[0], 4)


def test_topk() -> None:
    values, places = Tensor(A).topk(2, 1)
    check_tensor(values, np.sort(A, 1)[:, ::-1][:, :2])
    check_tensor(places, np.argsort(-A, 1)[:, :2])
    check_tensor(Tensor(A).topk(3, largest=False)[0], np.sort(A, -1)[..., :3])


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_topk_of_a_network(dtype: str, largest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "MOST_COUNTED", 1)
    x = np.random.default_rng(3).integers(-9, 9, (3, 5, 53)).astype(dtype)
    for k in (1, 2, 5, 33, 53):
        values, places = Tensor(x).topk(k, -1, largest)
        at = np.argsort(-x if largest else x, -1, kind="stable")[..., :k]
        check_tensor(places, at, dtype="int32")
        check_tensor(values, np.take_along_axis(x, at, -1), dtype=dtype)
    values, places = Tensor(x).topk(2, 1, largest)
    at = np.argsort(-x if largest else x, 1, kind="stable")[:, :2]
    check_tensor(places, at)


def test_gradient_of_sort() -> None:
    x = Tensor([3.0, 1.0, 2.0], requires_grad=True)
    (x.sort()[0] * Tensor([1.0, 10.0, 100.0])).sum().backward()
    check_tensor(x.grad, [100, 1, 10])


# cumulative


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cumulative(axis: int) -> None:
    check_tensor(Tensor(A).cumsum(axis), np.cumsum(A, axis), rtol=1e-5, atol=1e-6)
    check_tensor(Tensor(A).cumprod(axis), np.cumprod(A, axis), rtol=1e-5)
    positive = Tensor(A > 0)
    check_tensor(positive.cumprod(axis), np.cumprod(A > 0, axis), dtype="int32")
    check_tensor(Tensor(A).cummax(axis)[0], np.maximum.accumulate(A, axis))
    check_tensor(Tensor(A).cummin(axis)[0], np.minimum.accumulate(A, axis))
    want = np.logaddexp.accumulate(A.astype(np.float64), axis)
    check_tensor(Tensor(A).logcumsumexp(axis), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [257, 300])
def test_cumulative_in_blocks(size: int) -> None:
    x = np.random.default_rng(2).normal(size=(2, size)).astype(np.float32)
    wide = x.astype(np.float64)
    check_tensor(Tensor(x).cumsum(1), np.cumsum(wide, 1), rtol=1e-4, atol=1e-5)
    check_tensor(Tensor(x).cummax(1)[0], np.maximum.accumulate(x, 1))
    check_tensor(Tensor(x).cummin(1)[0], np.minimum.accumulate(x, 1))
    want = np.logaddexp.accumulate(wide, 1)
    check_tensor(Tensor(x).logcumsumexp(1), want, rtol=1e-5, atol=1e-5)
    ints = Tensor(np.arange(size, dtype=np.int32))
    check_tensor(ints.cumsum(), np.arange(size).cumsum())


def test_cumulative_edges() -> None:
    assert Tensor([1, 2], dtype="int8").cumsum().dtype is dtypes.int32
    assert Tensor([1.0, 2.0]).half().cumsum().dtype is dtypes.float16
    check_tensor(Tensor(3.0).cumsum(), 3)
    check_tensor(Tensor([-math.inf, 1.0, -math.inf]).logcumsumexp(), [-math.inf, 1, 1])
    check_tensor(Tensor([math.inf, 1.0]).cumsum(), [math.inf, math.inf])
    check_tensor(Tensor([1000.0, 1000.0]).logcumsumexp(), [1000, 1000 + math.log(2)])
    assert Tensor.zeros(2, 0).cumsum(1).shape == (2, 0)


def test_places_of_cumulative_extremes() -> None:
    x = np.array([[3.0, 1.0, 3.0, np.nan, 4.0], [1.0, 1.0, 0.0, 2.0, 2.0]], np.float32)
    assert Tensor(x).cummax(1)[1].tolist() == [[0, 0, 2, 3, 3], [0, 1, 1, 3, 4]]
    assert Tensor(x).cummin(1)[1].tolist() == [[0, 1, 1, 3, 3], [0, 1, 2, 2, 2]]
    values, places = Tensor([True, False, True]).cummin(0)
    assert (values.tolist(), places.tolist()) == ([True, False, False], [0, 1, 1])
