"""Runs part of one reference test file in a process of its own and writes down each outcome.

`python -m tests.parity.child DIR FILE RESULTS SHARD SHARDS [CHOSEN]`: every line of RESULTS is a
list, ["start", id] before a test and [outcome, id, seconds, one line] after it, written at once, so
that a crash loses one test. Tests that RESULTS already names are not run again; with CHOSEN, a file
of `FILE::id` lines, only those of them are.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

TIMEOUT_S = 240


class Recorder:
    """The pytest plugin: chooses the tests of a shard, seeds, and writes outcomes."""

    def __init__(
        self, results: Path, shard: int, shards: int, chosen: set[str] | None = None
    ) -> None:
        self.results = results
        self.chosen = chosen
        self.shard = shard
        self.shards = shards
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        self.done = {json.loads(line)[1] for line in lines}
        self.worst: dict[str, tuple[str, float, str]] = {}

    def write(self, *values: Any) -> None:
        """One line, on disk before the next test starts."""
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps what is this shard's and not done yet; fewer kernels than stated will do."""
        from tests.parity import counts

        for module in {item.module for item in items}:
            counts.replace_counters(module)
        if self.chosen is not None:
            items[:] = [item for item in items if short_id(item.nodeid) in self.chosen]
        ids = [short_id(item.nodeid) for item in items]
        items[:] = [
            item
            for i, item in enumerate(items)
            if i * self.shards // len(ids) == self.shard and ids[i] not in self.done
        ]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Also gives every test the same random numbers, whatever ran before."""
        import numpy as np

        self.write("start", short_id(nodeid))
        random.seed(0)
        np.random.seed(0)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(0)
        if "tinygrad" in sys.modules:
            # Or numbers come of the time, and some tests compare sums that may cancel.
            sys.modules["tinygrad"].Tensor.manual_seed(0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Takes the worst of set-up, call and tear-down."""
        name = short_id(report.nodeid)
        outcome, seconds, line = self.worst.get(name, ("passed", 0.0, ""))
        seconds += report.duration
        if report.failed and one_line(report).endswith("Unexpected success"):
            outcome = "xpassed"
        elif report.failed:
            outcome, line = "failed", one_line(report)
        elif report.skipped and outcome == "passed":
            outcome = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        self.worst[name] = (outcome, seconds, line)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """The outcome of a whole test."""
        name = short_id(nodeid)
        outcome, seconds, line = self.worst.get(name, ("failed", 0.0, "no report"))
        self.write(outcome, name, round(seconds, 3), line)

    def pytest_collectreport(self, report: Any) -> None:
        """A file that does not load fails as a whole."""
        if report.failed:
            self.write("failed", "(file)", 0.0, one_line(report))


def short_id(nodeid: str) -> str:
    """`test/test_ops.py::TestOps::test_add` -> `TestOps.test_add`."""
    return ".".join(nodeid.split("::")[1:])


def one_line(report: Any) -> str:
    """The last line that names the error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if crash is None:
        lines = [line.removeprefix("E ").strip() for line in lines if line.startswith("E ")][-1:]
    where = ""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    for entry in entries:
        place = getattr(entry, "reprfileloc", None)
        if place is not None and "aster_ml" in str(place.path):
            where = f" [{Path(place.path).name}:{place.lineno}]"
    return " ".join(lines[:4])[:300] + where


def main(argv: list[str]) -> int:
    """Runs one shard of one file."""
    folder, file, results = Path(argv[0]), argv[1], Path(argv[2])
    chosen = None
    if argv[5:] and argv[5]:
        lines = [line.partition("::") for line in Path(argv[5]).read_text("utf-8").splitlines()]
        chosen = {name for where, _, name in lines if where == file}
    recorder = Recorder(results, int(argv[3]), int(argv[4]), chosen)
    os.environ.setdefault("RUN_SLOW", "1")
    sys.dont_write_bytecode = True

    import hypothesis
    import pytest

    from tests.parity import hook

    # The same examples in every run, so that what has to pass does not depend on luck.
    hypothesis.settings.register_profile("parity", derandomize=True, database=None)
    hypothesis.settings.load_profile("parity")
    hook.install(folder)
    return int(
        pytest.main(
            [
                str(folder / file),
                f"--rootdir={folder}",
                "-c",
                str(Path(__file__).parent / "pytest.ini"),
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-q",
                "--no-header",
                "--tb=short",
                "--disable-warnings",
                f"--timeout={TIMEOUT_S}",
                "-o",
                f"timeout={TIMEOUT_S}",
            ],
            plugins=[recorder],
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
