"""The parity harness on made-up trees: what the hook serves, what is written and counted."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.parity import counts, hook, names, run, tables

REPOSITORY = Path(__file__).parents[3]

REFERENCE_LIBRARY = "raise ImportError('the reference itself was imported')\n"
TESTS = """
import os, unittest
from tinygrad import Tensor, Device, dtypes, nn
from tinygrad.helpers import getenv, prod, Context, NoSuchHelper
from tinygrad.renderer.nowhere import NoSuchRenderer
from test.helpers import needs_second_gpu

def check_schedule(t, allowed, to_prerealize=None, filter_sink=True):
  raise AssertionError("wants exactly the stated number")

class TestMade(unittest.TestCase):
  def test_count(self):
    check_schedule(Tensor([1.0, 2.0]) + 1, 2)[0].run()
  def test_too_many(self):
    check_schedule([Tensor([1.0, 2.0]) + 1, Tensor([1.0, 2.0, 3.0]) + 1], 1)
  def test_passes(self):
    assert Tensor([1, 2]).sum().item() == 3
    assert Tensor.__module__ == "aster_ml.tensor"
    assert nn.Linear.__module__ == "aster_ml.nn.layers"
  def test_fails(self): assert prod((2, 3)) == 7
  @unittest.skip("always")
  def test_skipped(self): pass
  @unittest.expectedFailure
  def test_expected(self): assert False
  @unittest.expectedFailure
  def test_better(self): pass
  def test_absent(self):
    assert not isinstance(Device[Device.DEFAULT].renderer, NoSuchRenderer)
    NoSuchHelper()
  def test_schedule_runs(self):
    t = Tensor([1.0, 2.0]) + 1
    items = t.schedule()
    for item in items: item.lower()
    items[0].run()
    assert t.uop.is_realized and t.tolist() == [2.0, 3.0]
