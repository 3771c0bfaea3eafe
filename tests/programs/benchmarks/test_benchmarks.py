"""The benchmarks: the quick form measures every row; figures and ratios are what they say.

Seconds are nobody's business here; counts are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import language, machine, page, plots, report, sets
from benchmarks.__main__ import find_pythons, make_parser
from benchmarks.calls import count_calls, stack_at
from benchmarks.draws import draw_input, draw_parameter, summary
from benchmarks.libraries import LIBRARIES
from benchmarks.measure import FULL, QUICK, Group, Session, group_rows
from benchmarks.peers import ROOT, Peer, PeerError, make_environment
from benchmarks.results import Figures, Result, compare_checks, put_into
from benchmarks.row import COUNTS, Row, Wanted
from benchmarks.rows import ROWS, all_rows
from benchmarks.worker import time_calls

TIME = Row("a time", "subject", "case", "ms", Wanted(2.0))
RATE = Row("a rate", "subject", "case", "GB/s", Wanted(1.0, of_ratio=True), work=2e9)


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the quick form printed and wrote, Aster alone."""
    folder = tmp_path_factory.mktemp("bench")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--no-peers", "--out", str(folder)],
        cwd=ROOT,
        env={**os.environ, "BENCH_QUICK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    page = (folder / "performance.md").read_text(encoding="utf-8")
    return {"printed": done.stdout, "data": data, "page": page}


@pytest.mark.slow
def test_quick_form_has_every_row(quick_run: dict[str, Any]) -> None:
    lines = quick_run["printed"].splitlines()
    measured = {row["name"]: row for row in quick_run["data"]["rows"]}
    for row in ROWS:
        title = row.title(quick=True)
        assert any(line.startswith(f"{title}  ") for line in lines), title
        assert f"| {title} |" in quick_run["page"]
        assert measured[title]["libraries"]["aster"]["samples"] >= 1
    for row in sets.rows(quick=True):
        assert measured[row.title(quick=True)]["libraries"]["aster"]["samples"] >= 1
        assert any(line.startswith(f"{row.drawn}  ") for line in lines), row.drawn
    threads = [r["threads"] for r in quick_run["data"]["rows"] if r["name"].startswith("replay")]
    assert threads[0] == 1


@pytest.mark.slow
def test_replay_runs_every_kernel_of_the_chain(quick_run: dict[str, Any]) -> None:
    replays = [r for r in quick_run["data"]["rows"] if r["name"].startswith("replay of 100")]
    assert replays
    for row in replays:
        assert row["libraries"]["aster"]["facts"] == {"kernels": 100}


@pytest.mark.slow
@pytest.mark.parametrize("title", [r.title(quick=True) for r in ROWS if r.unit in COUNTS])
def test_counts_stay_below_their_limits(quick_run: dict[str, Any], title: str) -> None:
    [row] = [r for r in quick_run["data"]["rows"] if r["name"] == title]
    assert row["met"], f"{title}: {row['libraries']['aster']['best']}, wanted {row['wanted']}"


def test_row_names_are_unique() -> None:
    for quick in (False, True):
        titles = [row.title(quick) for row in all_rows(quick=quick)]
        assert len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    "row,raw,value",
    [
        (TIME, 0.25, 250.0),
        (RATE, 0.5, 4.0),
        (Row("each of ten", "subject", "case", "us", work=10), 1e-3, 100.0),
        (Row("samples", "subject", "case", "samples/s", work=32), 0.5, 64.0),
        (Row("count", "subject", "case", "calls"), 17.0, 17.0),
    ],
)
def test_value_is_in_the_unit_of_the_row(row: Row, raw: float, value: float) -> None:
    assert row.value(raw) == pytest.approx(value)


def result_of(row: Row, **values: list[float]) -> Result:
    """A result with these values of each library."""
    figures = {n: Figures(v, less_is_better=row.less_is_better) for n, v in values.items()}
    return Result(row, row.title(False), 2, figures)


