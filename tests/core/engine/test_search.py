"""BEAM: schedules near the default one are tried in other processes; the best is kept as text."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Tensor
from aster_ml.codegen.estimate import estimate
from aster_ml.codegen.opts import Opt, OptOps, parse_opts
from aster_ml.codegen.passes import lower, schedule_kernel
from aster_ml.codegen.policy.cpu.policy import near
from aster_ml.codegen.search_space import applied, neighbours, starts
from aster_ml.config import stage_key
from aster_ml.device import Device
from aster_ml.engine.realize import schedule_uops
from aster_ml.engine.search import beam as search
from aster_ml.engine.search import worker as search_worker
from aster_ml.engine.search.beam import Found, Search, Worker, WorkerError
from aster_ml.interpreters import python_command
from aster_ml.target import Target
from aster_ml.uop.print.text import to_text
from tests.core.kernel_checks import kernel_of
from tools import search_gains

# What a record of this version has in its first line that is no comment.
HEAD = f"version {search.VERSION}\n"
TARGET = Target("CPU", "llvm", arch="example", vector_bits=256, vector_registers=16, threads=2)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path) -> Iterator[Path]:
    """A disk cache of its own for each test."""
    with Context(CACHEDIR=str(tmp_path)):
        search.REMEMBERED.clear()
        yield tmp_path


def product(n: int = 24) -> Tensor:
    a, b = Tensor.rand(n, n).realize(), Tensor.rand(n, n).realize()
    return (a @ b).relu()


def values_of(n: int = 24) -> tuple[Tensor, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    return Tensor(a) @ Tensor(b), a @ b


def test_neighbours_are_other_schedules_of_the_same_kernel() -> None:
    ast = kernel_of(product())
    start = tuple(schedule_kernel(ast, TARGET).applied)
    found = list(neighbours(ast, TARGET, start))
    assert len(found) > 10
    assert start not in found
    kernels = [schedule_kernel(ast, TARGET, opts) for opts in found]
    assert len({(k.sink, frozenset(k.plans)) for k in kernels}) == len(found)


def test_neighbours_that_are_estimated_to_be_far_slower_are_left_out() -> None:
    ast, start = kernel_of(product(96)), (Opt(OptOps.VECTOR, 1, 8), Opt(OptOps.UPCAST, 0, 4))
    everything, few = (
        list(neighbours(ast, TARGET, start)),
        list(neighbours(ast, TARGET, start, 1.5)),
    )

    def busy(opts: tuple[Opt, ...]) -> float:
        return estimate(schedule_kernel(ast, TARGET, opts), TARGET).busy

    least = 1.5 * busy(start)
    assert few == [opts for opts in everything if busy(opts) <= least]
    assert 0 < len(few) < len(everything)


def test_neighbours_of_what_does_not_fit_are_none() -> None:
    assert not list(neighbours(kernel_of(product()), TARGET, (Opt(OptOps.UPCAST, 9, 4),)))


def test_neighbours_have_every_kind_of_opt_that_fits() -> None:
    x = Tensor.rand(35, 300).realize()
    ast = kernel_of(x.sum(0))
    start = tuple(schedule_kernel(ast, TARGET).applied)
    kinds = {opt.kind for opts in neighbours(ast, TARGET, ()) for opt in opts}
    kinds |= {opt.kind for opts in neighbours(ast, TARGET, start) for opt in opts}
    wanted = {
        "UPCAST",
        "UPCAST shift",
        "UNROLL",
        "VECTOR",
        "KBLOCK output",
        "KBLOCK row",
        "SPLIT loop",
        "NONTEMPORAL",
        "THREAD",
    }
    assert wanted <= kinds


def test_neighbours_keep_what_sums_need_for_their_accuracy() -> None:
    ast = kernel_of(Tensor.rand(4, 20_000).realize().sum(1))
    start = tuple(schedule_kernel(ast, TARGET).applied)
    assert "KBLOCK wide" in [opt.kind for opt in start]
    assert all("KBLOCK wide" in [o.kind for o in opts] for opts in neighbours(ast, TARGET, start))


def test_a_search_sets_out_from_schedules_of_other_simd_axes() -> None:
    ast = kernel_of(product())
    default = tuple(schedule_kernel(ast, TARGET).applied)
    found = list(starts(ast, TARGET))
    assert found
    assert default not in found
    assert all(applied(ast, TARGET, opts) is not None for opts in found)


@pytest.mark.parametrize(
    "text", ["SWAP(0,2)", "SWAP(0,9)", "SWAP(2,0)", "SPLIT(0,0,mask)", "KBLOCK(0,0,output)"]
)
def test_opts_that_do_not_fit_are_refused_as_such(text: str) -> None:
    assert applied(kernel_of(product()), TARGET, parse_opts(text)) is None


def test_sizes_near_a_size() -> None:
    assert near(4) == [2, 3, 5, 6]
    assert near(2) == [3, 4]
    assert near(64) == [32, 128]


@pytest.mark.parametrize("shape", [(24, 24, 24), (7, 33, 5), (1, 128, 256)])
def test_default_opts_asked_for_give_the_default_program(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    ast = kernel_of(Tensor.rand(m, k).realize() @ Tensor.rand(k, n).realize())
    linear, opts = lower(ast, TARGET)
    assert lower(ast, TARGET, parse_opts(" ".join(map(repr, opts))))[0] == linear


@pytest.mark.slow
def test_search_gives_right_results_and_is_kept_for_later_processes(cache_folder: Path) -> None:
    program = (
        "import numpy as np\n"
        "from aster_ml import Tensor\n"
        "from aster_ml.engine.search import beam\n"
        "a = np.arange(576, dtype=np.float32).reshape(24, 24) % 7\n"
        "found = (Tensor(a) @ Tensor(a)).numpy()\n"
        "assert np.array_equal(found, a @ a), found\n"
        "print(len(beam.REMEMBERED))\n"
    )
    root = Path(__file__).resolve().parents[3]
    environment = {
        "PYTHONPATH": str(root / "src"), "CACHEDIR": str(cache_folder), "BEAM": "2",
        "BEAM_SECONDS": "3", "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    searched = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        searched.append(int(done.stdout))
    assert searched == [1, 0]
    [path] = (cache_folder / "schedules").iterdir()
    text = path.read_text()
    record = search.read_record(text)
    assert record is not None
    assert record.beam == 2
    assert f"opts {' '.join(map(repr, record.opts))}\n" in text


def test_known_schedule_is_used_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    value, wanted = values_of()
    ast, target = kernel_of(value), Device["CPU"].target
    opts = (Opt(OptOps.UPCAST, 0, 3),)
    with Context(BEAM=2):
        name = search.record_name(ast, target)
        text = search.record_text(ast, target, 2, Found(opts, 1.0, 2.0, 5))
        search.keep(name, search.Record(2, opts), text)
        monkeypatch.setattr(Search, "run", lambda self, width: pytest.fail("searched"))
        assert search.find_opts(ast, "CPU", target) == opts
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_wider_beam_and_unfit_records_are_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ast, target = kernel_of(product()), Device["CPU"].target
    better = (Opt(OptOps.UPCAST, 1, 4),)
    monkeypatch.setattr(Search, "run", lambda self, width: Found(better, 1.0, 2.0, 9))
    with Context(BEAM=3):
        name = search.record_name(ast, target)
        for beam, old in ((2, (Opt(OptOps.UPCAST, 0, 3),)), (3, (Opt(OptOps.UPCAST, 7, 3),))):
            text = search.record_text(ast, target, beam, Found(old, 1.0, 2.0, 5))
            search.keep(name, search.Record(beam, old), text)
            assert search.find_opts(ast, "CPU", target) == better


def test_records_are_searched_again_when_they_are_to_be_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ast, target = kernel_of(product()), Device["CPU"].target
    better = (Opt(OptOps.UPCAST, 1, 4),)
    monkeypatch.setattr(Search, "run", lambda self, width: Found(better, 1.0, 2.0, 9))
    with Context(BEAM=1):
        name = search.record_name(ast, target)
        search.keep(name, search.Record(1, ()), f"{HEAD}beam 1\nopts \n")
        assert search.find_opts(ast, "CPU", target) == ()
        with Context(IGNORE_BEAM_CACHE=1):
            assert search.find_opts(ast, "CPU", target) == better
        assert search.find_opts(ast, "CPU", target) == better
        record = search.look_up(name)
    assert record is not None
    assert record.gain == 2.0
    assert record.default == tuple(schedule_kernel(ast, target).applied)


def test_tool_names_defaults_that_a_search_beats(cache_folder: Path) -> None:
    folder = cache_folder / "schedules"
    folder.mkdir()
    head = f"{HEAD}beam 2\nopts UPCAST(0,4)\nmicroseconds 10.0\ndefault_opts \n"
    for name, default in (("slow", 14.0), ("good", 10.2)):
        text = f"{head}default_microseconds {default}\n\n%0 = CONST int 1\n"
        (folder / f"{name}.txt").write_text(text)
    (folder / "other.txt").write_text("of somebody else")
    [line] = search_gains.lines(cache_folder, least=1.05)
    assert line == "1.40x  14.0 us -> 10.0 us  plain loops -> UPCAST(0,4)  slow.txt"
    assert len(search_gains.lines(cache_folder, least=1.0)) == 2


@pytest.mark.parametrize("text", ["", "beam many\nopts \n", "opts UPCAST(0,4)\n", "beam 2\nopts X"])
def test_damaged_record_counts_as_none(text: str) -> None:
    assert search.read_record(HEAD + text) is None
    assert search.read_record(text) is None


@pytest.mark.parametrize(
    "head, version", [("", "none"), ("version 1\n", "1"), ("# words\nversion later\n", "later")]
)
def test_a_record_of_another_version_is_ignored_with_one_line(
    cache_folder: Path, capsys: pytest.CaptureFixture[str], head: str, version: str
) -> None:
    record = search.Record(1, ())
    search.keep("name", record, f"{head}beam 1\nopts VECTOR(0,8)\n")
    with Context(DEBUG=0):
        assert search.look_up("name") is None
    assert capsys.readouterr().out == ""
    with Context(DEBUG=1):
        assert search.look_up("name") is None
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"saved schedule name: its version is {version}, and this one reads ")


def test_a_record_with_opts_that_are_none_is_ignored_with_one_line(
    cache_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search.keep("name", search.Record(1, ()), f"{HEAD}beam 1\nopts AHEAD(0,2)\n")
    with Context(DEBUG=1):
        assert search.look_up("name") is None
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("saved schedule name: is no record; ignored")


def test_record_of_no_opts_is_read() -> None:
    text = f"# words\n{HEAD}beam 1\nopts \n\nrest"
    assert search.read_record(text) == search.Record(1, ())


def test_without_disk_cache_the_process_remembers(cache_folder: Path) -> None:
    record = search.Record(1, (Opt(OptOps.UPCAST, 0, 4),))
    with Context(CACHE=0):
        search.keep("name", record, "text")
        assert search.look_up("name") == record
    assert search.look_up("name") is None
    assert not list(cache_folder.iterdir())


def test_wrong_results_failures_and_crashes_cost_one_candidate(tmp_path: Path) -> None:
    ast = kernel_of(product())
    with Worker(ast, "CPU", tmp_path) as worker:
        usual = worker.ask("time", None, 0.0)
        assert usual > 0
        with pytest.raises(WorkerError, match="KernelOptError"):
            worker.ask("time", (Opt(OptOps.UPCAST, 9, 4),), 0.0)
        worker.start().kill()
        with pytest.raises(WorkerError):
            worker.ask("time", None, 0.0)
        assert worker.ask("time", (Opt(OptOps.UPCAST, 0, 4),), 0.0) > 0


def test_candidate_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Worker(kernel_of(product()), "CPU", tmp_path) as worker:
        worker.ask("compile", None)
        monkeypatch.setattr(search, "CANDIDATE_TIMEOUT_S", 0.2)
        with pytest.raises(WorkerError, match="ended"):
            worker.ask("time", None, 60.0)


def test_other_results_are_noticed() -> None:
    bench = search_worker.Bench(kernel_of(product()), "CPU")
    right = bench.results(bench.compiled(None))
    assert bench.is_right(right)
    assert bench.is_right(bench.results(bench.compiled("UPCAST(0,4)")))
    [slot] = right
    wrong = {slot: right[slot] + np.float32(0.5)}
    assert not bench.is_right(wrong)
    assert not bench.is_right({})


INDEXING = {
    "rows": (lambda x, i: x[i] * 2, 12),
    "along an axis": (lambda x, i: x.gather(0, i.reshape(-1, 1).expand(-1, 7)), 12),
    "two axes": (lambda x, i: x[i, i], 12),
    "additions": (lambda x, i: (x[i] * 2).sum().gradient(x)[0], 12),
    "the last axis": (lambda x, i: x.gather(1, i.reshape(12, -1)), 7),
}


@pytest.mark.parametrize("name", INDEXING)
def test_buffers_that_index_others_hold_places_all_over_them(name: str) -> None:
    function, count = INDEXING[name]
    x, i = Tensor.rand(12, 7).realize(), Tensor([3, 0, 2, 5] * 60).cast("int16").realize()
    steps = [step for step in schedule_uops([function(x, i).uop])[0].steps if step.ast is not None]
    [ast] = [step.ast for step in steps if search_worker.index_slots(step.ast)]
    bench = search_worker.Bench(ast, "CPU")
    slots = search_worker.index_slots(ast)
    [content] = [c for s, c in zip(bench.slots, bench.contents, strict=True) if s in slots]
    assert sorted(set(content.tolist())) == list(range(count))
    assert bench.is_right(bench.results(bench.compiled("")))


def test_search_without_time_keeps_the_default(tmp_path: Path) -> None:
    ast, target = kernel_of(product()), Device["CPU"].target
    with Worker(ast, "CPU", tmp_path) as worker:
        found = Search(ast, "CPU", target, [worker], seconds=0.0).run(2)
    assert found is not None
    assert found.opts == tuple(schedule_kernel(ast, target).applied)
    assert found.tried == 0


def test_equal_times_are_no_reason_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ast, target = kernel_of(product()), Device["CPU"].target
    monkeypatch.setattr(Worker, "ask", lambda self, *args, **words: 1e-3)
    with Worker(ast, "CPU", tmp_path) as worker:
        found = Search(ast, "CPU", target, [worker], seconds=5.0).run(2)
    assert found is not None
    assert found.tried > 10
    assert found.opts == tuple(schedule_kernel(ast, target).applied)


def test_candidates_that_fail_do_not_end_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ast, target = kernel_of(product()), Device["CPU"].target

    def ask(self: Worker, what: str, opts: Any, *args: Any, **words: Any) -> float:
        if opts is not None and len(opts) % 2:
            raise WorkerError("it crashed")
        return 1e-3 if opts is None else 1e-4

    monkeypatch.setattr(Worker, "ask", ask)
    with Worker(ast, "CPU", tmp_path) as worker:
        found = Search(ast, "CPU", target, [worker], seconds=5.0).run(2)
    assert found is not None
    assert found.tried > 0
    assert len(found.opts) % 2 == 0


def test_a_candidate_has_no_more_time_than_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ast, target = kernel_of(product()), Device["CPU"].target
    limits = []

    def ask(
        self: Worker, what: str, opts: Any, budget_s: float = 0.0, limit_s: float | None = None
    ) -> float:
        limits.append((what, opts is None, limit_s))
        return 1e-3

    monkeypatch.setattr(Worker, "ask", ask)
    with Worker(ast, "CPU", tmp_path) as worker:
        Search(ast, "CPU", target, [worker], seconds=3.0).run(1)
    tries = [limit for what, is_default, limit in limits if what == "compile" and not is_default]
    assert tries
    assert all(limit is not None and limit <= 3.0 for limit in tries)


def test_search_ends_in_its_time(tmp_path: Path) -> None:
    ast, target = kernel_of(product()), Device["CPU"].target
    start = time.monotonic()
    with Worker(ast, "CPU", tmp_path) as worker:
        found = Search(ast, "CPU", target, [worker], seconds=0.5).run(4)
    assert found is not None
    # A search stops between candidates; starting the worker and the last comparison come on top.
    assert time.monotonic() - start < 60


def test_what_is_not_searched() -> None:
    ast, backend = kernel_of(product()), Device["CPU"]
    assert not search.can_search(ast, backend)
    with Context(BEAM=2):
        assert search.can_search(ast, backend)
        assert not search.can_search(ast, Device["NULL"])
        with Context(DETERMINISTIC=1):
            assert not search.can_search(ast, backend)


def test_beam_is_part_of_the_keys_of_kernels() -> None:
    before = stage_key("codegen")
    with Context(BEAM=2):
        assert stage_key("codegen") != before
    with Context(BEAM_SECONDS=1):
        assert stage_key("codegen") == before


def test_kernel_travels_as_text() -> None:
    ast = kernel_of(product())
    assert search_worker.parse(to_text(ast)) is ast


def test_a_search_without_room_for_its_files_keeps_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(search.tempfile, "TemporaryDirectory", full)
    x, _ = values_of(21)
    with Context(BEAM=1), pytest.warns(UserWarning, match="No space left on device"):
        np.testing.assert_allclose((x * 1.0625 + 1).numpy(), x.numpy() * 1.0625 + 1, rtol=1e-6)


def test_opts_larger_than_a_search_would_try_are_not_taken() -> None:
    """Of a record that somebody has written by hand, the loop body would have too many nodes."""
    backend = Device["CPU"]
    x = Tensor.empty(2048, 2048)
    ast = kernel_of((x + 1).exp())
    default = tuple(schedule_kernel(ast, backend.target).applied)
    assert search.may_be_taken(ast, backend.target, default)
    assert not search.may_be_taken(ast, backend.target, parse_opts("UPCAST(0,2048) UPCAST(0,2048)"))
    assert not search.may_be_taken(ast, backend.target, parse_opts("UPCAST(9,2)"))


def test_a_worker_finds_what_this_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device from outside of the package may lie beside the program, or where it has said."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "my_device.py").write_text("print('found')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("mine")
    environment = search.worker_environment(tmp_path / "cache")
    done = subprocess.run(
        python_command("-m", "my_device"), env=environment, cwd="/",
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("found\n", "")
