"""The self-test of a device: what is right passes, what is wrong or hangs does not, and is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aster_ml import Context, Device, cli
from aster_ml.apps import self_test
from aster_ml.apps.self_test import PARTS, check, check_apart, run_self_test
from aster_ml.runtime import verdicts


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with Context(CACHEDIR=str(tmp_path / "cache"), CACHE=1):
        yield


def test_the_cpu_passes_and_that_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    device = Device["CPU"].tested_as
    assert verdicts.passed_parts(device) == frozenset()
    assert run_self_test("CPU", check) == 0
    assert verdicts.passed_parts(device) == {"ops", "programs"}
    printed = capsys.readouterr().out
    assert "FAILED" not in printed
    assert printed.count(" passed ") == 2
    row = next(row for row in Device.describe() if row.name == "CPU")
    assert cli.try_device(row).note == f"{row.note}; passed in a self-test: ops programs"


@pytest.mark.slow
def test_the_interpreter_passes() -> None:
    for part in ("ops", "programs"):
        report = check("PYTHON", part)
        assert report.tried > 30
        assert report.wrong == []


def test_the_command_tests_a_device_in_processes_of_their_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["doctor", "--self-test", "cpu"]) == 0
    assert "programs   passed" in capsys.readouterr().out
    assert cli.main(["doctor", "--self-test", "ABACUS"]) == 1
    assert "ABACUS" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["ops", "programs"])
def test_what_is_wrong_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """One bit of one number that comes back is another one."""
    numpy = self_test.Tensor.numpy
    calls = []

    def wrong(tensor: self_test.Tensor) -> np.ndarray:
        found = np.array(numpy(tensor))
        calls.append(found.size)
        if len(calls) == 20:
            found.reshape(-1).view(np.uint8)[-1] ^= 0x40 if found.itemsize > 1 else 1
        return found

    def one_part(device: str, name: str) -> self_test.Report:
        with monkeypatch.context() as patch:
            if name == part:
                patch.setattr(self_test.Tensor, "numpy", wrong)
            return check(device, name)

    assert run_self_test("CPU", one_part) == 1
    assert len(calls) > 20
    other = "programs" if part == "ops" else "ops"
    assert verdicts.passed_parts(Device["CPU"].tested_as) == {other}
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text, said",
    [
        ("import time; time.sleep(100)", "did not end within 2 s"),
        ("import os; os.abort()", "its process ended with -6"),
        ("raise SystemExit('no device here')", "no device here"),
        ("print('[1, 2, 3]')", "its process ended with 0"),
        ("print('nonsense')", "its process ended with 0"),
    ],
)
def test_a_part_that_ends_badly_has_failed(
    monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setitem(PARTS, "ops", PARTS["ops"]._replace(limit_s=2))
    monkeypatch.setattr(self_test, "python_command", lambda *_: [sys.executable, "-c", text])
    report = check_apart("CPU", "ops")
    assert report.tried == 0
    assert said in report.wrong[0]


def test_an_error_of_the_device_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> Iterator[tuple[str, str]]:
        yield "one", ""
        raise self_test.AsterError("the device is gone")

    monkeypatch.setitem(PARTS, "ops", PARTS["ops"]._replace(run=broken))
    report = check("CPU", "ops")
    assert report.tried == 1
    assert report.wrong == ["after 1 checks: AsterError: the device is gone"]
