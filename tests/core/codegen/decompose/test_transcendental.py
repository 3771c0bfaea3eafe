"""exp2, log2, sin and powers: error in units of the last place, special values, cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest

from aster_ml.codegen.decompose import power, transcendental
from aster_ml.codegen.decompose.power import pow_float, pow_int
from aster_ml.codegen.decompose.transcendental import (
    INVERSE_TURN,
    INVERSE_TURN_BITS,
    exp2_of_scaled,
    exp2_poly,
    log2_poly,
    signed_size,
    sin_poly,
    tanh_poly,
)
from aster_ml.dtype import DType, dtypes, to_numpy_dtype
from aster_ml.errors import InternalError
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.evaluate import power as power_of_ints
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.numpy_graphs import (
    ROUNDINGS,
    count_operations,
    evaluate_arrays,
    leaf,
    ulp_error,
)
from tools import fit_polynomials

Array = Any
FLOATS = (dtypes.float32, dtypes.float64)
# Where long double is no wider than double, float64 has nothing here to be measured against.
WIDE = {dtypes.float32: np.float64, dtypes.float64: np.longdouble}
HAS_EXTENDED = np.finfo(np.longdouble).nmant >= 63
PIECE = 1 << 14
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.5, -0.5, 1.5, -1.5, math.inf, -math.inf,
           math.nan, 1e-38, 1e38]  # fmt: skip


def need_reference(dtype: DType) -> None:
    """Skips where there is nothing to measure against."""
    if dtype is dtypes.float64 and not HAS_EXTENDED:
        pytest.skip("long double is no wider than double on this machine")


def any_floats(dtype: DType, count: int) -> Array:
    """Numbers of every size, and what is special."""
    kind = to_numpy_dtype(dtype)
    info = np.finfo(kind)
    edges = [info.max, info.tiny, info.smallest_subnormal, 1 - info.epsneg, 1 + info.eps]
    special = np.array([*SPECIAL, *edges, *[-e for e in edges]]).astype(kind)
    raw = np.random.default_rng(5).integers(0, 1 << dtype.bits, count, dtype=np.uint64)
    return np.concatenate([raw.astype(f"u{dtype.itemsize}").view(kind), special])


def uniform(dtype: DType, low: float, high: float, count: int) -> Array:
    """Evenly spread numbers."""
    return np.random.default_rng(6).uniform(low, high, count).astype(to_numpy_dtype(dtype))


def worst(graph: UOp, values: dict[UOp, Array], exact: Array, rounding: str) -> float:
    """The greatest error in ULP, found in pieces that stay in a cache."""
    found = 0.0
    for start in range(0, len(exact), PIECE):
        part = slice(start, start + PIECE)
        given = {u: array[part] for u, array in values.items()}
        errors = ulp_error(evaluate_arrays(graph, given, rounding), exact[part])
        found = max(found, float(np.max(errors)))
    return found


def inputs_of(name: str, dtype: DType) -> Array:
    """Where a function is measured: everywhere, and densely where it is used."""
    everywhere = any_floats(dtype, 60_000)
    high = 128 if dtype is dtypes.float32 else 1024
    ranges = {
        "exp2": [(-1.2 * high, high), (-3, 3), (-1.18 * high, -0.98 * high)],
        "log2": [(0.5, 2), (0.99, 1.01), (0, 1e-3)],
        "sin": [(-7, 7), (-1e5, 1e5), (-1, 1)],
        "tanh": [(-20, 20), (-1, 1), (-0.01, 0.01)],
    }[name]
    parts = [uniform(dtype, low, top, 60_000) for low, top in ranges]
    if name == "sin":
        parts.append((np.arange(1, 60_000) * (math.pi / 2)).astype(everywhere.dtype))
    return np.concatenate([everywhere, *parts])


@functools.lru_cache(maxsize=4)
def measured(name: str, dtype: DType) -> tuple[Array, Array]:
    """These inputs, and the values of the function: each rounding is held against the same ones."""
    values = inputs_of(name, dtype)
    wide = np.longdouble if HAS_EXTENDED else WIDE[dtype]
    with np.errstate(all="ignore"):
        return values, FUNCTIONS[name][1](values.astype(wide))


def by_ldexp(x: UOp) -> UOp:
    """EXP2 where the target has LDEXP."""
    return exp2_poly(x, ldexp=True)


def tanh_by_ldexp(x: UOp) -> UOp:
    """TANH where the target has LDEXP."""
    return tanh_poly(x, ldexp=True)


FUNCTIONS: dict[str, tuple[Callable[[UOp], UOp], Callable[[Array], Array]]] = {
    "exp2": (exp2_poly, np.exp2),
    "exp2 by ldexp": (by_ldexp, np.exp2),
    "log2": (log2_poly, np.log2),
    "sin": (sin_poly, np.sin),
    "tanh": (tanh_poly, np.tanh),
    "tanh by ldexp": (tanh_by_ldexp, np.tanh),
}
# Function, dtype -> limit in ULP where sums are fused with products, and where they are not.
LIMITS = {
    ("exp2", dtypes.float32): (1.25, 1.7),
    ("exp2", dtypes.float64): (1.25, 1.7),
    ("exp2 by ldexp", dtypes.float32): (1.25, 1.7),
    ("exp2 by ldexp", dtypes.float64): (1.25, 1.7),
    ("log2", dtypes.float32): (1.15, 1.4),
    ("log2", dtypes.float64): (1.15, 1.4),
    ("sin", dtypes.float32): (1.5, 1.5),
    ("sin", dtypes.float64): (2.6, 2.6),
    ("tanh", dtypes.float32): (1.5, 1.6),
    ("tanh", dtypes.float64): (1.5, 1.6),
    ("tanh by ldexp", dtypes.float32): (1.5, 1.8),
    ("tanh by ldexp", dtypes.float64): (1.5, 1.6),
}


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_is_as_stated(name: str, dtype: DType, rounding: str) -> None:
    need_reference(dtype)
    polynomial, x = FUNCTIONS[name][0], leaf(0, dtype)
    values, exact = measured(name.split()[0], dtype)
    fused, separate = LIMITS[name, dtype]
    limit = separate if rounding == "separate" else fused
    assert worst(polynomial(x), {x: values}, exact, rounding) <= limit


@pytest.mark.parametrize("power", [exp2_poly, by_ldexp])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exp2_of_special_values(dtype: DType, power: Callable[[UOp], UOp]) -> None:
    x = leaf(0, dtype)
    least = -149.0 if dtype is dtypes.float32 else -1074.0
    top = 128.0 if dtype is dtypes.float32 else 1024.0
    given = [0.0, -0.0, math.inf, -math.inf, math.nan, top, 1e30, -1e30, least, least - 1]
    wanted = [1.0, 1.0, math.inf, 0.0, math.nan, math.inf, math.inf, 0.0, 2.0**least, 0.0]
    values = np.array(given, to_numpy_dtype(dtype))
    for rounding in ROUNDINGS:
        found = evaluate_arrays(power(x), {x: values}, rounding)
        np.testing.assert_array_equal(found, np.array(wanted, found.dtype))
        whole = np.arange(least, top, dtype=found.dtype)
        exact = np.ldexp(np.ones_like(whole), whole.astype(int))
        np.testing.assert_array_equal(evaluate_arrays(power(x), {x: whole}, rounding), exact)


LOG2_E, LOG2_10 = math.log2(math.e), math.log2(10)


@pytest.mark.parametrize("factor, sign, exact", [
    (LOG2_E, 1, np.exp), (-LOG2_E, -1, np.exp), (0.75, 0.75, np.exp2), (-8.0, -8, np.exp2),
    (LOG2_10, 1, lambda x: np.power(x.dtype.type(10), x)),
])  # fmt: skip
@pytest.mark.parametrize("ldexp", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exp2_of_scaled_rounds_no_product(
    dtype: DType, ldexp: bool, factor: float, sign: float, exact: Callable[[Array], Array]
) -> None:
    need_reference(dtype)
    x = leaf(0, dtype)
    graph = exp2_of_scaled(x, factor, ldexp)
    assert graph is not None
    end = (130 if dtype is dtypes.float32 else 1030) / abs(factor)
    special = np.array([0.0, -0.0, math.inf, -math.inf, math.nan], to_numpy_dtype(dtype))
    values = np.concatenate([any_floats(dtype, 100_000), uniform(dtype, -1.2 * end, end, 200_000),
                             uniform(dtype, -1, 1, 100_000), special])  # fmt: skip
    with np.errstate(all="ignore"):
        wanted = exact(values.astype(np.longdouble if HAS_EXTENDED else np.float64) * sign)
    assert worst(graph, {x: values}, wanted, "fused") <= 1.7
    assert worst(graph, {x: values}, wanted, "contracted") <= 1.7
    # The product is out by half a unit of a number of up to 128 (1024).
    lost = 64 * (1 if dtype is dtypes.float32 else 8)
    assert worst(graph, {x: values}, wanted, "separate") <= lost


def falling(x: UOp) -> list[UOp]:
    """What is seen to be -|x|."""
    size = x.alu(Ops.MAX, x.alu(Ops.NEG))
    turn = (x < 0.0).where(x.const_like(1.0), x.const_like(-1.0))
    return [size.alu(Ops.NEG), x.alu(Ops.NEG).alu(Ops.MAX, x).alu(Ops.NEG), x * turn]


@pytest.mark.parametrize("ldexp", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exp2_of_what_falls_is_shorter_and_as_good(dtype: DType, ldexp: bool) -> None:
    need_reference(dtype)
    x = leaf(0, dtype)
    end = 150 if dtype is dtypes.float32 else 1100
    values = np.concatenate([any_floats(dtype, 50_000), uniform(dtype, -end, end, 200_000),
                             uniform(dtype, -1, 1, 50_000)])  # fmt: skip
    exact = np.exp(-np.abs(values.astype(np.longdouble if HAS_EXTENDED else np.float64)))
    rising = exp2_of_scaled(x.alu(Ops.MAX, x.alu(Ops.NEG)), LOG2_E, ldexp)
    assert rising is not None
    for given in falling(x):
        graph = exp2_of_scaled(given, LOG2_E, ldexp)
        assert graph is not None
        assert count_operations(graph, (x,)) < count_operations(rising, (x,))
        for rounding in ("fused", "contracted"):
            assert worst(graph, {x: values}, exact, rounding) <= 1.25
    special = np.array([0.0, -0.0, math.inf, -math.inf, math.nan], to_numpy_dtype(dtype))
    found = evaluate_arrays(graph, {x: special})
    np.testing.assert_array_equal(found, np.array([1, 1, 0, 0, math.nan], found.dtype))


@pytest.mark.parametrize("factor", [LOG2_E, LOG2_10, 0.75])
@pytest.mark.parametrize("ldexp", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_exp2_of_differences_that_fall_lacks_less_than_they_do(
    dtype: DType, ldexp: bool, factor: float
) -> None:
    need_reference(dtype)
    x = leaf(0, dtype)
    graph = exp2_of_scaled(x, factor, ldexp, falling=True)
    plain = exp2_of_scaled(x, factor, ldexp)
    assert graph is not None
    assert plain is not None
    assert count_operations(graph, (x,)) < count_operations(plain, (x,))
    wide = np.longdouble if HAS_EXTENDED else np.float64
    base = {LOG2_E: wide(1), LOG2_10: np.log(wide(10)), 0.75: 0.75 * np.log(wide(2))}[factor]
    near, most = 0.0, 1.95 if ldexp and dtype is dtypes.float32 else 1.25
    for far in (2.0, 8.0, 32.0, 87.0 if dtype is dtypes.float32 else 700.0):
        values = uniform(dtype, -far / float(base), -near / float(base), 100_000)
        exact = np.exp(values.astype(wide) * base)
        # Rounding the difference took up to this many units in the last place of the power.
        rounded = far
        for rounding in ("fused", "contracted"):
            assert worst(graph, {x: values}, exact, rounding) <= most + rounded / 8
        near = far
    special = np.array([0.0, -0.0, -math.inf, math.nan, -1e4, -1e30], to_numpy_dtype(dtype))
    found = evaluate_arrays(graph, {x: special})
    np.testing.assert_array_equal(found, np.array([1, 1, 0, math.nan, 0, 0], found.dtype))


def test_only_what_is_seen_to_fall_is_taken_so() -> None:
    x, y = leaf(0, dtypes.float32), leaf(1, dtypes.float32)
    turn = (y < 0.0).where(x.const_like(1.0), x.const_like(-1.0))
    for given in (x, x.alu(Ops.NEG), x.alu(Ops.MAX, y.alu(Ops.NEG)).alu(Ops.NEG), x * turn,
                  (x < 0.0).where(x.const_like(-1.0), x.const_like(1.0)) * x):  # fmt: skip
        assert signed_size(given) is None
    assert signed_size(x.alu(Ops.MAX, x.alu(Ops.NEG))) == (x, 1.0)


@pytest.mark.parametrize("tanh", [tanh_poly, tanh_by_ldexp])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_tanh_of_special_values(dtype: DType, tanh: Callable[[UOp], UOp]) -> None:
    x = leaf(0, dtype)
    tiny = float(np.finfo(to_numpy_dtype(dtype)).smallest_subnormal)
    given = [0.0, -0.0, math.inf, -math.inf, math.nan, tiny, -tiny, 50.0, -1e30]
    wanted = [0.0, -0.0, 1.0, -1.0, math.nan, tiny, -tiny, 1.0, -1.0]
    values = np.array(given, to_numpy_dtype(dtype))
    for rounding in ROUNDINGS:
        found = evaluate_arrays(tanh(x), {x: values}, rounding)
        np.testing.assert_array_equal(found, np.array(wanted, found.dtype))
        np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])
        dense = uniform(dtype, 6, 25, 100_000)
        assert np.abs(evaluate_arrays(tanh(x), {x: dense}, rounding)).max() == 1.0


def test_extreme_factors_are_left_alone() -> None:
    x = leaf(0, dtypes.float32)
    assert all(exp2_of_scaled(x, f) is None for f in (0.0, 1e-10, 1e10, math.inf, math.nan))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_log2_of_special_values(dtype: DType) -> None:
    x = leaf(0, dtype)
    least = -149 if dtype is dtypes.float32 else -1074
    top = 128 if dtype is dtypes.float32 else 1024
    given = [0.0, -0.0, math.inf, -math.inf, math.nan, -1.0, -(2.0**least), 1.0]
    wanted = [-math.inf, -math.inf, math.inf, math.nan, math.nan, math.nan, math.nan, 0.0]
    values = np.array(given, to_numpy_dtype(dtype))
    for rounding in ROUNDINGS:
        found = evaluate_arrays(log2_poly(x), {x: values}, rounding)
        np.testing.assert_array_equal(found, np.array(wanted, found.dtype))
        whole = np.arange(least, top)
        powers = np.ldexp(np.ones(len(whole), found.dtype), whole)
        np.testing.assert_array_equal(evaluate_arrays(log2_poly(x), {x: powers}, rounding), whole)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_sin_of_special_values(dtype: DType) -> None:
    x = leaf(0, dtype)
    tiny = float(np.finfo(to_numpy_dtype(dtype)).smallest_subnormal)
    given = [0.0, -0.0, math.inf, -math.inf, math.nan, tiny, -tiny]
    values = np.array(given, to_numpy_dtype(dtype))
    found = evaluate_arrays(sin_poly(x), {x: values})
    wanted = np.array([0.0, -0.0, math.nan, math.nan, math.nan, tiny, -tiny], found.dtype)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found[:2]), [False, True])


def test_nan_with_low_bits_stays_nan() -> None:
    raw = np.array([0x7FC00001, 0x7F800001, 0xFFFFFFFF, 0xFF800100], np.uint32)
    x = leaf(0, dtypes.float32)
    for polynomial, _ in FUNCTIONS.values():
        assert np.isnan(evaluate_arrays(polynomial(x), {x: raw.view(np.float32)})).all()
    for other in (2.0, -0.5, math.inf):
        y = UOp.const(dtypes.float32, other)
        assert np.isnan(evaluate_arrays(pow_float(x, y), {x: raw.view(np.float32)})).all()
        assert np.isnan(evaluate_arrays(pow_float(y, x), {x: raw.view(np.float32)})).all()


def pi_to(bits: int) -> int:
    """pi * 2**bits, by Machin's formula in integers."""

    def arctan_of_inverse(n: int) -> int:
        term = total = (1 << (bits + 32)) // n
        k = 1
        while term:
            term //= -n * n
            k += 2
            total += term // k
        return total

    return (4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))) >> 32