def test_ratio_is_against_the_best_peer() -> None:
    time = result_of(TIME, aster=[1.0, 2.0, 3.0], torch=[4.0, 6.0, 8.0], numpy=[9.0])
    assert time.ratio(lambda f: f.best) == pytest.approx(4.0)
    assert time.ratio(lambda f: f.median) == pytest.approx(3.0)
    rate = result_of(RATE, aster=[10.0, 8.0], torch=[20.0, 4.0], numpy=[5.0])
    assert rate.ratio(lambda f: f.best) == pytest.approx(0.5)
    assert rate.ratio(lambda f: f.median) == pytest.approx(9 / 12)


def test_ratio_leaves_out_what_is_not_to_compare() -> None:
    aside = Row("aside", "subject", "case", "s", aside=("numpy",))
    assert result_of(aside, aster=[2.0], numpy=[1.0]).ratio(lambda f: f.best) is None
    assert result_of(aside, aster=[2.0], numpy=[1.0], torch=[4.0]).ratio(lambda f: f.best) == 2
    alone = Row("part", "subject", "case", "s", compare=False)
    assert result_of(alone, aster=[2.0], torch=[1.0]).ratio(lambda f: f.best) is None


def test_wanted_is_judged_by_the_median() -> None:
    assert result_of(TIME, aster=[1.0, 1.9, 9.0]).met is True
    assert result_of(TIME, aster=[1.0, 2.1, 9.0]).met is False
    assert result_of(RATE, aster=[3.0], torch=[2.0]).met is True
    assert result_of(RATE, aster=[3.0], torch=[4.0]).met is False
    assert result_of(RATE, aster=[3.0]).met is None
    failed = Result(TIME, "a time", 2, {"aster": Figures(error="KeyError: x")})
    assert failed.met is False


def test_wanted_may_be_so_much_more_than_the_best_peer_has() -> None:
    row = Row("memory", "subject", "case", "MB", Wanted(120, over_peer=True))
    assert row.wanted is not None
    assert row.wanted.text(True, 2) == "<= peer + 120"
    assert result_of(row, aster=[310.0], torch=[400.0], numpy=[200.0]).met is True
    assert result_of(row, aster=[330.0], torch=[400.0], numpy=[200.0]).met is False
    assert result_of(row, aster=[330.0]).met is None


def test_rows_measured_later_take_the_place_of_the_earlier_or_come_behind() -> None:
    def row(name: str, best: float) -> dict[str, Any]:
        return {"name": name, "threads": 1, "libraries": {"aster": {"best": best}}}

    here, there = {"processor": "here"}, {"processor": "there", "vectors": "avx2"}
    old = {
        "machine": here, "versions": {"aster": "1", "torch": "2"}, "left_out": {"llama.cpp": "no"},
        "rows": [row("a", 1.0), row("b", 2.0)],
    }  # fmt: skip
    versions = {"aster": "2", "llama.cpp": "3"}
    new = {"machine": here, "versions": versions, "rows": [row("b", 3.0), row("c", 4.0)]}
    found = put_into(old, new)
    assert [(r["name"], r["libraries"]["aster"]["best"]) for r in found["rows"]] == [
        ("a", 1.0), ("b", 3.0), ("c", 4.0),
    ]  # fmt: skip
    assert found["again"] == ["b", "c"]
    assert found["versions"] == {"aster": "1", "torch": "2", "llama.cpp": "3"}
    assert found["left_out"] == {}
    assert not any("machine" in r for r in found["rows"])
    elsewhere = put_into(old, {**new, "machine": there})
    assert [r.get("machine") for r in elsewhere["rows"]] == [None, "there, avx2", "there, avx2"]


class Living:
    """Stands for the process of a library whose case gives what it is asked for."""

    alive = True

    def __init__(self, library: str, asked: list[str]) -> None:
        self.library, self.asked, self.figure = library, asked, 0.0

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append(f"{self.library} {do}")
        if do == "open" and self.library == "numpy":
            raise PeerError("it has no such case")
        self.figure += 1
        return {"values": {"read": self.figure, "write": 10 * self.figure}}


