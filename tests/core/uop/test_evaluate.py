"""The meaning of ops on Python numbers, held against NumPy and published vectors."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from aster_ml.dtype import DType, dtypes, round_float, to_numpy_dtype
from aster_ml.errors import ArgumentError, InternalError
from aster_ml.uop.evaluate import evaluate, evaluate_expr, identity_of, round_exact, threefry
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import AxisType, Ops, ReduceArg
from tests.core.rules.instances import same_value

INT_DTYPES = [*dtypes.sints, *dtypes.uints]
FLOAT_DTYPES = [dtypes.float16, dtypes.float32, dtypes.float64]
FLOATS = [0.0, -0.0, 1.0, -1.5, 3.25, math.inf, -math.inf, math.nan, 1e-7, 60000.0, 1e30]


def meaning(op: Ops, dtype: DType, *operands: Any) -> Any:
    """`evaluate` where all operands have the result's dtype."""
    return evaluate(op, dtype, operands, (dtype,) * len(operands))


def edges(dtype: DType) -> list[int]:
    """Integers at the edges of a dtype and near 0."""
    low, high = int(dtype.min), int(dtype.max)
    return sorted({low, low + 1, high, high - 1, *[v for v in (-7, -1, 0, 1, 2, 5) if v >= low]})


@pytest.mark.parametrize("dtype", INT_DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Ops.ADD, Ops.SUB, Ops.MUL, Ops.XOR, Ops.OR, Ops.AND, Ops.MAX])
def test_integers_wrap_as_in_numpy(op: Ops, dtype: DType) -> None:
    function = {
        Ops.ADD: np.add,
        Ops.SUB: np.subtract,
        Ops.MUL: np.multiply,
        Ops.MAX: np.maximum,
        Ops.XOR: np.bitwise_xor,
        Ops.OR: np.bitwise_or,
        Ops.AND: np.bitwise_and,
    }[op]
    t = to_numpy_dtype(dtype)
    for x, y in itertools.product(edges(dtype), repeat=2):
        expected = function(np.array([x], t), np.array([y], t))[0]
        assert meaning(op, dtype, x, y) == int(expected), (x, y)


@pytest.mark.parametrize("dtype", INT_DTYPES, ids=lambda d: d.name)
def test_division_of_integers_goes_towards_zero(dtype: DType) -> None:
    for x, y in itertools.product(edges(dtype), repeat=2):
        q, r = meaning(Ops.IDIV, dtype, x, y), meaning(Ops.MOD, dtype, x, y)
        assert meaning(Ops.ADD, dtype, meaning(Ops.MUL, dtype, q, y), r) == x
        if y == 0:
            assert (q, r) == (0, x)
        elif not (y == -1 and x == dtype.min):
            assert q == math.trunc(Fraction(x, y))
            assert abs(r) < abs(y)
            assert r == 0 or (r < 0) == (x < 0)


@pytest.mark.parametrize("x, y", [*itertools.product(range(-9, 10), [-4, -1, 1, 3])])
def test_division_of_indices_goes_down(x: int, y: int) -> None:
    assert meaning(Ops.IDIV, dtypes.index, x, y) == x // y
    assert meaning(Ops.MOD, dtypes.index, x, y) == x % y


def test_an_index_has_no_width() -> None:
    assert meaning(Ops.MUL, dtypes.index, 1 << 60, 1 << 60) == 1 << 120
    assert meaning(Ops.SHL, dtypes.index, 1, 100) == 1 << 100


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize(
    "op", [Ops.ADD, Ops.SUB, Ops.MUL, Ops.FDIV, Ops.MAX, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ]
)
def test_floats_are_those_of_ieee(op: Ops, dtype: DType) -> None:
    function = {
        Ops.ADD: np.add,
        Ops.SUB: np.subtract,
        Ops.MUL: np.multiply,
        Ops.FDIV: np.divide,
        Ops.MAX: np.maximum,
        Ops.CMPLT: np.less,
        Ops.CMPNE: np.not_equal,
        Ops.CMPEQ: np.equal,
    }[op]
    t = to_numpy_dtype(dtype)
    compare = op in (Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ)
    for x, y in itertools.product([float(v) for v in np.array(FLOATS).astype(t)], repeat=2):
        if op is Ops.MAX and x == y == 0:
            continue  # NumPy gives either zero
        expected = function(t.type(x), t.type(y))
        given = evaluate(op, dtypes.bool if compare else dtype, (x, y), (dtype, dtype))
        assert same_value(given, bool(expected) if compare else float(expected)), (x, y)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Ops.SQRT, Ops.TRUNC, Ops.RECIPROCAL, Ops.NEG])
