"""The golden table of schedules: every kernel of the catalogue for every Target.

A line of `kernels.txt` has what a kernel becomes for a Target: a digest of its Linear, a digest of
the source and its number of lines, and the Opts of the default schedule. After a change that means
to leave programs as they are, the table is the same; after one that does not, `pytest
--update-golden` writes it anew and its diff says which kernels changed. Python hashes strings
otherwise in every process, so that a table that depended on the order of a set would not hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from aster_ml import Context
from aster_ml.codegen.passes import lower
from aster_ml.engine.compile import render
from aster_ml.target import Target
from aster_ml.uop.node import UOp
from aster_ml.uop.print.text import linear_to_text, to_text
from tests.core.golden.kernels import TARGETS, catalogue

TABLE = Path(__file__).parent / "kernels.txt"
HEADER = (
    "# Kernel and digest of its AST; below it for each Target: digest of the Linear, digest of the",
    "# source, lines of the source, Opts. Written by `pytest --update-golden`.",
)
# Rows of the table that a failure shows.
SHOWN = 30


def digest(text: str) -> str:
    """Ten digits that tell texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def row(ast: UOp, target: Target) -> str:
    """What a kernel becomes for a Target, in one line."""
    linear, opts = lower(ast, target)
    source = render(linear, target)
    lines, words = source.count("\n"), " ".join(map(repr, opts)) or "plain loops"
    return f"{digest(linear_to_text(linear))} {digest(source)} {lines:5d}  {words}"


def lines_for(targets: Iterable[str]) -> dict[str, str]:
    """Lines of the table for these Targets, by what each is of."""
    found = {}
    with Context(NOOPT=0, DETERMINISTIC=0):
        for name, ast in catalogue().items():
            found[name] = f"{name}  {digest(to_text(ast))}"
            for target in targets:
                found[f"{name} for {target}"] = f"    {target:8}{row(ast, TARGETS[target])}"
    return found


def kept(target: str) -> list[str]:
    """Lines of the kept table without those for other Targets."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    others = tuple(f"    {name:8}" for name in TARGETS if name != target)
    return [line for line in lines if not line.startswith(("#", *others))]


@pytest.mark.parametrize("target", TARGETS)
def test_programs_of_the_catalogue_are_those_of_the_table(
    target: str, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--update-golden") and target == next(iter(TARGETS)):
        text = "\n".join([*HEADER, *lines_for(TARGETS).values(), ""])
        TABLE.write_text(text, encoding="utf-8", newline="\n")
    have, wanted = lines_for([target]), kept(target)
    known = set(wanted)
    changed = [f"{name}: {line.strip()}" for name, line in have.items() if line not in known]
    shown = "\n".join(changed[:SHOWN])
    assert not changed, f"{len(changed)} rows; pytest --update-golden, if meant:\n{shown}"
    same = list(have.values()) == wanted
    assert same, "other rows, or in another order: pytest --update-golden, if meant"


def test_the_catalogue_is_large_enough_to_trust() -> None:
    assert len(catalogue()) >= 120
    assert len(TARGETS) == 4