def test_cases_stay_open_while_libraries_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Row(key, "subject", "case", "s", how="turns", key=key, libraries=(peer,), most_rounds=2)
        for key, peer in (("read", "torch"), ("write", "numpy"))
    ]
    asked: list[str] = []
    pythons = dict.fromkeys(("aster", "torch", "numpy"), sys.executable)
    with Session(pythons, FULL, tmp_path) as session:
        living: Any = {(name, 1): Living(name, asked) for name in pythons}
        monkeypatch.setattr(session, "peer", lambda name, threads: living[name, threads])
        monkeypatch.setattr(session, "peers", living)
        read, write = session.run(Group(tuple(rows), 1))
        session.peers = {}
    assert asked == [
        "aster open", "torch open", "numpy open",
        "aster turn", "torch turn", "aster turn", "torch turn",
        "aster close", "torch close", "numpy close",
    ]  # fmt: skip
    assert {name: f.values for name, f in read.figures.items()} == {
        "aster": [2.0, 3.0], "torch": [2.0, 3.0],
    }  # fmt: skip
    assert write.figures["aster"].values == [20.0, 30.0]
    assert write.figures["numpy"].error == "it has no such case"


def test_rows_of_language_models_share_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "model_path", lambda: Path("model.gguf"))
    rows = language.rows()
    groups = list(group_rows(rows, [2], quick=False))
    assert len(groups) == 6
    assert sum(len(group.rows) for group in groups) == len(rows)
    assert {r.how for r in rows} == {"turns", "once"}
    cases = {**language.CASES, **language.TURNS}
    assert {r.case for r in rows} == set(cases)


def test_every_library_has_a_color() -> None:
    assert set(plots.COLORS) == set(LIBRARIES)


def test_other_results_get_no_time() -> None:
    errors: dict[str, str] = {}
    compare_checks({"aster": [1.0], "torch": [1.0005], "numpy": [1.01]}, errors, 2e-3)
    assert errors == {"numpy": "the result differs: [1.01], aster [1]"}
    errors = {}
    compare_checks({"aster": [1.0], "torch": [2.0], "numpy": [2.0]}, errors, 2e-3)
    assert errors == {"aster": "the result differs: [1], torch [2]"}
    errors = {}
    compare_checks({"aster": [1.0], "torch": [1.01]}, errors, 2e-2)
    assert not errors


def test_summary_tells_results_apart() -> None:
    a = draw_input("a", (40, 50))
    assert summary(a) == summary(draw_input("a", (40, 50)))
    assert summary(a) != summary(a.T)
    assert summary(a) != summary(draw_input("b", (40, 50)))
    assert draw_parameter("bn1.running_var", (3,)).tolist() == [1.0, 1.0, 1.0]
    assert draw_parameter("bn1.num_batches_tracked", ()).dtype.kind == "i"


def test_calls_are_counted() -> None:
    def inner() -> int:
        return abs(-1)

    def outer() -> int:
        return inner() + inner()

    assert count_calls(outer) == 3
    stack = stack_at(outer, ".inner")
    assert [name.rsplit(".", 1)[-1] for name in stack] == ["inner", "outer"]
    with pytest.raises(LookupError, match=r"nothing named \.other was called"):
        stack_at(outer, ".other")


COUNT_TWICE = """
from aster_ml import Tensor
from benchmarks.compiling import count_made
for x in (Tensor.rand(41, 29).realize(), *[Tensor.rand(37, 53).realize()] * 3):
    print(count_made(lambda: ((x @ x.T).softmax() + x.sum(1) % 5).relu().sum(0).realize()))
"""


def test_nodes_are_counted_as_the_first_compilation_makes_them() -> None:
    """Nodes of one before, which live as long as circles do, are not found in place of new ones."""
    run = subprocess.run(
        [sys.executable, "-c", COUNT_TWICE], capture_output=True, text=True, check=True, cwd=ROOT
    )
    # The other shape leaves behind what every compilation shares.
    _, first, second, third = map(int, run.stdout.split())
    assert first > 500
    assert abs(second - first) < 0.02 * first
    assert third == second


def test_samples_are_means_of_enough_calls() -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1

    samples = time_calls(run, budget_s=0.0, smallest_s=1e-4)
    assert len(samples) == 1
    assert calls > 1
    assert 0 < samples[0] < 1e-4


def test_a_long_first_call_does_not_make_samples_of_single_calls() -> None:
    calls = 0

    def run() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            time.sleep(0.01)

    samples = time_calls(run, budget_s=1e-2, smallest_s=1e-3)
    assert 1 <= len(samples) < 20
    assert calls > 100 * len(samples)


