"""Patterns match what they say; tables try rules in order and compile when first asked."""

from __future__ import annotations

import pytest

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import (
    Namespace,
    PatternMatcher,
    Rule,
    UPat,
    fired_counts,
    source_of_rules,
)

F32, I32 = dtypes.float32, dtypes.int32
X, Y = (UOp.variable(name, 0, 9, I32) for name in "xy")


def const(value: int) -> UOp:
    """An int32 constant."""
    return UOp.const(I32, value)


def matches(pattern: UPat, u: UOp) -> dict[str, UOp] | None:
    """The nodes that a match names, None without a match."""
    found: dict[str, UOp] = {}

    def note(u: UOp) -> UOp:
        found["u"] = u
        return const(99)

    rule = Rule("note", pattern, note)
    return found if PatternMatcher([rule]).rewrite(u) is not None else None


def named(pattern: UPat, name: str, u: UOp) -> UOp | None:
    """What the pattern calls `name` in `u`."""
    take = {"x": lambda x: x, "c": lambda c: c, "y": lambda y: y}[name]
    return PatternMatcher([Rule("take", pattern, take)]).rewrite(u)


def test_a_commutative_op_matches_in_any_order() -> None:
    pattern = UPat.var("x") * UPat.cvar("c")
    assert named(pattern, "x", X * 3) is X
    assert named(pattern, "c", X * 3) is const(3)
    assert named(pattern, "x", UOp(Ops.MUL, I32, (const(3), X))) is X


def test_an_op_that_does_not_commute_matches_in_order() -> None:
    pattern = UPat.var("x") - UPat.const(0)
    assert named(pattern, "x", X - 0) is X
    assert matches(pattern, UOp(Ops.SUB, I32, (const(0), X))) is None


def test_any_order_reaches_below_the_root() -> None:
    pattern = (UPat.var("x") + UPat.cvar("c")) * UPat.var("y")
    assert named(pattern, "x", UOp(Ops.MUL, I32, (Y, UOp(Ops.ADD, I32, (const(2), X))))) is X


def test_a_name_that_occurs_twice_asks_for_the_same_node() -> None:
    pattern = UPat.var("x") ^ UPat.var("x")
    assert named(pattern, "x", X ^ X) is X
    assert matches(pattern, X ^ Y) is None


@pytest.mark.parametrize(
    "pattern, fits",
    [
        (UPat(Ops.ADD), True),
        (UPat((Ops.MUL, Ops.ADD)), True),
        (UPat(Ops.MUL), False),
        (UPat(None, I32), True),
        (UPat(None, (F32, I32)), True),
        (UPat(Ops.ADD, F32), False),
        (UPat(Ops.ADD, src=(UPat(Ops.DEFINE_VAR), UPat(Ops.CONST, arg=5))), True),
        (UPat(Ops.ADD, src=(UPat(Ops.DEFINE_VAR), UPat(Ops.CONST, arg=6))), False),
        (UPat(Ops.ADD, src=(UPat(Ops.DEFINE_VAR),)), False),
        (UPat(Ops.ADD, src=(UPat(Ops.DEFINE_VAR),), prefix=True), True),
        (UPat(Ops.ADD, src=()), False),
        (UPat(Ops.ADD, src=(UPat(), UPat(src=()))), True),
    ],
)
def test_what_a_pattern_asks_for(pattern: UPat, fits: bool) -> None:
    assert (matches(pattern, X + 5) is not None) is fits


def test_zero_stands_for_every_zero() -> None:
    for zero in (UOp.const(F32, -0.0), UOp.const(dtypes.bool, False), const(0)):
        assert matches(UPat.const(0), zero) is not None


