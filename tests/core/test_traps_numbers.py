"""Traps of numbers, each against NumPy or PyTorch: NaN, -0.0, signs, shifts, casts, rounding."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml import Tensor
from aster_ml.dtype import dtypes, to_dtype
from aster_ml.errors import NumberRangeError

NAN, INF = math.nan, math.inf


def assert_same_bits(got: Tensor, want: Any) -> None:
    """Equal values, NaN where NaN is, and the same signs of zeros."""
    found, wanted = got.numpy(), np.asarray(want)
    np.testing.assert_array_equal(found, wanted)
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[number], np.signbit(wanted)[number])


@pytest.mark.parametrize("place", [0, 3, 7])
def test_reductions_hand_nan_on(place: int) -> None:
    x = np.arange(-4.0, 4.0, dtype=np.float32)
    x[place] = NAN
    for name in ("max", "min", "sum", "prod", "mean"):
        assert math.isnan(getattr(Tensor(x), name)().item()), name
        rows = np.stack([x, np.ones_like(x)])
        got = getattr(Tensor(rows), name)(axis=1).numpy()
        assert np.isnan(got).tolist() == [True, False], name


def test_maximum_and_minimum_of_nan() -> None:
    x = np.array([NAN, 1.0, NAN, -INF, 2.0], dtype=np.float32)
    y = np.array([1.0, NAN, NAN, NAN, 3.0], dtype=np.float32)
    np.testing.assert_array_equal(Tensor(x).maximum(Tensor(y)).numpy(), np.maximum(x, y))
    np.testing.assert_array_equal(Tensor(x).minimum(Tensor(y)).numpy(), np.minimum(x, y))


def test_maximum_of_zeros_is_a_zero() -> None:
    for x, y in ((0.0, -0.0), (-0.0, 0.0), (-0.0, -0.0)):
        assert Tensor([x]).maximum(Tensor([y])).item() == 0
        assert Tensor([x, y]).max().item() == 0
    assert_same_bits(Tensor([-0.0]).maximum(Tensor([-0.0])), np.float32([-0.0]))
    assert Tensor([-0.0, -1.0]).argmax().item() == 0


def test_a_negative_zero_is_false() -> None:
    zeros = Tensor([-0.0, 0.0, NAN, 1e-45])
    assert zeros.bool().tolist() == [False, False, True, True]
    assert zeros.logical_not().tolist() == [True, True, False, False]
    assert zeros.where(1, 2).tolist() == [2, 2, 1, 1]
    assert Tensor([-0.0]).any().item() is False
    assert (Tensor([-0.0]) == 0.0).tolist() == [True]
    assert (Tensor([-0.0]) < 0.0).tolist() == [False]
    assert Tensor([-0.0, 3.0]).nonzero().tolist() == [[1]]


def test_where_a_negative_zero_stays() -> None:
    x = np.array([-0.0, 0.0, -1.5], dtype=np.float32)
    for name, want in (
        ("neg", -x), ("abs", np.abs(x)), ("sqrt", None), ("relu", None), ("floor", np.floor(x)),
        ("ceil", np.ceil(x)), ("trunc", np.trunc(x)), ("contiguous", x), ("clone", x),
    ):  # fmt: skip
        if want is not None:
            assert_same_bits(getattr(Tensor(x), name)(), want)
    assert_same_bits(Tensor(x) * 1, x)
    assert_same_bits(Tensor(x) - 0.0, x - np.float32(0))
    assert_same_bits(Tensor(x) + -0.0, x + np.float32(-0.0))
    assert_same_bits(Tensor(x)[::-1], x[::-1])
    assert_same_bits(Tensor(x)[Tensor([0, 2, 0])], x[[0, 2, 0]])
    assert_same_bits(1 / Tensor(x), np.array([-INF, INF, 1 / -1.5], dtype=np.float32))


SIGNS = np.array([[7, 2], [-7, 2], [7, -2], [-7, -2], [6, -3], [0, -5], [-1, 3], [1, -3]])


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_division_of_negative_ints(dtype: str) -> None:
    a, b = SIGNS.T.astype(dtype)
    x, y = Tensor(a), Tensor(b)
    np.testing.assert_array_equal((x // y).numpy(), a // b)
    np.testing.assert_array_equal((x % y).numpy(), a % b)
    np.testing.assert_array_equal(x.idiv(y).numpy(), np.trunc(a / b).astype(dtype))
    np.testing.assert_array_equal(x.div(y, rounding_mode="trunc").numpy(), np.trunc(a / b))
    np.testing.assert_array_equal(x.div(y, rounding_mode="floor").numpy(), a // b)
    np.testing.assert_allclose((x / y).numpy(), a / b, rtol=1e-6)


@pytest.mark.parametrize("divisor", [2, 3, -2, -3, 8, -8, 7])
def test_division_by_a_number(divisor: int) -> None:
    a = np.arange(-20, 21)
    np.testing.assert_array_equal((Tensor(a) // divisor).numpy(), a // divisor)
    np.testing.assert_array_equal((Tensor(a) % divisor).numpy(), a % divisor)
    floats = a.astype(np.float32) / 4
    np.testing.assert_allclose((Tensor(floats) % divisor).numpy(), floats % divisor, atol=1e-6)
    np.testing.assert_array_equal((Tensor(floats) // divisor).numpy(), floats // divisor)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64"])
def test_division_of_large_unsigned(dtype: str) -> None:
    a = np.array([np.iinfo(dtype).max, np.iinfo(dtype).max - 1, 7, 0], dtype=dtype)
    for divisor in (1, 2, 3, 10, 128):
        b = np.full_like(a, divisor)
        np.testing.assert_array_equal((Tensor(a) // Tensor(b)).numpy(), a // b)
        np.testing.assert_array_equal((Tensor(a) % Tensor(b)).numpy(), a % b)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "int32", "uint64", "int64"])
def test_shifts(dtype: str) -> None:
    info = np.iinfo(dtype)
    a = np.array([0, 1, 5, info.max, info.max // 3, info.min], dtype=dtype)
    for by in (0, 1, 3, info.bits - 1):
        amount = np.full_like(a, by)
        np.testing.assert_array_equal((Tensor(a) << Tensor(amount)).numpy(), a << amount)
        np.testing.assert_array_equal((Tensor(a) >> Tensor(amount)).numpy(), a >> amount)
        np.testing.assert_array_equal((Tensor(a) >> by).numpy(), a >> amount)


SPECIAL = np.array([NAN, INF, -INF, 1e20, -1e20, 3.99, -3.99, 0.5, -0.5, 300.7, -300.7])
# What a cast to each gives at the ends: 32 and 64 bits saturate, narrower ones wrap from 32.
CASTS = {
    "int32": [0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 3, -3, 0, 0, 300, -300],
    "int64": [0, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 3, -3, 0, 0, 300, -300],
    "uint8": [0, 255, 0, 255, 0, 3, 253, 0, 0, 44, 212],
}


@pytest.mark.parametrize("dtype", CASTS)
def test_casts_of_what_does_not_fit(dtype: str) -> None:
    x = SPECIAL.astype(np.float32)
    got = Tensor(x).cast(dtype).numpy()
    assert got.tolist() == CASTS[dtype]
    # A constant and a stored value are cast alike; a float is not cast, nor one in a list.
    for v in np.trunc(x).tolist():
        if dtypes.min(to_dtype(dtype)) <= v <= dtypes.max(to_dtype(dtype)):
            assert Tensor([[v]], dtype=dtype).tolist() == [[int(v)]]
            continue
        for data in (v, [[0.0, v]]):
            with pytest.raises(NumberRangeError, match="does not fit"):
                Tensor(data, dtype=dtype)
    assert [Tensor(float(v)).cast(dtype).item() for v in x] == got.tolist()


def test_casts_of_negatives_to_unsigned() -> None:
    x = np.array([-1, -128, 127, 255, 256, 2**31 - 1])
    for dtype in ("uint8", "uint16", "uint32", "uint64", "int8", "int16"):
        np.testing.assert_array_equal(Tensor(x).cast(dtype).numpy(), x.astype(dtype))
    floats = Tensor([-1.0, -2.5, 3.5])
    assert floats.cast("uint32").cast("int32").tolist()[2] == 3
    assert floats.cast("int32").cast("uint8").tolist() == [255, 254, 3]


@pytest.mark.parametrize(
    ("dtype", "numpy_type"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_narrow_floats_round_to_nearest_even(dtype: str, numpy_type: Any) -> None:
    rng = np.random.default_rng(0)
    near_one = 1 + np.arange(-64, 64) * 2.0**-12
    x = np.concatenate([
        near_one, rng.normal(size=500) * 10.0 ** rng.integers(-10, 5, 500),
        [INF, -INF, NAN, 0.0, -0.0, 65504.0, 65519.0, 65520.0, 3.4e38, 6e-8, 3e-8, 2.9e-8],
    ]).astype(np.float32)  # fmt: skip
    with np.errstate(over="ignore"):
        want = x.astype(numpy_type).astype(np.float32)
    assert_same_bits(Tensor(x).cast(dtype).cast("float32"), want)
    assert_same_bits((Tensor(x).realize() * 1).cast(dtype), want)


def test_round_half_to_even() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.5, 0.49999997, -0.49999997, 2.0**23 + 1])
    want = np.round(x.astype(np.float32))
    np.testing.assert_array_equal(Tensor(x.astype(np.float32)).round().numpy(), want)


def test_ints_wrap() -> None:
    for dtype in ("int8", "uint8", "int32", "uint64"):
        info = np.iinfo(dtype)
        x = np.array([info.max, info.min, 3], dtype=dtype)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal((Tensor(x) + 1).numpy(), x + np.array(1, dtype))
            np.testing.assert_array_equal((Tensor(x) * 3).numpy(), x * np.array(3, dtype))
            np.testing.assert_array_equal((Tensor(x) - 1).numpy(), x - np.array(1, dtype))


def test_comparisons_with_nan_and_inf() -> None:
    x = np.array([NAN, INF, -INF, 0.0], dtype=np.float32)
    for y in (NAN, INF, -INF, 0.0):
        other = np.full_like(x, y)
        for name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
            got = getattr(Tensor(x), name)(Tensor(other)).numpy()
            np.testing.assert_array_equal(got, getattr(x, name)(other), err_msg=f"{name} {y}")
    assert Tensor(x).isnan().tolist() == [True, False, False, False]
    assert Tensor(x).isinf().tolist() == [False, True, True, False]


def test_dtypes_of_mixtures() -> None:
    assert (Tensor([True]) + 1).dtype is dtypes.int32
    assert (Tensor([1]) + 1.5).dtype is dtypes.float32
    assert (Tensor([1], dtype="uint8") + Tensor([1], dtype="int8")).dtype is dtypes.int16
    assert (Tensor([1], dtype="int64") + Tensor([1.0], dtype="float16")).dtype is dtypes.float16
