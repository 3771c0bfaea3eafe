"""The command: measures, prints the tables, writes the files of a full run; compares; renders.

Exit codes: 0 measured, 1 where Aster failed a row or gave another result than its peers, or where
`--check` finds a ratio that has fallen, 2 the command line was not understood.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import check, machine, page, plots, report, results
from benchmarks.libraries import LIBRARIES
from benchmarks.measure import FULL, QUICK, Session, group_rows
from benchmarks.peers import BEFORE, ROOT
from benchmarks.results import Data, Result
from benchmarks.row import Row
from benchmarks.rows import all_rows
from benchmarks.sets import DEFAULT_SEED

# torch.compile has to be asked for: compiling takes it minutes.
DEFAULT_PEERS = ("torch", "jax", "numpy", "onnxruntime", "llama.cpp", "tinygrad")
# What --check compares with where nothing else is asked for.
CHECK_PEERS = ("torch", "numpy")
NOTES = ROOT / "benchmarks" / "notes.toml"


def parse_peer(text: str) -> tuple[str, str]:
    """`tinygrad=/path/to/python`; without a path, this interpreter."""
    name, _, python = text.partition("=")
    if name not in LIBRARIES or name in ("aster", "before"):
        peers = ", ".join(n for n in LIBRARIES if n not in ("aster", "before"))
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
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FOLDER",
        help="Aster as this other checkout has it, measured in turns with this one; no other peers "
        "but those of --peer",
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
        help="take every row with each of these; else with one and with all cores where the "
        "number counts",
    )
    parser.add_argument(
        "--seed", type=int, default=DEFAULT_SEED, metavar="N", help="draw other random cases"
    )
    parser.add_argument("--list", action="store_true", help="name the rows and measure nothing")
    parser.add_argument(
        "--check",
        type=Path,
        nargs="+",
        metavar="RESULTS",
        help="measure in the quick form against PyTorch and NumPy, and fail where a ratio is less "
        "than half of the one in this results.json; of several, the one of a machine like this",
    )
    parser.add_argument(
        "--render",
        type=Path,
        metavar="RESULTS",
        help="measure nothing, write the page and its plots from this results.json",
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="RESULTS",
        help="put what was measured in the place of the same rows of this results.json, and write "
        "the page anew, which names these rows",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write results.json, performance.md and plots/ here, whatever was measured; else a "
        "full run of all rows writes them to their places in the repository",
    )
    return parser


def find_pythons(options: argparse.Namespace) -> dict[str, str]:
    """Which interpreter each library runs in, Aster first."""
    pythons = {"aster": sys.executable}
    if options.no_peers:
        return pythons
    if options.before:
        os.environ[BEFORE] = str(options.before.absolute())
        return {**pythons, "before": sys.executable, **dict(options.peer)}
    given = dict(parse_peer(p) for p in os.environ.get("BENCH_PEERS", "").split())
    given.update(options.peer)
    pythons.update(dict.fromkeys(CHECK_PEERS if options.check else DEFAULT_PEERS, sys.executable))
    pythons.update(given)
    return pythons


def wanted_rows(options: argparse.Namespace, quick: bool) -> list[Row]:
    """The rows that the command line asks for."""
    return [
        r
        for r in all_rows(options.seed, quick)
        if not options.only or any(r.matches(pattern, quick) for pattern in options.only)
    ]


def measure(session: Session, rows: list[Row], options: argparse.Namespace) -> list[Result]:
    """All these rows, in the order of the table."""
    quick = session.form is QUICK
    order = {id(r): i for i, r in enumerate(rows)}
    found: list[Result] = []
    groups = list(group_rows(rows, options.threads, quick))
    total = sum(group.expected_s for group in groups)
    for i, group in enumerate(groups):
        title = group.rows[0].title(quick)[:60]
        if sys.stderr.isatty():
            print(f"\r\033[K{i + 1}/{len(groups)} {title}", end="", file=sys.stderr)
        elif not group.rows[0].drawn:
            seconds = time.monotonic() - session.began
            print(f"{seconds:5.0f} s, {i + 1}/{len(groups)} {title}", file=sys.stderr, flush=True)
        found += session.run(group)
        session.done += group.expected_s / total
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    found.sort(key=lambda r: order[id(r.row)])
    return found


def check_again(
    session: Session, rows: list[Row], options: argparse.Namespace, committed: Data, data: Data
) -> int:
    """Compares; measures once more what looks fallen. Returns the exit code."""
    falls, compared = check.compare(committed, data["rows"])
    for _ in range(check.ATTEMPTS - 1):
        if not falls:
            break
        names = {f.name for f in falls}
        again = [r for r in rows if r.title(session.form is QUICK) in names]
        now = results.plain_data(measure(session, again, options), {})
        falls = [f for f in check.compare(committed, now["rows"])[0] if f.name in names]
    for fall in falls:
        print(f"FALLEN: {fall}")
    if not compared:
        print("no row of this run has a ratio in the committed results; nothing was compared")
        return 1
    caches = committed.get("machine", {}).get("caches", "caches not told")
    print(
        f"{compared} rows compared with the committed ratios, {len(falls)} fallen by half "
        f"(those of a machine with {caches})"
    )
    return int(bool(falls))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = make_parser().parse_args(argv)
    quick = bool(options.check) or os.environ.get("BENCH_QUICK", "") not in ("", "0")
    if options.render:
        write(json.loads(options.render.read_text(encoding="utf-8")), options)
        return 0
    committed = None
    if options.check:
        several = [json.loads(path.read_text(encoding="utf-8")) for path in options.check]
        committed = check.choose(machine.kind(), several)
    rows = wanted_rows(options, quick)
    if committed is not None:
        names = {r["name"] for r in committed["rows"] if r["ratio_median"] is not None}
        # A first call of a peer depends on what of its files the machine has in memory.
        rows = [r for r in rows if r.title(quick) in names and r.how != "fresh"]
        rows = [r for r in rows if set(r.libraries) & set(find_pythons(options))]
    if options.list:
        print("\n".join(r.title(quick) for r in rows))
        return 0
    if not rows:
        print("no row is named so; --list names them", file=sys.stderr)
        return 2
    where = machine.describe()
    with tempfile.TemporaryDirectory(prefix="aster-bench-", ignore_cleanup_errors=True) as folder:
        with Session(find_pythons(options), QUICK if quick else FULL, Path(folder)) as session:
            session.look_around()
            found = measure(session, rows, options)
            about: Data = {
                "form": session.form.name,
                "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
                "seed": options.seed,
                "machine": where,
                "versions": session.versions,
                "left_out": session.left_out,
            }
            data = results.plain_data(found, about)
            print("\n".join(report.plain_tables(data)))
            print()
            for line in report.reasons(data):
                print(line)
            code = int(bool(check.failed_rows(data["rows"])))
            if committed is not None:
                code |= check_again(session, rows, options, committed, data)
    whole = not (options.only or options.no_peers or options.before or quick)
    if options.into is not None:
        earlier = json.loads(options.into.read_text(encoding="utf-8"))
        data = results.put_into(earlier, data)
    if options.out is not None or options.into is not None or whole:
        write(data, options)
    return code


def write(data: Data, options: argparse.Namespace) -> None:
    """results.json, the page and its plots."""
    folder = options.out or ROOT / "docs" / "explanation"
    path = (options.out or ROOT / "benchmarks") / "results.json"
    (folder / "plots").mkdir(parents=True, exist_ok=True)
    if not options.render:
        path.write_text(results.to_json(data), encoding="utf-8", newline="\n")
    for name, svg in plots.all_plots(data).items():
        (folder / "plots" / name).write_text(svg, encoding="utf-8", newline="\n")
    text = page.performance_page(data, page.read_notes(NOTES))
    (folder / "performance.md").write_text(text, encoding="utf-8", newline="\n")
    print(f"written: {folder / 'performance.md'} and its plots")


if __name__ == "__main__":
    sys.exit(main())