def test_operators_read_like_algebra() -> None:
    x, y = UPat.var("x"), UPat.var("y")
    assert matches((x // 4) * 4 + x % 4, (X // 4) * 4 + X % 4) is not None
    assert matches((x < y).where(x, y), (X < Y).where(X, Y)) is not None
    assert matches((x < y).logical_not(), (X < Y).logical_not()) is not None
    assert matches(x.cast(F32), X.cast(F32)) is not None
    assert matches((x | y) & (x << 2), (X | Y) & (X << 2)) is not None
    assert matches((x >> y).max(x), (X >> Y).maximum(X)) is not None
    assert matches(x.ne(y), X.ne(Y)) is not None
    assert matches(x.eq(3), X.eq(3)) is not None
    assert matches(x / y, X.cast(F32).alu(Ops.FDIV, Y.cast(F32))) is not None


def test_the_first_rule_that_applies_wins_and_none_passes_on() -> None:
    a = Rule("leaves it", UPat.var("x") + 5, lambda: None)
    b = Rule("itself is no change", UPat(Ops.ADD), lambda u: u)
    c = Rule("first", UPat.var("x") + 5, lambda x: x)
    d = Rule("second", UPat.var("x") + UPat.cvar(), lambda: const(0))
    pm = PatternMatcher([a, b, c, d])
    assert pm.rewrite(X + 5) is X
    assert pm.rewrite(X + 6) is const(0)
    assert pm.rewrite(X * 5) is None
    assert [r.fired for r in (a, b, c, d)] == [0, 0, 1, 1]
    assert pm.explain(X + 5) == ("first", X)
    assert pm.explain(X * 5) is None


def test_a_guard_and_the_context_decide() -> None:
    rule = Rule(
        "bounded", UPat.var("x") + UPat.cvar("c"), lambda x, ctx: x, lambda c, ctx: c.arg < ctx
    )
    pm = PatternMatcher([rule])
    assert pm.rewrite(X + 5, 6) is X
    assert pm.rewrite(X + 5, 5) is None


def test_neighbours_share_what_they_prepare() -> None:
    calls = []

    def prepare(x: UOp) -> int:
        calls.append(x)
        return len(calls)

    pattern = UPat(Ops.ADD, src=(UPat.var("x"), UPat.cvar("c")))
    rules = [
        Rule("no", pattern, lambda info: None, prepare=prepare),
        Rule("never", pattern, lambda x: x, lambda info: info > 5, prepare),
        Rule("yes", pattern, lambda info: const(info), prepare=prepare),
    ]
    assert PatternMatcher(rules).rewrite(UOp(Ops.ADD, I32, (X, const(5)))) is const(1)
    assert calls == [X]


def test_a_guard_that_needs_nothing_prepared_comes_before_it() -> None:
    rule = Rule("odd", UPat.cvar("c"), lambda c: X, lambda c: c.arg % 2, lambda c: 1 // (c.arg % 2))
    pm = PatternMatcher([rule])
    assert pm.rewrite(const(3)) is X
    assert pm.rewrite(const(4)) is None


def test_tables_add_up_and_share_their_counts() -> None:
    a, b = Rule("test a", UPat(Ops.ADD), lambda: X), Rule("test b", UPat(Ops.MUL), lambda: Y)
    both = PatternMatcher([a]) + PatternMatcher([b])
    assert both.rewrite(X + 5) is X
    assert both.rewrite(X * 5) is Y
    assert both.rewrite(X * 5) is Y
    counts = fired_counts()
    assert counts["test a"] == 1
    assert counts["test b"] == 2


def test_nothing_compiles_before_an_op_is_met() -> None:
    pm = PatternMatcher([Rule("r", UPat((Ops.ADD, Ops.MUL)), lambda: X)])
    assert not dict(pm.table)
    assert pm.rewrite(X + 1) is X
    assert pm.rewrite(const(1)) is None
    assert set(pm.table) == {Ops.ADD, Ops.CONST}
    assert pm.table[Ops.CONST] is None


def test_the_ops_of_the_sources_are_tested_once_for_neighbours() -> None:
    x, c = UPat.var("x"), UPat.cvar("c")
    rules = [Rule(f"r{i}", UPat(Ops.SUB, None, (x, c)), lambda: None) for i in range(5)]
    text = source_of_rules(Ops.SUB, rules, Namespace())
    assert text.count(".op is") == 1
    assert text.count(".fired += 1") == 5


def test_a_pattern_prints_as_what_it_asks_for() -> None:
    shown = "UPat(ADD (UPat(? x int32), UPat(CONST arg=1)) in any order)"
    assert repr(UPat.var("x", I32) + 1) == shown
