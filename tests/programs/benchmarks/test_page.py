"""What benchmarks make of their figures: pages, plots, sets, comparisons with older figures."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import check, page, plots, report, results, sets
from benchmarks.__main__ import main
from benchmarks.drawn import CASES
from benchmarks.libraries import LIBRARIES, Library
from benchmarks.peers import ROOT
from benchmarks.results import Figures, Result
from benchmarks.row import Row, Wanted
from benchmarks.rows import RUNS, TURNS, VALUES, all_rows

COPY = Row("a copy", "subject", "case", "GB/s", Wanted(1.0, of_ratio=True))
RATE = Row("a rate", "subject", "case", "GB/s", Wanted(1.0, of_ratio=True), ceiling=COPY)
TIME = Row("a time", "subject", "case", "ms", Wanted(2.0))
ABOUT: dict[str, Any] = {
    "form": "quick",
    "date": "2026-01-01",
    "seed": 4,
    "machine": dict.fromkeys(
        ("processor", "cores", "vectors", "caches", "memory", "system", "python", "load"), "m"
    ),
    "versions": {"aster": "1"},
    "left_out": {"jax": "ModuleNotFoundError: No module named 'jax'"},
}


def result_of(row: Row, threads: int = 2, **values: list[float]) -> Result:
    figures = {n: Figures(v, less_is_better=row.less_is_better) for n, v in values.items()}
    return Result(row, row.title(False), threads, figures)


def drawn_row(number: int) -> Row:
    return Row(f"case {number}", "random cases", "case", "GB/s", drawn="cases")


def data_of(*found: Result) -> dict[str, Any]:
    return results.plain_data(found, ABOUT)


def test_page_shows_what_is_known_of_rows_behind() -> None:
    data = data_of(
        result_of(RATE, aster=[1.0], torch=[2.0]), result_of(TIME, aster=[1.0], torch=[2.0])
    )
    notes = {"a rate": {"reason": "half the width", "tried": "the other half"}}
    text = page.performance_page(data, notes)
    assert "| a rate | 2 | 0.50 | half the width | the other half |" in text
    assert "| a time | 2 | ms | 1 | 2 | 2.00 / 2.00 | <= 2, yes |" in text
    assert "jax is left out: ModuleNotFoundError" in text
    assert "quick form" in text
    assert "not yet looked into" not in text
    assert "not yet looked into" in page.performance_page(data, {})


def test_page_shows_rows_without_a_peer_that_are_not_what_is_wanted() -> None:
    notes = {"a time": {"reason": "twice the work", "tried": "half of it"}}
    for time, shown in ((3.0, True), (1.0, False)):
        text = page.performance_page(data_of(result_of(TIME, aster=[time])), notes)
        assert ("| a time | 2 | - | twice the work | half of it |" in text) == shown
        assert ("There is none." in text) != shown


def test_memory_bound_rows_are_set_beside_a_copy() -> None:
    rate = result_of(RATE, aster=[6.0, 5.0, 9.0], torch=[2.0])
    # By medians: one burst of a copy bounds nothing; the copy's own row is of another minute.
    rate.ceiling = Figures([8.0, 7.0, 99.0], less_is_better=False)
    data = data_of(rate, result_of(COPY, aster=[4.0], torch=[50.0]))
    assert data["rows"][0]["share"] == 0.75
    late = page.behind(
        data_of(rate), {"a rate": {"reason": "rows apart", "tried": "rows together"}}
    )
    assert late[1:] == [["a rate", "2", "75% of a copy", "rows apart", "rows together"]]
    rate.ceiling = Figures([6.0], less_is_better=False)
    assert not page.behind(data_of(rate), {})[1:]
    rate.ceiling = Figures([8.0, 7.0, 99.0], less_is_better=False)
    assert data["rows"][0]["ratio_median"] == 3.0
    assert "share" not in data["rows"][1]
    assert "| a rate | 2 | 6 | a copy | 8 | 75% | 80%, NO |" in page.performance_page(data, {})


@pytest.mark.parametrize(("rate", "bound"), [(7.0, True), (5.0, False)])
def test_what_is_no_faster_from_a_cache_is_not_bound_by_memory(rate: float, bound: bool) -> None:
    row = result_of(replace(RATE, name="work 64x64"), aster=[6.0], torch=[2.0])
    row.ceiling = Figures([8.0], less_is_better=False)
    cached = [
        result_of(Row(f"work 8x8{end}", "subject", "case", "GB/s", RATE.wanted), t, aster=[speed])
        for end, t, speed in ((", in a cache", 2, rate), (", in a cache", 1, 99.0), ("", 2, 1.0))
    ]
    text = page.performance_page(data_of(row, *cached), {})
    assert ("80%, NO: not bound by memory, 5 GB/s in a cache" in text) is not bound
    assert "| 75% | 80%, NO" in text


def test_memory_bound_rows_without_a_copy_have_no_share() -> None:
    failed = result_of(RATE, aster=[6.0], torch=[2.0])
    failed.ceiling = Figures(error="MemoryError: no room")
    data = data_of(failed)
    assert data["rows"][0]["ceiling"] == {"name": "a copy", "error": "MemoryError: no room"}
    assert "Rows that are bound by memory" not in page.performance_page(data, {})
    assert "MemoryError: no room" in page.performance_page(data, {})


def test_sets_are_shown_as_means_and_worst_cases() -> None:
    ratios = [2.0, 0.5, 4.0]
    data = data_of(
        *[result_of(drawn_row(i), aster=[r], torch=[1.0]) for i, r in enumerate(ratios)],
        result_of(drawn_row(7), aster=[3.0]),
    )
    [summary] = data["sets"]
    assert summary["mean"] == pytest.approx(4.0 ** (1 / 3), rel=1e-3)
    assert (summary["worst"], summary["worst_case"]) == (0.5, "case 1")
    assert (summary["cases"], summary["compared"], summary["below"]) == (4, 3, 1)
    assert summary["met"] is False
    lines = list(report.plain_tables(data))
    assert not any(line.startswith("case ") for line in lines)
    assert any(line.startswith("cases  ") and "0.50" in line for line in lines)
    text = page.performance_page(data, {"cases": {"reason": "known", "tried": "much"}})
    assert "| cases | 2 | 4 |" in text
    assert "1 of 3 are below 0.6" in text


def test_set_with_a_failed_case_is_not_met() -> None:
    failed = Result(drawn_row(1), "case 1", 2, {"aster": Figures(error="KeyError: x")})
    data = data_of(result_of(drawn_row(0), aster=[2.0], torch=[1.0]), failed)
    [summary] = data["sets"]
    assert summary["failed"] == ["case 1"]
    assert summary["met"] is False
    assert check.failed_rows(data["rows"]) == ["case 1: KeyError: x"]


def test_json_has_a_line_a_row_and_reads_back() -> None:
    data = data_of(
        result_of(RATE, aster=[1.0], torch=[2.0]),
        result_of(drawn_row(0), aster=[2.0], torch=[1.0]),
    )
    text = results.to_json(data)
    assert json.loads(text) == data
    assert sum('"name"' in line for line in text.splitlines()) == 2


def test_plots_are_xml_with_a_bar_a_peer() -> None:
    data = data_of(
        result_of(RATE, aster=[1.0], torch=[2.0], numpy=[0.001]),
        result_of(drawn_row(0), aster=[2.0], torch=[1.0]),
        result_of(drawn_row(1), aster=[1.0], torch=[2.0]),
    )
    made = plots.all_plots(data)
    assert set(made) == {"subject.svg", "random-cases.svg"}
    bars, dots = (ET.fromstring(made[name]) for name in ("subject.svg", "random-cases.svg"))
    space = "{http://www.w3.org/2000/svg}"
    fills = [r.get("fill") for r in bars.iter(f"{space}rect")]
    # Once in the legend, once in the plot.
    assert fills.count(plots.COLORS["torch"]) == fills.count(plots.COLORS["numpy"]) == 2
    circles = {c.get("fill"): float(c.get("cx", "0")) for c in dots.iter(f"{space}circle")}
    assert circles[plots.COLORS["torch"]] < plots.place(1.0) < circles[plots.COLORS["aster"]]


def test_names_in_plots_are_escaped() -> None:
    row = Row("a < b & c", "subject", "case", "GB/s")
    made = plots.all_plots(data_of(result_of(row, aster=[1.0], torch=[2.0])))
    assert "a &lt; b &amp; c" in made["subject.svg"]
    assert ET.fromstring(made["subject.svg"]) is not None


# comparing with older figures


def rows_of(*found: Result) -> list[dict[str, Any]]:
    return list(data_of(*found)["rows"])


def test_ratio_that_fell_by_half_is_found() -> None:
    before = data_of(
        result_of(RATE, aster=[4.0], torch=[2.0], jax=[8.0]),
        result_of(TIME, aster=[1.0], torch=[2.0]),
    )
    now = rows_of(
        result_of(RATE, aster=[1.8], torch=[2.0]), result_of(TIME, aster=[1.9], torch=[2.0])
    )
    falls, compared = check.compare(before, now)
    # JAX is not there now, so the ratio of before counts PyTorch alone: 2.0, of which 0.9 is left.
    assert [f.name for f in falls] == ["a rate"]
    assert (falls[0].before, falls[0].now) == (2.0, 0.9)
    assert compared == 2


def test_one_good_sample_is_enough() -> None:
    before = data_of(result_of(RATE, aster=[4.0], torch=[2.0]))
    now = rows_of(result_of(RATE, aster=[4.0, 0.5, 0.5], torch=[2.0, 2.0, 2.0]))
    assert check.compare(before, now) == ([], 1)


def test_rows_without_a_common_peer_are_not_compared() -> None:
    before = data_of(result_of(RATE, aster=[4.0], jax=[2.0]))
    assert check.compare(before, rows_of(result_of(RATE, aster=[1.0], torch=[2.0]))) == ([], 0)
    assert check.compare(before, rows_of(result_of(COPY, aster=[1.0], jax=[2.0]))) == ([], 0)


def test_ratios_of_a_machine_of_the_same_kind_are_taken() -> None:
    here = {"processor": "P", "vectors": "avx2", "caches": "L1 32K"}
    other = {"machine": {**here, "caches": "L1 48K"}}
    same = {"machine": {**here, "load": "3.0"}}
    assert check.choose(here, [other, same]) is same
    assert check.choose(here, [other, {"machine": {**here, "vectors": "none"}}]) is other
    assert check.choose(here, [{"rows": []}]) == {"rows": []}
    mine = {**here, "caches": "L1 48K, L2 2048K, L3 307200K"}
    near = {"machine": {**here, "caches": "L1 48K, L2 2048K, L3 491520K"}, "rows": []}
    assert check.choose(mine, [other, near]) is near
    far = {"machine": {**here, "caches": "L1 32K, L2 2048K, L3 307200K"}, "rows": []}
    assert check.choose(mine, [other, far]) is other


def test_check_fails_where_a_ratio_has_fallen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = "small eager"
    title = next(r.title(True) for r in all_rows() if r.case == row)
    threads = 1
    figures = {"aster": {"best": 1.0, "median": 1.0}, "numpy": {"best": 1e-9, "median": 1e-9}}
    committed = {
        "rows": [
            {
                "name": title, "threads": threads, "unit": "us", "libraries": figures,
                "ratio_best": 1.0, "ratio_median": 1.0,
            }
        ]
    }  # fmt: skip
    arguments = ["--only", title, "--threads", "1", "--peer", "numpy", "--check"]
    codes = []
    for best in (1e-9, 1e9):
        figures["numpy"] = {"best": best, "median": best}
        path = tmp_path / "results.json"
        path.write_text(json.dumps(committed))
        codes.append(main([*arguments, str(path)]))
    assert codes == [0, 1]
    printed = capsys.readouterr().out
    assert "1 rows compared with the committed ratios, 0 fallen by half" in printed
    assert f"FALLEN: {title}, threads 1" in printed


# committed files


@pytest.mark.parametrize(
    "results_path, folder",
    [
        ("benchmarks/results.json", "docs/explanation"),
        ("docs/explanation/zen5/results.json", "docs/explanation/zen5"),
    ],
)
def test_committed_page_and_plots_are_made_from_the_committed_results(
    results_path: str, folder: str
) -> None:
    data = json.loads((ROOT / results_path).read_text(encoding="utf-8"))
    notes = page.read_notes(ROOT / "benchmarks" / "notes.toml")
    again = f"run: python -m benchmarks --render {results_path}"
    again += "" if folder == "docs/explanation" else f" --out {folder}"
    text = (ROOT / folder / "performance.md").read_text(encoding="utf-8")
    assert text == page.performance_page(data, notes), again
    made = plots.all_plots(data)
    plots_folder = ROOT / folder / "plots"
    assert {p.name for p in plots_folder.glob("*.svg")} == set(made), again
    for name, svg in made.items():
        assert (plots_folder / name).read_text(encoding="utf-8") == svg, again


def test_render_writes_the_page_again(tmp_path: Path) -> None:
    data = data_of(result_of(RATE, aster=[1.0], torch=[2.0]))
    path = tmp_path / "results.json"
    path.write_text(results.to_json(data))
    assert main(["--render", str(path), "--out", str(tmp_path / "out")]) == 0
    written = sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")
    )
    assert written == ["performance.md", "plots", "plots/subject.svg"]


def test_rows_measured_again_take_the_place_of_the_earlier_ones() -> None:
    old = data_of(
        result_of(RATE, aster=[1.0], torch=[2.0]), result_of(COPY, aster=[4.0], torch=[2.0])
    )
    new = data_of(
        result_of(RATE, aster=[3.0], torch=[2.0]), result_of(TIME, aster=[1.0], torch=[2.0])
    )
    data = results.put_into(old, new)
    assert [r["name"] for r in data["rows"]] == ["a rate", "a copy", "a time"]
    assert data["rows"][0]["ratio_median"] == 1.5
    assert data["again"] == ["a rate", "a time"]
    assert "Measured again later" in page.performance_page(data, {})
    assert "Measured again later" not in page.performance_page(old, {})
    assert results.put_into(data, new)["again"] == ["a rate", "a time"]
    assert "asked for it: every row." in page.performance_page(results.put_into(old, old), {})
    other = {**new, "machine": {**new["machine"], "processor": "another"}}
    text = page.performance_page(results.put_into(old, other), {})
    assert "On another machine, another, m, m: a rate; a time." in text
    assert "Measured again later" not in text


# random sets


def test_seed_decides_all_cases() -> None:
    first = [(r.name, r.params) for r in sets.rows(1)]
    assert first == [(r.name, r.params) for r in sets.rows(1)]
    other = [r.params for r in sets.rows(2)]
    assert len(other) == len(first)
    assert [p for _, p in first] != other


def test_sets_have_the_sizes_that_are_asked_for() -> None:
    count: dict[str, int] = {}
    for row in sets.rows():
        count[row.drawn] = count.get(row.drawn, 0) + 1
    assert count["matmuls, float32"] == 40
    assert count["convolutions"] == 30
    assert count["reductions and norms"] == count["elementwise mixes"] == 20
    assert {f"matmuls, {d}" for d in ("float16", "bfloat16", "float64", "int8")} <= set(count)


@pytest.mark.parametrize("seed", [4, 5])
def test_sets_span_what_they_should(seed: int) -> None:
    rows = sets.rows(seed)
    matmuls = [r.params for r in rows if r.drawn == "matmuls, float32"]
    assert any(p["b"] > 1 for p in matmuls)
    assert any(p["turned"][0] for p in matmuls)
    assert any(p["turned"][1] for p in matmuls)
    assert any(p["m"] > 16 * p["n"] for p in matmuls)
    assert any(p["n"] > 16 * p["m"] for p in matmuls)
    assert all(1 <= p[x] <= 3000 for p in matmuls for x in "mnk")
    convs = [r.params for r in rows if r.drawn == "convolutions"]
    assert {p["w"][2] for p in convs} == {1, 2, 3, 4, 5, 6, 7}
    assert {p["stride"] for p in convs} >= {1, 2}
    assert {p["dilation"] for p in convs} == {1, 2}
    assert any(p["groups"] == p["x"][1] > 1 for p in convs)
    assert any(1 < p["groups"] < p["x"][1] for p in convs)
    kinds = {r.params["kind"] for r in rows if r.drawn == "reductions and norms"}
    assert kinds == set(sets.REDUCTIONS)
    mixes = [r.params for r in rows if r.drawn == "elementwise mixes"]
    assert any(1 in s[1:] for p in mixes for s in p["shapes"][1:])


def test_quick_form_takes_cases_of_the_full_one() -> None:
    full = {(r.name, str(r.params)) for r in sets.rows()}
    quick = {(r.name, str(r.params)) for r in sets.rows(quick=True)}
    assert quick < full
    assert {r.drawn for r in sets.rows(quick=True)} == {r.drawn for r in sets.rows()}


def test_every_row_has_a_builder() -> None:
    for row in all_rows():
        assert row.how == "process" or row.case in {**RUNS, **TURNS, **VALUES}


@pytest.fixture(scope="module")
def two_libraries() -> tuple[Library, Library]:
    return LIBRARIES["aster"](2), LIBRARIES["numpy"](2)


SMALL: list[tuple[str, dict[str, Any]]] = [
    ("drawn matmul", {"b": 1, "m": 5, "n": 6, "k": 7, "turned": [True, False], "dtype": "float32"}),
    ("drawn matmul", {"b": 3, "m": 5, "n": 6, "k": 7, "turned": [False, True], "dtype": "float64"}),
    ("drawn matmul", {"b": 1, "m": 5, "n": 6, "k": 7, "turned": [False] * 2, "dtype": "int8"}),
    *[
        ("drawn reduction", {"kind": kind, "shape": [4, 5, 6], "axes": [1] if n < 4 else [0, 2]})
        for n, kind in enumerate(sets.REDUCTIONS)
    ],
    *[("drawn mix", {"shapes": [[4, 5], [5]], "expression": [word, 0, 1]}) for word in sets.TWO],
    *[("drawn mix", {"shapes": [[4, 5]], "expression": [word, 0]}) for word in sets.ONE],
]


@pytest.mark.parametrize("case,params", SMALL, ids=lambda v: str(v)[:60])
def test_aster_and_numpy_compute_the_same(
    two_libraries: tuple[Library, Library], case: str, params: dict[str, Any]
) -> None:
    ours, theirs = (CASES[case](library, **params).check() for library in two_libraries)
    assert all(math.isfinite(v) for v in ours)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
