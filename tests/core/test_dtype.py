"""Dtypes: promotion as JAX has it, limits and rounding as IEEE and OCP have them."""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from aster_ml.dtype import (
    DType,
    bitcast_value,
    can_lossless_cast,
    cast_value,
    dtypes,
    from_numpy_dtype,
    int_div,
    least_upper_dtype,
    least_upper_float,
    promotions,
    round_float,
    sum_acc_dtype,
    to_dtype,
    to_numpy_dtype,
    truncate,
)
from aster_ml.errors import DTypeError

ALL = [d for d in dtypes.all if d is not dtypes.index]


def test_every_dtype_by_name() -> None:
    for d in dtypes.all:
        assert to_dtype(d.name) is d
        assert to_dtype(d.name.upper()) is d
        assert to_dtype(d) is d
        assert repr(d) == f"dtypes.{d.name}"
        assert d.bits == 8 * d.itemsize
    assert dtypes.half is dtypes.float16
    assert dtypes.uchar is dtypes.uint8
    assert dtypes.fields()["long"] is dtypes.int64
    with pytest.raises(DTypeError, match=r"'int3' is no dtype; there are .*int32"):
        to_dtype("int3")
    with pytest.raises(DTypeError, match="3 is no dtype"):
        to_dtype(3)  # type: ignore[arg-type]


def test_kinds() -> None:
    assert [d for d in ALL if dtypes.is_float(d)] == list(dtypes.floats)
    assert {d for d in dtypes.all if dtypes.is_int(d)} == {*dtypes.ints, dtypes.index}
    assert {d for d in ALL if dtypes.is_unsigned(d)} == set(dtypes.uints)
    assert [d for d in ALL if dtypes.is_bool(d)] == [dtypes.bool]


@pytest.mark.parametrize(
    "a, b, expected",
    [
        ("bool", "bool", "bool"),
        ("bool", "uint8", "uint8"),
        ("int8", "uint8", "int16"),
        ("int32", "uint32", "int64"),
        ("uint8", "int64", "int64"),
        ("int32", "float16", "float16"),
        ("int64", "bfloat16", "bfloat16"),
        ("float16", "bfloat16", "float32"),
        ("float16", "float64", "float64"),
        ("fp8e4m3", "fp8e5m2", "float16"),
        ("fp8e4m3", "int32", "fp8e4m3"),
        ("fp8e5m2", "float32", "float32"),
        ("uint64", "uint32", "uint64"),
        ("int64", "uint64", "uint64"),
        ("int8", "uint64", "uint64"),
        ("uint64", "fp8e4m3", "fp8e4m3"),
        ("uint64", "float16", "float16"),
    ],
)
def test_promotion(a: str, b: str, expected: str) -> None:
    assert least_upper_dtype(to_dtype(a), to_dtype(b)) is to_dtype(expected)
    assert least_upper_dtype(to_dtype(b), to_dtype(a)) is to_dtype(expected)


def test_promotion_is_a_lattice() -> None:
    for a, b in itertools.product(ALL, repeat=2):
        c = least_upper_dtype(a, b)
        assert c in promotions(a)
        assert c in promotions(b)
        assert c is least_upper_dtype(b, a)
    for a, b, c in itertools.product(ALL, repeat=3):
        nested = least_upper_dtype(least_upper_dtype(a, b), c)
        assert nested is least_upper_dtype(a, b, c) or {a, b, c} & set(dtypes.fp8s)


def test_promotion_of_ints_is_to_the_narrowest_that_holds_both_or_to_uint64() -> None:
    for a, b in itertools.product(dtypes.ints, repeat=2):
        low, high = min(dtypes.min(a), dtypes.min(b)), max(dtypes.max(a), dtypes.max(b))
        holds = [d for d in dtypes.ints if dtypes.min(d) <= low and high <= dtypes.max(d)]
        wanted = min(holds, key=lambda d: d.itemsize) if holds else dtypes.uint64
        assert least_upper_dtype(a, b) is (a if a is b else wanted)
        assert least_upper_dtype(a, dtypes.bool) is a


