"""The figures of `tools/measures.py` do not rise above what `measures.txt` allows."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tools.measures import (
    MEASURES,
    allowed,
    asks_for_language,
    code_lines,
    is_number,
    is_sourced,
    makes_scratch,
    module_of,
    reads_flag,
    ring_of,
    workloads,
)


def test_every_figure_has_a_limit_and_every_limit_a_figure() -> None:
    assert list(allowed()) == [m.name for m in MEASURES]


def test_no_figure_rises() -> None:
    most = allowed()
    found = [(m, m.count()) for m in MEASURES]
    risen = [
        f"{m.name}: {n:,}, and tests/lint/measures.txt allows {most[m.name]:,} ({m.rule})"
        for m, n in found
        if n > most[m.name]
    ]
    assert not risen, "\n".join([*risen, "a rise needs a record in docs/decisions"])


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


def test_lines_of_code_are_those_with_code() -> None:
    text = '"""Says."""\n\n# A comment.\ndef f() -> int:\n    """One."""\n    return (\n1\n)\n'
    assert code_lines(text, ast.parse(text)) == 4


def test_a_constant_is_sourced_by_its_comment() -> None:
    lines = ["A = 1", "# Source: a manual.", "B = 2", "C = 3  # measured on a Xeon, 2026-11"]
    assert [is_sourced(lines, n) for n in (1, 3, 4)] == [False, True, True]


def test_a_flag_is_an_attribute_of_an_attribute_of_a_kernel() -> None:
    assert counted(reads_flag, "kernel.roles.panel\nkernel.plans\ntarget.costs.load") == 1


def test_words_of_workloads_are_found_where_they_begin_a_word() -> None:
    found = [bool(workloads().search(t)) for t in ("flash_attention", "exploration", "tokenize")]
    assert found == [True, False, True]


def test_every_module_has_a_ring() -> None:
    assert ring_of(module_of("src/aster_ml/uop/node.py")) == "core"
    assert ring_of(module_of("src/aster_ml/nn/optim.py")) == "library"
    assert ring_of(module_of("src/aster_ml/cli.py")) == "programs"
