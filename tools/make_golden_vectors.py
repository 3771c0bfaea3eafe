"""Makes the golden vectors with the reference, or compares them with it.

`python tools/make_golden_vectors.py --peer PYTHON [--check] [GROUP ...]`: PYTHON is an interpreter
that has the reference and NumPy. Every case of `tests/core/golden/catalogue.py` is computed there
and written to `tests/core/golden/vectors`; with `--check` nothing is written, and each case that is
missing, left over or different is named. Nothing here imports Aster.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.core.golden import catalogue, vectors  # noqa: E402

REFERENCE = "0.12.0"
# The reference on another machine may round another way: this many units in the last place.
UNITS = 4


def compute(group: str, folder: Path) -> int:
    """In the peer's process: computes one group and writes it to the folder."""
    from importlib.metadata import version

    from tinygrad import Device, Tensor, dtypes

    if version("tinygrad") != REFERENCE:
        print(f"the peer has version {version('tinygrad')} of the reference, not {REFERENCE}")
        return 1
    done, results, failed = [], [], 0
    for case in catalogue.find(group):
        # Not every C compiler has the type that the reference's CPU device makes of bfloat16.
        Device.DEFAULT = "PYTHON" if "bfloat16" in case.name else "CPU"
        try:
            planned = vectors.plan(case, Tensor, dtypes)
            Tensor.realize(*[t for _, t in planned])
            results.append([vectors.read(label, t) for label, t in planned])
            done.append(case)
        except Exception as error:
            failed += 1
            print(f"{group}: {case.name}: {type(error).__name__}: {str(error)[:120]}", flush=True)
    vectors.pack(done, results, folder / f"{group}.npz")
    return 1 if failed else 0


def differences(group: str, made: Path, kept: Path) -> list[str]:
    """What a check has to say of one group."""
    if not kept.exists():
        return [f"{group}: there is no file"]
    new, old = vectors.unpack(made), vectors.unpack(kept)
    found = [f"{group}: not in the file: {n}" for n in new if n not in old]
    found += [f"{group}: no such case any more: {n}" for n in old if n not in new]
    for name in [n for n in new if n in old]:
        for mine, theirs in zip(new[name], old[name], strict=True):
            line = vectors.difference(mine, theirs, UNITS)
            if line:
                found.append(f"{group}: {name}: {mine.label}: {line}")
    return found


def main() -> int:
    """Runs the peer for each group; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", default=list(catalogue.GROUPS))
    parser.add_argument("--peer", help="the Python that has the reference")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return compute(options.groups[0], options.inside)
    if not options.peer:
        parser.error("--peer PYTHON is needed: an interpreter that has the reference")
    vectors.FOLDER.mkdir(exist_ok=True)
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        for group in options.groups:
            target = Path(folder) if options.check else vectors.FOLDER
            script = [options.peer, str(Path(__file__).resolve()), "--inside", str(target), group]
            status |= subprocess.run(
                script, check=False, env={**os.environ, "DEV": "CPU"}
            ).returncode
            if options.check:
                kept = vectors.FOLDER / f"{group}.npz"
                for line in differences(group, target / f"{group}.npz", kept):
                    print(line)
                    status = 1
            print(f"{group}: {len(catalogue.find(group))} cases", flush=True)
    if not options.check and options.groups == list(catalogue.GROUPS):
        for path in vectors.FOLDER.glob("*.npz"):
            if path.stem not in catalogue.GROUPS:
                path.unlink()
    return status


if __name__ == "__main__":
    sys.exit(main())
