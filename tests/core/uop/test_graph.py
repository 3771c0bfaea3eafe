"""Walks: order, consumers, substitution and search, at any depth."""

from __future__ import annotations

from aster_ml.dtype import dtypes
from aster_ml.uop.graph import (
    consumers,
    reaches,
    rebuilt,
    substitute,
    substitute_all,
    substitute_ordered,
    toposort,
)
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops

I32 = dtypes.int32
X, Y = (UOp.variable(name, 0, 9, I32) for name in "xy")
XY = X * Y
U = XY + XY.alu(Ops.NEG)


def deep(leaf: UOp, depth: int = 100_000) -> UOp:
    """A chain."""
    for _ in range(depth):
        leaf = UOp(Ops.NEG, I32, (leaf,))
    return leaf


def test_sources_come_first_and_each_node_once() -> None:
    order = list(toposort(U))
    assert order == [X, Y, XY, XY.alu(Ops.NEG), U]
    assert list(toposort(X, U, Y)) == [X, Y, XY, XY.alu(Ops.NEG), U]


def test_what_is_not_entered_is_listed_all_the_same() -> None:
    assert list(toposort(U, enter=lambda u: u is not XY)) == [XY, XY.alu(Ops.NEG), U]


def test_consumers() -> None:
    found = consumers(toposort(UOp.sink(U, U)))
    assert found[XY] == [XY.alu(Ops.NEG), U]
    assert found[X] == [XY]
    assert found[U] == [UOp.sink(U, U)]
    assert found[UOp.sink(U, U)] == []


def test_substitution() -> None:
    assert substitute(U, {X: Y}) is (Y * Y) + (Y * Y).alu(Ops.NEG)
    assert substitute(U, {UOp.const(I32, 5): X}) is U
    # What stands below a replaced node is not looked at.
    assert substitute(U, {XY: X, X: Y}) is X + X.alu(Ops.NEG)
    # Replacements are not replaced again.
    assert substitute(X + Y, {X: Y, Y: X}) is UOp(Ops.ADD, I32, (Y, X))
    assert substitute(U, {X: Y}, enter=lambda u: u is not XY) is U
    assert substitute_all([U, X, XY], {X: Y}) == [substitute(U, {X: Y}), Y, Y * Y]


def test_substitution_in_a_known_order_gives_the_same() -> None:
    order = list(toposort(U, X + Y))
    for changes in ({X: Y}, {XY: X, X: Y}, {X: Y, Y: X}, {U: X}, {}):
        roots = [U, X + Y]
        assert substitute_ordered(roots, changes, order) == substitute_all(roots, changes)


def test_rebuilding_asks_about_the_named_ops_alone() -> None:
    asked: list[tuple[UOp, UOp]] = []

    def change(old: UOp, u: UOp) -> UOp:
        asked.append((old, u))
        return Y if old is XY else u

    # The second is asked about over what has become of the first.
    assert rebuilt(U, {Ops.MUL, Ops.ADD}, change) is Y + Y.alu(Ops.NEG)
    assert asked == [(XY, XY), (U, Y + Y.alu(Ops.NEG))]
    assert rebuilt(U, {Ops.SUB}, change) is U
    assert len(asked) == 2


def test_an_order_goes_on() -> None:
    order = toposort(XY)
    assert toposort(U, done=order) is order
    assert list(order) == list(toposort(U))


def test_search() -> None:
    assert reaches(U, lambda u: u is Y)
    assert reaches(U, lambda u: u is U)
    assert not reaches(U, lambda u: u.op is Ops.CONST)


def test_chains_of_any_depth() -> None:
    u = deep(X)
    assert len(toposort(u)) == 100_001
    assert substitute(u, {X: Y}) is deep(Y)
    assert reaches(u, lambda s: s is X)
    assert len(consumers(toposort(u))[X]) == 1
