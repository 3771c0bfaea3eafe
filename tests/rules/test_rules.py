"""Every rule alone: on random instances of its pattern, a node means the same before and after."""

from __future__ import annotations

import random

import pytest

from aster_ml.dtype import dtypes
from aster_ml.uop.evaluate import evaluate_expr
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import PatternMatcher, Rule
from aster_ml.uop.print.infix import render_expr
from aster_ml.uop.rules.symbolic import symbolic
from tests.rules.instances import DrawAgainError, Instance, same_value

# What these leave out or put in is an access to memory, not a value.
MEMORY_RULES = frozenset({"load-gate-true", "load-gate-false", "store-gate-true"})
VALUE_RULES = [rule for rule in symbolic.rules if rule.name not in MEMORY_RULES]
TRIES, WANTED, VALUES = 20_000, 60, 6


def fired_instances(rule: Rule, wanted: int) -> int:
    """How many of the wanted instances were found, each compared on several values."""
    rng = random.Random(rule.name)
    alone = PatternMatcher([rule])
    found = 0
    for _ in range(TRIES):
        instance = Instance(rng)
        try:
            before = instance.node(rule.pattern, None)
        except DrawAgainError:
            continue
        after = alone.rewrite(before)
        if after is None:
            continue
        found += 1
        assert after.dtype is before.dtype, f"{rule.name}: {before!r} became {after!r}"
        for _ in range(VALUES):
            values = instance.draw_values()
            expected, given = evaluate_expr(before, values), evaluate_expr(after, values)
            assert same_value(expected, given), (
                f"{rule.name}: {render_expr(before)} is {expected!r}, as {render_expr(after)} it "
                f"is {given!r}, with { {render_expr(u): v for u, v in values.items()} }"
            )
        if found == wanted:
            break
    return found


@pytest.mark.parametrize("rule", VALUE_RULES, ids=lambda rule: rule.name)
def test_rule_keeps_the_value(rule: Rule) -> None:
    found = fired_instances(rule, WANTED)
    assert found >= WANTED // 3, f"{rule.name} fired {found} times; it is hardly tested"


def test_names_are_unique() -> None:
    names = [rule.name for rule in symbolic.rules]
    assert len(set(names)) == len(names)


def test_no_rule_is_left_out() -> None:
    assert {r.name for r in symbolic.rules} - {r.name for r in VALUE_RULES} == MEMORY_RULES


@pytest.fixture
def element() -> UOp:
    """An element of a buffer."""
    return UOp.param(0, 8, dtypes.float32).index(UOp.range(8, 0))


def test_load_under_a_gate_that_always_holds_needs_none(element: UOp) -> None:
    true = UOp.const(dtypes.bool, True)
    assert symbolic.rewrite(element.load(true)) is element.load()


def test_load_under_a_gate_that_never_holds_is_zero(element: UOp) -> None:
    false = UOp.const(dtypes.bool, False)
    assert symbolic.rewrite(element.load(false)) is UOp.const(dtypes.float32, 0.0)


def test_store_under_a_gate_that_always_holds_needs_none(element: UOp) -> None:
    true, value = UOp.const(dtypes.bool, True), UOp.const(dtypes.float32, 1.0)
    assert symbolic.rewrite(element.store(value, true)) is element.store(value)
    assert symbolic.rewrite(element.store(value, true)).op is Ops.STORE
