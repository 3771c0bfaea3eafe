"""Patterns and rules as users write them: what matches, what a rewrite gives, pickling."""

from __future__ import annotations

import pickle

import pytest

from aster_ml import UOp, dtypes
from aster_ml.compat.patterns import PatternMatcher, UPat, graph_rewrite
from aster_ml.compat.symbolic import expander, sym
from aster_ml.errors import InternalError
from aster_ml.uop.dialect import Dialect
from aster_ml.uop.ops import Ops

A, B = UOp.variable("a", 0, 9), UOp.variable("b", 0, 9)
X = UOp(Ops.DEFINE_VAR, dtypes.float32, (), ("x", 0, 1))


def names(pattern: UPat, u: UOp) -> list[dict[str, UOp]]:
    return pattern.match(u, {})


def test_ops_dtypes_and_args() -> None:
    two = UOp.const(dtypes.float32, 2)
    assert names(UPat(Ops.CONST), two) == [{}]
    assert not names(UPat(Ops.ADD), two)
    assert names(UPat((Ops.CONST, Ops.ADD), dtypes.floats, name="c"), two) == [{"c": two}]
    assert not names(UPat(Ops.CONST, dtypes.int32), two)
    assert names(UPat.const(dtypes.float32, 2), two)
    assert not names(UPat.const(dtypes.float32, 3), two)
    assert names(UPat.cvar("c", dtypes.int32), UOp.const(dtypes.int32.vec(2), (1, 2)))
    assert not names(UPat.cvar("c", vec=False), UOp.const(dtypes.int32.vec(2), (1, 2)))


def test_a_commutative_op_matches_in_any_order() -> None:
    two = UOp.const(dtypes.float32, 2)
    for u in (UOp(Ops.MUL, dtypes.float32, (X, two)), UOp(Ops.MUL, dtypes.float32, (two, X))):
        assert names(UPat.var("x") * UPat.cvar("c"), u)[0]["c"] is two
    assert len(names(UPat.var("x") * UPat.var("y"), UOp(Ops.MUL, dtypes.float32, (X, two)))) == 2
    less = UOp(Ops.CMPLT, dtypes.bool, (X, two))
    assert names(UPat.var("x") < UPat.cvar("c"), less)
    assert not names(UPat.cvar("c") < UPat.var("x"), less)


def test_a_name_stands_for_one_node() -> None:
    pattern = UPat.var("x") + UPat.var("x")
    assert names(pattern, UOp(Ops.ADD, dtypes.float32, (X, X))) == [{"x": X}] * 2
    other = UOp(Ops.SQRT, dtypes.float32, (X,))
    assert not names(pattern, UOp(Ops.ADD, dtypes.float32, (X, other)))


def test_sources() -> None:
    sink = UOp.sink(A, B, A)
    assert names(UPat(Ops.SINK, src=UPat(Ops.DEFINE_VAR)), sink)
    assert not names(UPat(Ops.SINK, src=UPat(Ops.CONST)), sink)
    assert not names(UPat(Ops.SINK, src=(UPat.var("a"),)), sink)
    assert names(UPat(Ops.SINK, src=(UPat.var("a"),), allow_any_len=True), sink) == [{"a": A}]
    assert names(UPat(Ops.SINK, src=()), UOp.sink())


def test_one_of_several_patterns() -> None:
    pattern = UPat.any(UPat(Ops.CAST, name="c"), UPat(Ops.DEFINE_VAR, name="v"))
    assert names(pattern, A) == [{"v": A}]
    assert names(pattern, A.cast(dtypes.int32)) == [{"c": A.cast(dtypes.int32)}]
    casted = UPat(Ops.DEFINE_VAR).or_casted("x")
    assert [names(casted, u)[0]["x"] for u in (A, A.cast(dtypes.int8))] == [A, A.cast(dtypes.int8)]


def test_numbers_beside_patterns() -> None:
    three = UOp(Ops.ADD, dtypes.float32, (X, UOp.const(dtypes.float32, 3)))
    assert names(UPat.var("x", dtypes.float32) + 3, three)
    assert names(3 + UPat.var("x", dtypes.float32), three)
    assert not names(UPat.var("x", dtypes.float32) + 4, three)


ADD_UP = PatternMatcher(
    [
        (
            UPat.cvar("x") + UPat.cvar("y"),
            lambda x, y: UOp.const(x.dtype, x.arg + y.arg),
        ),
        (
            (UPat.var("x") + UPat.cvar("c1")) + UPat.cvar("c2"),
            lambda x, c1, c2: x.alu(Ops.ADD, UOp.const(x.dtype, c1.arg + c2.arg)),
        ),
    ]
)


def number(value: float) -> UOp:
    return UOp.const(dtypes.float32, value)


