"""Runs the reference's own test files on Aster and says how many pass.

`python -m tests.parity.run [--reference DIR] [--tests GLOB] [--device D] [--json OUT] [-n N]`,
with `--must-pass` only the tests of `must_pass.txt`.
Receives a reference source tree (without one, the pinned source distribution is fetched into the
cache folder); prints per file what passed, failed and was skipped beside what the reference does
itself, and one line a failure. Ends with 1 when a test of `must_pass.txt` did not pass.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aster_ml.runtime.object_cache import cache_folder
from tests.parity import tables

REPOSITORY = Path(__file__).parents[2]
SDIST = "tinygrad==0.12.0"
SDIST_SHA256 = "299cd53d9452b8689b36c7026c866b73d1e4a862ec53a8ea5bc2a412358c1bbf"
# A file of the reference with more lines than this is shared out over processes.
LINES_A_SHARD = 900
# A process that has crashed on this many tests of its shard is given up.
MAX_CRASHES = 40


@dataclass
class Result:
    """Outcome of one test, with its time and, for a failure, one line that says why."""

    outcome: str
    seconds: float = 0.0
    line: str = ""


@dataclass
class FileResult:
    """Outcomes of one file by short id."""

    name: str
    tests: dict[str, Result] = field(default_factory=dict)

    def count(self, outcome: str) -> int:
        """How many tests ended so."""
        return sum(t.outcome == outcome for t in self.tests.values())


def fetch_reference() -> Path:
    """The folder of the pinned source distribution, fetched by pip when it is not there yet.

    pip looks where it is set up to look, and takes nothing with another SHA-256.
    """
    cache = cache_folder()
    if cache is None:
        raise SystemExit("parity: there is no home folder for the reference; give --reference DIR")
    tree = cache / "reference" / SDIST.replace("==", "-")
    if (tree / "test").is_dir():
        return tree
    tree.parent.mkdir(parents=True, exist_ok=True)
    # Unpacked beside its place, so that a tree that is there is a whole one.
    with tempfile.TemporaryDirectory(dir=tree.parent) as name:
        folder = Path(name)
        wanted = folder / "wanted.txt"
        wanted.write_text(f"{SDIST} --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        package = SDIST.partition("==")[0]
        pip += ["--no-deps", "--no-binary", package, "--dest", name, "--requirement", str(wanted)]
        if subprocess.run(pip, check=False).returncode:
            raise SystemExit(f"parity: pip could not fetch {SDIST}; give --reference DIR")
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            # Python before 3.11.4 has no filters; the archive is the one of this hash in any case.
            safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(folder, **safely)
        shutil.rmtree(tree, ignore_errors=True)
        (folder / tree.name).rename(tree)
    return tree


def read_lines(path: Path) -> list[list[Any]]:
    """The JSON lines that a child wrote; the last may be cut short by a crash."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line.endswith("]")]


# Files that look at C source, which is what the reference's CPU device writes.
ABOUT_C = frozenset({"test/test_opts.py", "test/test_renderer_failures.py", "test/test_uops.py"})


def child_environment(device: str, file: str = "") -> dict[str, str]:
    """The environment of a child: this repository first on the path, slow tests on, one seed."""
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    chosen = {"DEV": device} if device else {"CLANG": "1"} if file in ABOUT_C else {}
    # Where Aster fails inside, a test fails.
    return {
        "STRICT": "1",
        **os.environ,
        "RUN_SLOW": "1",
        "DERANDOMIZE_CI": "1",
        "PYTHONPATH": paths,
        **chosen,
    }


def run_shard(
    reference: Path, file: str, shard: int, shards: int, device: str, folder: Path, chosen: str
) -> dict[str, Result]:
    """Runs one shard in processes of its own, starting another after each crash.

    `chosen` is a file of ids, to which the run is restricted, or empty.
    """
    results = folder / f"{Path(file).stem}-{shard}.jsonl"
    work = folder / f"{Path(file).stem}-{shard}"
    work.mkdir()
    environment = child_environment(device, file)
    found: dict[str, Result] = {}
    for _ in range(MAX_CRASHES):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.parity.child",
                str(reference),
                file,
                str(results),
                str(shard),
                str(shards),
                chosen,
            ],
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        open_test = None
        for outcome, name, *rest in read_lines(results):
            open_test = name if outcome == "start" else None
            if outcome != "start":
                found[name] = Result(outcome, *rest)
        if open_test is None:
            if not found and done.returncode not in (0, 1, 5):
                tail = (done.stdout + done.stderr).strip().splitlines()[-1:]
                found["(file)"] = Result("failed", 0.0, f"exit {done.returncode}: {tail}")
            return found
        line = f"the process ended with {done.returncode} (crash, or beyond the time limit)"
        found[open_test] = Result("failed", 0.0, line)
        with results.open("a", encoding="utf-8") as file_of_results:
            file_of_results.write(json.dumps(["failed", open_test, 0.0, line]) + "\n")
    return found