def test_bits_of_one_turn() -> None:
    pi = pi_to(1400)
    assert (1 << (1400 + INVERSE_TURN_BITS)) // (2 * pi) == INVERSE_TURN


def exact_sine(x: float) -> float:
    """sin(x) through 1,400 bits of pi."""
    with localcontext() as context:
        context.prec = 50
        numerator, denominator = x.as_integer_ratio()
        pi = pi_to(1400)
        rest = (numerator << 1400) // denominator % (2 * pi)
        turns = Decimal(rest) / Decimal(2 * pi)
        quarter = int(turns * 4 + Decimal("0.5"))
        r = (Decimal(rest) - Decimal(quarter * pi) / 2) / Decimal(1 << 1400)
        if quarter % 2 == 0:
            result = fit_polynomials.sin(r)
        else:
            result = 1 - 2 * fit_polynomials.sin(r / 2) ** 2
        return float(-result if quarter % 4 >= 2 else result)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_sin_of_huge_numbers(dtype: DType) -> None:
    x = leaf(0, dtype)
    kind = to_numpy_dtype(dtype)
    rng = np.random.default_rng(7)
    largest = np.finfo(kind).maxexp
    sizes = rng.integers(20, largest, 60)
    values = np.ldexp(rng.uniform(0.5, 1, 60), sizes).astype(kind)
    # Nearest of all numbers of their format to a multiple of pi / 2.
    near = [16367173.0 * 2.0**72] if dtype is dtypes.float32 else [6381956970095103.0 * 2.0**797]
    values = np.concatenate([values, np.array([*near, np.finfo(kind).max], kind)])
    found = evaluate_arrays(sin_poly(x), {x: values})
    exact = np.array([exact_sine(float(v)) for v in values])
    limit = LIMITS["sin", dtype][0] + (0 if dtype is dtypes.float32 else 0.5)
    assert float(np.max(ulp_error(found, exact))) <= limit


