"""Arithmetic and functions of tensors against NumPy, and against PyTorch where NumPy has none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from aster_ml import Tensor, dtypes
from aster_ml.errors import NumberRangeError
from tests.core.tensor_checks import check_tensor

RNG = np.random.default_rng(7)
EDGES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1e-8,
    -1e-8,
    10.0,
    -10.0,
    50.0,
    -50.0,
    80.0,
    -80.0,
    1e20,
    -1e20,
    math.inf,
    -math.inf,
    math.nan,
]
LINE = np.concatenate([RNG.normal(size=150) * 3, RNG.normal(size=40) * 0.01, EDGES])
LINE32 = LINE.astype(np.float32)
K = np.array([7, -7, 3, -3, 0, 5, -8], dtype=np.int32)
J = np.array([2, 2, -2, -2, 3, -5, 4], dtype=np.int32)
F = K.astype(np.float32) + 0.25
G = J.astype(np.float32)

# Each function, what NumPy calls it, and the relative error that float32 may have.
FUNCTIONS = [
    ("exp", np.exp, 6e-6), ("exp2", np.exp2, 3e-6), ("log", np.log, 4e-7),
    ("log2", np.log2, 4e-7), ("log10", np.log10, 4e-7), ("sqrt", np.sqrt, 2e-7),
    ("reciprocal", lambda x: 1 / x, 2e-7), ("rsqrt", lambda x: 1 / np.sqrt(x), 3e-7),
    ("asin", np.arcsin, 4e-7), ("acos", np.arccos, 4e-7), ("atan", np.arctan, 4e-7),
    ("sinh", np.sinh, 6e-6), ("cosh", np.cosh, 6e-6), ("tanh", np.tanh, 4e-7),
    ("asinh", np.arcsinh, 6e-7), ("acosh", np.arccosh, 1e-6), ("atanh", np.arctanh, 1e-6),
    ("abs", np.abs, 0), ("sign", np.sign, 0), ("floor", np.floor, 0), ("ceil", np.ceil, 0),
    ("round", np.round, 0), ("trunc", np.trunc, 0), ("square", np.square, 2e-7),
    ("neg", np.negative, 0), ("isnan", np.isnan, 0), ("isinf", np.isinf, 0),
    ("isfinite", np.isfinite, 0),
]  # fmt: skip


@pytest.mark.parametrize("name, function, rtol", FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_function_in_float32(name: str, function: Any, rtol: float) -> None:
    with np.errstate(all="ignore"):
        want = function(LINE32.astype(np.float64)).astype(np.float32)
    check_tensor(getattr(Tensor(LINE32), name)(), want, rtol=rtol, atol=0)


@pytest.mark.parametrize("name, function, rtol", FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_function_in_float64(name: str, function: Any, rtol: float) -> None:
    with np.errstate(all="ignore"):
        want = function(LINE)
    rtol = 4e-14 if name in ("exp", "sinh", "cosh") else 4e-15
    check_tensor(getattr(Tensor(LINE), name)(), want, rtol=rtol, atol=1e-300)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_periodic_functions(name: str) -> None:
    x = np.concatenate([LINE[np.abs(LINE) < 100], [1000.0, 12345.678]]).astype(np.float32)
    want = getattr(np, name)(x.astype(np.float64))
    check_tensor(getattr(Tensor(x), name)(), want, rtol=1e-5, atol=3e-7)
    wide = x.astype(np.float64)
    check_tensor(getattr(Tensor(wide), name)(), want, rtol=1e-12, atol=1e-14)


def test_erf() -> None:
    want = np.array([math.erf(v) for v in LINE])
    check_tensor(Tensor(LINE32).erf(), [math.erf(v) for v in LINE32], rtol=4e-7, atol=0)
    check_tensor(Tensor(LINE).erf(), want, rtol=4e-15, atol=0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sin", "cos", "atan", "asinh"])
def test_half_functions_are_rounded_once(name: str, dtype: str) -> None:
    x = np.linspace(0.1, 4, 40).astype(np.float32)
    half = Tensor(x).cast(dtype)
    exact = half.cast("float64")
    want = getattr(exact, name)().numpy()
    got = getattr(half, name)()
    check_tensor(got, want, rtol=1e-3 if dtype == "float16" else 8e-3, atol=1e-3, dtype=dtype)


def test_functions_of_ints_are_floats() -> None:
    for name in ("exp", "sqrt", "sin", "reciprocal", "tanh"):
        assert getattr(Tensor([1, 2]), name)().dtype is dtypes.float32
    check_tensor(Tensor([1, 4, 9]).sqrt(), [1, 2, 3])
    for name in ("floor", "ceil", "round", "trunc"):
        assert getattr(Tensor([1, 2]), name)().dtype is dtypes.int32


def test_round_takes_the_even_one() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 3.49, 3.51, -2.5, 1e10], dtype=np.float32)
    check_tensor(Tensor(x).round(), np.round(x), rtol=0, atol=0)


@pytest.mark.parametrize("name, got, want", [
    ("idiv", Tensor(K) // Tensor(J), K // J),
    ("mod", Tensor(K) % Tensor(J), K % J),
    ("div", Tensor(K) / Tensor(J), K / J),
    ("trunc div", Tensor(K).div(Tensor(J), rounding_mode="trunc"), np.trunc(K / J)),
    ("float floordiv", Tensor(F) // Tensor(G), F // G),
    ("float mod", Tensor(F) % Tensor(G), F % G),
    ("uint mod", Tensor(np.array([250, 7], np.uint8)) % 6, [4, 1]),
    ("lshift", Tensor(K) << 2, K << 2),
    ("rshift", Tensor(K) >> 1, K >> 1),
    ("and", Tensor(K) & Tensor(J), K & J),
    ("or", Tensor(K) | 1, K | 1),
    ("xor", Tensor(K) ^ Tensor(J), K ^ J),
    ("not", ~Tensor(K), ~K),
    ("uint not", ~Tensor(np.array([0, 1], np.uint8)), [255, 254]),
    ("reversed sub", 5 - Tensor(K), 5 - K),
    ("reversed div", 1 / Tensor(F), 1 / F),
    ("reversed floordiv", 17 // Tensor(J), 17 // J),
    ("reversed mod", 17 % Tensor(J), 17 % J),
    ("reversed pow", 3.0 ** Tensor(F), 3.0**F),
    ("pow of two", 2 ** Tensor(F), 2.0**F),
    ("int pow", Tensor(K) ** 3, K**3),
    ("int pow tensor", Tensor([2, 3, -2]) ** Tensor([10, 3, 5]), [1024, 27, -32]),
    ("minimum", Tensor(K).minimum(Tensor(J)), np.minimum(K, J)),
    ("maximum", Tensor(K).maximum(1.5), np.maximum(K, 1.5)),
    ("clamp", Tensor(F).clamp(-1, 2), np.clip(F, -1, 2)),
    ("clamp from one side", Tensor(F).clip(max_=0), np.minimum(F, 0)),
    ("copysign", Tensor(F).copysign(Tensor(-G)), np.copysign(F, -G)),
    ("copysign of zero", Tensor([1.0, 1.0]).copysign(Tensor([0.0, -0.0])), [1, -1]),
    ("lerp", Tensor(F).lerp(Tensor(G), 0.25), F + (G - F) * 0.25),
    ("lerp of ints", Tensor(np.array([1, 2], np.uint8)).lerp(Tensor(np.array([200, 100], np.uint8)),
                                                           0.5), [100, 51]),
    ("logaddexp", Tensor(F).logaddexp(Tensor(G)), np.logaddexp(F, G)),
    ("less", Tensor(K) < Tensor(J), K < J),
    ("at least", Tensor(K) >= 3, K >= 3),
    ("equal", Tensor(K) == 3, K == 3),
    ("unequal", Tensor(K) != Tensor(J), K != J),
    ("where", Tensor([True, False]).where(Tensor([[1.0], [2.0]]), 3), [[1, 3], [2, 3]]),
    ("where of numbers", Tensor([True, False]).where(1, 0), [1, 0]),
    ("bools", Tensor([True, False]) + Tensor([True, True]), [True, True]),
    ("and of bools", Tensor([True, False]) & Tensor([True, True]), [True, False]),
    ("numpy on the left", np.array([1.0, 2.0], np.float32) * Tensor([3.0, 4.0]), [3, 8]),
    ("numpy scalar", Tensor([3.0, 4.0]) * np.float64(2), [6, 8]),
])  # fmt: skip
def test_operator(name: str, got: Tensor, want: Any) -> None:
    check_tensor(got, want, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("power", [0, 1, 2, 3, 4, 5, -1, -2, 0.5, -0.5, 1.5, -3.3])
def test_power_of_number(power: float) -> None:
    base = np.abs(F) + 0.1
    check_tensor(Tensor(base) ** power, base.astype(np.float64) ** power, rtol=3e-6)


def test_power_edges_are_those_of_c() -> None:
    edges = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, math.inf, -math.inf, math.nan, 3.0, -3.0]
    x, y = np.meshgrid(edges, edges)
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    check_tensor(Tensor(x.astype(np.float32)) ** Tensor(y.astype(np.float32)), want, rtol=1e-6)


def test_infinities_do_not_cancel() -> None:
    a = Tensor([math.inf, -math.inf, 1.0, -math.inf])
    b = Tensor([math.inf, -math.inf, -math.inf, math.inf])
    check_tensor(a.logaddexp(b), [math.inf, -math.inf, 1.0, math.inf])
    check_tensor(Tensor([math.nan, 1.0]).maximum(2.0), [math.nan, 2])
    check_tensor(Tensor([math.nan, 1.0]).minimum(2.0), [math.nan, 1])


def test_isclose() -> None:
    a = Tensor([1.0, 2.0, math.inf, math.nan])
    b = Tensor([1.0, 2.1, math.inf, math.nan])
    check_tensor(a.isclose(b), [True, False, True, False])
    check_tensor(a.isclose(b, equal_nan=True), [True, False, True, True])
    check_tensor(a.isclose(b, rtol=0.1), [True, True, True, False])
    assert a[:3].allclose(b[:3], rtol=0.1)
    assert not a.allclose(b, rtol=0.1)
    assert a.allclose(b, rtol=0.1, equal_nan=True)


PROMOTIONS = [
    (Tensor([1]) + 1, "int32"), (Tensor([1]) + 1.5, "float32"), (Tensor([True]) + 1, "int32"),
    (Tensor([True]) + 1.5, "float32"), (Tensor([1.0]).half() + 1.5, "float16"),
    (Tensor([1.0]).half() + Tensor([1]), "float16"), (Tensor([1]).cast("int8") + 100, "int8"),
    (Tensor([1]).cast("uint8") + Tensor([1]).cast("int8"), "int16"),
    (Tensor([1]) / 2, "float32"), (Tensor([1.0]).half() / Tensor([2.0]), "float32"),
    (Tensor([1.0]).bfloat16() * Tensor([2.0]).half(), "float32"), (Tensor([1]) < 2, "bool"),
    (Tensor([1]).where(1, 2.5), "float32"), (Tensor([1.0]) * Tensor(2), "float32"),
    (Tensor([1]).long() * 2, "int64"), (Tensor([1]).double() + 1, "float64"),
]  # fmt: skip


@pytest.mark.parametrize("got, dtype", PROMOTIONS)
def test_promotion(got: Tensor, dtype: str) -> None:
    assert got.dtype.name == dtype


def test_constants_beyond_a_dtype_are_refused() -> None:
    x = Tensor([1, 2]).cast("uint8")
    for make in (lambda: x + 300, lambda: x - -1, lambda: x.full_like(300), lambda: x.maximum(300)):
        with pytest.raises(NumberRangeError, match="uint8, which holds 0 to 255"):
            make()
    check_tensor(x - 3, [254, 255], dtype="uint8")


def test_constants_beyond_a_dtype_compare_as_numbers() -> None:
    x = Tensor([-128, -3, 0, 5, 127], dtype="int8")
    for number in (-1000, 1000, -128, 127, 2.5, 5.0, math.inf, -math.inf, math.nan, 2**70):
        values = [-128, -3, 0, 5, 127]
        assert (x < number).tolist() == [v < number for v in values]
        assert (x >= number).tolist() == [v >= number for v in values]
        assert (number < x).tolist() == [number < v for v in values]
        assert (number >= x).tolist() == [number >= v for v in values]
        assert (x == number).tolist() == [v == number for v in values]
        assert (x != number).tolist() == [v != number for v in values]
    check_tensor(x.clamp(-1000, 3), [-128, -3, 0, 3, 3], dtype="int8")
    check_tensor(x.maximum(-1000).minimum(2**40), values, dtype="int8")
    check_tensor(Tensor([1, 2]).pad(((1, 0),), value=0.5), [0.5, 1, 2], dtype="float32")
    check_tensor(Tensor([1, 2]).pad(((1, 0),), value=3.0), [3, 1, 2], dtype="int32")


def test_cast_shorthands() -> None:
    x = Tensor([1.7, -1.7])
    for name in ("bool", "short", "int", "long", "half", "bfloat16", "float", "double"):
        want = {
            "short": "int16",
            "int": "int32",
            "long": "int64",
            "half": "float16",
            "float": "float32",
            "double": "float64",
        }.get(name, name)
        assert getattr(x, name)().dtype.name == want
    check_tensor(x.int(), [1, -1])
    check_tensor(x.bool(), [True, True])


def test_bitcast() -> None:
    x = np.array([1.0, -2.5], dtype=np.float32)
    check_tensor(Tensor(x).bitcast("int32"), x.view(np.int32))
    assert Tensor(x).bitcast("uint8").shape == (8,)
    assert Tensor(x).bitcast("float64").shape == (1,)


def test_constants_fold_on_the_way() -> None:
    assert Tensor(2).cast("float32").uop.base.arg == 2.0
    assert Tensor(2.7).cast("int32").uop.base.arg == 2


def test_gradients_avoid_branches_not_taken() -> None:
    edges = np.array([0.0, 1.0, -1.0, 0.5, 1e30, -1e30], dtype=np.float32)
    for name in ("atan", "tanh", "erf", "asinh"):
        x = Tensor(edges, requires_grad=True)
        getattr(x, name)().sum().backward()
        assert np.isfinite(x.grad.numpy()).all(), name
    x = Tensor([0.0, 0.2, -0.3, 0.7], requires_grad=True)
    (x.asin() + x.acos() * 2 + x.atanh()).sum().backward()
    root = 1 / np.sqrt(1 - np.array([0.0, 0.2, -0.3, 0.7]) ** 2)
    want = -root + root**2
    np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5, atol=1e-6)
