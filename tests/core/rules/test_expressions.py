"""Whole expressions: what `simplify` and its kin return means what was given, on random trees."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aster_ml.dtype import dtypes
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.graph import toposort
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.print.infix import render_expr
from aster_ml.uop.rewrite import graph_rewrite
from aster_ml.uop.rules.symbolic import (
    affine,
    bounds_given,
    simplify,
    simplify_given,
    stride_of,
    symbolic,
)
from tests.core.rules.instances import DIVISORS, Instance

INDEX, BOOL = dtypes.index, dtypes.bool
ARITHMETIC = (
    *[Ops.ADD] * 4,
    *[Ops.MUL] * 3,
    *[Ops.IDIV] * 3,
    *[Ops.MOD] * 3,
    Ops.SUB,
    Ops.MAX,
    Ops.WHERE,
)
COUNT = 4000


class Tree(Instance):
    """Random trees over a few leaves."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.pool = [self.range() for _ in range(rng.choice([1, 2, 3]))]
        if rng.random() < 0.4:
            n = self.size_variable()
            self.pool += [n, self.range(n)]

    def index(self, depth: int) -> UOp:
        """An index expression."""
        rng = self.rng
        if depth <= 0 or rng.random() < 0.15:
            if rng.random() < 0.3:
                return UOp.index_const(rng.choice([0, 1, 2, 3, 4, 5, 8, 12, 16, -1, -2, -3, -8]))
            return rng.choice(self.pool)
        op = rng.choice(ARITHMETIC)
        x = self.index(depth - 1)
        if op is Ops.WHERE:
            return UOp(op, INDEX, (self.truth(depth - 1), x, self.index(depth - 1)))
        if op in (Ops.IDIV, Ops.MOD) or (op is Ops.MUL and rng.random() < 0.85):
            sizes = [u for u in self.pool if u.op is Ops.DEFINE_VAR]
            if sizes and rng.random() < 0.15:
                return UOp(op, INDEX, (x, rng.choice(sizes)))
            c = rng.choice(DIVISORS) if rng.random() < 0.9 else rng.choice([-1, -2, -4, -7])
            return UOp(op, INDEX, (x, UOp.index_const(c)))
        return UOp(op, INDEX, (x, self.index(depth - 1)))

    def truth(self, depth: int) -> UOp:
        """A condition."""
        k = self.rng.random()
        if depth > 0 and k < 0.3:
            op = self.rng.choice([Ops.AND, Ops.OR])
            return UOp(op, BOOL, (self.truth(depth - 1), self.truth(depth - 1)))
        if depth > 0 and k < 0.4:
            return UOp(Ops.CMPNE, BOOL, (self.truth(depth - 1), UOp.const(BOOL, True)))
        op = self.rng.choice([Ops.CMPLT, Ops.CMPLT, Ops.CMPLT, Ops.CMPNE, Ops.CMPEQ])
        return UOp(op, BOOL, (self.index(depth - 1), self.index(depth - 2)))

    def draw(self, depth: int) -> UOp:
        """One or the other."""
        return self.truth(depth) if self.rng.random() < 0.3 else self.index(depth)


def shown(values: dict[UOp, Any]) -> dict[str, Any]:
    """Values by the names of their leaves."""
    return {render_expr(u): v for u, v in values.items()}


def trees(name: str, count: int = COUNT) -> Any:
    """Trees to test on, the same in every run."""
    rng = random.Random(name)
    for _ in range(count):
        yield Tree(rng)


def test_simplify_keeps_the_value_and_bounds_hold() -> None:
    for tree in trees("value"):
        u = tree.draw(tree.rng.choice([2, 3, 4, 5]))
        s = simplify(u)
        for _ in range(8):
            values = tree.draw_values()
            expected, given = evaluate_expr(u, values), evaluate_expr(s, values)
            assert expected == given, f"{render_expr(u)} became {render_expr(s)}: {shown(values)}"
            assert expected.__class__ is given.__class__
            for x in (u, s):
                assert x.vmin <= expected <= x.vmax, f"{render_expr(x)}: {shown(values)}"


def test_simplify_leaves_what_it_made_as_it_is() -> None:
    for tree in trees("again"):
        u = simplify(tree.draw(4))
        assert simplify(u) is u, f"{render_expr(u)} became {render_expr(simplify(u))}"


def test_the_rules_one_by_one_agree_with_simplify() -> None:
    differing = []
    for tree in trees("driver", 600):
        u = tree.draw(4)
        by_rules, s = graph_rewrite(u, symbolic), simplify(u)
        for _ in range(6):
            values = tree.draw_values()
            assert evaluate_expr(by_rules, values) == evaluate_expr(s, values)
        if by_rules is not s:
            differing.append((u, by_rules, s))
    # Taking a sum at once may meet other quotients first than taking it pair by pair.
    assert len(differing) < 60, [tuple(map(render_expr, row)) for row in differing[:5]]