def test_costs_stay_low() -> None:
    x, y = leaf(0, dtypes.float32), leaf(1, dtypes.float32)
    assert count_operations(exp2_poly(x), (x,)) <= 18
    assert count_operations(by_ldexp(x), (x,)) <= 14
    assert count_operations(log2_poly(x), (x,)) <= 28
    assert count_operations(sin_poly(x), (x,)) <= 85
    assert count_operations(tanh_poly(x), (x,)) <= 29
    assert count_operations(tanh_by_ldexp(x), (x,)) <= 28
    assert count_operations(pow_float(x, y), (x, y)) <= 120
    assert count_operations(pow_float(x, UOp.const(x.dtype, 3.0)), (x,)) == 2
    assert count_operations(pow_float(UOp.const(x.dtype, 10.0), x), (x,)) <= 35


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_definition_of_ops_gives_the_same(name: str) -> None:
    polynomial, reference = FUNCTIONS[name]
    x = leaf(0, dtypes.float32)
    graph = polynomial(x)
    for value in (0.75, 1.0, 3.1415927410125732, 1e-40, 100.5):
        value = float(np.float32(value))
        found = evaluate_expr(graph, {x: value})
        exact = reference(np.array([value]))
        assert float(ulp_error(np.array([found], np.float32), exact)[0]) <= 1.7


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(InternalError, match="int32; float32 or float64 is wanted"):
        exp2_poly(leaf(0, dtypes.int32))