def run_files(
    reference: Path,
    files: list[str],
    device: str,
    workers: int,
    only: Iterable[str] | None = None,
) -> dict[str, FileResult]:
    """Runs the files, `workers` processes at a time; of their tests all, or `only` these."""
    results = {file: FileResult(file) for file in files}
    with tempfile.TemporaryDirectory(prefix="parity-", ignore_cleanup_errors=True) as folder:
        chosen = ""
        if only is not None:
            chosen = str(Path(folder) / "chosen.txt")
            Path(chosen).write_text("\n".join(only), encoding="utf-8")
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            jobs = {}
            for file in sorted(files, key=lambda f: -(reference / f).stat().st_size):
                lines = len((reference / file).read_text(encoding="utf-8").splitlines())
                shards = 1 + lines // LINES_A_SHARD if workers > 1 else 1
                for shard in range(shards):
                    job = pool.submit(
                        run_shard, reference, file, shard, shards, device, Path(folder), chosen
                    )
                    jobs[job] = file
            for job in concurrent.futures.as_completed(jobs):
                results[jobs[job]].tests.update(job.result())
                print(f"  {jobs[job]}: {len(results[jobs[job]].tests)} done", file=sys.stderr)
    return results


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.run", description=__doc__)
    parser.add_argument("--reference", type=Path, help="a reference source tree")
    parser.add_argument(
        "--tests", default="test/test_*.py", help="glob of files, as test/test_ops.py or test_o*"
    )
    parser.add_argument("--device", default="", help="the default device (DEV)")
    parser.add_argument("--json", type=Path, help="write every outcome here")
    parser.add_argument("-n", type=int, default=1, dest="workers", help="processes at a time")
    parser.add_argument(
        "--must-pass", action="store_true", help="run only the tests of must_pass.txt"
    )
    parser.add_argument(
        "--update-must-pass",
        action="store_true",
        help="add what passes here, and there, to must_pass.txt",
    )
    parser.add_argument("--doc", action="store_true", help="write docs/reference/parity.md")
    return parser.parse_args(argv)


def select(reference: Path, pattern: str) -> list[str]:
    """The files of the tree that the glob names, without those that nobody wants to pass."""
    known = [f"test/{path.name}" for path in sorted((reference / "test").glob("test_*.py"))]
    stem = pattern.removesuffix(".py")
    return [
        f
        for f in known
        if f not in tables.NOT_WANTED
        and (fnmatch.fnmatch(f, pattern) or fnmatch.fnmatch(Path(f).stem, stem))
    ]


def run_must_pass(
    reference: Path, files: list[str], device: str, workers: int, must_pass: set[str]
) -> int:
    """Runs only what has to pass, and prints each test that did not; the exit status."""
    start = time.monotonic()
    results = run_files(reference, files, device, workers, must_pass)
    outcomes = {f: {n: t.outcome for n, t in r.tests.items()} for f, r in results.items()}
    lost = tables.regressions(outcomes, must_pass)
    for test in lost:
        file, _, name = test.partition("::")
        found = results[file].tests.get(name)
        why = "it is gone" if found is None else found.line or found.outcome
        print(f"has to pass and did not: {test}: {why}")
    count = sum(test.partition("::")[0] in results for test in must_pass)
    print(f"{count - len(lost)} of {count} tests that have to pass passed", end="")
    print(f", in {time.monotonic() - start:.0f} s")
    return 1 if lost else 0


def main(argv: list[str] | None = None) -> int:
    """Runs, prints and compares; the exit status."""
    options = parse(argv)
    start = time.monotonic()
    reference = (options.reference or fetch_reference()).resolve()
    files = select(reference, options.tests)
    must_pass = tables.read_must_pass()
    if options.must_pass:
        files = [f for f in files if any(test.startswith(f"{f}::") for test in must_pass)]
    if not files:
        raise SystemExit(f"parity: no file below {reference} is named {options.tests}")
    if options.must_pass:
        return run_must_pass(reference, files, options.device, options.workers, must_pass)
    results = run_files(reference, files, options.device, options.workers)
    outcomes = {f: {n: t.outcome for n, t in r.tests.items()} for f, r in results.items()}
    baseline, differs = tables.read_baseline(), tables.read_differs()
    for file, result in results.items():
        for name, test in result.tests.items():
            if test.outcome == "failed":
                known = " (differs on purpose)" if f"{file}::{name}" in differs else ""
                print(f"{file}::{name}{known}: {test.line}")
    table = tables.table(outcomes, baseline, differs)
    print("\n" + table)
    print(f"{time.monotonic() - start:.0f} s")
    if options.json:
        text = json.dumps(
            {f: {n: vars(t) for n, t in sorted(r.tests.items())} for f, r in results.items()},
            indent=0,
        )
        options.json.write_text(text, encoding="utf-8")
    if options.update_must_pass:
        tables.update_must_pass(outcomes, baseline)
    if options.doc:
        document = REPOSITORY / "docs" / "reference" / "parity.md"
        document.write_text(tables.document(table, differs), encoding="utf-8")
    lost = tables.regressions(outcomes, must_pass)
    for test in lost:
        print(f"has to pass and did not: {test}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