def test_rules_are_applied_until_none_applies() -> None:
    total = X
    for i in range(1, 8):
        total = total.alu(Ops.ADD, number(i))
    found = graph_rewrite(total, ADD_UP)
    assert found is X.alu(Ops.ADD, number(28))
    assert graph_rewrite(number(1) + number(2), ADD_UP) is number(3)
    assert ADD_UP.rewrite(X) is None


def test_the_context_is_handed_on() -> None:
    seen: list[str] = []

    def note(ctx: list[str], v: UOp) -> None:
        ctx.append(v.arg.name)

    rules = PatternMatcher([(UPat(Ops.DEFINE_VAR, dtypes.index, name="v"), note)])
    assert graph_rewrite(A + B, rules, ctx=seen) is A + B
    assert sorted(seen) == ["a", "b"]


def test_matchers_add_up() -> None:
    halve = PatternMatcher([(UPat(Ops.SQRT, src=(UPat.var("x"),)), lambda x: x)])
    u = X.alu(Ops.SQRT).alu(Ops.ADD, number(1)).alu(Ops.ADD, number(1))
    assert graph_rewrite(u, halve + ADD_UP) is X.alu(Ops.ADD, number(2))
    assert len((halve + ADD_UP).patterns) == 3


def test_rules_that_never_end_are_named() -> None:
    swap = PatternMatcher([(UPat.var("x") + UPat.var("y"), lambda x, y: y.alu(Ops.ADD, x))])
    with pytest.raises(InternalError, match=r"test_patterns\.py:"):
        graph_rewrite(X.alu(Ops.ADD, number(1)), swap)


def test_a_pattern_knows_where_it_was_written() -> None:
    pattern = UPat.var("x") + 1
    assert pattern.location[0].endswith("test_patterns.py")
    assert sym.patterns[-1][0].location[0].endswith("symbolic.py")


def test_matchers_are_pickled() -> None:
    step = 5
    rules = PatternMatcher([(UPat.cvar("x"), lambda x: UOp.const(x.dtype, x.arg * step))])
    again = pickle.loads(pickle.dumps(rules))
    assert again.rewrite(number(3)) is number(15)
    assert again.patterns[0][0].location == rules.patterns[0][0].location
    assert pickle.loads(pickle.dumps(sym)).rewrite(A + A) is sym.rewrite(A + A)


# vectors and axes of lanes


def lanes(*values: int, axes: tuple[tuple[int, int], ...]) -> UOp:
    vector = UOp.const(dtypes.int32.vec(len(values)), values)
    return UOp(Dialect.UNROLL, dtypes.int32, (vector,), axes)


def test_ops_over_axes_of_lanes() -> None:
    first, second = lanes(0, 1, axes=((1, 2),)), lanes(10, 20, 30, axes=((2, 3),))
    found = graph_rewrite(first + second, sym + expander)
    assert found.arg == ((1, 2), (2, 3))
    assert found.src[0].arg == (10, 20, 30, 11, 21, 31)
    assert graph_rewrite(first + first, sym + expander).src[0].arg == (0, 2)


def test_axes_of_lanes_as_vectors() -> None:
    grid = lanes(0, 1, 2, 3, 4, 5, axes=((1, 2), (2, 3)))
    rows = UOp(Dialect.CONTRACT, dtypes.int32.vec(3), (grid,), ((2, 3),))
    columns = UOp(Dialect.CONTRACT, dtypes.int32.vec(2), (grid,), ((1, 2),))
    whole = UOp(Dialect.CONTRACT, dtypes.int32.vec(6), (grid,), ((2, 3), (1, 2)))
    assert graph_rewrite(rows, sym + expander).src[0].arg == (0, 1, 2, 3, 4, 5)
    assert graph_rewrite(columns, sym + expander).src[0].arg == (0, 3, 1, 4, 2, 5)
    assert graph_rewrite(whole, sym + expander).arg == (0, 3, 1, 4, 2, 5)
    twice = UOp(
        Dialect.CONTRACT, dtypes.int32.vec(4), (lanes(7, 8, axes=((1, 2),)),), ((1, 2), (3, 2))
    )
    assert graph_rewrite(twice, sym + expander).arg == (7, 7, 8, 8)


def test_tags_stay_when_a_graph_is_rewritten() -> None:
    total = (UOp.const(dtypes.int32, 1) + UOp.variable("v", 0, 3, dtypes.int32)).rtag("sum")
    grow = PatternMatcher([(UPat(Ops.CONST, name="c"), grown)])
    once = graph_rewrite(total, grow)
    assert once.tag == "sum"
    assert {s.arg for s in once.src if s.op is Ops.CONST} == {2}
    assert graph_rewrite(once, grow) is once


def grown(c: UOp) -> UOp | None:
    return None if c.tag else c.replace(arg=c.arg + 1, tag=1)