@pytest.mark.parametrize("job", fit_polynomials.FITS, ids=lambda job: job.where)
def test_coefficients_are_those_of_the_fit(job: fit_polynomials.Fit) -> None:
    module, _, name = job.where.partition(".")
    tables = {"transcendental": transcendental, "power": power}
    coefficients, _ = fit_polynomials.fit(job)
    assert tuple(coefficients) == getattr(tables[module], name)


# powers


def pow_inputs(dtype: DType) -> tuple[Array, Array]:
    """Pairs of every kind: any bits, all special ones, results over the whole range."""
    kind = to_numpy_dtype(dtype)
    rng = np.random.default_rng(8)
    n = 100_000
    high = 128 if dtype is dtypes.float32 else 1024
    info = np.finfo(kind)
    edges = [info.max, info.tiny, info.smallest_subnormal, 1 - info.epsneg, 1 + info.eps,
             2.0**24 + 2, 2.0**53, 2.0**31 + 1]  # fmt: skip
    special = np.array([*SPECIAL, *edges, *[-e for e in edges]]).astype(kind)
    a, b = np.meshgrid(special, special)
    x_any, y_any = any_floats(dtype, n), np.roll(any_floats(dtype, n), 12345)
    spread = np.exp2(rng.uniform(-0.99 * high, 0.99 * high, n)).astype(kind)
    near_one = (1 + rng.uniform(-1, 1, n) * 1e-3).astype(kind)
    parts_x, parts_y = [x_any, a.ravel()], [y_any, b.ravel()]
    for x in (spread, near_one):
        scale = np.log2(x.astype(np.float64))
        y = rng.uniform(-1.1 * high, 1.1 * high, len(x)) / np.where(scale == 0, 1, scale)
        parts_x.append(x)
        parts_y.append(y.astype(kind))
    parts_x.append(-rng.uniform(0, 100, n).astype(kind))
    parts_y.append(rng.integers(-40, 40, n).astype(kind))
    return np.concatenate(parts_x), np.concatenate(parts_y)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_error_of_powers(dtype: DType, rounding: str) -> None:
    need_reference(dtype)
    x, y = leaf(0, dtype), leaf(1, dtype)
    a, b = pow_inputs(dtype)
    with np.errstate(all="ignore"):
        exact = np.power(a.astype(WIDE[dtype]), b.astype(WIDE[dtype]))
    limit = 2.0 if rounding == "separate" else 1.5
    assert worst(pow_float(x, y), {x: a, y: b}, exact, rounding) <= limit


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_special_powers_are_those_of_c(dtype: DType) -> None:
    inf, nan = math.inf, math.nan
    rows = [
        (nan, 0.0, 1.0), (nan, -0.0, 1.0), (inf, 0.0, 1.0), (1.0, nan, 1.0), (1.0, inf, 1.0),
        (nan, 1.0, nan), (2.0, nan, nan), (-1.0, nan, nan),
        (-1.0, inf, 1.0), (-1.0, -inf, 1.0), (0.5, -inf, inf), (-0.5, -inf, inf), (2.0, -inf, 0.0),
        (0.5, inf, 0.0), (2.0, inf, inf), (-2.0, inf, inf),
        (0.0, -3.0, inf), (-0.0, -3.0, -inf), (-0.0, -2.0, inf), (-0.0, -2.5, inf),
        (0.0, -inf, inf), (-0.0, -inf, inf), (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (-0.0, 2.0, 0.0),
        (-0.0, 0.5, 0.0), (-8.0, 1 / 3, nan), (-8.0, -0.5, nan), (-2.0, 3.0, -8.0),
        (-2.0, 2.0, 4.0), (-2.0, -3.0, -0.125), (-2.0, 2.0**24, inf), (inf, -3.0, 0.0),
        (inf, 0.5, inf), (-inf, 3.0, -inf), (-inf, 2.0, inf), (-inf, 0.5, inf), (-inf, -3.0, -0.0),
        (-inf, -2.0, 0.0), (-inf, -0.5, 0.0), (-inf, 1.0, -inf), (-0.0, -0.5, inf), (0.0, 0.0, 1.0),
    ]  # fmt: skip
    kind = to_numpy_dtype(dtype)
    a, b, wanted = (np.array(column, kind) for column in zip(*rows))
    x, y = leaf(0, dtype), leaf(1, dtype)
    found = evaluate_arrays(pow_float(x, y), {x: a, y: b})
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted) & ~np.isnan(wanted))
    # Constant exponents and bases take other ways to the same values.
    for base, exponent, value in zip(a, b, wanted):
        fixed_y = pow_float(x, UOp.const(dtype, float(exponent)))
        fixed_x = pow_float(UOp.const(dtype, float(base)), y)
        results = (evaluate_arrays(fixed_y, {x: base.reshape(1)}),
                   evaluate_arrays(fixed_x, {y: exponent.reshape(1)}))  # fmt: skip
        for result in results:
            np.testing.assert_array_equal(result, value.reshape(1), f"{base} ** {exponent}")
            if not math.isnan(value):
                assert np.signbit(result[0]) == np.signbit(value), f"{base} ** {exponent}"


