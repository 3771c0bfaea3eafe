"""Each gradient rule against differences in float64, and the rules of its result once more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import GradientError
from aster_ml.gradient import GRADIENT, NO_GRADIENT, compute_gradient
from aster_ml.tensor import Tensor
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import ELEMENTWISE, MOVEMENT, OP_TABLE, Group, NameArg, Ops
from tests.core.numerics import check_slopes, leaf, value

X = np.array([[0.7, -1.3, 2.1], [-0.4, 0.9, 1.6]])
Y = np.array([[1.2, 0.8, -0.6], [2.3, -1.7, 0.5]])
Z = np.array([[0.3, -0.2, 1.1], [0.6, 1.4, -0.9]])
POSITIVE = np.abs(X) + 0.2


def unary(op: Ops) -> Callable[[UOp], UOp]:
    """The function that is one op."""
    return lambda x: x.alu(op)


def binary(op: Ops) -> Callable[[UOp, UOp], UOp]:
    """The function of two values that is one op."""
    return lambda x, y: x.alu(op, y)


def number(x: float) -> UOp:
    """A float64 number."""
    return UOp.const(dtypes.float64, x)


def below(x: UOp) -> UOp:
    """Where x is below 0.5."""
    return x.alu(Ops.CMPLT, number(0.5))


def at(*numbers: Any) -> UOp:
    """Indices that are numbers, as a node of index dtype."""
    return leaf(np.array(numbers, np.int32)).cast(dtypes.index)


def reduce(op: Ops, *axes: int) -> Callable[[UOp], UOp]:
    """The reduction of one value over axes."""
    return lambda x: x._rop(op, axes)


def move(op: Ops, arg: Any) -> Callable[[UOp], UOp]:
    """The movement of one value."""
    return lambda x: x._mop(op, arg)


def cosine(x: UOp) -> UOp:
    return x.alu(Ops.ADD, number(math.pi / 2)).alu(Ops.SIN)


# A function for every op that has a rule, and points at which to look at it.
CASES: dict[Ops, list[tuple[Callable[..., UOp], tuple[Any, ...]]]] = {
    Ops.ADD: [
        (binary(Ops.ADD), (X, Y)),
        (lambda x: x.alu(Ops.ADD, x), (X,)),
        (lambda x, s: x.alu(Ops.ADD, s), (X, np.array(0.4))),
    ],
    Ops.SUB: [(binary(Ops.SUB), (X, Y)), (lambda x: number(2).alu(Ops.SUB, x), (X,))],
    Ops.MUL: [
        (binary(Ops.MUL), (X, Y)),
        (lambda x: x.alu(Ops.MUL, x), (X,)),
        (lambda x: x.alu(Ops.MUL, number(3)), (X,)),
        (lambda x, s: s.alu(Ops.MUL, x), (X, np.array(0.4))),
    ],
    Ops.FDIV: [
        (binary(Ops.FDIV), (X, Y)),
        (lambda x: x.alu(Ops.FDIV, number(3)), (X,)),
        (lambda x: x.alu(Ops.FDIV, number(4)), (X,)),
        (lambda x: number(1).alu(Ops.FDIV, x), (X,)),
    ],
    Ops.NEG: [(unary(Ops.NEG), (X,)), (lambda x: x.alu(Ops.NEG).alu(Ops.NEG), (X,))],
    Ops.RECIPROCAL: [(unary(Ops.RECIPROCAL), (X,))],
    Ops.EXP2: [
        (unary(Ops.EXP2), (X,)),
        (lambda x: x.alu(Ops.MUL, number(1 / math.log(2))).alu(Ops.EXP2), (X,)),
    ],
    Ops.LOG2: [
        (unary(Ops.LOG2), (POSITIVE,)),
        (lambda x: x.alu(Ops.LOG2).alu(Ops.MUL, number(math.log(2))), (POSITIVE,)),
    ],
    Ops.SIN: [(unary(Ops.SIN), (X,)), (unary(Ops.SIN), (X * 50,))],
    Ops.TANH: [(unary(Ops.TANH), (X,)), (lambda x: x.alu(Ops.TANH).alu(Ops.TANH), (X,))],
    Ops.SQRT: [(unary(Ops.SQRT), (POSITIVE,))],
    Ops.TRUNC: [(lambda x: x.alu(Ops.TRUNC).alu(Ops.MUL, x), (X,))],
    Ops.MAX: [
        (binary(Ops.MAX), (X, Y)),
        (lambda x: x.alu(Ops.MAX, x.alu(Ops.NEG)), (X,)),
        (lambda x: x.alu(Ops.NEG).alu(Ops.MAX, x), (X,)),
        (lambda x: x.alu(Ops.MAX, number(0.5)), (X,)),
    ],
    Ops.POW: [
        (binary(Ops.POW), (POSITIVE, Y)),
        *[
            (lambda x, p=p: x.alu(Ops.POW, number(p)), (POSITIVE,))
            for p in (0, 1, 2, 3, -1, 0.5, 2.5)
        ],
        (lambda x: x.alu(Ops.POW, number(3)), (X,)),
        (lambda y: number(1.7).alu(Ops.POW, y), (Y,)),
    ],
    Ops.WHERE: [
        (lambda x, y: below(x).alu(Ops.WHERE, x, y), (X, Y)),
        (lambda x: below(x).alu(Ops.WHERE, number(0), x), (X,)),
        (lambda x: below(x).alu(Ops.WHERE, x.alu(Ops.MUL, x), x), (X,)),
    ],
    Ops.MULACC: [(lambda x, y, z: x.alu(Ops.MULACC, y, z), (X, Y, Z))],
    Ops.CAST: [(lambda x: x.cast(dtypes.float64), (X,))],
    Ops.RESHAPE: [
        (move(Ops.RESHAPE, (3, 2)), (X,)),
        (move(Ops.RESHAPE, (1, 6, 1)), (X,)),
        (move(Ops.RESHAPE, ()), (np.array([[0.3]]),)),
    ],
    Ops.EXPAND: [
        (move(Ops.EXPAND, (2, 4, 3)), (X[:, None],)),
        (move(Ops.EXPAND, (2, 3)), (X,)),
        (move(Ops.EXPAND, (4, 5)), (X[:1, :1],)),
    ],
    Ops.PERMUTE: [
        (move(Ops.PERMUTE, (1, 0)), (X,)),
        (move(Ops.PERMUTE, (2, 0, 1)), (np.arange(24.0).reshape(2, 3, 4),)),
    ],
    Ops.PAD: [(move(Ops.PAD, ((1, 0), (0, 2))), (X,))],
    Ops.SHRINK: [(move(Ops.SHRINK, ((0, 1), (1, 3))), (X,))],
    Ops.NAME: [(lambda x: UOp(Ops.NAME, x.dtype, (x,), NameArg(1, "view")), (X,))],
    Ops.FLIP: [(move(Ops.FLIP, (0,)), (X,)), (move(Ops.FLIP, (0, 1)), (X,))],
    Ops.REDUCE: [
        (reduce(Ops.ADD, 0), (X,)),
        (reduce(Ops.ADD, 0, 1), (X,)),
        (reduce(Ops.MAX, 1), (X,)),
        (reduce(Ops.MAX, 0, 1), (X,)),
        (reduce(Ops.MUL, 1), (X,)),
        (reduce(Ops.MUL, 0, 1), (X,)),
        (reduce(Ops.MUL, 0), (X[:1],)),
        (reduce(Ops.MUL, 0), (np.linspace(0.5, 1.5, 7),)),
    ],
    Ops.INDEX: [
        (lambda x: x.gather_at(at(0, 1, 1, 0), at(2, 0, 0, 2)), (X,)),
        (lambda x: x.gather_at(UOp.index_const(1), UOp.iota(3)), (X,)),
    ],
    Ops.SCATTER: [
        (
            lambda x: x.scatter_at(
                (3, 2), *[i.reshape((2, 3)) for i in (at(0, 2, 2, 1, 0, 2), at(1, 0, 0, 1, 1, 0))]
            ),
            (X,),
        )
    ],
    Ops.CUSTOM_GRADIENT: [
        (lambda x: UOp(Ops.CUSTOM_GRADIENT, x.dtype, (x.alu(Ops.SIN), x, cosine(x))), (X,)),
        (
            lambda x, y: UOp(Ops.CUSTOM_GRADIENT, x.dtype, (x.alu(Ops.MUL, y), x, y, y, x)),
            (X, Y),
        ),
    ],
    Ops.CONTIGUOUS: [(lambda x: UOp(Ops.CONTIGUOUS, x.dtype, (x,)), (X,))],
    Ops.CONTIGUOUS_BACKWARD: [(lambda x: UOp(Ops.CONTIGUOUS_BACKWARD, x.dtype, (x,)), (X,))],
    Ops.COPY: [(lambda x: x.copy_to("CPU:1"), (X,))],
}


@pytest.mark.parametrize(
    "op, case",
    [(op, i) for op, cases in CASES.items() for i in range(len(cases))],
    ids=lambda v: v.name if isinstance(v, Ops) else str(v),
)
def test_rule_is_the_slope(op: Ops, case: int) -> None:
    function, points = CASES[op][case]
    check_slopes(function, *points)


def test_every_rule_has_a_case() -> None:
    # BITCAST refuses; writes to memory and hand-written kernels have tests of their own.
    assert set(GRADIENT) - set(CASES) - {Ops.MULTI, Ops.CALL} == {Ops.BITCAST, Ops.AFTER, Ops.STORE}


def test_every_op_of_the_tensor_stage_has_a_rule_or_none() -> None:
    assert not set(GRADIENT) & NO_GRADIENT
    marks = {op for op, info in OP_TABLE.items() if info.group is Group.MARK}
    assert set(GRADIENT) | NO_GRADIENT >= ELEMENTWISE | MOVEMENT | marks


# points where there is no slope, or where a formula could fail


def gradient_of(function: Callable[..., UOp], *points: Any) -> list[Any]:
    """Gradients of the sum of a function."""
    leaves = [leaf(np.asarray(p, np.float64)) for p in points]
    found = compute_gradient(function(*leaves), number(1), set(leaves))
    return [value(found[u]).tolist() for u in leaves]


def test_equal_values_share_the_gradient_of_a_maximum() -> None:
    assert gradient_of(binary(Ops.MAX), [1.0, 2, 3], [1.0, 5, 0]) == [[0.5, 0, 1], [0.5, 1, 0]]
    assert gradient_of(reduce(Ops.MAX, 1), [[1.0, 3, 3], [2, 2, 2]]) == [
        [[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]]
    ]


def test_size_has_no_slope_at_zero() -> None:
    size = lambda x: x.alu(Ops.MAX, x.alu(Ops.NEG))  # noqa: E731
    assert gradient_of(size, [-2.0, 0, 3]) == [[-1, 0, 1]]


def test_maximum_with_nan_gives_numbers_elsewhere() -> None:
    assert gradient_of(reduce(Ops.MAX, 1), [[1.0, np.nan], [2, 1]])[0][1] == [1, 0]


@pytest.mark.parametrize(
    "factors, expected",
    [
        ([2.0, 3, 4], [12.0, 8, 6]),
        ([0.0, 3, 4], [12.0, 0, 0]),
        ([0.0, 3, 0], [0.0, 0, 0]),
        ([5.0], [1.0]),
        ([2.0, 0, 3, 4, 5], [0.0, 120, 0, 0, 0]),
    ],
)
def test_product_is_right_with_zeros(factors: list[float], expected: list[float]) -> None:
    assert gradient_of(reduce(Ops.MUL, 0), factors) == [expected]


def test_product_with_zeros_is_right_at_second_order() -> None:
    check_slopes(reduce(Ops.MUL, 0), np.array([0.0, 0.0, 3.0, 2.0]))


def test_power_at_base_zero() -> None:
    base, exponent = gradient_of(binary(Ops.POW), [0.0, 0, 0, 0], [0.0, 1, 2, 3])
    assert base == [0, 1, 0, 0]
    assert exponent == [0, 0, 0, 0]
    assert gradient_of(lambda x: x.alu(Ops.POW, number(0)), [0.0]) == [[0]]
    assert gradient_of(lambda x: x.alu(Ops.POW, number(1)), [0.0]) == [[1]]
    assert gradient_of(lambda x: x.alu(Ops.POW, number(2)), [0.0, -3]) == [[0, -6]]


def test_power_of_an_exponent_at_zero_keeps_its_mixed_slope() -> None:
    check_slopes(binary(Ops.POW), np.array([2.0, 0.5]), np.array([0.0, 0.0]))


def test_infinite_slopes_are_infinite() -> None:
    assert gradient_of(unary(Ops.SQRT), [0.0, 4]) == [[math.inf, 0.25]]
    assert gradient_of(unary(Ops.LOG2), [0.0]) == [[math.inf]]


def test_what_a_choice_leaves_out_has_no_part() -> None:
    def safe_log(x: UOp) -> UOp:
        positive = number(0).alu(Ops.CMPLT, x)
        inner = positive.alu(Ops.WHERE, x, number(1)).alu(Ops.LOG2)
        return positive.alu(Ops.WHERE, inner, number(0))

    (found,) = gradient_of(safe_log, [0.0, 2.0])
    assert found[0] == 0
    assert found[1] == pytest.approx(1 / (2 * math.log(2)))


# what passes no gradient, and what refuses


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.alu(Ops.CMPLT, number(0)).cast(dtypes.float64),
        lambda x: x.cast(dtypes.int32).cast(dtypes.float64),
        lambda x: x.bitcast(dtypes.int64).cast(dtypes.float64),
        lambda x: UOp(Ops.DETACH, x.dtype, (x,)),
    ],
    ids=["comparison", "cast to int", "bitcast to int", "detach"],
)
def test_no_gradient_passes(function: Callable[[UOp], UOp]) -> None:
    x = leaf(X)
    assert compute_gradient(function(x), number(1), {x}) == {}
    # Beside another way to x, only that one counts.
    both = compute_gradient(function(x).alu(Ops.ADD, x), number(1), {x})
    np.testing.assert_array_equal(value(both[x]), np.ones_like(X))


def test_rounding_has_slope_zero() -> None:
    x = leaf(X)
    found = compute_gradient(x.alu(Ops.TRUNC), number(1), {x})
    np.testing.assert_array_equal(value(found[x]), np.zeros_like(X))


def test_bitcast_between_floats_refuses() -> None:
    x = leaf(X.astype(np.float16))
    root = x.bitcast(dtypes.bfloat16)
    with pytest.raises(GradientError, match="bitcast from float16 to bfloat16 has none"):
        compute_gradient(root, UOp.const(dtypes.bfloat16, 1), {x})


def test_op_of_a_later_stage_refuses_by_name() -> None:
    x = leaf(np.ones(4))
    root = UOp(Ops.LOAD, x.dtype, (x,))
    with pytest.raises(GradientError, match=r"LOAD, of float64 .* has none; detach"):
        compute_gradient(root, number(1), {x})


# writes to memory


def test_gradient_goes_to_what_was_written() -> None:
    memory, new = leaf(np.zeros(6)), leaf(np.arange(6.0))
    root = memory.after(memory.store(new.alu(Ops.MUL, number(3))))
    found = compute_gradient(root, number(1), {memory, new})
    assert memory not in found
    np.testing.assert_array_equal(value(found[new]), np.full(6, 3.0))


def test_partial_write_leaves_the_rest_its_gradient() -> None:
    memory, first, second = leaf(np.zeros(6)), leaf(np.ones((3, 2))), leaf(np.ones(3))
    start = memory.shrink(((0, 2),)).store(first.shrink(((0, 1), (0, 2))).reshape((2,)))
    # Written afterwards, in reverse, and over the end of the first.
    middle = memory.shrink(((1, 4),)).reshape((3, 1)).flip(0).store(second.reshape((3, 1)))
    weight = leaf(np.arange(1.0, 7))
    found = compute_gradient(memory.after(start, middle), weight, {memory, first, second})
    np.testing.assert_array_equal(value(found[memory]), [0, 0, 0, 0, 5, 6])
    np.testing.assert_array_equal(value(found[first]), [[1, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(value(found[second]), [4, 3, 2])


def test_write_through_another_view_refuses() -> None:
    memory, new = leaf(np.zeros(6)), leaf(np.ones(6))
    root = memory.reshape((2, 3)).after(memory.store(new))
    with pytest.raises(GradientError, match="another view of the same memory"):
        compute_gradient(root, number(1), {new})


NAN = float("nan")


@pytest.mark.parametrize(
    ("function", "values", "slopes"),
    [
        (lambda t: t.max(), [1, NAN, 3, NAN], [0, 0.5, 0, 0.5]),
        (lambda t: t.min(), [float("-inf"), NAN, 3], [0, 1, 0]),
        (lambda t: t.maximum(Tensor([1.0, NAN])), [NAN, 2], [1, 1]),
        (lambda t: t.clamp(0, 1), [NAN, 0, 1, 2], [0, 1, 1, 0]),
        (lambda t: t.clamp(0), [NAN, -1, 0, 2], [0, 0, 1, 1]),
        (lambda t: t.clamp(max_=Tensor([1.0])), [NAN, 0, 1, 2], [0, 1, 1, 0]),
        (lambda t: t.hardsigmoid() * 6, [NAN, 0, 4], [0, 1, 0]),
        (lambda t: t.hardtanh(), [NAN, 0, 1], [1, 1, 0]),
    ],
)
def test_slopes_at_nan_are_those_of_pytorch(function, values, slopes) -> None:
    t = Tensor(np.array(values, np.float32), requires_grad=True)
    result = function(t)
    assert np.isnan(result.numpy()).any()
    result.sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), slopes, rtol=1e-6)
