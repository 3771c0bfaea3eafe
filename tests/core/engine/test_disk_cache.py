"""Kernels from the disk: entries that are whole and wrong are compiled again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aster_ml import Context, Device, GlobalCounters, Tensor, Variable
from aster_ml.engine import disk_cache
from aster_ml.engine.caches import CACHES
from aster_ml.runtime import object_cache
from aster_ml.runtime.cpu import native_call
from aster_ml.runtime.cpu import worker as cpu_worker


def compute(folder: Path) -> int:
    """A kernel in a folder's cache, as a new process would have it; how many were compiled."""
    CACHES.kernels.clear()
    CACHES.forget_schedules()
    before = GlobalCounters.compiled_kernels
    with Context(CACHEDIR=str(folder), CACHE=1):
        assert (Tensor([1.0, 2.0]).contiguous() * 3.0625 + 1).tolist() == [4.0625, 7.125]
    return GlobalCounters.compiled_kernels - before


def written_again(folder: Path, change: Any) -> None:
    """Puts changed data under the key of each entry, sealed as it has to be."""
    for path in (folder / "objects").iterdir():
        raw = path.read_bytes()
        rest = raw[object_cache.HEADER_BYTES :]
        count = int.from_bytes(rest[: object_cache.COUNT_BYTES], "little")
        start = object_cache.COUNT_BYTES + object_cache.DIGEST_BYTES * count
        rest = rest[:start] + change(rest[start:])
        path.unlink()
        path.write_bytes(object_cache.MAGIC + object_cache.digest(rest) + rest)
        path.chmod(0o600)


def changed_header(**values: Any) -> Any:
    """A change of what is said of each kernel."""

    def change(data: bytes) -> bytes:
        start = disk_cache.SIZE_BYTES + int.from_bytes(data[: disk_cache.SIZE_BYTES], "little")
        known = json.loads(data[disk_cache.SIZE_BYTES : start])
        for header in known.values():
            header.update(values)
        text = json.dumps(known).encode()
        return len(text).to_bytes(disk_cache.SIZE_BYTES, "little") + text + data[start:]

    return change


CHANGES = {
    "nothing left": lambda data: b"",
    "no object": lambda data: data[:-600] + bytes(600),
    "all zero": lambda data: bytes(len(data)),
    "text alone": lambda data: b"\2\0\0\0{}",
    "deep": lambda data: (100_000).to_bytes(4, "little") + b"[" * 100_000,
    "name of none": changed_header(name="no_such_function"),
    "no name": changed_header(name=None),
    "less than no elements": changed_header(launch=[-1, 1]),
    "no parts": changed_header(launch=[8, 0]),
    "text of no size": changed_header(launch=["8 * n", 1]),
    "a size of no variable": changed_header(
        launch=["%0 = DEFINE_VAR int64 name='n' min=1 max=8", 1]
    ),
    "a size of a fraction": changed_header(launch=["%0 = CONST float32 8.0", 1]),
    "a size of memory": changed_header(launch=["%0 = BUFFER int64 id=1 size=8 device='CPU'", 1]),
    "text for a number": changed_header(launch=[8, "2"]),
    "a grid without sizes": changed_header(grid=True),
    "written by name": changed_header(written=["a"]),
    "variables by number": changed_header(vars=[1]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_wrong_entry_is_compiled_again(tmp_path: Path, change: Any) -> None:
    Device["CPU"].prepare()
    assert compute(tmp_path) == 1
    assert compute(tmp_path) == 0
    written_again(tmp_path, change)
    assert compute(tmp_path) == 1
    assert compute(tmp_path) == 0, "and kept again"


def test_kernels_of_sizes_that_depend_on_variables_are_kept(tmp_path: Path) -> None:
    Device["CPU"].prepare()
    n = Variable("n", 1, 1 << 16)
    x = Tensor(np.arange(1 << 16, dtype=np.float32)).realize()

    def compute(count: int) -> int:
        CACHES.kernels.clear()
        CACHES.forget_schedules()
        before = GlobalCounters.compiled_kernels
        with Context(CACHEDIR=str(tmp_path), CACHE=1):
            found = (x[: n.bind(count)] * 3 + 1).realize()
            assert found.sum().item() == sum(3 * i + 1 for i in range(count))
            found = (x[: n.bind(count)].reshape(n.bind(count), 1) + x[:3]).max().item()
            assert found == count - 1 + 2
        return GlobalCounters.compiled_kernels - before

    assert compute(7) > 1
    assert compute(100) == 0


@pytest.mark.parametrize("module", [native_call.entries, cpu_worker.native])
def test_native_code_of_our_own_is_compiled_again(tmp_path: Path, module: Any) -> None:
    wanted = module.__wrapped__()
    with Context(CACHEDIR=str(tmp_path), CACHE=1):
        module.__wrapped__()
        written_again(tmp_path, lambda data: bytes(len(data)))
        made = module.__wrapped__()
    assert sorted(made.loaded.addresses) == sorted(wanted.loaded.addresses)
