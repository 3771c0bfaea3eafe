"""Terms of gradients: which numbers, factors and signs are gathered, and what is left whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aster_ml.dtype import dtypes
from aster_ml.uop.gradient_terms import Term
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from tests.core.numerics import leaf, value

X = leaf(np.array([[1.0, -2, 3]]))
NUMBER = UOp.const(dtypes.float64, 3)


def term(u: UOp, *known: UOp) -> Term:
    """A term beside nodes that are not looked into."""
    return Term(u, {X, *known})


def test_numbers_fold() -> None:
    three = term(NUMBER)
    assert three.scale(2).node.arg == 6
    assert (-three).node.arg == -3
    assert (three + three).node.arg == 6
    assert (three + term(NUMBER).scale(0.5)).node.arg == 4.5
    assert (three / UOp.const(dtypes.float64, 4)).node.arg == 0.75
    assert (three * NUMBER).node.arg == 9
    assert three.reshape((5, 5)).node is NUMBER
    assert three.move(Ops.FLIP, (0,)).node is NUMBER


def test_numbers_are_rounded_to_their_dtype() -> None:
    third = term(UOp.const(dtypes.float64, 1)) / NUMBER
    assert third.convert(dtypes.float16).node.arg == float(np.float16(1 / 3))
    assert third.convert(dtypes.float32).node.arg == float(np.float32(1 / 3))
    assert term(UOp.const(dtypes.float16, 60000)).scale(2).node.arg == math.inf


def test_what_changes_nothing_is_left_out() -> None:
    x = term(X)
    assert x.scale(1) is x
    assert (x + x.number(0)) is x
    assert (x.number(0) + x) is x
    assert (x * UOp.const(dtypes.float64, 0)).is_zero
    assert (x.number(0) / X).is_zero
    negative = -x
    assert (-negative).node is X
    assert x.where(X.alu(Ops.CMPLT, NUMBER), x) is x
    assert x.convert(dtypes.float64) is x
    assert x.spread((1, 3)) is x
    assert x.reshape((3,)).reshape((1, 3)).node is X
    assert x.reshape((3,)).reshape((3, 1)).node.src[0] is X


def test_factors_are_gathered() -> None:
    x = term(X)
    assert x.scale(2).scale(3).node is x.scale(6).node
    assert x.scale(2).scale(0.5).node is X
    assert (-x.scale(2)).node is x.scale(-2).node
    assert x.scale(-1).node.op is Ops.NEG
    assert (x.scale(2) / NUMBER).node.op is Ops.MUL
    assert (x / NUMBER).node.op is Ops.FDIV
    assert (x / UOp.const(dtypes.float64, 4)).node is x.scale(0.25).node
    assert (x + x).node is x.scale(2).node
    assert (x + -term(X * X)).node.op is Ops.SUB


def test_factors_that_could_overflow_are_not() -> None:
    assert term(X).scale(1e3).scale(1e3).node.src[0].op is Ops.MUL
    assert term(X).scale(1e-3).scale(1e-3).node.src[0].op is Ops.MUL


@pytest.mark.parametrize("factor", [1e-9, 3e-5, 1e4, 65536.0, -1e30])
def test_a_sign_goes_into_any_factor(factor: float) -> None:
    scaled = term(X).scale(factor)
    assert (-scaled).node is term(X).scale(-factor).node
    back = -scaled
    assert (-back).node is scaled.node
    assert term(X).scale(-1).scale(factor).node.op is Ops.MUL
    assert (-scaled.spread((4, 3))).node is (-scaled).spread((4, 3)).node
    assert (-scaled).total((0,)).node is (-scaled.total((0,))).node


def test_terms_are_gathered_through_any_depth() -> None:
    x = term(X)
    for _ in range(5000):
        x = x.scale(1e3)
    for _ in range(5000):
        x = x.of(x.node.alu(Ops.NEG))
    total = x.total((0,)).node
    for _ in range(5000):
        assert total.op is Ops.MUL
        total = total.src[0]
    assert total is X._rop(Ops.ADD, (0,))
    moved = term(X)
    for _ in range(5000):
        moved = moved.spread((4, 3)).of(
            moved.node._mop(Ops.RESHAPE, (3, 1))._mop(Ops.RESHAPE, (1, 3))
        )
    assert value((-moved).node).tolist() == [[-1.0, 2.0, -3.0]]


def test_factors_and_signs_go_where_there_are_fewer_elements() -> None:
    row = term(X)
    wide = row.spread((4, 3))
    assert wide.scale(2).node is row.scale(2).spread((4, 3)).node
    assert (-wide).node is (-row).spread((4, 3)).node
    assert row.scale(2).total((1,)).node.op is Ops.MUL
    assert (-row).total((1,)).node.op is Ops.NEG


def test_known_nodes_stay_whole() -> None:
    product, negative = X.alu(Ops.MUL, NUMBER), X.alu(Ops.NEG)
    wide, narrow = X._mop(Ops.EXPAND, (4, 3)), X.cast(dtypes.float16).cast(dtypes.float64)
    for node in (product, negative, wide, narrow):
        known = term(node, node)
        assert known.scale(2).node.src[0] is node
        assert (-known).node.src[0] is node
        assert known.total((0,)).node.src[0] is node
        assert known.convert(dtypes.float16).node.src[0] is node
    assert term(X.reshape((3,)), X.reshape((3,))).reshape((3, 1)).node.src[0].op is Ops.RESHAPE


def test_there_and_back_through_a_wider_type_is_nothing() -> None:
    half = leaf(np.ones(3, np.float16))
    assert term(half).convert(dtypes.float32).convert(dtypes.float16).node is half
    # The other way digits are lost.
    narrow = term(X).convert(dtypes.float16)
    assert narrow.convert(dtypes.float64).node.src[0] is narrow.node


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_halves_are_summed_in_float32(dtype: type) -> None:
    ones = leaf(np.ones(5000, dtype))
    total = term(ones).total((0,)).node
    assert total.dtype is ones.dtype
    assert value(total) == 5000


def test_choices_without_the_other_side_are_zero() -> None:
    low = X.alu(Ops.CMPLT, UOp.const(dtypes.float64, 0))
    np.testing.assert_array_equal(value(term(X).where(low).node), [[0, -2, 0]])
    np.testing.assert_array_equal(value(term(X).unless(low).node), [[1, 0, 3]])
