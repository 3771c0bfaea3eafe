"""Counts the CPU seconds of tests: of the worker that runs them and of processes they wait for.

Each report of a phase has `cpu_seconds`. The end of a run prints the sum by folder and the peak
memory of a worker; `--cpu-times FILE` writes a row for each test. Wall time is pytest's to tell
(`--durations`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

RAISERS = 5  # tests that raised the peak of a worker most, which the summary names
DEPTH = 3  # folders of a test's path that rows of the summary keep: tests/core/codegen


def spent() -> float:
    """CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def peak_memory() -> int:
    """Most MiB that this process had in memory; 0 where the system does not tell."""
    if os.name == "nt":
        return 0
    resource = importlib.import_module("resource")
    # Bytes on macOS, KiB elsewhere.
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) // unit


class Clock:
    """Measures phases of tests in a worker, and adds them up where reports arrive."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.last = spent()
        self.of_test: defaultdict[str, float] = defaultdict(float)
        self.more_mib: Counter[str] = Counter()
        self.peak_mib = self.worker_peak = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Gives a report the CPU seconds since the report before, and the process's peak memory."""
        report = yield
        now = spent()
        peak = peak_memory()
        report.cpu_seconds, report.peak_mib = now - self.last, peak
        report.more_mib = peak - self.worker_peak if self.worker_peak else 0
        self.last, self.worker_peak = now, peak
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds a report up; with several workers this runs in the process that starts them."""
        self.of_test[report.nodeid] += getattr(report, "cpu_seconds", 0.0)
        self.peak_mib = max(self.peak_mib, getattr(report, "peak_mib", 0))
        self.more_mib[report.nodeid] += getattr(report, "more_mib", 0)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints CPU seconds by folder, the largest first."""
        folders: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self.of_test.items():
            parts = Path(name.partition("::")[0]).parent.parts
            folders["/".join(parts[:DEPTH])] += seconds
        terminalreporter.section("CPU seconds by folder")
        for folder, seconds in sorted(folders.items(), key=lambda row: -row[1]):
            terminalreporter.write_line(f"{seconds:8.1f}  {folder}")
        total = sum(folders.values())
        terminalreporter.write_line(f"{total:8.1f}  all, a worker's peak {self.peak_mib} MiB")
        for name, mib in self.more_mib.most_common(RAISERS):
            if mib > 0:
                terminalreporter.write_line(f"{mib:8d}  MiB more at {name}")
        if self.path is not None:
            rows = sorted(self.of_test.items(), key=lambda row: -row[1])
            text = "".join(f"{seconds:9.3f} {name}\n" for name, seconds in rows)
            Path(self.path).write_text(text, encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cpu-times FILE` writes the CPU seconds of each test."""
    parser.addoption("--cpu-times", metavar="FILE", help="write the CPU seconds of each test")


def pytest_configure(config: pytest.Config) -> None:
    """Counts in every run."""
    config.pluginmanager.register(Clock(config.getoption("--cpu-times")), "cpu clock")