def test_simplify_never_makes_more_divisions() -> None:
    for tree in trees("divisions"):
        u = tree.draw(4)
        s = simplify(u)
        before, after = [sum(x.op in (Ops.IDIV, Ops.MOD) for x in toposort(x)) for x in (u, s)]
        assert after <= before + 2, f"{render_expr(u)} became {render_expr(s)}"


def test_given_a_condition_the_value_is_kept_where_it_holds() -> None:
    held = 0
    for tree in trees("given"):
        u, valid = tree.draw(4), tree.truth(2)
        s = simplify_given(u, valid)
        for _ in range(8):
            values = tree.draw_values()
            if evaluate_expr(valid, values):
                held += 1
                assert evaluate_expr(u, values) == evaluate_expr(s, values), (
                    f"{render_expr(u)} given {render_expr(valid)} became {render_expr(s)}: "
                    f"{shown(values)}"
                )
    assert held > COUNT


def test_bounds_given_a_condition_hold_where_it_does() -> None:
    for tree in trees("bounds"):
        u, valid = tree.index(4), tree.truth(2)
        low, high = bounds_given(u, valid)
        for _ in range(8):
            values = tree.draw_values()
            if evaluate_expr(valid, values):
                value = evaluate_expr(u, values)
                assert low <= value <= high, f"{render_expr(u)} given {render_expr(valid)}"


def test_base_and_strides_make_the_index() -> None:
    affine_lanes = 0
    for tree in trees("affine"):
        u = tree.index(3)
        lanes = [r for r in tree.pool if r.op is Ops.RANGE]
        base, strides = affine(u, lanes)
        affine_lanes += len(strides)
        assert not any(r in base.ranges for r in strides)
        assert all(stride_of(u, r) == strides.get(r) for r in lanes if r in u.ranges)
        for _ in range(6):
            values = tree.draw_values()
            total = sum(values[r] * s for r, s in strides.items())
            assert evaluate_expr(base, values) + total == evaluate_expr(u, values)
    assert affine_lanes > COUNT


def to_z3(u: UOp, z3: Any) -> tuple[Any, list[Any]]:
    """An expression without symbolic divisors for z3, and what holds of its leaves."""
    known: dict[UOp, Any] = {}
    facts: list[Any] = []
    binary = {
        Ops.ADD: lambda x, y: x + y,
        Ops.SUB: lambda x, y: x - y,
        Ops.MUL: lambda x, y: x * y,
        Ops.MAX: lambda x, y: z3.If(x >= y, x, y),
        Ops.CMPLT: lambda x, y: x < y,
        Ops.CMPNE: lambda x, y: x != y,
        Ops.CMPEQ: lambda x, y: x == y,
        Ops.AND: z3.And,
        Ops.OR: z3.Or,
    }
    for x in toposort(u):
        src = [known[s] for s in x.src]
        if x.op is Ops.CONST:
            known[x] = z3.BoolVal(x.arg) if x.dtype is BOOL else z3.IntVal(x.arg)
        elif x.op is Ops.RANGE:
            known[x] = z3.Int(f"r{x.arg.id}_{x.src[0].arg}")
            facts += [known[x] >= 0, known[x] < src[0]]
        elif x.op is Ops.WHERE:
            known[x] = z3.If(*src)
        elif x.op in (Ops.IDIV, Ops.MOD):
            # z3 divides so that the remainder is not negative; downwards when the divisor is not.
            a, b = src if x.src[1].arg > 0 else (-src[0], -src[1])
            quotient = a / b
            known[x] = quotient if x.op is Ops.IDIV else src[0] - src[1] * quotient
        else:
            known[x] = binary[x.op](*src)
    return known[u], facts


@pytest.mark.timeout(120)
def test_z3_finds_no_values_for_which_simplify_is_wrong() -> None:
    z3 = pytest.importorskip("z3", reason="z3-solver is not installed")
    decided = 0
    for tree in trees("z3", 150):
        tree.pool = [r for r in tree.pool if r.op is Ops.RANGE and r.src[0].op is Ops.CONST]
        u = tree.draw(3)
        s = simplify(u)
        if s is u:
            continue
        (before, facts), (after, more) = to_z3(u, z3), to_z3(s, z3)
        solver = z3.Solver()
        solver.set("timeout", 500)
        solver.add(*facts, *more, before != after)
        found = solver.check()
        assert found != z3.sat, f"{render_expr(u)} became {render_expr(s)}: {solver.model()}"
        decided += found == z3.unsat
    assert decided > 60
