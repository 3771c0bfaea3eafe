"""Node tests of ONNX: each case comes out as the reference says, or `differs.toml` says why not.

`make test` runs the modules of one day in twenty; `make onnx` all of them, and a part on the CPU.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Callable

import pytest

from tests.programs.onnx.node_cases import (
    GROUPS,
    HERE,
    Case,
    cases,
    group,
    known_differences,
    modules,
    outcome,
)

Record = Callable[[str, str], None]


def check(found: list[Case], device: str) -> int:
    """How many cases of Aster's dtypes come out right; fails where that is not as is written."""
    known, wrong, right = known_differences(), [], 0
    for case in found:
        said = outcome(case, device)
        if (said is not None) != (case.name in known):
            wrong.append(f"{case.name}: {said or 'right, and differs.toml says that it is not'}")
        right += said is None and case.is_ours
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong[:30])
    return right


def test_cases_of_today() -> None:
    day = datetime.date.today().toordinal()
    found = cases(modules()[day % 20 :: 20])
    assert check(found, "PYTHON") > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(GROUPS))
def test_all_cases(number: int, record_property: Record) -> None:
    found = cases(group(number))
    right, ours = check(found, "PYTHON"), sum([case.is_ours for case in found])
    record_property(
        "fuzz", f"node tests, part {number}: {right} of {ours} right, {len(found)} in all"
    )
    figures = tomllib.loads((HERE / "figures.toml").read_text(encoding="utf-8"))
    assert figures["parts"][number] == [len(found), ours, right]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_some_cases_on_the_cpu() -> None:
    assert check(cases(modules()[3::12]), "CPU") > 0


def test_known_differences_have_reasons() -> None:
    known = known_differences()
    assert known
    assert all(len(why) > 20 for why in known.values())
