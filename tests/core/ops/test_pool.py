"""Pooling, its reverse and resizing against PyTorch; edges where PyTorch has no answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.dtype import dtypes
from aster_ml.errors import ArgumentError, ShapeError
from aster_ml.uop.graph import toposort
from aster_ml.uop.ops import MOVEMENT, Ops
from tests.core.numerics import check_torch, tensor, value, values


def random(*shape: int, seed: int = 0) -> Any:
    """Normal numbers."""
    return np.random.RandomState(seed + len(shape)).randn(*shape)


CONFIGS: list[dict[str, Any]] = [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 1)}, {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 2, "stride": 3, "ceil_mode": True},
    {"kernel_size": 5, "stride": 1, "padding": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    {"kernel_size": 1, "stride": 2}, {"kernel_size": (9, 8)},
]  # fmt: skip
DILATED: list[dict[str, Any]] = [
    {"kernel_size": 2, "dilation": 2},
    {"kernel_size": 2, "dilation": 2, "stride": 4, "padding": 1},
    {"kernel_size": (3, 2), "dilation": (2, 3), "stride": (2, 1), "ceil_mode": True},
]


@pytest.mark.torch
@pytest.mark.parametrize("config", CONFIGS + DILATED, ids=str)
def test_max_pool(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    pool = torch.nn.functional.max_pool2d
    x = random(2, 3, 9, 8)
    check_torch(lambda x: x.max_pool2d(**config), lambda x: pool(x, **config), x)
    best, places = tensor(x).max_pool2d(return_indices=True, **config)
    want, want_places = pool(torch.tensor(x), return_indices=True, **config)
    np.testing.assert_array_equal(value(places), want_places.numpy())
    np.testing.assert_array_equal(value(best), want.numpy())
    assert places.dtype is dtypes.int32


@pytest.mark.torch
@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_avg_pool(config: dict[str, Any], count_include_pad: bool) -> None:
    torch = pytest.importorskip("torch")
    both = {**config, "count_include_pad": count_include_pad}
    check_torch(
        lambda x: x.avg_pool2d(**both),
        lambda x: torch.nn.functional.avg_pool2d(x, **both),
        random(2, 3, 9, 8),
    )


@pytest.mark.torch
@pytest.mark.parametrize("name", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("dims", [1, 3])
def test_other_numbers_of_axes(dims: int, name: str) -> None:
    torch = pytest.importorskip("torch")
    sizes, kernel = (7, 5, 6)[:dims], (3, 2, 2)[:dims]
    theirs = getattr(torch.nn.functional, f"{name}{dims}d")
    check_torch(
        lambda x: getattr(x, f"{name}2d")(kernel, stride=2, padding=1),
        lambda x: theirs(x, kernel, stride=2, padding=1),
        random(2, 3, *sizes),
    )


def test_padding_of_max_pool_never_wins() -> None:
    x = -np.ones((1, 1, 2, 2), np.float32)
    np.testing.assert_array_equal(value(tensor(x).max_pool2d(3, 1, padding=1)), x)
    low = np.full((1, 1, 2, 2), -100, np.int8)
    np.testing.assert_array_equal(value(tensor(low).max_pool2d(3, 1, padding=1)), low)


def test_padding_may_differ_on_each_side() -> None:
    x = tensor(np.arange(16.0).reshape(1, 1, 4, 4))
    # Flat, the last axis first: one column on the left, one row below.
    np.testing.assert_array_equal(
        value(x.max_pool2d(2, padding=(1, 0, 0, 1)))[0, 0], [[4, 6], [12, 14]]
    )


def test_equal_elements_of_a_window() -> None:
    zeros = tensor(np.zeros((1, 1, 4, 4)))
    _, places = zeros.max_pool2d(3, 1, padding=1, return_indices=True)
    np.testing.assert_array_equal(
        value(places)[0, 0], [[0, 0, 1, 2], [0, 0, 1, 2], [4, 4, 5, 6], [8, 8, 9, 10]]
    )


def test_nan_is_the_greatest() -> None:
    x = np.array([[[[1.0, np.nan], [3, 2]]]])
    best, places = values(*tensor(x).max_pool2d(return_indices=True))
    assert np.isnan(best).all()
    assert places.tolist() == [[[[1]]]]


def test_average_of_halves_and_ints() -> None:
    half = tensor(np.ones((1, 1, 4, 4), np.float16)).avg_pool2d(
        3, 1, padding=1, count_include_pad=False
    )
    assert half.dtype is dtypes.float16
    np.testing.assert_array_equal(value(half), np.ones((1, 1, 4, 4)))
    assert tensor(np.ones((1, 1, 4, 4), np.int32)).avg_pool2d().dtype is dtypes.float32


@pytest.mark.parametrize(
    "shape, config, error, message",
    [
        ((1, 3, 3), {"kernel_size": 4}, ShapeError, r"max_pool: kernel \[4,4\] .* than \[3,3\]"),
        ((3,), {}, ShapeError, "fewer axes"),
        ((4, 4), {"stride": 0}, ArgumentError, "positive whole numbers"),
        ((4, 4), {"padding": (1, 1, 1)}, ArgumentError, r"max_pool: padding \(1, 1, 1\)"),
    ],
)
def test_pool_refuses(shape: Any, config: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        tensor(np.zeros(shape)).max_pool2d(**config)


@pytest.mark.torch
@pytest.mark.parametrize(
    "config, sizes",
    [
        ({"kernel_size": 2}, None),
        ({"kernel_size": 2}, (9, 8)),
        ({"kernel_size": 2}, (2, 3, 9, 8)),
        ({"kernel_size": 3, "stride": 3, "padding": 1}, (9, 8)),
        ({"kernel_size": (3, 2)}, None),
    ],
)
def test_unpool(config: dict[str, Any], sizes: Any) -> None:
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x = torch.tensor(random(2, 3, 9, 8))
    best, places = functional.max_pool2d(x, return_indices=True, **config)
    have = tensor(best.numpy()).max_unpool2d(tensor(places.numpy()), output_size=sizes, **config)
    want = functional.max_unpool2d(best, places, output_size=sizes, **config)
    np.testing.assert_array_equal(value(have), want.numpy())


def test_unpool_refuses_other_indices() -> None:
    with pytest.raises(ShapeError, match=r"max_unpool: values \[1,2,2\] and indices \[1,2,3\]"):
        tensor(np.zeros((1, 2, 2))).max_unpool2d(tensor(np.zeros((1, 2, 3), np.int32)))


# resizing

SIZES = [(8, 12), (3, 5), (5, 9), (1, 1), (15, 14), (2, 21)]


@pytest.mark.torch
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear"])
def test_interpolate(size: tuple[int, int], mode: str) -> None:
    torch = pytest.importorskip("torch")
    theirs = {"linear": "bilinear"}.get(mode, mode)
    check_torch(
        lambda x: x.interpolate(size, mode),
        lambda x: torch.nn.functional.interpolate(x, size, mode=theirs),
        random(2, 3, 5, 7),
    )


@pytest.mark.torch
@pytest.mark.parametrize("size", SIZES)
def test_interpolate_with_corners_kept(size: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    check_torch(
        lambda x: x.interpolate(size, "linear", True),
        lambda x: torch.nn.functional.interpolate(x, size, mode="bilinear", align_corners=True),
        random(2, 3, 5, 7),
    )


@pytest.mark.torch
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("sizes", [(64, 64, 10, 10), (9, 31, 20, 12), (30, 7, 60, 3), (1, 5, 4, 1)])
def test_interpolate_bytes(sizes: tuple[int, ...], corners: bool) -> None:
    rows, columns, *size = sizes
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(rows).integers(0, 256, size=(2, 3, rows, columns)).astype(np.uint8)
    want = torch.nn.functional.interpolate(
        torch.tensor(x), tuple(size), mode="bilinear", align_corners=corners
    )
    got = Tensor(x).interpolate(tuple(size), "linear", corners)
    np.testing.assert_array_equal(got.numpy(), want.numpy())


@pytest.mark.parametrize("sizes", [(11,), (3, 8, 5)])
def test_interpolate_other_numbers_of_axes(sizes: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    theirs = {1: "linear", 3: "trilinear"}[len(sizes)]
    check_torch(
        lambda x: x.interpolate(sizes),
        lambda x: torch.nn.functional.interpolate(x, sizes, mode=theirs),
        random(2, 3, *(7, 4, 5)[: len(sizes)]),
    )


def test_whole_factors_are_movement() -> None:
    x = tensor(np.zeros((1, 6, 4)))
    for size in ((12, 12), (2, 2), (3, 1)):
        for mode in ("nearest", "nearest-exact"):
            ops = {u.op for u in toposort(x.interpolate(size, mode).uop)}
            # A cast to the same dtype makes it a value of its own, and computes nothing.
            assert ops - MOVEMENT == {Ops.BUFFER, Ops.CAST}


def test_interpolate_ints_rounds() -> None:
    x = tensor(np.array([[[0, 10, 21]]], np.int16)).interpolate((6,))
    assert x.dtype is dtypes.int16
    assert value(x).tolist() == [[[0, 2, 8, 13, 18, 21]]]
    near = tensor(np.array([[[0, 10, 21]]], np.uint8)).interpolate((2,), "nearest")
    assert value(near).tolist() == [[[0, 10]]]


@pytest.mark.parametrize(
    "size, mode, corners, error, message",
    [
        ((2, 2), "cubic", False, ArgumentError, "mode 'cubic'; linear, nearest or nearest-exact"),
        ((2, 2), "nearest", True, ArgumentError, "align_corners goes with mode linear"),
        ((2, 2, 2, 2), "linear", False, ShapeError, "at most 3"),
        (2, "linear", False, ShapeError, "one number for each axis"),
    ],
)
def test_interpolate_refuses(
    size: Any, mode: str, corners: bool, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        tensor(np.zeros((1, 4, 4))).interpolate(size, mode, corners)
