"""Every rule alone: on random instances of its pattern, a node means the same before and after."""

from __future__ import annotations

import pytest

from aster_ml.dtype import dtypes
from aster_ml.uop.node import UOp
from aster_ml.uop.ops import Ops
from aster_ml.uop.pattern import Rule
from aster_ml.uop.rules.symbolic import symbolic
from tests.core.rules.instances import fired_instances

# What these leave out or put in is an access to memory, not a value.
MEMORY_RULES = frozenset({"load-gate-true", "load-gate-false", "store-gate-true"})
VALUE_RULES = [rule for rule in symbolic.rules if rule.name not in MEMORY_RULES]
WANTED = 60


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
