"""How the array API's own suite is found and counted; a stand-in of one file is in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.library.interop import array_api_suite as runner

SUITE = """
import importlib, os
xp = importlib.import_module(os.environ["ARRAY_API_TESTS_MODULE"])

def test_sum():
    assert int(xp.sum(xp.ones(3))) == 3

def test_wrong():
    assert xp.__array_api_version__ == {wanted!r}
"""
OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--xfails-file")
    parser.addoption("--max-examples")
"""


def made(folder: Path, wanted: str) -> Path:
    (folder / "array_api_tests").mkdir()
    (folder / "array_api_tests" / "test_one.py").write_text(SUITE.format(wanted=wanted))
    (folder / "array_api_tests" / "conftest.py").write_text(OPTIONS)
    return folder


@pytest.mark.parametrize(("wanted", "status"), [("2024.12", 0), ("1999.12", 1)])
def test_the_suite_is_run_and_counted(
    wanted: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ARRAY_API_TESTS", str(made(tmp_path, wanted)))
    assert runner.main([]) == status
    text = capsys.readouterr().out
    assert f"2 tests, {2 - status} pass, {status} fail" in text
    assert "0 fail by intent, 0.0%" in text


def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ARRAY_API_TESTS", str(tmp_path))
    assert runner.main([]) == runner.MISSING
    assert "has no folder array_api_tests" in capsys.readouterr().out
    monkeypatch.delenv("ARRAY_API_TESTS")
    monkeypatch.setattr(runner, "HOME", tmp_path)
    monkeypatch.setattr(runner, "SOURCE", str(tmp_path / "nowhere"))
    assert runner.main([]) == runner.MISSING
    assert "set ARRAY_API_TESTS to a clone" in capsys.readouterr().out


def test_counts_and_reasons() -> None:
    text = "...\n3 failed, 1000 passed, 20 skipped, 12 xfailed, 4 warnings in 61.0s (0:01:01)\n"
    found = runner.counts(text)
    assert (found["passed"], found["xfailed"], found["skipped"]) == (1000, 12, 20)
    lines = runner.XFAILS.read_text(encoding="utf-8").splitlines()
    for line in runner.known_failures():
        assert lines[lines.index(line) - 1].startswith("#"), f"no reason above {line}"