@pytest.mark.parametrize("exponent", [1.0, 2.0, 3.0, 8.0, -1.0, -3.0, -4.0, 0.5, -0.5, 2.5, 9.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_constant_exponents(dtype: DType, exponent: float) -> None:
    need_reference(dtype)
    x = leaf(0, dtype)
    graph = pow_float(x, UOp.const(dtype, exponent))
    values = np.concatenate([any_floats(dtype, 50_000), uniform(dtype, -20, 20, 50_000)])
    values = values[values != -math.inf]
    with np.errstate(all="ignore"):
        exact = np.power(values.astype(WIDE[dtype]), WIDE[dtype](exponent))
    limit = exponent if 1 <= exponent <= 8 and exponent % 1 == 0 else 1.5 * max(1, -exponent)
    for rounding in ("separate", "fused"):
        slack = 0.5 if exponent in (2.5, 9.0) and rounding == "separate" else 0.0
        assert worst(graph, {x: values}, exact, rounding) <= limit + slack


@pytest.mark.parametrize("base", [2.0, 10.0, 0.1, 10000.0, math.e, 1e-30, 1.0])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_constant_bases(dtype: DType, base: float) -> None:
    need_reference(dtype)
    y = leaf(0, dtype)
    base = float(to_numpy_dtype(dtype).type(base))
    graph = pow_float(UOp.const(dtype, base), y)
    values = np.concatenate([any_floats(dtype, 50_000), uniform(dtype, -310, 310, 50_000)])
    with np.errstate(all="ignore"):
        exact = np.power(WIDE[dtype](base), values.astype(WIDE[dtype]))
    assert worst(graph, {y: values}, exact, "fused") <= 1.5
    assert worst(graph, {y: values}, exact, "separate") <= 2.0


@pytest.mark.parametrize("dtype", [*dtypes.ints, dtypes.bool], ids=lambda d: d.name)
def test_integer_powers_are_exact_and_wrap(dtype: DType) -> None:
    rng = np.random.default_rng(9)
    kind = to_numpy_dtype(dtype)
    low, high = int(dtypes.min(dtype)), int(dtypes.max(dtype))
    small = rng.integers(max(low, -5), min(high, 5), 300, endpoint=True).astype(kind)
    large = rng.integers(low, high, 300, dtype=np.int64 if low else np.uint64,
                         endpoint=True).astype(kind)  # fmt: skip
    a = np.concatenate([small, large, small, large])
    b = np.concatenate([small, small, large, large])
    x, y = leaf(0, dtype), leaf(1, dtype)

    def wanted(exponents: Array) -> Array:
        pairs = zip(a.tolist(), exponents.tolist())
        wide = [int(power_of_ints(dtype, p, q)) & ((1 << dtype.bits) - 1) for p, q in pairs]
        if dtype is dtypes.bool:
            return np.array(wide, bool)
        return np.array(wide, np.uint64).astype(f"u{dtype.itemsize}").view(kind)

    found = evaluate_arrays(pow_int(x, y), {x: a, y: b})
    np.testing.assert_array_equal(found, wanted(b))
    for n in {0, 1, 2, 5, 13, 100, -1, -2} if dtype.kind == "int" else {0, 1, 2, 5, 100}:
        if low <= n <= high:
            exponent = UOp.const(dtype, n)
            fixed = evaluate_arrays(pow_int(x, exponent), {x: a})
            np.testing.assert_array_equal(fixed, wanted(np.full(len(a), n).astype(kind)))
