"""The comparison of default schedules with those of a search: arithmetic, files, kernels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aster_ml import Tensor
from aster_ml.uop.print.text import to_text
from tools import beam_kernels, compare_beam
from tools.compare_beam import Compared

CASE = Compared("sum", "text", "VECTOR(0,8)", "VECTOR(0,16)", 5, 30.0, 20.0)


def test_ratio_is_that_of_the_times_and_one_without_another_schedule() -> None:
    assert CASE.ratio == 1.5
    assert replace(CASE, found=CASE.default, default_us=0.0, found_us=0.0).ratio == 1.0


def test_summary_names_what_a_search_wins_the_largest_first() -> None:
    cases = [
        replace(CASE, name="small", default_us=20.8),
        CASE,
        replace(CASE, name="large", default_us=80.0, default=""),
        replace(CASE, name="slower", default_us=10.0),
    ]
    *lines, last = compare_beam.summary(cases)
    assert [line.split("  ")[-1] for line in lines[::2]] == ["large", "sum"]
    assert lines[1].strip() == "plain loops  ->  VECTOR(0,16)"
    # 1.04 * 1.5 * 4 * 0.5 = 3.12, and its fourth root.
    assert "4 kernels: a search is 1.329 times as fast" in last
    assert "by 5% or more for 2; most 4.00 times (large)" in last


def test_summary_of_nothing() -> None:
    assert compare_beam.summary([]) == ["no kernel was compared"]


def test_what_was_found_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    compare_beam.write(path, [CASE])
    compare_beam.write(None, [])
    assert compare_beam.read(path) == [CASE]


@pytest.mark.parametrize(
    ("found", "fits"), [("UPCAST(0,2)", True), ("UPCAST(7,2)", False), ("", True)]
)
def test_both_schedules_are_timed_and_one_that_does_not_fit_is_no_gain(
    found: str, fits: bool
) -> None:
    [ast] = beam_kernels.kernels_of([Tensor.ones(64, 48).contiguous().realize() * 2 + 1])
    case = compare_beam.timed(Compared("small", to_text(ast), "", found), turns=1)
    assert case.default
    assert (case.found == found) == fits
    assert (case.default_us > 0 and case.found_us > 0) == fits
    assert fits or case.ratio == 1.0


def test_kernels_are_the_same_for_a_seed_and_come_once() -> None:
    def wanted(name: str) -> bool:
        return name in ("argmax", "cat", "gradient of max", "AdamW")

    found = beam_kernels.kernels(4, wanted)
    again = beam_kernels.kernels(4, wanted)
    assert {n: ast.key for n, ast in found.items()} == {n: ast.key for n, ast in again.items()}
    assert len(set(found.values())) == len(found)
    assert {"argmax", "cat", "AdamW, kernel 1"} <= found.keys()
    assert beam_kernels.kernels(5, wanted)["cat"] is not found["cat"]


def test_sets_are_among_the_kernels() -> None:
    names = [name for name, _ in beam_kernels.of_sets(4)]
    for part in (" @ ", "conv ", " over ", "("):
        assert any(part in name for name in names)
