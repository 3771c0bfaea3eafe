"""The command: measures, prints the table, writes the files of a full run.

Exit codes: 0 measured, 1 where Aster failed a row or gave another result than its peers, 2 the
command line was not understood.
"""

from __future__ import annotations

import argparse
import datetime
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import machine, report
from benchmarks.libraries import LIBRARIES
from benchmarks.measure import FULL, QUICK, Session, group_rows
from benchmarks.peers import ROOT
from benchmarks.results import Result
from benchmarks.rows import ROWS

# torch.compile has to be asked for: compiling takes it minutes.
DEFAULT_PEERS = ("torch", "jax", "numpy", "tinygrad")


def parse_peer(text: str) -> tuple[str, str]:
    """`tinygrad=/path/to/python`; without a path, this interpreter."""
    name, _, python = text.partition("=")
    if name not in LIBRARIES or name == "aster":
        peers = ", ".join(n for n in LIBRARIES if n != "aster")
        raise argparse.ArgumentTypeError(f"no peer is named {name!r}; there are {peers}")
    found = shutil.which(python) if python else sys.executable
    if found is None:
        raise argparse.ArgumentTypeError(f"{python} is no program that can be run")
    return name, str(Path(found).absolute())


def parse_threads(text: str) -> list[int]:
    """`1,2`."""
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least one thread")
    return counts


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Aster beside its peers, in one table. BENCH_QUICK=1 takes every row shortly.",
    )
    parser.add_argument(
        "--peer",
        action="append",
        type=parse_peer,
        default=[],
        metavar="NAME=PYTHON",
        help="the interpreter of a peer's own environment (may be repeated; the environment's "
        "BENCH_PEERS has the same, separated by spaces)",
    )
    parser.add_argument("--no-peers", action="store_true", help="Aster alone")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="GLOB",
        help="rows or subjects with this in their name (may be repeated)",
    )
    parser.add_argument(
        "--threads",
        type=parse_threads,
        metavar="N,M",
        help="take every row with each of these; else with all cores, a few rows with one too",
    )
    parser.add_argument("--list", action="store_true", help="name the rows and measure nothing")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write results.json and performance.md here, whatever was measured; else a full run "
        "of all rows writes them to their places in the repository",
    )
    return parser


def find_pythons(options: argparse.Namespace) -> dict[str, str]:
    """Which interpreter each library runs in, Aster first."""
    pythons = {"aster": sys.executable}
    if options.no_peers:
        return pythons
    given = dict(parse_peer(p) for p in os.environ.get("BENCH_PEERS", "").split())
    given.update(options.peer)
    pythons.update(dict.fromkeys(DEFAULT_PEERS, sys.executable))
    pythons.update(given)
    return pythons


def measure(options: argparse.Namespace, quick: bool) -> tuple[list[Result], Session]:
    """All rows that are wanted, in the order of the table."""
    rows = [
        r
        for r in ROWS
        if not options.only or any(r.matches(pattern, quick) for pattern in options.only)
    ]
    order = {id(r): i for i, r in enumerate(rows)}
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="aster-bench-", ignore_cleanup_errors=True) as folder:
        with Session(find_pythons(options), QUICK if quick else FULL, Path(folder)) as session:
            session.look_around()
            groups = list(group_rows(rows, options.threads, quick))
            for i, group in enumerate(groups):
                if sys.stderr.isatty():
                    title = group.rows[0].title(quick)
                    print(f"\r\033[K{i + 1}/{len(groups)} {title}", end="", file=sys.stderr)
                results += session.run(group)
            if sys.stderr.isatty():
                print("\r\033[K", end="", file=sys.stderr)
    results.sort(key=lambda r: order[id(r.row)])
    return results, session


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = make_parser().parse_args(argv)
    quick = os.environ.get("BENCH_QUICK", "") not in ("", "0")
    if options.list:
        print("\n".join(r.title(quick) for r in ROWS))
        return 0
    where = machine.describe()
    results, session = measure(options, quick)
    if not results:
        print("no row is named so; --list names them", file=sys.stderr)
        return 2
    about: dict[str, object] = {
        "form": session.form.name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": where,
        "versions": session.versions,
        "left_out": session.left_out,
    }
    print("\n".join(report.plain_table(results)))
    print()
    for line in report.reasons(results, session.left_out):
        print(line)
    write(results, about, session, options)
    return int(any(f.error for r in results for name, f in r.figures.items() if name == "aster"))


def write(
    results: list[Result], about: dict[str, object], session: Session, options: argparse.Namespace
) -> None:
    """The files, where they are wanted."""
    page_folder, data_folder = options.out or ROOT / "docs", options.out or ROOT / "benchmarks"
    if options.out is None and (options.only or options.no_peers or session.form is QUICK):
        return
    notes = report.read_notes(ROOT / "benchmarks" / "notes.toml")
    page_folder.mkdir(parents=True, exist_ok=True)
    data = report.results_json(results, about)
    (data_folder / "results.json").write_text(data, encoding="utf-8", newline="\n")
    page = report.performance_page(results, about, session.form, notes)
    (page_folder / "performance.md").write_text(page, encoding="utf-8", newline="\n")
    print(f"written: {data_folder / 'results.json'}, {page_folder / 'performance.md'}")


if __name__ == "__main__":
    sys.exit(main())
