"""Damaged files: each reader gives what was saved, what the format's own package reads, or refuses.

Valid files of each kind are damaged (`file_makers`) and read in a process of its own
(`file_worker`). Right is: the values that were saved; the values that the package that owns the
format reads from the damaged file; a FormatError that names the file. Wrong is anything else:
another exception, a death by a signal, more memory than the stated multiple of the file, no end,
a change of the process, or values that nobody saved.
"""

from __future__ import annotations

import json
import random
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aster_ml.errors import FormatError
from aster_ml.nn.state import safe_load
from tests.fuzz import file_makers
from tests.fuzz.budget import check_all, draws

pytestmark = pytest.mark.torch
safetensors = pytest.importorskip("safetensors", reason="pip install safetensors")

SECONDS = 60
# What Python, the compiler and the allocator keep besides what the file is unpacked to.
FREE_NBYTES, MULTIPLE = (64 + 32) << 20, 32


class Worker:
    """A process that reads files; started again when it dies or does not answer."""

    def __init__(self, role: str, path: Path) -> None:
        self.role, self.path = role, path
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """A fresh process; Aster's has read a valid file of each kind."""
        process = self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.file_worker", self.role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self.role == "aster":
            for kind in file_makers.KINDS:
                for data in file_makers.samples(kind):
                    found = self.read(kind, data, "warm")
                    assert found[0] == "loaded", (kind, found)
        return process

    def read(self, kind: str, data: bytes, how: str | int = "") -> list[Any]:
        """The answer for a file with these bytes."""
        process = self.process or self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        self.path.write_bytes(data)
        process.stdin.write(json.dumps([kind, str(self.path), how]) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], SECONDS)
        line = process.stdout.readline() if ready else ""
        if line:
            answer: list[Any] = json.loads(line)
            return answer
        self.stop()
        if not ready:
            return ["error", f"no end in {SECONDS} s", "", 0]
        return ["error", f"died with {process.returncode}", "", 0]

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                pipe.close()
            self.process = None


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Worker, Worker]]:
    """One that reads with Aster, one with the packages that own the formats."""
    folder = tmp_path_factory.mktemp("files")
    pair = Worker("aster", folder / "a.bin"), Worker("owner", folder / "b.bin")
    yield pair
    for worker in pair:
        worker.stop()


def judge_file(workers: tuple[Worker, Worker], kind: str, seed: int) -> str | None:
    """What is wrong with how one damaged file is read."""
    rng = random.Random(f"{kind} {seed}")
    number = rng.randrange(len(file_makers.samples(kind)))
    whole = file_makers.samples(kind)[number]
    data = file_makers.damage(kind, whole, rng)
    mine, owner = workers
    answer = mine.read(kind, data, rng.choice(["", "", "memory"]))
    peak = answer[-1]
    if answer[0] == "error":
        if answer[1] != "FormatError":
            return f"{kind} {number}: {answer[1]}: {answer[2]}"
    elif kind != "text" and answer[1] != mine.read(kind, whole)[1]:
        theirs = owner.read(kind, data)
        if theirs[0] == "error" and not is_lenient(answer[1], str(theirs[1:])):
            return f"{kind} {number}: read, and refused by its owner: {theirs[1:]}"
        if theirs[0] == "loaded" and theirs[1] != answer[1]:
            changed = set(answer[1].items()) ^ set(theirs[1].items())
            return f"{kind} {number}: another value than its owner's: {sorted(changed)[:4]}"
    if peak > FREE_NBYTES + MULTIPLE * len(data):
        return f"{kind} {number}: {peak} bytes of memory for a file of {len(data)}"
    return None


# What PyTorch says of parts that are nothing to Aster: devices, classes, an id of the archive, the
# opcodes that it does not write, the member with a number that it does not look at, and storages
# without a type, which it writes in its older form and cannot read back.
NO_CONCERN = (
    "restore data location",
    "nsupported global",
    "nsupported GLOBAL",
    "Unsupported operand",
    'hasRecord("version")',
    "UntypedStorage' has no attribute 'dtype'",
    "UnicodeDecodeError",
)


def is_lenient(values: dict[str, str], error: str) -> bool:
    """Whether there is what Aster keeps on purpose: placeholders, and texts that are no UTF-8."""
    kept = any([text == "placeholder" or "\ufffd" in text for text in values.values()])
    return kept or any([part in error for part in NO_CONCERN])


def judge_cut(worker: Worker, seed: int) -> str | None:
    """What is wrong with how a file is read that is cut short once it is open."""
    rng = random.Random(f"cut {seed}")
    kind = rng.choice(["safetensors", "torch", "zip", "tar", "gguf"])
    data = rng.choice(file_makers.samples(kind))
    answer = worker.read(kind, data, min(file_makers.spot(data, rng), len(data)))
    if answer[:2] != ["error", "FormatError"] and answer[1] != worker.read(kind, data)[1]:
        return f"{kind}: {answer[:3]}"
    return None


def judge_of(workers: tuple[Worker, Worker], kind: str) -> Callable[[int], str | None]:
    """The check of one kind by seed."""
    return lambda seed: judge_file(workers, kind, seed)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured the Linux way")
@pytest.mark.parametrize("kind", file_makers.KINDS)
def test_damaged_files(
    workers: tuple[Worker, Worker], kind: str, record_property: Callable[[str, str], None]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    seeds = draws(40, 7200)
    check_all(f"damaged {kind} files", seeds, judge_of(workers, kind), record_property)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured the Linux way")
def test_files_that_are_cut_while_they_are_open(
    workers: tuple[Worker, Worker], record_property: Callable[[str, str], None]
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("gguf")
    check_all(
        "files cut while they are open",
        draws(40, 3000),
        lambda seed: judge_cut(workers[0], seed),
        record_property,
    )


HEADER = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "I8", "shape": [], "data_offsets": [24, 25]},
    "c": {"dtype": "F4", "shape": [4], "data_offsets": [25, 27]},
    "e": {"dtype": "F16", "shape": [0, 2], "data_offsets": [27, 27]},
    "__metadata__": {"format": "pt"},
}


def judge_header(path: Path, seed: int) -> str | None:
    """What the package safetensors refuses is refused, with a FormatError."""
    text = json.dumps(HEADER).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(27)
    data = file_makers.damage_json(data, random.Random(f"header {seed}"))
    path.write_bytes(data)
    try:
        safe_load(path)
    except FormatError:
        return None
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        return f"read, and refused by its owner: {error}; {data[8:200]!r}"
    return None


def test_headers_of_safetensors(
    tmp_path: Path, record_property: Callable[[str, str], None]
) -> None:
    path = tmp_path / "x.safetensors"
    check_all("headers", draws(100, 50_000), lambda seed: judge_header(path, seed), record_property)
