"""Entries of the cache that are damaged, or sealed though they are not right: made anew, in bounds.

Each case damages one file of a cache folder, whichever kind it is of, and uses the folder twice in
processes of their own with limits of memory and time: both have right results, and the second finds
what the first has made anew.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aster_ml.engine import disk_cache
from aster_ml.runtime.object_cache import COUNT_BYTES, DIGEST_BYTES, HEADER_BYTES, MAGIC, digest
from tests.core.runtime_kernels import python_environment
from tests.fuzz.budget import check_all, draws

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits of memory and forks as Linux has them"
)
# Of one answer; the process itself has a limit of processor time that is less.
TIMEOUT_S = 60
# No kernel has these in its header.
WRONG: list[Any] = [
    None, -1, 1 << 63, 10**30, 1e300, float("nan"), {}, [], "", "\ud800", "%0 = CONST int 1",
    [[[]]], {"a": [1]}, "x" * 100_000,
]  # fmt: skip


class Worker:
    """A process of `tests.fuzz.cache_worker`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.cache_worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=python_environment(),
        )  # fmt: skip

    def ask(self, folder: Path) -> str:
        """What it says of a cache folder."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        watch = threading.Timer(TIMEOUT_S, self.process.kill)
        watch.start()
        try:
            self.process.stdin.write(f"{folder}\n")
            self.process.stdin.flush()
            return self.process.stdout.readline().strip() or "no answer in time"
        finally:
            watch.cancel()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture(scope="module")
def pristine(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder as programs leave it."""
    folder = tmp_path_factory.mktemp("pristine") / "cache"
    assert worker.ask(folder).endswith(" 001")
    assert worker.ask(folder) == "right 0 111"
    return folder


def damage(whole: bytes, others: list[bytes], draw: random.Random) -> bytes:
    """Cuts, lengthens, zeroes, writes over, or joins it with another file."""
    at = draw.randrange(len(whole) + 1)
    match draw.randrange(6):
        case 0:
            return whole[:at]
        case 1:
            return whole + draw.randbytes(draw.choice([1, 100, 10_000]))
        case 2:
            end = min(len(whole), at + draw.choice([1, 8, 512, 4096]))
            return whole[:at] + bytes(end - at) + whole[end:]
        case 3:
            return draw.choice([b"", whole[:at], draw.randbytes(at)]) + draw.choice(others)[at:]
        case 4:
            return draw.randbytes(draw.choice([0, 1, 31, 32, 500]))
    changed = bytearray(whole or b"\0")
    for _ in range(draw.choice([1, 1, 3, 30])):
        changed[draw.randrange(len(changed))] = draw.choice([0, 255, 128, draw.randrange(256)])
    return bytes(changed)


def sealed(rest: bytes) -> bytes:
    """What follows a digest, with a digest that is right."""
    return MAGIC + digest(rest) + rest


def split(whole: bytes) -> tuple[bytes, bytes]:
    """The names and the data of an entry."""
    rest = whole[HEADER_BYTES:]
    start = COUNT_BYTES + DIGEST_BYTES * int.from_bytes(rest[:COUNT_BYTES], "little")
    return rest[:start], rest[start:]


def leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place in nested lists and dicts: what it is in, and its index."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from leaves(value[key])


def wrong_header(data: bytes, draw: random.Random) -> bytes:
    """The data of a kernel with something else in its header; other data as text of no encoding."""
    start = disk_cache.SIZE_BYTES + int.from_bytes(data[: disk_cache.SIZE_BYTES], "little")
    try:
        known = json.loads(data[disk_cache.SIZE_BYTES : start])
    except ValueError:
        return bytes([draw.randrange(128, 256) for _ in data[:1000]])
    if draw.random() < 0.3:
        size = draw.choice([0, 1, start - 5, len(data), 1 << 31, (1 << 32) - 1])
        return size.to_bytes(disk_cache.SIZE_BYTES, "little") + data[disk_cache.SIZE_BYTES :]
    if draw.random() < 0.3:
        at = draw.randrange(disk_cache.SIZE_BYTES, start)
        return data[:at] + draw.randbytes(4).translate(HIGH) + data[at + 4 :]
    owner, key = draw.choice([p for p in leaves(known) if p[0] is not known])
    was = owner[key]
    owner[key] = draw.choice([w for w in WRONG if type(w) is not type(was) or was == ""] or [None])
    text = json.dumps(known).encode()
    return len(text).to_bytes(disk_cache.SIZE_BYTES, "little") + text + data[start:]


HIGH = bytes([i | 128 for i in range(256)])


def reseal(whole: bytes, draw: random.Random) -> bytes:
    """An entry that is not right, and whose digest is."""
    names, data = split(whole)
    count = int.from_bytes(names[:COUNT_BYTES], "little")
    match draw.randrange(4):
        case 0:
            count = draw.choice([0, count + 1, 1 << 16, 1 << 24, 1 << 31, (1 << 32) - 1])
            return sealed(count.to_bytes(COUNT_BYTES, "little") + names[COUNT_BYTES:] + data)
        case 1:
            return sealed(draw.randbytes(draw.choice([0, 1, 3, 4, 5, 20, 1000])))
        case 2:
            return sealed(names[:COUNT_BYTES] + draw.randbytes(len(names) - COUNT_BYTES) + data)
    return sealed(names + wrong_header(data, draw))


def test_damaged_entries_are_made_anew(
    worker: Worker,
    pristine: Path,
    tmp_path: Path,
    record_property: Callable[[str, str], None],
) -> None:
    # An entry of several names is one file.
    files = [p.relative_to(pristine) for p in sorted(pristine.rglob("*")) if p.is_file()]
    contents = {p: (pristine / p).read_bytes() for p in files}
    kinds = {p.parts[0] for p in files}
    assert kinds == {"objects", "schedules", "tables", "failures"}

    def check(seed: int) -> str | None:
        draw = random.Random(seed)
        kind = draw.choice(["objects", "objects", *sorted(kinds)])
        path = draw.choice([p for p in files if p.parts[0] == kind])
        whole, others = contents[path], list(contents.values())
        again = kind == "objects" and draw.random() < 0.6
        content = reseal(whole, draw) if again else damage(whole, others, draw)
        folder = tmp_path / "cache"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, folder, copy_function=shutil.copy2)
        # The other names of the file are as they were: copies are files of their own.
        (folder / path).write_bytes(content)
        os.chmod(folder / path, 0o600)
        first, second = worker.ask(folder), worker.ask(folder)
        if not first.startswith("right "):
            return f"{path} {'sealed' if again else 'damaged'}: {first}"
        if second != "right 0 111":
            return f"{path} {'sealed' if again else 'damaged'}: {first}, then {second}"
        return None

    check_all("damaged entries of the cache", draws(12, 3_000), check, record_property)