def test_exact_unary_functions(op: Ops, dtype: DType) -> None:
    function = {
        Ops.SQRT: np.sqrt,
        Ops.TRUNC: np.trunc,
        Ops.RECIPROCAL: lambda x: 1 / x,
        Ops.NEG: np.negative,
    }[op]
    t = to_numpy_dtype(dtype)
    for x in [float(v) for v in np.array(FLOATS).astype(t)]:
        assert same_value(meaning(op, dtype, x), float(function(t.type(x)))), x


@pytest.mark.parametrize(
    "op, function",
    [(Ops.EXP2, np.exp2), (Ops.LOG2, np.log2), (Ops.SIN, np.sin), (Ops.TANH, np.tanh)],
)
def test_transcendental_functions(op: Ops, function: Any) -> None:
    for x in [*FLOATS, 2000.0, -2000.0, 0.1, -0.3]:
        given, expected = meaning(op, dtypes.float64, x), float(function(np.float64(x)))
        assert given == pytest.approx(expected, rel=1e-15, nan_ok=True), x


def test_the_larger_of_two_zeros_is_the_positive_one() -> None:
    for x, y in [(0.0, -0.0), (-0.0, 0.0), (0.0, 0.0)]:
        assert same_value(meaning(Ops.MAX, dtypes.float32, x, y), 0.0)
    assert same_value(meaning(Ops.MAX, dtypes.float32, -0.0, -0.0), -0.0)


@pytest.mark.parametrize(
    "dtype, x, y, left, right",
    [
        (dtypes.int8, 1, 7, -128, 0),
        (dtypes.int8, -1, 8, 0, -1),
        (dtypes.int8, -128, 3, 0, -16),
        (dtypes.uint8, 255, 1, 254, 127),
        (dtypes.uint8, 255, 8, 0, 0),
        (dtypes.uint32, 1, 31, 1 << 31, 0),
        (dtypes.int64, -4, 64, 0, -1),
        (dtypes.int32, 5, -1, 0, 0),
        (dtypes.index, -5, 1, -10, -3),
    ],
)
def test_shifts(dtype: DType, x: int, y: int, left: int, right: int) -> None:
    assert meaning(Ops.SHL, dtype, x, y) == left
    assert meaning(Ops.SHR, dtype, x, y) == right


@pytest.mark.parametrize(
    "x, y, expected",
    [
        (2.0, 0.5, math.sqrt(2)),
        (-8.0, 3.0, -512.0),
        (-8.0, 0.5, math.nan),
        (0.0, -1.0, math.inf),
        (-0.0, -1.0, -math.inf),
        (-0.0, -2.0, math.inf),
        (math.nan, 0.0, 1.0),
        (1.0, math.nan, 1.0),
        (10.0, 400.0, math.inf),
        (-10.0, 401.0, -math.inf),
        (math.inf, -1.0, 0.0),
    ],
)
def test_powers_of_floats_are_those_of_c(x: float, y: float, expected: float) -> None:
    assert same_value(meaning(Ops.POW, dtypes.float64, x, y), expected)


@pytest.mark.parametrize(
    "x, y, expected",
    [
        (3, 4, 81),
        (2, 31, -(1 << 31)),
        (2, 32, 0),
        (-3, 3, -27),
        (1, -5, 1),
        (-1, -5, -1),
        (-1, -4, 1),
        (7, -1, 0),
        (0, 0, 1),
        (0, -1, 0),
    ],
)
def test_powers_of_ints_are_exact_and_wrap(x: int, y: int, expected: int) -> None:
    assert meaning(Ops.POW, dtypes.int32, x, y) == expected


