"""The figures of `tools/measures.py` do not rise above what `measures.txt` allows."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tools.measures import (
    MEASURES,
    Measure,
    allowed,
    asks_for_language,
    is_number,
    makes_scratch,
)


def test_every_figure_has_a_limit_and_every_limit_a_figure() -> None:
    assert list(allowed()) == [m.name for m in MEASURES]


@pytest.mark.parametrize("measure", MEASURES, ids=[m.name for m in MEASURES])
def test_no_figure_rises(measure: Measure) -> None:
    found, most = measure.count(), allowed()[measure.name]
    assert found <= most, (
        f"{measure.name}: {found:,}, and tests/lint/measures.txt allows {most:,} "
        f"({measure.rule}); raise it there if there is a reason"
    )


def counted(rule: Callable[[ast.AST], bool], text: str) -> int:
    """For how many nodes of a program a rule holds."""
    return sum([rule(node) for node in ast.walk(ast.parse(text))])


def test_rules_count_what_they_say() -> None:
    asked = 'if target.language in ("llvm", "c") or "c" == target.language: pass\nx = t.language'
    assert counted(asks_for_language, asked) == 2
    made = "UOp(Ops.DEFINE_LOCAL, d, ())\nnew_node(Ops.DEFINE_LOCAL, d, ())\nUOp(Ops.LOAD, d)"
    assert counted(makes_scratch, made) == 2
    values = [node.value for node in ast.parse("1\n-2.5\n256 << 10\n(1, 2)\nf(1)\n()\nTrue").body]  # type: ignore[attr-defined]
    assert list(map(is_number, values)) == [True, True, True, True, False, False, False]