"""
CRASH = """
import os, unittest
class TestCrash(unittest.TestCase):
  def test_a(self): pass
  def test_b(self): os._exit(7)
  def test_c(self): pass
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a library that must not be imported, and two test files."""
    for name, text in {
        "tinygrad/__init__.py": REFERENCE_LIBRARY,
        "test/test_made.py": TESTS,
        "test/test_crash.py": CRASH,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_run_serves_aster_and_writes_every_outcome(tree: Path) -> None:
    result = run.run_files(tree, ["test/test_made.py"], "", 1)["test/test_made.py"]
    assert {n: t.outcome for n, t in result.tests.items()} == {
        "TestMade.test_passes": "passed",
        "TestMade.test_fails": "failed",
        "TestMade.test_skipped": "skipped",
        "TestMade.test_expected": "xfailed",
        "TestMade.test_better": "xpassed",
        "TestMade.test_absent": "failed",
        "TestMade.test_schedule_runs": "passed",
        "TestMade.test_count": "passed",
        "TestMade.test_too_many": "failed",
    }
    assert "NoSuchHelper is not provided by Aster" in result.tests["TestMade.test_absent"].line
    assert not list(tree.rglob("__pycache__"))


@pytest.mark.parametrize("count, stated", [(2, 1), (0, 1), (1, 0)])
def test_more_kernels_than_stated_are_a_failure(count, stated) -> None:
    with pytest.raises(counts.TooManyKernelsError, match=f"{count} kernels, {stated} are stated"):
        counts.compare_count(count, stated)
    counts.compare_count(1, stated + count)
    assert counts.KernelCount(count) != stated
    assert counts.KernelCount(1) == stated + count
    assert counts.KernelCount(7) - 6 != 0
    assert counts.KernelCount(7) - 5 == 3


def test_a_crash_loses_one_test(tree: Path) -> None:
    tests = run.run_files(tree, ["test/test_crash.py"], "", 1)["test/test_crash.py"].tests
    assert [tests[f"TestCrash.test_{x}"].outcome for x in "abc"] == ["passed", "failed", "passed"]
    assert "ended with 7" in tests["TestCrash.test_b"].line


def test_shards_divide_a_file(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LINES_A_SHARD", 10)
    tests = run.run_files(tree, ["test/test_made.py"], "", 2)["test/test_made.py"].tests
    assert len(tests) == 9


def test_a_file_that_does_not_load_is_one_failure(tree: Path) -> None:
    (tree / "test/test_broken.py").write_text("import nowhere_at_all\n", encoding="utf-8")
    tests = run.run_files(tree, ["test/test_broken.py"], "", 1)["test/test_broken.py"].tests
    assert [(n, t.outcome) for n, t in tests.items()] == [("(file)", "failed")]
    assert "nowhere_at_all" in tests["(file)"].line


def test_standins_give_way_to_the_tree(tree: Path) -> None:
    (tree / "extra").mkdir()
    (tree / "extra/gradcheck.py").write_text("own = 1\n", encoding="utf-8")
    finder = hook.Finder(tree)
    own = finder.find_spec("extra.gradcheck")
    ours = finder.find_spec("test.helpers")
    assert own is not None
    assert ours is not None
    assert own.origin == str(tree / "extra/gradcheck.py")
    assert ours.origin == str(hook.STANDINS / "helpers.py")
    assert finder.find_spec("extra.models") is not None  # a package over stand-ins alone
    assert finder.find_spec("extra.nothing") is None
    assert finder.find_spec("numpy") is None


def test_every_standin_is_a_file_and_every_row_names_modules() -> None:
    assert {p.name for p in hook.STANDINS.glob("*.py")} == {
        "__init__.py", *hook.STANDIN_FILES.values()
    }  # fmt: skip
    for module, row in hook.ROWS.items():
        for home in row.homes:
            assert __import__(home), module
        assert row.why or len(row.homes) == 1, f"{module} does not say why"


def test_absent_names_raise_when_used() -> None:
    gone = names.absent("tinygrad.a.B")
    assert not isinstance(3, gone)
    with pytest.raises(names.NotProvidedError, match=r"tinygrad\.a\.B is not provided"):
        gone()
    with pytest.raises(names.NotProvidedError, match=r"tinygrad\.a\.B\.c is not provided"):
        gone.c  # noqa: B018


def test_lists_of_ids_read_back(tmp_path: Path) -> None:
    ids = {"test/b.py::T.x", "test/a.py::T.y", "test/a.py::S.z"}
    tables.write_ids(tmp_path / "list.txt", ids, "about")
    assert tables.read_ids(tmp_path / "list.txt") == ids
    assert tables.read_ids(tmp_path / "nothing.txt") == set()


def test_a_difference_needs_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "differs.toml"
    file.write_text('[[differs]]\ntests = ["a::b"]\nreason = "right"\n', encoding="utf-8")
    assert tables.read_differs(file) == {"a::b": "right"}
    file.write_text('[[differs]]\ntests = ["a::b"]\nreason = " "\n', encoding="utf-8")
    with pytest.raises(ValueError, match="has no reason"):
        tables.read_differs(file)


OUTCOMES = {"t.py": {"A.a": "passed", "A.b": "failed", "A.c": "skipped", "A.d": "xpassed"}}


def test_regressions_are_of_the_files_that_ran() -> None:
    wanted = ["t.py::A.a", "t.py::A.b", "t.py::A.gone", "other.py::A.a"]
    assert tables.regressions(OUTCOMES, wanted) == ["t.py::A.b", "t.py::A.gone"]


def test_the_table_counts() -> None:
    baseline = {"t.py::A.a", "t.py::A.b", "t.py::A.c"}
    text = tables.table(OUTCOMES, baseline, {"t.py::A.b": "on purpose", "t.py::A.a": "too"})
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()]
    assert cells[2] == ["t.py", "2", "1", "1", "3", "1", "1"]
    assert cells[-1] == ["all", "2", "1", "1", "3", "1", "1"]


def test_must_pass_and_differs_name_tests_that_the_reference_passes() -> None:
    baseline, differs = tables.read_baseline(), tables.read_differs()
    assert len(baseline) == 1740
    assert tables.read_must_pass() <= baseline
    assert not tables.read_must_pass() & differs.keys()


def test_the_command_ends_with_1_on_a_regression(tree: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from tests.parity import run, tables; "
        "tables.read_must_pass = lambda: {'test/test_made.py::TestMade.test_fails'}; "
        f"sys.exit(run.main(['--reference', {str(tree)!r}, '--tests', 'test_made', "
        f"'--json', {str(tmp_path / 'out.json')!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={**run.child_environment(""), "CI": ""},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "has to pass and did not: test/test_made.py::TestMade.test_fails" in done.stdout
    written = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert written["test/test_made.py"]["TestMade.test_passes"]["outcome"] == "passed"


def test_only_what_has_to_pass(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = {"test/test_made.py::TestMade.test_passes", "test/test_made.py::TestMade.test_count"}
    assert run.run_must_pass(tree, ["test/test_made.py"], "", 1, wanted) == 0
    assert "2 of 2 tests that have to pass passed" in capsys.readouterr().out
    wanted |= {"test/test_made.py::TestMade.test_fails", "test/test_made.py::TestMade.test_gone"}
    assert run.run_must_pass(tree, ["test/test_made.py"], "", 1, wanted) == 1
    printed = capsys.readouterr().out
    assert "did not: test/test_made.py::TestMade.test_fails: assert 6 == 7" in printed
    assert "did not: test/test_made.py::TestMade.test_gone: it is gone" in printed
    assert "2 of 4 tests that have to pass passed" in printed


def test_the_reference_is_fetched_by_pip_with_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is stood in for: it writes the archive, or nothing."""
    calls: list[list[str]] = []

    def download(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        wanted = Path(command[command.index("--requirement") + 1]).read_text(encoding="utf-8")
        assert wanted == f"{run.SDIST} --hash=sha256:{run.SDIST_SHA256}\n"
        made = tmp_path / "tinygrad-0.12.0"
        (made / "test").mkdir(parents=True, exist_ok=True)
        folder = Path(command[command.index("--dest") + 1])
        with tarfile.open(folder / "tinygrad-0.12.0.tar.gz", "w:gz") as archive:
            archive.add(made, arcname=made.name)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(run, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(run.subprocess, "run", download)
    tree = run.fetch_reference()
    assert tree == tmp_path / "cache" / "reference" / "tinygrad-0.12.0"
    assert (tree / "test").is_dir()
    assert run.fetch_reference() == tree
    assert len(calls) == 1
    assert [p.name for p in tree.parent.iterdir()] == [tree.name]
    monkeypatch.setattr(run, "cache_folder", lambda: tmp_path / "other")
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(run.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(SystemExit, match="pip could not fetch tinygrad"):
        run.fetch_reference()