@pytest.mark.parametrize(
    "counter, key, expected",
    [
        # Known answers of Random123 for threefry2x32 with 20 rounds; first word low.
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry(counter: Any, key: Any, expected: Any) -> None:
    join = lambda words: words[0] | words[1] << 32  # noqa: E731
    assert threefry(join(counter), join(key)) == join(expected)
    assert meaning(Ops.THREEFRY, dtypes.uint64, join(counter), join(key)) == join(expected)


def test_ldexp_rounds_once() -> None:
    assert meaning(Ops.LDEXP, dtypes.float32, 1.5, -149.0) == 2.0**-148
    assert meaning(Ops.LDEXP, dtypes.float32, 1.5, 128.0) == math.inf
    assert meaning(Ops.LDEXP, dtypes.float64, -1.0, 1024.0) == -math.inf
    assert meaning(Ops.LDEXP, dtypes.float64, 1.0, -2000.0) == 0.0
    assert meaning(Ops.LDEXP, dtypes.float64, -math.inf, -5.0) == -math.inf
    assert same_value(meaning(Ops.LDEXP, dtypes.float64, -0.0, 5.0), -0.0)
    assert all(
        math.isnan(meaning(Ops.LDEXP, dtypes.float32, *x))
        for x in [(math.nan, 1.0), (1.0, math.nan)]
    )


def test_ldexp_takes_the_whole_number_below() -> None:
    assert meaning(Ops.LDEXP, dtypes.float32, 3.0, -2.5) == 3 / 8
    assert meaning(Ops.LDEXP, dtypes.float32, 3.0, 2.9375) == 12.0


def test_32nds_are_those_of_the_lowest_bits() -> None:
    for n in (*range(32), *range(-65, -33)):
        x = 1.5 * 2.0**18 + n / 32
        power = round_float(2.0 ** (n % 32 / 32), dtypes.float32)
        assert meaning(Ops.EXP2_32NDS, dtypes.float32, x) == power


def test_multiply_add_rounds_once() -> None:
    x = 1.0 + 2.0**-12
    assert meaning(Ops.MULACC, dtypes.float32, x, x, -1.0 - 2.0**-11) == 2.0**-24
    assert meaning(Ops.MULACC, dtypes.int8, 100, 2, 100) == 44
    assert meaning(Ops.MULACC, dtypes.float32, math.inf, 1.0, -1.0) == math.inf
    assert same_value(meaning(Ops.MULACC, dtypes.float32, -1.0, 0.0, -0.0), -0.0)
    # A sum that lies a little beside the middle of two floats, where rounding twice goes wrong.
    exact = Fraction(1) + Fraction(1, 1 << 24) + Fraction(1, 1 << 80)
    assert round_exact(exact, dtypes.float32) == 1.0 + 2.0**-23
    assert round_exact(-exact, dtypes.float32) == -1.0 - 2.0**-23
    assert round_exact(Fraction(10) ** 400, dtypes.float32) == math.inf


@pytest.mark.parametrize("target", FLOAT_DTYPES, ids=lambda d: d.name)
def test_integers_become_floats_with_one_rounding(target: DType) -> None:
    for x in [2**24 + 1, 2**53 + 1, 2**62 + 2**38 + 1, -(2**63), 2**63 - 1, 65519, 65520, 3]:
        expected = float(np.array([x], np.int64).astype(to_numpy_dtype(target))[0])
        assert evaluate(Ops.CAST, target, (x,), (dtypes.int64,)) == expected


@pytest.mark.parametrize(
    "value, source, target, expected",
    [
        (300, dtypes.int32, dtypes.uint8, 44),
        (-1, dtypes.int32, dtypes.uint32, 2**32 - 1),
        (2.9, dtypes.float32, dtypes.int32, 2),
        (-2.9, dtypes.float32, dtypes.int32, -2),
        (math.nan, dtypes.float32, dtypes.int32, 0),
        (1e20, dtypes.float32, dtypes.int32, 2**31 - 1),
        (math.nan, dtypes.float32, dtypes.bool, True),
        (0.0, dtypes.float32, dtypes.bool, False),
        (True, dtypes.bool, dtypes.float32, 1.0),
        (1e30, dtypes.float32, dtypes.float16, math.inf),
        (math.inf, dtypes.float32, dtypes.index, 2**63 - 1),
        (math.nan, dtypes.float32, dtypes.index, 0),
    ],
)
def test_casts(value: Any, source: DType, target: DType, expected: Any) -> None:
    assert same_value(evaluate(Ops.CAST, target, (value,), (source,)), expected)


def test_bitcasts_keep_the_bits() -> None:
    assert evaluate(Ops.BITCAST, dtypes.uint32, (1.0,), (dtypes.float32,)) == 0x3F800000
    assert evaluate(Ops.BITCAST, dtypes.float32, (0x80000000,), (dtypes.uint32,)) == 0
    assert evaluate(Ops.BITCAST, dtypes.int8, (255,), (dtypes.uint8,)) == -1


def test_bool_arithmetic_is_logic() -> None:
    for x, y in itertools.product([False, True], repeat=2):
        assert meaning(Ops.ADD, dtypes.bool, x, y) is (x or y)
        assert meaning(Ops.MUL, dtypes.bool, x, y) is (x and y)
        assert meaning(Ops.XOR, dtypes.bool, x, y) is (x != y)
        assert meaning(Ops.MAX, dtypes.bool, x, y) is (x or y)


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MUL, Ops.MAX])
@pytest.mark.parametrize("dtype", [*INT_DTYPES, *FLOAT_DTYPES, dtypes.bool], ids=lambda d: d.name)
def test_the_identity_changes_nothing(op: Ops, dtype: DType) -> None:
    values = (
        edges(dtype)
        if dtypes.is_int(dtype)
        else ([True, False] if dtype is dtypes.bool else [1.5, -2.0, math.inf, -math.inf])
    )
    for x in values:
        assert meaning(op, dtype, identity_of(op, dtype), x) == x


