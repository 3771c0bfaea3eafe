"""The command `aster`: what it prints and the codes it ends with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import aster_ml
from aster_ml import Tensor, cli
from aster_ml.config import Context
from aster_ml.device import KINDS, DeviceRow


def test_doctor_names_every_device_and_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for word in (*KINDS, "vectors", "threads", "Python", "numpy", "llvmlite", "cache", "settings"):
        assert word in printed
    assert [line for line in printed.splitlines() if line.startswith("  CPU ") and "works" in line]
    assert "the default" in printed


def test_doctor_fails_when_the_default_device_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Context(DEV="ABACUS"):
        assert cli.main(["doctor"]) == 1
    assert "ABACUS" in capsys.readouterr().err


def test_doctor_fails_when_the_default_device_does_not_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [DeviceRow("CPU", False, "no such luck; luck would help")]
    monkeypatch.setattr(type(cli.Device), "describe", lambda self: rows)
    with Context(DEV="CPU"):
        assert cli.main(["doctor"]) == 1
    captured = capsys.readouterr()
    assert "CPU     absent  no such luck; luck would help" in captured.out
    assert "no such luck" in captured.err


def test_a_device_that_claims_to_work_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongTensor:
        def __init__(self, values: list[float], device: str) -> None:
            self.values = values

        def __add__(self, other: int) -> WrongTensor:
            return self

        def tolist(self) -> list[float]:
            return self.values

    assert cli.try_device(DeviceRow("PYTHON", True, "fine")) == DeviceRow("PYTHON", True, "fine")
    monkeypatch.setattr(cli, "Tensor", WrongTensor)
    row = cli.try_device(DeviceRow("PYTHON", True, "fine"))
    assert not row.works
    assert "[1.0, 2.0, 3.0]" in row.note


def test_cache_line_counts_files(tmp_path: Path) -> None:
    with Context(CACHEDIR=str(tmp_path / "absent")):
        assert "not there yet" in cli.cache_line()
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "one").write_bytes(bytes(1024))
    (tmp_path / "two").write_bytes(bytes(512))
    with Context(CACHEDIR=str(tmp_path)):
        assert cli.cache_line() == f"{tmp_path}, 2 files, 1.5 KB"


def test_changed_settings_are_named() -> None:
    with Context(NOOPT=1):
        assert "NOOPT=1" in cli.changed_settings()


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("aster-ml ")


def test_demo_gets_its_arguments_and_gives_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def call(words: list[str], more: dict[str, str], in_place: bool) -> int:
        calls.append((words, in_place))
        return 3

    monkeypatch.setattr(cli, "run_python", call)
    assert cli.main(["demo", "--steps", "5", "-q"]) == 3
    # The caller goes on, so the app does not take its place.
    assert calls == [(["-m", "aster_ml.apps.demo", "--steps", "5", "-q"], False)]


@pytest.mark.parametrize("module", ["aster_ml", "aster_ml.cli"])
def test_the_package_is_run_as_the_command(module: str) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    done = run("version")
    assert (done.returncode, done.stdout) == (0, f"aster-ml {aster_ml.__version__}\n")
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: aster ")
    assert all(f"    {name} " in done.stderr for name in ("doctor", "version", *cli.APPS))


@pytest.mark.parametrize("argv", [[], ["surgeon"], ["version", "extra"]])
def test_what_is_not_understood_ends_with_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2


@pytest.mark.skipif(os.name != "posix", reason="locales as POSIX has them")
def test_characters_that_a_terminal_lacks_end_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "\u00e4\u65e5"
    folder.mkdir()
    given = {
        **os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
        "CACHEDIR": "/nowhere", "HOME": str(folder),
    }  # fmt: skip
    text = (
        "import sys; from aster_ml import cli\n"
        "cli.changed_settings = lambda: chr(0x65e5)\n"
        "sys.exit(cli.main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, env=given, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"settings   \\u65e5" in done.stdout


def test_children_show_such_characters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str | None] = []

    def call(words: list[str], more: dict[str, str], in_place: bool) -> int:
        given.append(more.get("PYTHONIOENCODING"))
        return 0

    monkeypatch.setattr(cli, "run_python", call)
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    cli.run_app("demo", [])
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1:strict")
    cli.run_app("demo", [])
    assert given == [":backslashreplace", "latin-1:strict"]


@pytest.mark.skipif(os.name != "posix", reason="pipes as POSIX has them")
def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    """`aster doctor | head -1` ends without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "aster_ml.cli", "doctor"],
            stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_colours_where_nobody_sees_them(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=2):
        (Tensor([1.0, 2.0]) + 1).realize()
    out = capsys.readouterr().out
    assert "***" in out
    assert "\x1b" not in out


def test_reproduce_says_in_a_line_what_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words").write_text("nothing failed here", encoding="utf-8")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, wanted in (
        ("absent", "No such file"),
        ("", "Is a directory"),
        ("words", "no text of a failure"),
        ("bytes", "no text"),
    ):
        assert cli.main(["reproduce", str(tmp_path / name)]) == 2
        printed = capsys.readouterr().out
        assert printed.count("\n") == 1
        assert wanted in printed
