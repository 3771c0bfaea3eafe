"""Stores results of device self-tests, a text file each in the cache folder.

Receives the key of a device with its driver, and the parts of a self-test that passed or failed;
returns the parts that passed. Callers know the parts and their consequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from aster_ml.private_files import check_folder, make_folder, own_folder, read_own, replace_own
from aster_ml.runtime.object_cache import cache_folder

# Increased when the parts of the self-test, or their kernels, change.
EDITION = 1
MAX_BYTES = 1 << 16
# The part that enables TMA on a device (Hopper).
BOXES = "boxes"


def path_of(device: str) -> Path | None:
    """The file of a device; None where there is no cache folder."""
    folder = cache_folder()
    if folder is None:
        return None
    name = hashlib.blake2b(device.encode(), digest_size=16).hexdigest()
    return own_folder(folder, "verdicts") / f"{name}.txt"


def copy_to(folder: Path) -> None:
    """Copies all results to another cache folder, for a process that uses it."""
    cache = cache_folder()
    there = None if cache is None else own_folder(cache, "verdicts")
    if there is None or not there.is_dir():
        return
    make_folder(folder / "verdicts")
    for path in there.glob("*.txt"):
        content = read_own(str(path), MAX_BYTES)
        if content is not None:
            replace_own(str(folder / "verdicts" / path.name), content)


def keep_verdicts(device: str, parts: Mapping[str, bool]) -> Path:
    """Writes which parts have passed; returns the file. Raises: OSError."""
    path = path_of(device)
    if path is None:
        raise FileNotFoundError("there is no home folder to keep it in; set CACHEDIR")
    make_folder(path.parent)
    words = {
        state: [p for p, passed in parts.items() if passed is state] for state in (True, False)
    }
    text = (
        "# What `aster doctor --self-test` has found of a device.\n"
        f"edition {EDITION}\n"
        f"device {device}\n"
        f"passed {' '.join(words[True])}\n"
        f"failed {' '.join(words[False])}\n"
    )
    replace_own(str(path), text.encode())
    return path


def passed_parts(device: str) -> frozenset[str]:
    """The parts that a device has passed; empty without a result."""
    path = path_of(device)
    if path is None:
        return frozenset()
    try:
        check_folder(path.parent)
        content = read_own(str(path), MAX_BYTES)
        lines = [] if content is None else content.decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    values = dict([line.partition(" ")[::2] for line in lines])
    if values.get("edition") != str(EDITION) or values.get("device") != device:
        return frozenset()
    return frozenset(values.get("passed", "").split()) - set(values.get("failed", "").split())