@pytest.mark.parametrize("op", [Ops.AND, Ops.OR])
@pytest.mark.parametrize("dtype", [*INT_DTYPES, dtypes.bool], ids=lambda d: d.name)
def test_the_identity_of_bitwise_ops(op: Ops, dtype: DType) -> None:
    for x in [True, False] if dtype is dtypes.bool else edges(dtype):
        assert meaning(op, dtype, identity_of(op, dtype), x) == x


def test_expressions() -> None:
    r, n = UOp.range(8, 0), UOp.variable("n", 1, 9)
    u = (r < n).where(r * n + 1, n.bind(3))
    assert evaluate_expr(u, {r: 2, n: 5}) == 11
    assert evaluate_expr(u, {r: 7, n: 5}) == 3
    with pytest.raises(ArgumentError, match="no value was given for <RANGE"):
        evaluate_expr(u, {n: 5})
    with pytest.raises(InternalError, match="no value among scalars"):
        evaluate_expr(UOp.sink(u), {r: 2, n: 5})


def test_reductions_fold_their_ranges() -> None:
    r, k = UOp.range(8, 0), UOp.range(5, 1, AxisType.REDUCE)
    inner = UOp(Ops.REDUCE, dtypes.int8, ((r * 10 + k).cast(dtypes.int8), k), ReduceArg(Ops.ADD))
    assert evaluate_expr(inner, {r: 2}) == (2 * 50 + 10)
    assert evaluate_expr(inner, {r: 5}) == (5 * 50 + 10) - 256 - 0
    outer = UOp(Ops.REDUCE, dtypes.int8, (inner, r), ReduceArg(Ops.MAX))
    assert evaluate_expr(outer, {}) == max((i * 50 + 10 + 128) % 256 - 128 for i in range(8))


def test_an_expression_of_any_depth() -> None:
    u = UOp.variable("x", 0, 9, dtypes.int32)
    for _ in range(100_000):
        u = UOp(Ops.NEG, dtypes.int32, (u,))
    leaf = UOp.variable("x", 0, 9, dtypes.int32)
    assert evaluate_expr(u, {leaf: 4}) == 4
