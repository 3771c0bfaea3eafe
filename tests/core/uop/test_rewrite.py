"""Drivers reach a fixed point, at any depth, and say so when there is none; passes are timed."""

from __future__ import annotations

import pytest

from aster_ml.dtype import dtypes
from aster_ml.errors import InternalError
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import PatternMatcher, Rule, UPat
from aster_ml.uop.rewrite import graph_rewrite, rewrite_all

I32 = dtypes.int32
X = UOp.variable("x", 0, 9, I32)


def const(value: int) -> UOp:
    """An int32 constant."""
    return UOp.const(I32, value)


def add(x: UOp, value: int) -> UOp:
    """x + value."""
    return UOp(Ops.ADD, I32, (x, const(value)))


JOIN = PatternMatcher(
    [
        Rule(
            "join",
            (UPat.var("x") + UPat.cvar("c")) + UPat.cvar("d"),
            lambda x, c, d: add(x, c.arg + d.arg),
        ),
        Rule("drop", UPat.var("x") + 0, lambda x: x),
    ]
)


def chain(depth: int) -> UOp:
    """x + 1 - 1 + 1 ..."""
    u = X
    for i in range(depth):
        u = add(u, 1 if i % 2 == 0 else -1)
    return u


@pytest.mark.parametrize("bottom_up", [False, True])
def test_rules_apply_until_none_does(bottom_up: bool) -> None:
    assert graph_rewrite(chain(7), JOIN, bottom_up=bottom_up) is add(X, 1)
    assert graph_rewrite(chain(8), JOIN, bottom_up=bottom_up) is X


def test_a_graph_without_matches_is_returned_as_it_is() -> None:
    u = UOp(Ops.MUL, I32, (add(X, 3), X))
    assert graph_rewrite(u, JOIN) is u
    assert graph_rewrite(u, JOIN, bottom_up=True) is u


@pytest.mark.parametrize("bottom_up", [False, True])
def test_chains_of_any_depth(bottom_up: bool) -> None:
    u = X
    for _ in range(100_000):
        u = UOp(Ops.NEG, I32, (u,))
    swap = PatternMatcher(
        [
            Rule(
                "to-trunc",
                UPat(Ops.NEG, None, (UPat.var("x"),)),
                lambda x: UOp(Ops.TRUNC, I32, (x,)),
            )
        ]
    )
    result = graph_rewrite(u, swap, bottom_up=bottom_up)
    for _ in range(100_000):
        assert result.op is Ops.TRUNC
        result = result.src[0]
    assert result is X


def test_sources_are_rewritten_before_a_node_or_after_it() -> None:
    seen: list[UOp] = []
    look = PatternMatcher(
        [
            Rule("look", UPat(Ops.ADD), lambda u: seen.append(u)),
            Rule("double", UPat(Ops.DEFINE_VAR), lambda: const(7)),
        ]
    )
    graph_rewrite(add(X, 1), look)
    assert seen == [add(const(7), 1)]
    seen.clear()
    graph_rewrite(add(X, 1), look, bottom_up=True)
    assert seen[0] is add(X, 1)


def test_the_context_reaches_the_rules() -> None:
    pm = PatternMatcher([Rule("count", UPat(Ops.DEFINE_VAR), lambda ctx: ctx.append(1))])
    calls: list[int] = []
    graph_rewrite(UOp.sink(X, add(X, 1)), pm, calls)
    assert calls == [1]


def test_several_roots_share_the_work() -> None:
    pm = PatternMatcher([Rule("note", UPat(Ops.ADD), lambda u, ctx: ctx.append(u))])
    seen: list[UOp] = []
    a = add(X, 1)
    assert rewrite_all([a, UOp(Ops.NEG, I32, (a,)), a], pm, seen)[2] is a
    assert seen == [a]


@pytest.mark.parametrize("bottom_up", [False, True])
@pytest.mark.parametrize(
    "rules",
    [
        [
            Rule("there", UPat(Ops.ADD), lambda u: UOp(Ops.SUB, I32, u.src)),
            Rule("and back", UPat(Ops.SUB), lambda u: UOp(Ops.ADD, I32, u.src)),
        ],
        [Rule("wraps itself", UPat(Ops.ADD), lambda u: UOp(Ops.NEG, I32, (u,)))],
        [Rule("grows", UPat.var("x") + UPat.cvar("c"), lambda x, c: add(x, c.arg + 1))],
    ],
    ids=["circle", "inside", "growth"],
)
def test_rules_that_run_in_circles_are_named(rules: list[Rule], bottom_up: bool) -> None:
    with pytest.raises(InternalError, match=r"does not end.*(there|and back|wraps itself|grows)"):
        graph_rewrite(add(X, 1), PatternMatcher(rules), bottom_up=bottom_up)