def test_peers_leave_out_what_aster_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the results are not taken for those of a machine that leaves nothing out."""
    monkeypatch.setenv("ISA", "")
    assert "ONEDNN_MAX_CPU_ISA" not in make_environment("torch", 2, tmp_path)
    whole = machine.vectors()
    monkeypatch.setenv("ISA", "avx2")
    assert make_environment("aster", 2, tmp_path)["ISA"] == "avx2"
    assert make_environment("torch", 2, tmp_path)["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    flags = make_environment("jax", 1, tmp_path)["XLA_FLAGS"].split()
    assert flags == ["--xla_cpu_max_isa=AVX2", "--xla_cpu_multi_thread_eigen=false"]
    assert (machine.vectors() != whole) == (whole == "avx512f")


def test_worker_answers_outlive_an_error(tmp_path: Path) -> None:
    with Peer("numpy", sys.executable, 1, tmp_path / "cache", 60) as peer:
        with pytest.raises(PeerError, match="KeyError: 'no such kernel'"):
            peer.ask("open", case="kernel", params={"kernel": "no such kernel"})
        with pytest.raises(PeerError, match="numpy has no such operation"):
            peer.ask("open", case="kernel", params={"kernel": "conv 3x3, 8x64x56x56 -> 64"})
        peer.ask("open", case="small eager", params={})
        assert len(peer.ask("check")["check"]) == 3
        assert peer.ask("time", budget_s=0.0, smallest_s=1e-5)["samples"]
        peer.timeout_s = 0.2
        with pytest.raises(PeerError, match="no answer in 0 s"):
            peer.ask("time", budget_s=30.0, smallest_s=1e-5)


def test_peers_take_turns_with_aster_and_agree(tmp_path: Path) -> None:
    [row] = [r for r in ROWS if r.case == "small eager"]
    pythons = {"aster": sys.executable, "numpy": sys.executable, "jax": str(tmp_path / "absent")}
    with Session(pythons, QUICK, tmp_path) as session:
        session.look_around()
        assert list(session.left_out) == ["jax"]
        [result] = session.run(Group((row,), 1))
    assert {name: f.error for name, f in result.figures.items()} == {"aster": "", "numpy": ""}
    assert result.ratio(lambda f: f.best) is not None


def test_what_bounds_a_row_is_measured_next_to_it_and_who_began_ends_the_next_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [row] = [r for r in ROWS if r.name.startswith("vector x matrix")]
    assert row.ceiling is not None
    ask, asked = Peer.ask, []

    def noted(self: Peer, do: str, **arguments: Any) -> dict[str, Any]:
        asked.append((do, self.library, arguments.get("params")))
        return ask(self, do, **arguments)

    monkeypatch.setattr(Peer, "ask", noted)
    with Session({"aster": sys.executable, "numpy": sys.executable}, QUICK, tmp_path) as session:
        [result] = session.run(Group((row,), 1))
    opened = [(library, params) for do, library, params in asked if do == "open"]
    assert opened == [
        ("aster", row.params),
        ("aster", row.ceiling.params),
        ("numpy", row.params),
    ]
    turns = [library for do, library, _ in asked if do == "time"]
    assert turns == ["aster", "aster", "numpy", "numpy", "aster", "aster"] * (QUICK.rounds // 2)
    assert sorted(result.figures) == ["aster", "numpy"]
    assert result.ceiling is not None
    assert result.ceiling.values
    assert result.share is not None
    assert not any(f.error for f in result.figures.values())


@pytest.mark.parametrize("request_name", ["open", "check", "time", "close"])
def test_a_peer_that_stays_silent_costs_its_row_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_name: str
) -> None:
    [row] = [r for r in ROWS if r.case == "small eager"]
    ask, silent = Peer.ask, [request_name]

    def asked(self: Peer, do: str, **arguments: Any) -> dict[str, Any]:
        if do in silent and self.library == "numpy":
            silent.clear()
            self.timeout_s = 0.0
            # The request is not sent: a quick peer could answer it before the first look.
            return self.receive()
        return ask(self, do, **arguments)

    monkeypatch.setattr(Peer, "ask", asked)
    with Session({"aster": sys.executable, "numpy": sys.executable}, QUICK, tmp_path) as session:
        [first] = session.run(Group((row,), 1))
        [second] = session.run(Group((row,), 1))
    assert first.figures["numpy"].error == "no answer in 0 s"
    assert first.figures["aster"].values
    assert not second.figures["numpy"].error
    assert second.figures["numpy"].values


def test_late_runs_take_fewer_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session({}, FULL, tmp_path) as session:
        session.began, session.done = 0.0, 0.5
        for part, rounds in ((0.4, 10), (0.5, 10), (0.6, 8), (0.75, 5), (1.1, FULL.fewest)):
            now = FULL.limit_s * part
            monkeypatch.setattr("benchmarks.measure.time.monotonic", lambda now=now: now)
            assert session.rounds(10) == rounds
        session.done = 1.0
        assert session.rounds(10) == FULL.fewest


def test_full_run_is_expected_to_end_in_time() -> None:
    expected = sum(group.expected_s for group in group_rows(all_rows(), None, quick=False))
    assert expected < FULL.limit_s < 3600


def test_threads_of_rows() -> None:
    replay = [r for r in ROWS if r.case == "replay"]
    assert all(r.one_thread_too for r in replay)
    assert [g.threads for g in group_rows(replay, [1, 2], quick=True)] == [1, 2]
    counted = [r for r in ROWS if r.case == "calls"]
    [group] = group_rows(counted, [1, 2], quick=True)
    assert (len(group.rows), group.threads) == (4, 2)


def test_command_line_names_its_peers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_PEERS", f"tinygrad={sys.executable}")
    options = make_parser().parse_args(["--peer", "jax"])
    pythons = find_pythons(options)
    assert list(pythons)[0] == "aster"
    assert {"torch", "numpy", "tinygrad", "jax"} < set(pythons)
    assert find_pythons(make_parser().parse_args(["--no-peers"])) == {"aster": sys.executable}
    for wrong, message in (
        ("caffe=/bin/x", "no peer is named 'caffe'"),
        ("jax=/nowhere/python", "/nowhere/python is no program"),
    ):
        with pytest.raises(SystemExit):
            make_parser().parse_args(["--peer", wrong])
        assert message in capsys.readouterr().err


def test_cells_say_why_there_is_no_figure() -> None:
    told = {
        "no answer in 300 s": "too slow",
        "the process ended with -11": "died",
        "FileNotFoundError: [Errno 2] No such file or directory: 'clang'": "no clang",
        "RecursionError: maximum recursion depth exceeded": "RecursionError",
        "NotImplementedError: numpy has no such operation": "-",
    }
    for error, words in told.items():
        assert report.cell({"error": error}) == words
    assert report.cell(None) == "-"
    assert report.cell({"best": 1234.5, "median": 1267.4}) == "1,234 / 1,267"


def test_reasons_are_of_rows_or_sets_that_there_are() -> None:
    known = {row.title(False) for row in ROWS} | {row.drawn for row in all_rows()}
    assert set(page.read_notes(ROOT / "benchmarks" / "notes.toml")) <= known


def test_limits_may_depend_on_threads() -> None:
    row = Row("replay", "subject", "case", "us", Wanted(2, one_thread=1))
    for threads, met in ((1, False), (2, True)):
        result = Result(row, "replay", threads, {"aster": Figures([1.5])})
        assert result.met is met
    assert Wanted(1 / 1.2, of_ratio=True).text(True, 2) == "0.83x"
    assert Wanted(1, of_ratio=True).text(True, 2) == "1.0x"


def test_another_checkout_is_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_BEFORE", raising=False)
    options = make_parser().parse_args(["--before", str(tmp_path)])
    assert find_pythons(options) == {"aster": sys.executable, "before": sys.executable}
    mine, other = (make_environment(name, 1, tmp_path / "cache") for name in ("aster", "before"))
    assert other["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "src")
    assert mine["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT / "src")
    assert {k for k in mine if mine[k] != other[k]} == {"PYTHONPATH"}
    session = Session({"aster": sys.executable, "before": sys.executable}, QUICK, tmp_path)
    assert session.libraries(RATE) == ["aster", "before"]