def test_no_promotion_of_what_has_no_common_dtype() -> None:
    with pytest.raises(DTypeError, match="no common dtype for index, int32"):
        least_upper_dtype(dtypes.index, dtypes.int32)


def test_floats_of_integers() -> None:
    assert least_upper_float(dtypes.int32) is dtypes.float32
    assert least_upper_float(dtypes.float16) is dtypes.float16


@pytest.mark.parametrize(
    "d, expected",
    [
        ("bool", "int32"),
        ("int8", "int32"),
        ("int64", "int64"),
        ("uint8", "uint32"),
        ("uint64", "uint64"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float64", "float64"),
    ],
)
def test_sums_accumulate_in(d: str, expected: str) -> None:
    assert sum_acc_dtype(to_dtype(d)) is to_dtype(expected)


def test_limits_are_those_of_numpy() -> None:
    for d in dtypes.ints:
        info = np.iinfo(to_numpy_dtype(d))
        assert (d.min, d.max) == (info.min, info.max)
    for d in dtypes.floats:
        assert (d.min, d.max) == (-math.inf, math.inf)
        info = ml_dtypes.finfo(to_numpy_dtype(d))
        assert dtypes.finfo(d) == (info.nexp, info.nmant)
    assert (dtypes.bool.min, dtypes.bool.max) == (False, True)
    with pytest.raises(DTypeError, match="is no floating-point type"):
        dtypes.finfo(dtypes.int32)


def test_numpy_dtypes_there_and_back() -> None:
    for d in ALL:
        assert from_numpy_dtype(to_numpy_dtype(d)) is d
        assert to_numpy_dtype(d).itemsize == d.itemsize
    assert from_numpy_dtype(">f4") is dtypes.float32
    with pytest.raises(DTypeError, match="NumPy dtype complex64 has no equal here; cast it"):
        from_numpy_dtype(np.dtype("complex64"))


@pytest.mark.parametrize(
    "value, expected",
    [
        (1, "int32"),
        (True, "bool"),
        (1.0, "float32"),
        ([1, 2.0], "float32"),
        ([[True], [1]], "int32"),
        ([], "float32"),
        (np.int64(3), "int32"),
        (np.float64(3), "float32"),
        (np.bool_(1), "bool"),
    ],
)
def test_dtypes_of_python_values(value: Any, expected: str) -> None:
    assert dtypes.from_py(value) is to_dtype(expected)


def test_what_has_no_dtype_is_named() -> None:
    with pytest.raises(DTypeError, match="'a' is a str; a float, int or bool is wanted"):
        dtypes.from_py("a")


def test_constants_have_the_python_type_of_their_dtype() -> None:
    for d in dtypes.all:
        wanted = float if dtypes.is_float(d) else bool if d is dtypes.bool else int
        assert type(dtypes.as_const(1, d)) is wanted
    assert dtypes.as_const((1, 2), dtypes.float32) == (1.0, 2.0)


@pytest.mark.parametrize("source", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("target", ALL, ids=lambda d: d.name)
def test_a_lossless_cast_keeps_every_value(source: DType, target: DType) -> None:
    values = edges(source)
    kept = all([same(cast_value(cast_value(v, source, target), target, source), v) for v in values])
    if can_lossless_cast(source, target):
        assert kept
    else:
        assert not kept or source.kind != target.kind or {source, target} & set(dtypes.fp8s)


def edges(d: DType) -> list[Any]:
    """Values at the edges of a dtype."""
    if d is dtypes.bool:
        return [False, True]
    if d.kind == "float":
        info = ml_dtypes.finfo(to_numpy_dtype(d))
        found = [
            0.0,
            -0.0,
            1.0,
            float(info.max),
            float(info.min),
            float(info.tiny),
            float(info.smallest_subnormal),
            1 + float(info.eps),
        ]
        return found if d is dtypes.fp8e4m3 else [*found, math.inf, -math.inf]
    return [d.min, d.max, 0, 1, d.max - 1]


def same(a: Any, b: Any) -> bool:
    """Equal, zeros by their sign."""
    return a == b and math.copysign(1, a) == math.copysign(1, b)


@pytest.mark.parametrize("d", dtypes.ints, ids=lambda d: d.name)
def test_integers_wrap(d: DType) -> None:
    for v in [0, -1, d.max + 1, d.min - 1, 1 << 70, -(1 << 70) - 5, 300]:
        low = (int(v) - d.min) % (1 << d.bits) + d.min
        assert truncate(v, d) == low


@pytest.mark.parametrize("d", [dtypes.float16, dtypes.float32], ids=lambda d: d.name)
def test_floats_round_as_in_numpy(d: DType) -> None:
    t = to_numpy_dtype(d).type
    for v in [0.1, 1e-8, 6e-8, 65519.9, 65520.0, 1e30, 3.5e38, -1e-46, math.inf, -0.0, 1 + 2**-11]:
        assert struct.pack("<d", truncate(v, d)) == struct.pack("<d", float(t(v)))
    assert math.isnan(truncate(math.nan, d))


@pytest.mark.parametrize("d", [dtypes.bfloat16, *dtypes.fp8s], ids=lambda d: d.name)
def test_small_floats_round_to_nearest_even(d: DType) -> None:
    raw = np.arange(1 << d.bits, dtype=np.uint64).astype(f"uint{d.bits}")
    values = np.unique(raw.view(to_numpy_dtype(d)).astype(np.float64))
    values = values[np.isfinite(values)]
    for low, high in zip(values[:-1:7], values[1::7]):
        middle = (low + high) / 2
        given = round_float(float(middle), d)
        assert given in (low, high)
        mantissas = [int(np.array(v, to_numpy_dtype(d)).view(f"uint{d.bits}")) for v in (low, high)]
        even = [v for v, m in zip((low, high), mantissas) if m % 2 == 0]
        assert given in even
        assert round_float(float(low + (high - low) * 0.25), d) == low
        assert round_float(float(low + (high - low) * 0.75), d) == high


def test_overflow_of_small_floats() -> None:
    assert round_float(464.0, dtypes.fp8e4m3) == 448.0
    assert round_float(465.0, dtypes.fp8e4m3) == round_float(1e300, dtypes.fp8e4m3) == 448.0
    assert math.isnan(round_float(math.inf, dtypes.fp8e4m3))
    assert round_float(61439.0, dtypes.fp8e5m2) == 57344.0
    assert round_float(-61440.0, dtypes.fp8e5m2) == -57344.0
    assert round_float(math.inf, dtypes.fp8e5m2) == math.inf
    assert round_float(3.4e38, dtypes.bfloat16) == math.inf


@pytest.mark.parametrize(
    "value, target, expected",
    [
        (2.9, "int8", 2),
        (-2.9, "int8", -2),
        (300.0, "uint8", 44),
        (-1.5, "uint8", 255),
        (-1.5, "uint32", 0),
        (1e30, "int64", 2**63 - 1),
        (-1e30, "int64", -(2**63)),
        (1e30, "uint64", 2**64 - 1),
        (math.nan, "int32", 0),
        (0.1, "bool", True),
        (-0.0, "bool", False),
    ],
)
def test_casts_of_floats(value: float, target: str, expected: Any) -> None:
    assert cast_value(value, dtypes.float32, to_dtype(target)) == expected


def test_bitcasts() -> None:
    assert bitcast_value(1.0, dtypes.float32, dtypes.int32) == 0x3F800000
    assert bitcast_value(0x3F80, dtypes.uint16, dtypes.bfloat16) == 1.0
    assert bitcast_value(-1, dtypes.int8, dtypes.uint8) == 255
    assert type(bitcast_value(1, dtypes.uint8, dtypes.bool)) is bool


@pytest.mark.parametrize("x, y, q", [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3), (7, 0, 0)])
def test_division_towards_zero(x: int, y: int, q: int) -> None:
    assert int_div(x, y) == q
