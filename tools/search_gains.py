"""Names the kernels whose default schedule a search has beaten: each is a defect of the cost model.

`BEAM=4 python program.py` searches the kernels of a program; then `python tools/search_gains.py`
reads what was found in the disk cache, the largest gain first. `--least 1.1` leaves smaller gains
out. The files that it names have the kernels as text.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aster_ml.codegen.opts import Opt
from aster_ml.engine.search.beam import Record, read_record
from aster_ml.runtime.object_cache import cache_folder


def show_opts(opts: tuple[Opt, ...]) -> str:
    """Opts in words."""
    return " ".join(map(repr, opts)) or "plain loops"


def show(path: Path, record: Record) -> str:
    """One kernel."""
    times = f"{record.default_microseconds:.1f} us -> {record.microseconds:.1f} us"
    return (
        f"{record.gain:.2f}x  {times}  "
        f"{show_opts(record.default)} -> {show_opts(record.opts)}  {path.name}"
    )


def lines(folder: Path, least: float) -> list[str]:
    """Every kernel in a cache folder whose search gained so much at least."""
    found = []
    for path in sorted((folder / "schedules").glob("*.txt")):
        record = read_record(path.read_text(encoding="utf-8"))
        if record is not None and record.gain >= least:
            found.append((record.gain, show(path, record)))
    return [text for _, text in sorted(found, reverse=True)]


def main() -> int:
    """Prints them; 1 where there is no cache folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--least", type=float, default=1.05, help="the least gain that is shown")
    least = parser.parse_args().least
    folder = cache_folder()
    if folder is None:
        print("there is no cache folder; set CACHEDIR", file=sys.stderr)
        return 1
    found = lines(folder, least)
    print("\n".join(found) if found else f"no search in {folder} gained {least:g} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
